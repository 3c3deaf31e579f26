"""Decoder layers in one call against the specification, which is the same layers one operation at a time."""

from __future__ import annotations

import pytest
import torch

from kernels import ops, reference
from kernels.cpu import native, packing

needs_gemm = pytest.mark.skipif(not native.has_gemm, reason="this CPU does not multiply bfloat16, or has no compiler")

SHAPES = {
    "grouped": (96, 80, 6, 2, 16),
    "one kv head": (64, 112, 4, 1, 32),
    "wide heads": (64, 64, 2, 2, 64),
    "heads wider than hidden": (32, 48, 4, 4, 24),
}


def shape_of(name: str) -> ops.StackShape:
    hidden, intermediate, heads, kv_heads, dim = SHAPES[name]
    return ops.StackShape(hidden, intermediate, heads, kv_heads, dim, scale=dim**-0.5, eps=1e-5)


def layers_of(shape: ops.StackShape, count: int) -> list[ops.LayerWeights]:
    generator = torch.Generator().manual_seed(1)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).bfloat16()

    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        ops.LayerWeights(
            attention_norm=1 + 0.2 * torch.randn(shape.hidden, generator=generator),
            qkv=weight(query + 2 * kv, shape.hidden),
            out=weight(shape.hidden, query),
            mlp_norm=1 + 0.2 * torch.randn(shape.hidden, generator=generator),
            gate_up=weight(2 * shape.intermediate, shape.hidden),
            down=weight(shape.hidden, shape.intermediate),
        )
        for _ in range(count)
    ]


def caches_of(
    shape: ops.StackShape, layers: int, blocks: int, block_size: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Filled with what earlier tokens may have left; a block that is nobody's holds NaN."""
    generator = torch.Generator().manual_seed(2)
    caches = []
    for _ in range(layers):
        pair = ops.new_kv_cache(blocks, block_size, shape.kv_heads, shape.head_dim, torch.bfloat16, "cpu")
        for cache in pair:
            cache.copy_(torch.randn(cache.shape, generator=generator))
            cache[-1] = torch.nan
        caches.append(pair)
    return caches


def inputs_of(counts: list[int], contexts: list[int], block_size: int, dim: int, blocks: int) -> ops.PagedInputs:
    """Sequences that compute their last `counts` positions; blocks lie scattered."""
    order = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(3))
    width = max(-(-context // block_size) for context in contexts)
    tables, taken = torch.zeros(len(counts), width, dtype=torch.int32), 0
    positions, slots = [], []
    for row, (count, context) in enumerate(zip(counts, contexts, strict=True)):
        used = -(-context // block_size)
        tables[row, :used] = order[taken : taken + used]
        taken += used
        place = torch.arange(context - count, context)
        positions.append(place)
        slots.append(tables[row, place // block_size].long() * block_size + place % block_size)
    angle = torch.cat(positions)[:, None] * torch.logspace(0, -2, dim // 2)
    starts, lens = torch.tensor([0, *counts]).cumsum(0).int(), torch.tensor(contexts).int()
    return ops.PagedInputs(
        angle.cos(),
        angle.sin(),
        torch.cat(slots),
        tables,
        starts,
        lens,
        max(counts),
        max(contexts),
    )


BATCHES = {
    "one": ([1], [37]),
    "a prompt": ([29], [29]),
    "decodes": ([1] * 17, [1, 5, 16, 17, 33, 64, 65, 3, 9, 12, 40, 2, 31, 32, 8, 90, 21]),
    "mixed": ([1, 13, 1, 40, 1], [9, 13, 50, 70, 1]),
    "thirteen rows": ([13], [20]),
}


@needs_gemm
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("block_size", [1, 16])
def test_it_equals_the_specification(name: str, batch: str, block_size: int) -> None:
    shape, (counts, contexts) = shape_of(name), BATCHES[batch]
    layers, blocks = layers_of(shape, 3), 600 // block_size + 40
    inputs = inputs_of(counts, contexts, block_size, shape.head_dim, blocks)
    residual = torch.randn(sum(counts), shape.hidden, generator=torch.Generator().manual_seed(4))
    assert ops.can_stack(shape, torch.bfloat16, residual.device)
    expected, theirs = residual.clone(), caches_of(shape, 3, blocks, block_size)
    reference.run_stack(shape, layers, expected, theirs, inputs)
    ours = caches_of(shape, 3, blocks, block_size)
    ops.run_stack(ops.pack_stack(shape, iter(layers)), residual, ours, inputs)
    torch.testing.assert_close(residual, expected, rtol=0.02, atol=0.02)
    for mine, other in zip(ours, theirs, strict=True):
        for cache, its in zip(mine, other, strict=True):
            torch.testing.assert_close(cache[:-1].float(), its[:-1].float(), rtol=0.03, atol=0.03)
            assert torch.isnan(cache[-1]).all()


@needs_gemm
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    shape, (counts, contexts) = shape_of("grouped"), BATCHES["mixed"]
    stack = ops.pack_stack(shape, layers_of(shape, 4))
    inputs = inputs_of(counts, contexts, 16, shape.head_dim, 60)
    residual = torch.randn(sum(counts), shape.hidden, generator=torch.Generator().manual_seed(4))
    results = []
    before = torch.get_num_threads()
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            mine = residual.clone()
            ops.run_stack(stack, mine, caches_of(shape, 4, 60, 16), inputs)
            results.append(mine)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@needs_gemm
def test_a_row_does_not_depend_on_its_batch_mates() -> None:
    shape = shape_of("grouped")
    stack = ops.pack_stack(shape, layers_of(shape, 3))
    counts, contexts = BATCHES["decodes"]
    together = inputs_of(counts, contexts, 16, shape.head_dim, 60)
    residual = torch.randn(len(counts), shape.hidden, generator=torch.Generator().manual_seed(4))
    whole = residual.clone()
    ops.run_stack(stack, whole, caches_of(shape, 3, 60, 16), together)
    for row in (0, 7, 16):
        alone = residual[row : row + 1].clone()
        one = together._replace(
            cos=together.cos[row : row + 1], sin=together.sin[row : row + 1], slots=together.slots[row : row + 1],
            block_tables=together.block_tables[row : row + 1], query_starts=torch.tensor([0, 1]).int(),
            context_lens=together.context_lens[row : row + 1],
        )  # fmt: skip
        ops.run_stack(stack, alone, caches_of(shape, 3, 60, 16), one)
        assert torch.equal(alone[0], whole[row])


@needs_gemm
def test_a_block_that_is_not_there_is_refused() -> None:
    shape = shape_of("grouped")
    stack, residual = ops.pack_stack(shape, layers_of(shape, 2)), torch.zeros(1, shape.hidden)
    inputs = inputs_of([1], [20], 16, shape.head_dim, 60)
    caches = caches_of(shape, 2, 60, 16)
    with pytest.raises(ValueError, match="not in the cache, which has 60 blocks"):
        ops.run_stack(stack, residual, caches, inputs._replace(block_tables=inputs.block_tables + 60))
    with pytest.raises(ValueError, match="not in the cache, which has 60 blocks"):
        ops.run_stack(stack, residual, caches, inputs._replace(slots=inputs.slots + 60 * 16))
    with pytest.raises(ValueError, match="2 layers need as many caches, not 1"):
        ops.run_stack(stack, residual, caches[:1], inputs)
    with pytest.raises(ValueError, match="must be contiguous float32"):
        ops.run_stack(stack, residual.double(), caches, inputs)


def test_what_has_no_call_of_its_own_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, shape = torch.device("cpu"), shape_of("grouped")
    assert not ops.can_stack(shape, torch.float32, cpu)
    assert not ops.can_stack(ops.StackShape(100, 80, 6, 2, 16, 1.0, 1e-5), torch.bfloat16, cpu)
    assert not ops.can_stack(shape, torch.bfloat16, torch.device("cuda"))
    monkeypatch.setenv("BATCHSCOPE_KERNELS", "reference")
    assert not ops.can_stack(shape, torch.bfloat16, cpu)


@needs_gemm
@pytest.mark.parametrize("rows", [1, 2, 12, 13, 25, 64])
def test_a_linear_layer_in_blocks(rows: int) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(96, 50, generator=generator).bfloat16()
    x = torch.randn(rows, 60, generator=generator).bfloat16()[:, 4:54]  # rows of a wider tensor
    packed = ops.pack_linear(weight)
    assert packed.is_ours
    expected = x.float() @ weight.float().T
    torch.testing.assert_close(ops.linear(x, packed), expected.bfloat16(), rtol=0.01, atol=0.05)
    assert ops.sums_are_kept(packed)
    torch.testing.assert_close(ops.linear(x, packed, torch.float32), expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="takes bfloat16"):
        ops.linear(x.float(), packed)


def test_gate_and_up_lie_side_by_side() -> None:
    gate_up = torch.arange(96.0)[:, None].expand(96, 2)
    rows = packing.interleave_halves(gate_up)[:, 0].tolist()
    assert rows[:32] == [*range(16), *range(48, 64)]
    assert sorted(rows) == list(range(96))


def four_bits_of(rows: int, columns: int, generator: torch.Generator) -> ops.FourBits:
    groups = (rows, columns // 32)
    return ops.FourBits(
        scale=(torch.rand(groups, generator=generator) * 0.02).half(),
        minimum=(torch.rand(groups, generator=generator) * -0.2).half(),
        bits=torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8),
    )


def rounded(weight: ops.FourBits) -> torch.Tensor:
    scale, minimum = (part.float().repeat_interleave(32, 1) for part in (weight.scale, weight.minimum))
    return (scale * weight.bits + minimum).bfloat16()


@needs_gemm
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("without", [None, 0, 2])
def test_weights_in_four_bits_give_the_same_sums_to_the_last_bit(rows: int, without: int | None) -> None:
    shape = ops.StackShape(96, 64, 6, 2, 16, scale=0.25, eps=1e-5)
    generator = torch.Generator().manual_seed(6)
    sizes = ((160, 96), (96, 96), (128, 96), (96, 64))
    four = [four_bits_of(*size, generator) for size in sizes]
    qkv, out, gate_up, down = map(rounded, four)
    norm = 1 + 0.2 * torch.randn(96, generator=generator)
    plain = ops.LayerWeights(norm, qkv, out, norm, gate_up, down)
    given = tuple(None if place == without else weight for place, weight in enumerate(four))
    inputs = inputs_of([1] * rows, list(range(5, 5 + rows)), 16, 16, 60)
    residual = torch.randn(rows, 96, generator=generator)
    results = []
    for layer in (plain, plain._replace(four_bits=given)):
        mine, caches = residual.clone(), caches_of(shape, 1, 60, 16)
        ops.run_stack(ops.pack_stack(shape, [layer]), mine, caches, inputs)
        results.append((mine, caches[0][0][:-1]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
