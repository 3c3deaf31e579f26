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
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton import elementwise, kv_write, paged_attention, paged_decode, sampling
from kernels.triton.attention_tile import vector

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = ("bf16", "fp16", "fp32")
HEADS = {64: (9, 3), 80: (32, 32), 128: (32, 8), 256: (8, 4)}  # by head_dim: heads, KV heads
CHUNKS = 37  # of a vocabulary of 151,936
# Types of arguments by name; what is not here is a pointer to the case's dtype.
TYPES = {
    **dict.fromkeys(("partial_ptr", "lse_ptr", "cos_ptr", "sin_ptr", "logits_ptr", "temperatures_ptr"), "*fp32"),
    **dict.fromkeys(("peaks_ptr", "sums_ptr"), "*fp32"),
    **dict.fromkeys(("block_tables_ptr", "query_starts_ptr", "context_lens_ptr", "places_ptr"), "*i32"),
    **dict.fromkeys(("slots_ptr", "seeds_ptr", "indices_ptr", "ids_ptr"), "*i64"),
    **dict.fromkeys(("scale_log2", "eps"), "fp32"),
    **dict.fromkeys(("vocab", "chunks"), "i32"),
}

Case = tuple[str, Any, dict[str, str], dict[str, Any]]  # name, kernel, types that differ from TYPES, constants


def cases(dtype: str) -> Iterator[Case]:
    """In float16 only what may differ from bfloat16, the products; under fp32 what knows no other dtype."""
    if dtype == "bf16":
        for dim in HEADS:
            yield from attentions(dim, torch.bfloat16, tl.bfloat16)
        yield from small_kernels()
    elif dtype == "fp16":
        yield from attentions(128, torch.float16, tl.float16)
    else:
        yield from attentions(256, torch.float32, tl.float32)
        sizes = {"SPAN": sampling.SPAN, "CHUNK_SPANS": sampling.SPANS_OF_CHUNK, "NO_PLACE": sampling.NO_PLACE}
        yield "sampling, sums of spans", sampling.span_sums_kernel, {}, {**sizes, "num_warps": 8}
        yield "sampling, race", sampling.race_kernel, {}, {**sizes, **sampling.race_constants(CHUNKS), "num_warps": 4}
        merge = {"HEADS": 32, "HEAD_DIM": 256, "SPLITS": paged_decode.MOST_SPLITS, "BLOCK_D": 256, "num_warps": 4}
        yield "paged decode, merge", paged_decode.merge_splits_kernel, {}, merge


def attentions(dim: int, torch_dtype: torch.dtype, dot_dtype: tl.dtype) -> Iterator[Case]:
    heads, kv_heads = HEADS[dim]
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": dim, "BLOCK_SIZE": 16}
    sizes |= {"VECTOR": vector(16, torch_dtype), "DOT_DTYPE": dot_dtype}
    tiles = paged_attention.tile_sizes(heads // kv_heads, dim, torch_dtype)
    yield f"paged attention, {dim} wide", paged_attention.paged_attention_kernel, {}, sizes | tiles
    tiles = paged_decode.decode_tiles(heads // kv_heads, dim, torch_dtype)
    for splits in (1, 8) if dim == 128 else (8,):
        constants = {**sizes, **tiles, "SPLITS": splits}
        yield f"paged decode, {splits} splits, {dim} wide", paged_decode.paged_decode_kernel, {}, constants


def small_kernels() -> Iterator[Case]:
    cache = {"KV_HEADS": 8, "BLOCK_SIZE": 16}
    write = {"HEAD_DIM": 128, "BLOCK_D": 128, "num_warps": 1}
    yield "kv write", kv_write.kv_write_kernel, {}, cache | write
    rotation = {"GROUP": 4, "HALF": 64, "BLOCK_GROUP": 4, "BLOCK_HALF": 64, "num_warps": 2}
    yield "rotary + kv write", kv_write.rotary_write_kernel, {}, cache | rotation
    rotation = {"HALF": 64, "BLOCK_H": 32, "BLOCK_KH": 8, "BLOCK_HALF": 64, "num_warps": 4}
    yield "rotary", elementwise.rotary_kernel, {}, {"HEADS": 32, "KV_HEADS": 8} | rotation
    block = {"WIDTH": 16384, "BLOCK": 16384, "num_warps": elementwise.warps_of(16384)}
    yield "rms norm", elementwise.rms_norm_kernel, {}, {**block, "HAS_RESIDUAL": True}
    types = {"residual_ptr": "*fp32", "weight_ptr": "*fp32"}
    yield "add + norm", elementwise.add_norm_kernel, types, {**block, "HAS_X": True}
    yield "silu mul", elementwise.silu_mul_kernel, {}, {"WIDTH": 14336, "BLOCK": 1024, "num_warps": 4}


def compiled(case: Case, dtype: str, target: GPUTarget) -> Any:
    """As a launch compiles it: pointers and strides are multiples of 16, as torch's and the models' are."""
    _, kernel, types, constants = case
    signature = {}
    for name in kernel.arg_names:
        kind = f"*{dtype}" if name.endswith("_ptr") else "i32" if name.endswith("stride") else "constexpr"
        signature[name] = (TYPES | types).get(name, kind)
    values = {name: constants[name] for name in kernel.arg_names if name in constants}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("stride")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=target, options={"num_warps": constants["num_warps"]})


def cost(kernel: Any, chip: str) -> dict[str, int]:
    """Registers a thread, spilled registers or bytes, shared memory of a program in bytes, loads of single numbers."""
    shared = int(kernel.metadata.shared)
    if chip.startswith("gfx"):
        text = kernel.asm["amdgcn"]
        found = (re.search(rf"\.vgpr_{what}:\s+(\d+)", text) for what in ("count", "spill_count"))
        registers, spills = (int(match[1]) if match else -1 for match in found)
        narrow = len(re.findall(r"(?:global|buffer)_load_(?:u|s)short", text))
    else:
        registers, spills = _ptxas(kernel.asm["ptx"])
        narrow = len(re.findall(r"ld\.global[.\w:]*\.b16", kernel.asm["ptx"]))
    return {"registers": registers, "spills": spills, "shared": shared, "narrow": narrow}


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


def costs(chip: str) -> list[dict[str, str | int]]:
    return [
        {"kernel": case[0], "chip": chip, "dtype": dtype, **cost(compiled(case, dtype, TARGETS[chip]), chip)}
        for dtype in DTYPES
        for case in cases(dtype)
    ]


def main() -> None:
    with ProcessPoolExecutor(2) as pool:
        for lines in pool.map(costs, TARGETS):
            for line in lines:
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
