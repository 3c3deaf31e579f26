"""The default model on a GPU, with and without graphs: the same rules as on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from parity.conftest import COUNT, GREEDY, best_tokens, engine_of, without_end
from support.carrying import check_jobs, random_jobs, run_jobs, tight_settings
from support.gpu import needs_gpu
from transformers import PreTrainedModel

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.execution.models.loader import LoadedModel, load_model

DTYPES = ("float32", "bfloat16", "float16")
WIDEST = {"float32": 0.0, "bfloat16": 0.125, "float16": 0.125}  # nats below transformers' best token


@pytest.fixture(scope="module")
def on_gpu() -> Callable[[str], LoadedModel]:
    """The model in a dtype, loaded once each."""
    loaded: dict[str, LoadedModel] = {}

    def load(dtype: str) -> LoadedModel:
        if dtype not in loaded:
            loaded[dtype] = load_model(EngineConfig(dtype=dtype, device="cuda"))
        return loaded[dtype]

    return load


def graphs_of(engine: Engine) -> int:
    """Recorded so far; -1 where none are to be, or one could not be recorded."""
    graphs = engine._passes.runner._graphs
    return -1 if graphs is None else len(graphs._graphs)


@needs_gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_are_transformers(
    dtype: str,
    graphs: bool,
    on_gpu: Callable[[str], LoadedModel],
    prompts: list[list[int]],
    peer: PreTrainedModel,
    record_property: Callable[[str, object], None],
) -> None:
    """Token by token what float32 transformers finds best after the same beginning; in fewer bits, nearly the best. The
    pool is too small, so requests are preempted, and the batch has all sizes while it empties."""
    engine = engine_of(on_gpu(dtype), kv_blocks=100, max_num_seqs=COUNT, cuda_graphs=graphs)
    answers = [without_end(output.token_ids) for output in engine.generate(prompts, GREEDY)]
    assert sum(len(record.preempted) for record in engine.ledger.records) > 0
    assert (graphs_of(engine) > 3) == graphs
    below = []
    for prompt, ids in zip(prompts, answers, strict=True):
        best = best_tokens(peer, prompt, ids)
        for place, token in enumerate(ids):
            found = best.below[place][best.ids[place] == token]
            assert len(found), f"{token} is not among the five best at {place} of {prompt}"
            below.append(float(found))
    others = sum(gap > 0 for gap in below)
    print(
        f"\n{dtype}, graphs {graphs}: {others} of {len(below)} tokens are not the best, {max(below):.4f} nats at most"
    )
    record_property("other_tokens", others)
    assert max(below) <= WIDEST[dtype]


@needs_gpu
@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("graphs", [False, True])
def test_answers_do_not_depend_on_the_company(graphs: bool, drafts: int, on_gpu: Callable[[str], LoadedModel]) -> None:
    """Sampled and greedy, arrivals and cancels, chunks, stop strings, a pool that is too small."""
    draw = random.Random(drafts)
    jobs = random_jobs(draw, range(100, 2000), count=24, longest=96, stop=("a", "the"), temperatures=(0.0, 0.4))
    tight = tight_settings(draw, jobs, 16, 20) | {"draft_tokens": drafts, "cuda_graphs": graphs}
    engine = engine_of(on_gpu("float32"), **tight)
    run_jobs(engine, jobs)
    alone = engine_of(on_gpu("float32"), max_num_seqs=1, kv_blocks=256, cuda_graphs=False)
    check_jobs(engine, jobs, [alone.generate([job.prompt], job.params)[0] for job in jobs])


@needs_gpu
def test_contexts_of_all_lengths(on_gpu: Callable[[str], LoadedModel]) -> None:
    """Over the bounds at which graphs and the split of attention change."""
    prompt = [random.Random(7).randrange(100, 2000) for _ in range(3000)]
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=0)
    prompts = [prompt[:length] for length in (1, 240, 500, 1010, 2040, 3000)]
    logprobs = []
    for graphs in (False, True):
        engine = engine_of(on_gpu("float32"), kv_blocks=600, cuda_graphs=graphs)
        outputs = engine.generate(prompts, params)
        logprobs.append([[(one.token_id, one.logprob) for one in output.logprobs or ()] for output in outputs])
    for eager, recorded in zip(*logprobs, strict=True):
        assert [token for token, _ in eager] == [token for token, _ in recorded]
        assert [value for _, value in eager] == pytest.approx([value for _, value in recorded], abs=1e-4)


@needs_gpu
def test_the_ledger_knows_what_the_device_did(on_gpu: Callable[[str], LoadedModel]) -> None:
    """The host only launches; what the pass took is not told as sampling."""
    engine = engine_of(on_gpu("bfloat16"), kv_blocks=400)
    engine.generate([[5 + i] * 300 for i in range(8)], SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.0))
    records = list(engine.ledger.records)[8:]
    assert all(record.forward > 0 for record in records)
    assert sum(record.forward for record in records) > sum(record.sample for record in records)
