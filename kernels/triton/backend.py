"""The GPU backend: the launchers under the names that `ops` calls."""

from kernels.triton.elementwise import rms_norm, rotary, silu_mul
from kernels.triton.kv_write import write_kv
from kernels.triton.paged_attention import paged_attention

__all__ = ["paged_attention", "rms_norm", "rotary", "silu_mul", "write_kv"]
