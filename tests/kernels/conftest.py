"""Cases for the kernels: paged caches whose unused slots are NaN, and the backends that must agree on them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest

# Triton reads this once, when it is imported; the settings of the test run set it too, for other folders' imports.
os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from support import gpu

from kernels import reference

BACKENDS = {"cpp": "kernels.cpu.native", "portable": "kernels.cpu.portable", "triton": "kernels.triton.backend"}
NEVER_READ = 1 << 30  # fills block tables past a sequence's blocks


@dataclass
class PagedCase:
    """Arguments of paged_attention, and the keys and values of each sequence as they were before paging."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    scale: float
    max_query_len: int
    max_context_len: int
    keys: list[torch.Tensor]  # per sequence, [context_len, KH, D]
    values: list[torch.Tensor]

    @property
    def args(self) -> tuple:
        return (
            self.query, self.key_cache, self.value_cache, self.block_tables, self.query_starts, self.context_lens,
            self.scale, self.max_query_len, self.max_context_len,
        )  # fmt: skip


def build_case(
    lengths: list[tuple[int, int]],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    caches: tuple[torch.Tensor, torch.Tensor] | None = None,
    block_ids: list[int] | None = None,
) -> PagedCase:
    """lengths: (query_len, context_len) of each sequence. Blocks are dealt in random order; every free slot is NaN."""
    random = torch.Generator().manual_seed(len(lengths) * 1000 + block_size)
    needed = [-(-context // block_size) for _, context in lengths]
    num_blocks = sum(needed) + 2
    if caches is None:
        key_cache = torch.full((num_blocks, kv_heads, head_dim, block_size), float("nan"), dtype=dtype)
        value_cache = torch.full((num_blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    else:
        key_cache, value_cache = caches
    free = block_ids or torch.randperm(num_blocks, generator=random).tolist()
    tables = torch.full((len(lengths), max(needed) + 1), NEVER_READ, dtype=torch.int32)
    keys, values = [], []
    for r, (_, context) in enumerate(lengths):
        blocks = torch.tensor([free.pop() for _ in range(needed[r])], dtype=torch.int64)
        tables[r, : needed[r]] = blocks
        position = torch.arange(context)
        keys.append(torch.randn(context, kv_heads, head_dim, generator=random).to(dtype))
        values.append(torch.randn(context, kv_heads, head_dim, generator=random).to(dtype))
        slots = blocks[position // block_size] * block_size + position % block_size
        reference.write_kv(keys[-1], values[-1], key_cache, value_cache, slots)
    query_lens = torch.tensor([query for query, _ in lengths])
    contexts = [context for _, context in lengths]
    return PagedCase(
        query=torch.randn(int(query_lens.sum()), heads, head_dim, generator=random).to(dtype),
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=tables,
        query_starts=torch.cat([torch.zeros(1), query_lens.cumsum(0)]).int(),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        scale=head_dim**-0.5,
        max_query_len=int(query_lens.max()),
        max_context_len=max(contexts),
        keys=keys,
        values=values,
    )


@pytest.fixture
def paged_case() -> Callable[..., PagedCase]:
    return build_case


@pytest.fixture(name="load_backend")
def _load_backend():
    return load_backend


def load_backend(name: str):
    if name == "triton":
        pytest.importorskip("triton")
    backend = importlib.import_module(BACKENDS[name])
    if name == "cpp" and not backend.available:
        pytest.skip("no C++ compiler here")
    if name == "triton" and gpu.IS_COMPILED:
        if not gpu.IS_HERE:
            pytest.skip("compiled kernels need a CUDA device")
        return gpu.OnDevice(backend)
    return backend


@pytest.fixture(params=list(BACKENDS))
def backend(request):
    return load_backend(request.param)


@pytest.fixture(params=["cpp", "portable"])
def cpu_backend(request):
    return load_backend(request.param)


@pytest.fixture
def native():
    return load_backend("cpp")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    """Small tensors: a second thread would only wait for the first."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
