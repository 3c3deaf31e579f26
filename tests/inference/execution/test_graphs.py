"""Decodes as graphs, on a device that is none: what is recorded, what a replay is given, what comes out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fake_cuda import FakeCuda
from support.models import PagedSequences, load_llama, tiny_llama

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.device_batch import DeviceBatch
from inference.execution.graphs import DecodeGraphs, RecordingError, context_bound, graph_sizes
from inference.execution.models.llama import LlamaModel
from inference.execution.runner import ModelRunner
from kernels import ops

BLOCK = 4


class PaddedModel:
    """A model of the CPU with a GPU's manners: padding computes rubbish and touches nothing."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.seen: list[DeviceBatch] = []
        self.vocab_size, self.max_model_len, self.eos_token_ids = model.vocab_size, model.max_model_len, frozenset({2})

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        return self._model.new_cache(num_blocks, block_size)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return self._model.kv_bytes_per_block(block_size)

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        return self._model.forward(batch, cache)

    def compute(self, inputs: DeviceBatch, cache: KVCache) -> torch.Tensor:
        self.seen.append(inputs)
        rows = int((inputs.context_lens > 0).sum())
        assert (inputs.slots >= 0).tolist() == [i < rows for i in range(len(inputs.slots))]
        assert inputs.max_query_len == 1
        assert inputs.max_context_len >= inputs.context_lens.max()
        assert inputs.block_tables.shape[1] * BLOCK >= inputs.max_context_len
        assert inputs.query_starts.tolist() == list(range(len(inputs.slots) + 1))
        real = DeviceBatch(
            *(array[:rows] for array in inputs[:5]),
            inputs.query_starts[: rows + 1],
            inputs.context_lens[:rows],
            *inputs[7:],
        )
        logits = torch.full((len(inputs.slots), self.vocab_size), torch.nan)
        logits[:rows] = self._model.compute(real, cache)
        return logits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    """Its layers run one operation at a time, as on a GPU."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_llama(max_position_embeddings=1024).save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "can_stack", lambda *_: False)
        return load_llama(folder)


@pytest.fixture
def sequences() -> Callable[[], PagedSequences]:
    draw = np.random.default_rng(3)
    ids = [draw.integers(3, 199, length + 12).tolist() for length in (1, 5, 300, 9, 250, 2, 17)]
    return lambda: PagedSequences(ids, BLOCK, 7 * 80)


@torch.inference_mode()
def test_graphs_give_what_the_model_gives(model: LlamaModel, sequences: Callable[[], PagedSequences]) -> None:
    """Rows come and go, contexts pass a bound, chunks run in between; the caches are the same in the end."""
    padded = PaddedModel(model)
    calls = FakeCuda()
    caches = [model.new_cache(7 * 80, BLOCK) for _ in range(2)]
    runner = ModelRunner(padded, caches[0], max_graph_rows=7, calls=calls)
    work = sequences()
    prompts = [(i, len(ids) - 12) for i, ids in enumerate(work.sequences)]
    steps = [
        prompts,
        *([(i, 1) for i in range(rows)] for rows in (1, 2, 3, 7, 5, 4, 7, 1)),
        [(3, 1), (2, 2)],
        [(6, 1), (4, 1)],
    ]
    for step in steps:
        batch = work.batch(step, every_row=False)
        expected = model.forward(batch, caches[1])
        given = runner.execute(batch)
        assert given.shape == expected.shape
        assert torch.allclose(given, expected, atol=1e-5), step
    for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(ours, theirs, strict=True))
    kinds = {(len(seen.slots), seen.max_context_len) for seen in padded.seen}
    assert kinds == {(1, 256), (2, 256), (4, 512), (7, 512)}
    assert calls.captures == len(kinds)


@pytest.mark.parametrize("backend", ["kernels.reference", "kernels.triton.backend"])
@torch.inference_mode()
def test_padding_does_no_harm_to_the_kernels(
    backend: str, model: LlamaModel, sequences: Callable[[], PagedSequences], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the model itself is recorded, and its kernels see the padding. In Triton's interpreter."""
    if "triton" in backend:
        pytest.importorskip("triton")
    kernels = importlib.import_module(backend)
    caches = [model.new_cache(7 * 80, BLOCK) for _ in range(2)]
    for keys, values in caches[0].layers:
        keys.fill_(torch.nan), values.fill_(torch.nan)
    work = sequences()
    work.sequences = [ids[:13] for ids in work.sequences]
    graphs = DecodeGraphs(model, caches[0], 8, FakeCuda())
    for step in ([(0, 1), (1, 5), (5, 2)], [(0, 1), (1, 1), (5, 1)], [(1, 1)], [(i, 1) for i in (0, 1, 2, 3, 5)]):
        batch = work.batch(step, every_row=False)
        expected = model.forward(batch, caches[1])
        with monkeypatch.context() as patch:
            patch.setattr(ops, "backend", lambda device_type: kernels)
            given = graphs.run(batch) if graphs.takes(batch) else model.forward(batch, caches[0])
        assert torch.allclose(given, expected, atol=1e-4), step
    written = sum(int(layer[0].isfinite().sum()) for layer in caches[0].layers)
    tokens = sum(work.computed)
    assert written == tokens * 3 * 2 * 16, "a key of 2 heads a token and layer, and none of padding"


@torch.inference_mode()
def test_a_graph_is_recorded_once_and_its_inputs_stay_where_they_are(
    model: LlamaModel, sequences: Callable[[], PagedSequences]
) -> None:
    padded, work = PaddedModel(model), sequences()
    graphs = DecodeGraphs(padded, model.new_cache(7 * 80, BLOCK), 8, FakeCuda())
    outputs = [graphs.run(work.batch([(0, 1), (1, 1), (5, 1)])).data_ptr() for _ in range(3)]
    assert len(padded.seen) == 1 + 3
    assert len({tuple(array.data_ptr() for array in seen[:7]) for seen in padded.seen}) == 1
    assert len(set(outputs)) == 1


def test_only_decodes_that_all_want_logits_run_so(model: LlamaModel, sequences: Callable[[], PagedSequences]) -> None:
    graphs = DecodeGraphs(PaddedModel(model), model.new_cache(4, BLOCK), 2, FakeCuda())
    work = sequences()
    assert graphs.takes(work.batch([(0, 1), (1, 1)]))
    assert not graphs.takes(work.batch([(0, 1), (1, 1), (2, 1)])), "more rows than the largest graph has"
    assert not graphs.takes(work.batch([(0, 1), (1, 2)])), "a chunk of a prompt, or a draft"
    alone = work.batch([(0, 1)])
    chunk = Batch(*(getattr(alone, name) for name in Batch.__slots__[:-1]), logits_rows=np.empty(0, np.int64))  # type: ignore[attr-defined]
    assert not graphs.takes(chunk), "a token of a prompt, and not its last"


def test_sizes_of_graphs() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    assert graph_sizes(300) == [1, 2, 4, *range(8, 257, 8), 288, 300]
    assert graph_sizes(4096)[-1] == 512
    assert all(sizes == sorted(set(sizes)) for sizes in map(graph_sizes, range(1, 600)))


def test_bounds_of_contexts() -> None:
    assert [context_bound(n, 5000) for n in (1, 256, 257, 4096, 4097, 5000)] == [256, 256, 512, 4096, 5000, 5000]
    assert context_bound(3, 100) == 100
    assert all(n <= context_bound(n, 1000) <= 1000 for n in range(1, 1001))


class BrokenCuda(FakeCuda):
    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        raise RuntimeError("operation not permitted when stream is capturing")


@torch.inference_mode()
def test_where_nothing_can_be_recorded_the_model_runs_without(
    model: LlamaModel, sequences: Callable[[], PagedSequences], caplog: pytest.LogCaptureFixture
) -> None:
    work = sequences()
    caches = [model.new_cache(7 * 80, BLOCK) for _ in range(2)]
    calls = BrokenCuda()
    runner = ModelRunner(PaddedModel(model), caches[0], max_graph_rows=8, calls=calls)
    for _ in range(3):
        batch = work.batch([(0, 1), (1, 1), (5, 1)])
        assert torch.allclose(runner.execute(batch), model.forward(batch, caches[1]), atol=1e-5)
    assert caplog.text.count("graphs_off") == 1
    with pytest.raises(RecordingError, match="no graph for 1 rows and contexts up to 256"):
        DecodeGraphs(PaddedModel(model), caches[0], 8, calls).run(work.batch([(0, 1)]))


def test_no_graphs_where_they_are_not_wanted_or_the_model_computes_on_the_host(model: LlamaModel) -> None:
    host: Any = SimpleNamespace(forward=lambda batch, cache: "logits")
    for given, rows in ((PaddedModel(model), 0), (host, 8)):
        calls = FakeCuda()
        runner = ModelRunner(given, SimpleNamespace(), max_graph_rows=rows, calls=calls)  # type: ignore[arg-type]
        assert runner._graphs is None
    assert runner.execute(SimpleNamespace()) == "logits"  # type: ignore[arg-type]


def test_how_long_the_device_took(model: LlamaModel, sequences: Callable[[], PagedSequences]) -> None:
    """Between two marks around the pass; on a CPU the pass is over when it comes back, and there is nothing to tell."""
    work, cache = sequences(), model.new_cache(7 * 80, BLOCK)
    device = ModelRunner(PaddedModel(model), cache, calls=FakeCuda())
    device.execute(work.batch([(0, 1)]))
    assert (device.is_async, device.forward_ms()) == (True, 2.5)
    host = ModelRunner(model, cache)
    host.execute(work.batch([(0, 1)]))
    assert (host.is_async, host.forward_ms()) == (False, None)
