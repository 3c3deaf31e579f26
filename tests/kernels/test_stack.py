"""Decoder layers in one call against the specification, which is the same layers one operation at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import ops, reference
from kernels.cpu import native, packing

pytestmark = pytest.mark.skipif(not native.available, reason="there is no C++ compiler")
no_bfloat16 = pytest.mark.skipif(not native.multiplies_bfloat16, reason="this CPU does not multiply bfloat16")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
each_dtype = pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=no_bfloat16)])

SHAPES = {
    "grouped": (96, 80, 6, 2, 16),
    "one kv head": (64, 112, 4, 1, 32),
    "wide heads": (64, 64, 2, 2, 64),
    "heads wider than hidden": (32, 48, 4, 4, 24),
}


def shape_of(name: str) -> ops.StackShape:
    hidden, intermediate, heads, kv_heads, dim = SHAPES[name]
    return ops.StackShape(hidden, intermediate, heads, kv_heads, dim, scale=dim**-0.5, eps=1e-5)


def layers_of(
    shape: ops.StackShape, count: int, dtype: torch.dtype, with_extras: bool = False
) -> list[ops.LayerWeights]:
    """with_extras: biases, and norms of each head."""
    generator = torch.Generator().manual_seed(1)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(dtype)

    def bias(size: int) -> torch.Tensor | None:
        return torch.randn(size, generator=generator).to(dtype) if with_extras else None

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size, generator=generator)

    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        ops.LayerWeights(
            attention_norm=norm(shape.hidden),
            qkv=weight(query + 2 * kv, shape.hidden),
            out=weight(shape.hidden, query),
            mlp_norm=norm(shape.hidden),
            gate_up=weight(2 * shape.intermediate, shape.hidden),
            down=weight(shape.hidden, shape.intermediate),
            biases=(bias(query + 2 * kv), bias(shape.hidden), bias(2 * shape.intermediate), bias(shape.hidden)),
            query_norm=norm(shape.head_dim) if with_extras else None,
            key_norm=norm(shape.head_dim) if with_extras else None,
        )
        for _ in range(count)
    ]


def caches_of(
    shape: ops.StackShape, layers: int, blocks: int, block_size: int, dtype: torch.dtype
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Filled with what earlier tokens may have left; a block that is nobody's holds NaN."""
    generator = torch.Generator().manual_seed(2)
    caches = []
    for _ in range(layers):
        pair = ops.new_kv_cache(blocks, block_size, shape.kv_heads, shape.head_dim, dtype, "cpu")
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


@each_dtype
@pytest.mark.parametrize("with_extras", [False, True], ids=["plain", "biases and norms"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("block_size", [1, 16])
def test_it_equals_the_specification(name: str, batch: str, block_size: int, with_extras: bool, dtype: str) -> None:
    shape, (counts, contexts), kind = shape_of(name), BATCHES[batch], DTYPES[dtype]
    layers, blocks = layers_of(shape, 3, kind, with_extras), 600 // block_size + 40
    inputs = inputs_of(counts, contexts, block_size, shape.head_dim, blocks)
    residual = torch.randn(sum(counts), shape.hidden, generator=torch.Generator().manual_seed(4))
    assert ops.can_stack(shape, kind, residual.device)
    expected, theirs = residual.clone(), caches_of(shape, 3, blocks, block_size, kind)
    reference.run_stack(shape, layers, expected, theirs, inputs)
    ours = caches_of(shape, 3, blocks, block_size, kind)
    ops.run_stack(ops.pack_stack(shape, iter(layers)), residual, ours, inputs)
    off = 2e-5 if kind == torch.float32 else 0.02 * (1 + with_extras)
    torch.testing.assert_close(residual, expected, rtol=off, atol=off)
    for mine, other in zip(ours, theirs, strict=True):
        for cache, its in zip(mine, other, strict=True):
            torch.testing.assert_close(cache[:-1].float(), its[:-1].float(), rtol=1.5 * off, atol=1.5 * off)
            assert torch.isnan(cache[-1]).all()


@each_dtype
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(threads: int, dtype: str) -> None:
    shape, (counts, contexts), kind = shape_of("grouped"), BATCHES["mixed"], DTYPES[dtype]
    stack = ops.pack_stack(shape, layers_of(shape, 4, kind))
    inputs = inputs_of(counts, contexts, 16, shape.head_dim, 60)
    residual = torch.randn(sum(counts), shape.hidden, generator=torch.Generator().manual_seed(4))
    results = []
    before = torch.get_num_threads()
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            mine = residual.clone()
            ops.run_stack(stack, mine, caches_of(shape, 4, 60, 16, kind), inputs)
            results.append(mine)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@each_dtype
def test_a_row_does_not_depend_on_its_batch_mates(dtype: str) -> None:
    shape, kind = shape_of("grouped"), DTYPES[dtype]
    stack = ops.pack_stack(shape, layers_of(shape, 3, kind))
    counts, contexts = BATCHES["decodes"]
    together = inputs_of(counts, contexts, 16, shape.head_dim, 60)
    residual = torch.randn(len(counts), shape.hidden, generator=torch.Generator().manual_seed(4))
    whole = residual.clone()
    ops.run_stack(stack, whole, caches_of(shape, 3, 60, 16, kind), together)
    for row in (0, 7, 16):
        alone = residual[row : row + 1].clone()
        one = together._replace(
            cos=together.cos[row : row + 1], sin=together.sin[row : row + 1], slots=together.slots[row : row + 1],
            block_tables=together.block_tables[row : row + 1], query_starts=torch.tensor([0, 1]).int(),
            context_lens=together.context_lens[row : row + 1],
        )  # fmt: skip
        ops.run_stack(stack, alone, caches_of(shape, 3, 60, 16, kind), one)
        assert torch.equal(alone[0], whole[row])


@each_dtype
def test_a_block_that_is_not_there_is_refused(dtype: str) -> None:
    shape, kind = shape_of("grouped"), DTYPES[dtype]
    stack, residual = ops.pack_stack(shape, layers_of(shape, 2, kind)), torch.zeros(1, shape.hidden)
    inputs = inputs_of([1], [20], 16, shape.head_dim, 60)
    caches = caches_of(shape, 2, 60, 16, kind)
    with pytest.raises(ValueError, match="not in the cache, which has 60 blocks"):
        ops.run_stack(stack, residual, caches, inputs._replace(block_tables=inputs.block_tables + 60))
    with pytest.raises(ValueError, match="not in the cache, which has 60 blocks"):
        ops.run_stack(stack, residual, caches, inputs._replace(slots=inputs.slots + 60 * 16))
    with pytest.raises(ValueError, match="2 layers need as many caches, not 1"):
        ops.run_stack(stack, residual, caches[:1], inputs)
    with pytest.raises(ValueError, match="must be contiguous float32"):
        ops.run_stack(stack, residual.double(), caches, inputs)


@each_dtype
def test_what_does_not_fit_the_layers_is_refused(dtype: str) -> None:
    """Pointers are all that the library gets: it would read and write beside what is there."""
    shape, kind = shape_of("grouped"), DTYPES[dtype]
    other = torch.float32 if kind == torch.bfloat16 else torch.bfloat16
    stack, residual = ops.pack_stack(shape, layers_of(shape, 2, kind)), torch.zeros(1, shape.hidden)
    inputs, caches = inputs_of([1], [20], 16, shape.head_dim, 60), caches_of(shape, 2, 60, 16, kind)
    with pytest.raises(ValueError, match=r"float32 \[tokens, 96\], not \[1, 95\]"):
        ops.run_stack(stack, torch.zeros(1, 95), caches, inputs)
    wider = replace(shape, head_dim=18)
    for wrong in (caches_of(shape, 2, 60, 16, other), caches_of(wider, 2, 60, 16, kind)):
        with pytest.raises(ValueError, match=r"a value cache \[60, 2, 16, 1\d\] torch.\w+ does not fit layers"):
            ops.run_stack(stack, residual, wrong, inputs)
    with pytest.raises(ValueError, match="does not fit layers"):
        ops.run_stack(stack, residual, [caches[0], caches_of(shape, 1, 59, 16, kind)[0]], inputs)
    with pytest.raises(ValueError, match="do not fit 1 tokens with heads of 16"):
        ops.run_stack(stack, residual, caches, inputs._replace(cos=inputs.cos[:, 1:], sin=inputs.sin[:, 1:]))
    with pytest.raises(ValueError, match="cos and sin must be float32 and slots int64"):
        ops.run_stack(stack, residual, caches, inputs._replace(slots=inputs.slots.int()))
    with pytest.raises(ValueError, match="must be int32"):
        ops.run_stack(stack, residual, caches, inputs._replace(block_tables=inputs.block_tables.long()))
    with pytest.raises(ValueError, match="do not agree on the number of sequences"):
        ops.run_stack(stack, residual, caches, inputs._replace(context_lens=torch.tensor([20, 20]).int()))


def test_what_has_no_call_of_its_own_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, shape = torch.device("cpu"), shape_of("grouped")
    assert not ops.can_stack(shape, torch.float16, cpu)
    assert not ops.can_stack(ops.StackShape(100, 80, 6, 2, 16, 1.0, 1e-5), torch.float32, cpu)
    assert not ops.can_stack(shape, torch.float32, torch.device("cuda"))
    monkeypatch.setenv("BATCHSCOPE_KERNELS", "reference")
    assert not ops.can_stack(shape, torch.float32, cpu)


@each_dtype
@pytest.mark.parametrize("rows", [1, 2, 12, 13, 25, 64])
def test_a_linear_layer_in_blocks(rows: int, dtype: str) -> None:
    generator, kind = torch.Generator().manual_seed(5), DTYPES[dtype]
    weight = torch.randn(96, 50, generator=generator).to(kind)
    x = torch.randn(rows, 60, generator=generator).to(kind)[:, 4:54]  # rows of a wider tensor
    packed = ops.pack_linear(weight)
    expected = x.float() @ weight.float().T
    torch.testing.assert_close(ops.linear(x, packed), expected.to(kind), rtol=0.01, atol=0.05)
    assert ops.sums_are_kept(packed)
    torch.testing.assert_close(ops.linear(x, packed, torch.float32), expected, rtol=1e-5, atol=1e-4)
    for other in (torch.bfloat16, torch.float16):
        given = ops.linear(x, packed, other)
        assert given.dtype == other
        torch.testing.assert_close(given.float(), expected, rtol=0.01, atol=0.05)
    with pytest.raises(ValueError, match="takes no torch"):
        ops.linear(x.double(), packed)
    with pytest.raises(ValueError, match=r"x \[\d+, 49\] does not fit a weight \[96, 50\]"):
        ops.linear(x[:, 1:], packed)


def test_float32_weights_that_bfloat16_holds_are_kept_in_it_and_give_the_same_sums() -> None:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(64, 96, generator=generator).bfloat16().float()
    narrow, wide = packing.PackedMatrix(weight), packing.PackedMatrix(weight + 2**-20)
    assert (narrow.args.weight_dtype, wide.args.weight_dtype) == (1, 0)
    wide._weight.copy_(packing.pack_rows(weight))
    x = torch.randn(5, 96, generator=generator)
    results = [native.linear(x, one.args, 64, torch.float32) for one in (narrow, wide)]
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], x @ weight.T, rtol=1e-5, atol=1e-5)


def test_gate_and_up_lie_side_by_side() -> None:
    gate_up = torch.arange(96.0)[:, None].expand(96, 2)
    rows = packing.interleave_halves(gate_up)[:, 0].tolist()
    half = native.BLOCK // 2
    assert rows[: 2 * half] == [*range(half), *range(48, 48 + half)]
    assert sorted(rows) == list(range(96))


def four_bits_of(rows: int, columns: int, generator: torch.Generator) -> ops.FourBits:
    groups = (rows, columns // 32)
    return ops.FourBits(
        scale=(torch.rand(groups, generator=generator) * 0.02).half(),
        minimum=(torch.rand(groups, generator=generator) * -0.2).half(),
        bits=torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8),
    )


def widened(weight: ops.FourBits) -> torch.Tensor:
    scale, minimum = (part.float().repeat_interleave(32, 1) for part in (weight.scale, weight.minimum))
    return scale * weight.bits + minimum


@each_dtype
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("without", [None, 0, 2])
def test_weights_in_four_bits_give_the_same_sums_to_the_last_bit(rows: int, without: int | None, dtype: str) -> None:
    shape, kind = ops.StackShape(96, 64, 6, 2, 16, scale=0.25, eps=1e-5), DTYPES[dtype]
    generator = torch.Generator().manual_seed(6)
    sizes = ((160, 96), (96, 96), (128, 96), (96, 64))
    four = [four_bits_of(*size, generator) for size in sizes]
    qkv, out, gate_up, down = (widened(weight).to(kind) for weight in four)
    norm = 1 + 0.2 * torch.randn(96, generator=generator)
    plain = ops.LayerWeights(norm, qkv, out, norm, gate_up, down)
    given = tuple(None if place == without else weight for place, weight in enumerate(four))
    inputs = inputs_of([1] * rows, list(range(5, 5 + rows)), 16, 16, 60)
    residual = torch.randn(rows, 96, generator=generator)
    results = []
    for layer in (plain, plain._replace(four_bits=given)):
        mine, caches = residual.clone(), caches_of(shape, 1, 60, 16, kind)
        ops.run_stack(ops.pack_stack(shape, [layer]), mine, caches, inputs)
        results.append((mine, caches[0][0][:-1]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
