"""Decode attention on this CPU: our path through block tables against gather + SDPA, in turn, in one run.

    python -m bench.attention [--requests 64] [--context 256]

Layers are several, so that their caches do not fit the processor's: that is how a model's layers meet them. The ratio
is what counts; milliseconds move with the machine and its load.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from kernels import ops
from kernels.reference import gather_kv

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16


def new_layer(requests: int, context: int, dtype: torch.dtype) -> tuple:
    """Arguments of one decode call of paged_attention: every block table in random order."""
    per_request = -(-context // BLOCK_SIZE)
    caches = ops.new_kv_cache(requests * per_request, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype, "cpu")
    for cache in caches:
        cache.normal_()
    tables = torch.randperm(requests * per_request).int().view(requests, per_request)
    lens = torch.full((requests,), context, dtype=torch.int32)
    starts = torch.arange(requests + 1, dtype=torch.int32)
    query = torch.randn(requests, HEADS, HEAD_DIM).to(dtype)
    return query, *caches, tables, starts, lens, HEAD_DIM**-0.5, 1, context


def gather_and_sdpa(query, key_cache, value_cache, tables, starts, lens, scale, max_query_len, context) -> torch.Tensor:
    """What is done without paged kernels: all requests are as long as the longest, so one batched call serves them."""
    requests = len(lens)
    blocks = tables.long().flatten()
    keys, values = gather_kv(key_cache, value_cache, blocks, len(blocks) * BLOCK_SIZE)
    keys = keys.view(KV_HEADS, requests, -1, HEAD_DIM).transpose(0, 1)[:, :, :context]
    values = values.view(KV_HEADS, requests, -1, HEAD_DIM).transpose(0, 1)[:, :, :context]
    attended = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None], keys, values, scale=scale, enable_gqa=True
    )
    return attended[:, :, 0]


def milliseconds(run: Callable[..., torch.Tensor], layers: list[tuple]) -> float:
    begun = time.perf_counter()
    for layer in layers:
        run(*layer)
    return (time.perf_counter() - begun) * 1e3 / len(layers)


def compare(requests: int, context: int, dtype: torch.dtype, rounds: int = 9, layers: int = 6) -> dict[str, float]:
    """Median milliseconds a layer of both ways, and their ratio."""
    calls = [new_layer(requests, context, dtype) for _ in range(layers)]
    torch.testing.assert_close(ops.paged_attention(*calls[0]), gather_and_sdpa(*calls[0]), rtol=2e-2, atol=1e-2)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(milliseconds(ops.paged_attention, calls))
        theirs.append(milliseconds(gather_and_sdpa, calls))
    ours_ms, theirs_ms = statistics.median(ours), statistics.median(theirs)
    return {"paged": ours_ms, "gather_sdpa": theirs_ms, "ratio": theirs_ms / ours_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    backend = ops.backend("cpu").__name__
    print(f"decode attention, {options.requests} requests x {options.context} context, {backend}, ms a layer")
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            figures = compare(options.requests, options.context, dtype)
            print(
                f"  {str(dtype).removeprefix('torch.'):9} paged {figures['paged']:.2f}   "
                f"gather + SDPA {figures['gather_sdpa']:.2f}   ratio {figures['ratio']:.1f} x"
            )


if __name__ == "__main__":
    main()
