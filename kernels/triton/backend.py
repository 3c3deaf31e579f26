"""The GPU backend: the launchers under the names that `ops` calls."""

from kernels.triton.elementwise import add_norm, rms_norm, rotary, silu_mul
from kernels.triton.kv_write import rotary_write_kv, write_kv
from kernels.triton.paged_attention import paged_attention
from kernels.triton.sampling import sample_rows

__all__ = [
    "add_norm",
    "paged_attention",
    "rms_norm",
    "rotary",
    "rotary_write_kv",
    "sample_rows",
    "silu_mul",
    "write_kv",
]
