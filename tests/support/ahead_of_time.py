"""Compiles each Triton kernel for chips that are not here, and prints a line of JSON for each: what it takes of them.

    python -m support.ahead_of_time       (with `tests` on the path, and TRITON_INTERPRET not set)

A program of its own, since in a test process the kernels belong to Triton's interpreter.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton import elementwise, kv_write, paged_attention

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"bf16": (torch.bfloat16, tl.bfloat16), "fp16": (torch.float16, tl.float16)}
HEADS = {64: (9, 3), 128: (32, 8), 256: (8, 4)}  # by head_dim: heads, KV heads

Case = tuple[str, Any, dict[str, str], dict[str, Any]]  # name, kernel, types of arguments, constants


def cases(dtype: str) -> Iterator[Case]:
    pointer = f"*{dtype}"
    torch_dtype, dot_dtype = DTYPES[dtype]
    for dim, (heads, kv_heads) in HEADS.items():
        for what, query_len in (("decode", 1), ("prefill", 512)):
            tiles = paged_attention.tile_sizes(heads // kv_heads, dim, query_len, torch_dtype)
            yield (
                f"paged attention, {what}, {dim} wide",
                paged_attention.paged_attention_kernel,
                {name: pointer for name in ("out_ptr", "query_ptr", "key_cache_ptr", "value_cache_ptr")}
                | {name: "*i32" for name in ("block_tables_ptr", "query_starts_ptr", "context_lens_ptr")}
                | {"scale_log2": "fp32", "query_stride": "i32", "table_stride": "i32"},
                {
                    "HEADS": heads,
                    "KV_HEADS": kv_heads,
                    "HEAD_DIM": dim,
                    "BLOCK_SIZE": 16,
                    "DOT_DTYPE": dot_dtype,
                    **tiles,
                },
            )
    yield (
        "kv write",
        kv_write.kv_write_kernel,
        {name: pointer for name in ("key_ptr", "value_ptr", "key_cache_ptr", "value_cache_ptr")}
        | {"slots_ptr": "*i64", "key_stride": "i32", "value_stride": "i32"},
        {"KV_HEADS": 8, "HEAD_DIM": 128, "BLOCK_SIZE": 16, "BLOCK_D": 128, "num_warps": 1},
    )
    yield (
        "rotary",
        elementwise.rotary_kernel,
        {"query_ptr": pointer, "key_ptr": pointer, "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
        | {"query_stride": "i32", "key_stride": "i32"},
        {"HEADS": 32, "KV_HEADS": 8, "HALF": 64, "BLOCK_H": 32, "BLOCK_KH": 8, "BLOCK_HALF": 64, "num_warps": 4},
    )
    yield (
        "rms norm",
        elementwise.rms_norm_kernel,
        {name: pointer for name in ("x_ptr", "residual_ptr", "weight_ptr", "y_ptr", "total_ptr")}
        | {"x_stride": "i32", "residual_stride": "i32", "eps": "fp32"},
        {"WIDTH": 4096, "HAS_RESIDUAL": True, "BLOCK": 4096, "num_warps": 8},
    )
    yield (
        "silu mul",
        elementwise.silu_mul_kernel,
        {"gate_up_ptr": pointer, "y_ptr": pointer, "stride": "i32"},
        {"WIDTH": 14336, "BLOCK": 1024, "num_warps": 4},
    )


def compiled(case: Case, target: GPUTarget) -> Any:
    _, kernel, types, constants = case
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    values = {name: constants[name] for name in kernel.arg_names if name in constants}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=target, options={"num_warps": constants["num_warps"]})


def cost(kernel: Any, chip: str) -> dict[str, int]:
    """Registers a thread, spilled registers or bytes, shared memory of a program in bytes."""
    shared = int(kernel.metadata.shared)
    if chip.startswith("gfx"):
        text = kernel.asm["amdgcn"]
        found = (re.search(rf"\.vgpr_{what}:\s+(\d+)", text) for what in ("count", "spill_count"))
        registers, spills = (int(match[1]) if match else -1 for match in found)
    else:
        registers, spills = _ptxas(kernel.asm["ptx"])
    return {"registers": registers, "spills": spills, "shared": shared}


def _ptxas(ptx: str) -> tuple[int, int]:
    """Triton's own assembler on the PTX: registers, and bytes of spill stores and loads."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    tool = sorted(folder.glob("ptxas*"))[-1]  # the newest knows all of these chips
    name = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(tool), "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    return max(int(n) for n in re.findall(r"Used (\d+) registers", said)), spills


def main() -> None:
    for chip, target in TARGETS.items():
        for dtype in DTYPES:
            for case in cases(dtype):
                line = {"kernel": case[0], "chip": chip, "dtype": dtype, **cost(compiled(case, target), chip)}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
