"""The prefix cache, seen from outside the engine: what is shared, with whom, and that no answer changes."""

import random

import pytest
from support.carrying import check_jobs, random_jobs, run_alone, run_jobs, tight_settings
from support.toy import VOCAB, ToyModel, alone, toy_engine

from inference.config import SamplingParams
from inference.engine import Engine
from inference.scheduling.outputs import RequestFinish

PROMPT = [5 + i % 40 for i in range(23)]  # five full blocks of four, and three tokens


def params(max_tokens: int = 6, seed: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=1.3, seed=seed, ignore_eos=True)


def finished(engine: Engine, prompt: list[int], user: str = "", p: SamplingParams | None = None) -> RequestFinish:
    engine.add_request(prompt, p or params(), user=user)
    while engine.has_work:
        if finishes := engine.step().finishes:
            return finishes[0]
    raise AssertionError("it came to no end")


def computed(model: ToyModel) -> int:
    return sum(len(batch.token_ids) for batch in model.batches)


def test_a_prompt_that_was_there_before_is_not_computed_again() -> None:
    model = ToyModel()
    engine = toy_engine(model)
    first = finished(engine, PROMPT)
    before = computed(model)
    again = finished(engine, PROMPT)
    assert (first.cached_tokens, again.cached_tokens) == (0, 20)
    assert computed(model) - before == 3 + 5, "the prompt's last three tokens, and five of the answer"
    assert engine.generate([PROMPT], params())[0].token_ids == alone(PROMPT, params()).token_ids


def test_a_prompt_of_full_blocks_still_computes_its_last_token() -> None:
    model = ToyModel()
    engine = toy_engine(model)
    prompt = PROMPT[:20]
    finished(engine, prompt, p=params(1))
    before = computed(model)
    (output,) = engine.generate([prompt], params(4))
    assert output.cached_tokens == 16
    assert computed(model) - before == 4 + 3
    assert output.token_ids == alone(prompt, params(4)).token_ids


def test_answers_are_kept_too_so_the_next_turn_begins_behind_them() -> None:
    engine = toy_engine()
    (answer,) = engine.generate([PROMPT], params(9))  # 23 + 8 positions: seven full blocks
    (turn,) = engine.generate([PROMPT + answer.token_ids + [9, 8]], params())
    assert turn.cached_tokens == 28
    assert turn.token_ids == alone(PROMPT + answer.token_ids + [9, 8], params()).token_ids


def test_another_users_secret_is_never_found() -> None:
    engine = toy_engine()
    finished(engine, PROMPT, "alice")
    assert finished(engine, PROMPT, "bob").cached_tokens == 0
    assert finished(engine, PROMPT, "").cached_tokens == 0
    assert finished(engine, PROMPT, "alice").cached_tokens == 20


def test_users_share_where_that_is_set() -> None:
    engine = toy_engine(prefix_sharing=True)
    finished(engine, PROMPT, "alice")
    assert finished(engine, PROMPT, "bob").cached_tokens == 20


def test_the_cache_can_be_turned_off() -> None:
    engine = toy_engine(prefix_caching=False)
    for _ in range(2):
        assert finished(engine, PROMPT).cached_tokens == 0
    assert (engine.pool.cached_count, engine.pool.free_count) == (0, engine.pool.num_blocks)


def test_blocks_are_shared_while_both_run() -> None:
    engine = toy_engine()
    engine.add_request(PROMPT, params(12), request_id="first")
    engine.step()
    engine.add_request(PROMPT, params(12, seed=2), request_id="second")
    engine.step()
    one, other = engine.scheduler.running.values()
    assert one.block_table[:5] == other.block_table[:5]
    assert not set(one.block_table[5:]) & set(other.block_table[5:])
    assert engine.pool.references(one.block_table[0]) == 2
    engine.cancel("first")
    rest = []
    while engine.has_work:
        rest += [i for delta in engine.step().deltas if delta.request_id == "second" for i in delta.token_ids]
    expected = alone(PROMPT, params(12, seed=2)).token_ids
    assert rest == expected[-len(rest) :]


def test_the_least_recently_used_prefix_is_given_up_first() -> None:
    engine = toy_engine(kv_blocks=16)
    prompts = [[first, *PROMPT[1:16]] for first in (41, 42, 43)]  # four blocks each, and an answer of one token
    for prompt in prompts:
        finished(engine, prompt, p=params(1))
    finished(engine, prompts[0], p=params(1))  # used again: now the second is the oldest
    finished(engine, [44, *PROMPT[1:22]], p=params(3))  # six blocks; four were free
    assert engine.pool.evicted == 2
    hits = [finished(engine, prompt, p=params(1)).cached_tokens for prompt in (prompts[0], prompts[2])]
    assert hits == [12, 12]
    assert 0 < finished(engine, prompts[1], p=params(1)).cached_tokens < 12, "its tail was given up before its head"


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    model = ToyModel()
    engine = toy_engine(model, kv_blocks=40)
    engine.add_request(PROMPT, params(12), request_id="r")
    ids = []
    for step in range(40):
        if step == 5:
            engine.scheduler.preempt(engine.scheduler.running["r"])
            before = computed(model)
        ids += [i for delta in engine.step().deltas for i in delta.token_ids]
        if step == 5:
            assert computed(model) - before == (23 + 5) - 24, "all but what no full block held"
        if not engine.has_work:
            break
    assert ids == alone(PROMPT, params(12)).token_ids


def test_a_request_that_fails_leaves_nothing_to_be_found() -> None:
    model = ToyModel()
    model.breaks = lambda ids: len(ids) == 25
    engine = toy_engine(model)
    assert finished(engine, PROMPT).error_code == "numerical_error"
    assert engine.pool.cached_count == 0
    model.breaks = lambda ids: False
    again = finished(engine, PROMPT)
    assert (again.cached_tokens, again.error_code) == (0, "")


def test_a_failing_request_does_not_zero_what_another_one_reads() -> None:
    model = ToyModel()
    bad = [*PROMPT, 9]
    model.breaks = lambda ids: ids[:24] == bad and len(ids) == 26
    engine = toy_engine(model)
    engine.add_request(PROMPT, params(14), request_id="good")
    engine.step()
    engine.add_request(bad, params(14), request_id="bad")
    ids: dict[str, list[int]] = {"good": alone(PROMPT, params(14)).token_ids[:1], "bad": []}
    codes = {}
    while engine.has_work:
        step = engine.step()
        for event in (*step.deltas, *step.finishes):
            ids[event.request_id] += event.token_ids
        codes.update({finish.request_id: finish.error_code for finish in step.finishes})
    assert codes == {"bad": "numerical_error", "good": ""}
    assert ids["good"] == alone(PROMPT, params(14)).token_ids


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_two_hundred_fifty_six_requests_with_few_prefixes_and_few_blocks(block_size: int) -> None:
    draw = random.Random(block_size)
    prefixes = [[draw.randrange(1, VOCAB) for _ in range(40)] for _ in range(4)]
    jobs = random_jobs(draw, range(1, VOCAB), 256, 30 + 4 * block_size, stop=("qj",))
    for job in jobs:
        job.prompt = draw.choice(prefixes)[: draw.randint(0, 40)] + job.prompt
        job.arrives = draw.randint(0, 200)
        job.leaves = job.leaves and job.arrives + draw.randint(0, 25)
    settings = tight_settings(draw, jobs, block_size, None) | {"max_num_seqs": 7, "max_num_batched_tokens": 40}
    engine = toy_engine(ToyModel(), **settings)
    preemptions = run_jobs(engine, jobs)
    check_jobs(engine, jobs, run_alone(toy_engine, jobs))
    assert preemptions > 5
    assert engine.pool.evicted > 50
    assert sum(job.finish.cached_tokens > 0 for job in jobs if job.finish) > 40


def test_being_taken_up_behind_ones_prompt_is_no_credit() -> None:
    engine = toy_engine()
    (answer,) = engine.generate([PROMPT], params(30))
    engine.add_request(PROMPT, params(31), user="", output_ids=answer.token_ids[:29])
    engine.add_request([9], params(2), user="other")
    before = engine.scheduler.queue.shares.had("")
    engine.step()
    assert engine.scheduler.queue.shares.had("") >= before
    while engine.has_work:
        engine.step()
