import numpy as np
from support.toy import ToyModel, toy_engine

from inference.config import SamplingParams
from inference.execution.batch_builder import BatchBuilder
from inference.scheduling.plan import ScheduledRow
from inference.scheduling.request import Request


def request(seat: int, blocks: list[int], prompt: list[int], output: list[int]) -> Request:
    return Request(f"r{seat}", prompt, SamplingParams(), 0, output_ids=output, block_table=blocks, seat=seat)


def test_arrays_of_a_chunk_a_decode_and_a_recomputation() -> None:
    rows = [
        ScheduledRow(request(2, [9], [10, 11], [12]), 2, 1, True),
        ScheduledRow(request(0, [3, 5, 4], list(range(20, 40)), []), 6, 5, False),
        ScheduledRow(request(1, [7, 8], [30, 31], [32, 33, 34]), 1, 4, True),
    ]
    batch = BatchBuilder(3, 4).build(rows)
    assert batch.token_ids.tolist() == [12, 26, 27, 28, 29, 30, 31, 32, 33, 34]
    assert batch.positions.tolist() == [2, 6, 7, 8, 9, 10, 1, 2, 3, 4]
    assert batch.slots.tolist() == [38, 22, 23, 16, 17, 18, 29, 30, 31, 32]
    assert batch.block_tables.tolist() == [[9, 0, 0], [3, 5, 4], [7, 8, 0]]
    assert batch.query_starts.tolist() == [0, 1, 6, 10]
    assert batch.context_lens.tolist() == [3, 11, 5]
    assert batch.logits_rows.tolist() == [0, 9]
    arrays = [batch.token_ids, batch.positions, batch.slots, batch.logits_rows]
    assert {array.dtype for array in arrays} == {np.dtype(np.int64)}
    assert {array.dtype for array in (batch.block_tables, batch.query_starts, batch.context_lens)} == {
        np.dtype(np.int32)
    }


def test_drafts_follow_the_newest_token_and_all_want_logits() -> None:
    rows = [
        ScheduledRow(request(0, [3], [10, 11], [12]), 2, 1, True),
        ScheduledRow(request(1, [9, 4], [10, 11], [12]), 2, 4, True, (20, 21, 22)),
        ScheduledRow(request(2, [7], [30, 31, 32], []), 0, 2, False),
        ScheduledRow(request(3, [5], [13, 14], [15]), 2, 2, True, (23,)),
    ]
    batch = BatchBuilder(4, 4).build(rows)
    assert batch.token_ids.tolist() == [12, 12, 20, 21, 22, 30, 31, 15, 23]
    assert batch.positions.tolist() == [2, 2, 3, 4, 5, 0, 1, 2, 3]
    assert batch.slots.tolist() == [14, 38, 39, 16, 17, 28, 29, 22, 23]
    assert batch.context_lens.tolist() == [3, 6, 2, 4]
    assert batch.logits_rows.tolist() == [0, 1, 2, 3, 4, 7, 8]
    assert batch.logits_rows.dtype == np.int64


def test_blocks_given_back_are_gone_from_the_table() -> None:
    builder = BatchBuilder(1, 4)
    one = request(0, [3, 4], [5, 6], [7, 8])
    builder.build([ScheduledRow(one, 3, 3, True, (9, 9))])
    one.block_table = [3, 6]
    assert builder.build([ScheduledRow(one, 3, 2, True, (9,))]).block_tables.tolist() == [[3, 6]]


def test_a_batch_in_which_nobody_samples_wants_no_logits() -> None:
    batch = BatchBuilder(1, 4).build([ScheduledRow(request(0, [3], [5, 6, 7], []), 0, 2, False)])
    assert batch.logits_rows.tolist() == []


def test_a_seat_that_changes_hands_shows_nothing_of_its_last_holder() -> None:
    builder = BatchBuilder(2, 1)
    long = request(0, list(range(1, 41)), [5] * 40, [])
    short = request(0, [41], [5], [])
    other = request(1, list(range(50, 70)), [5] * 20, [])
    builder.build([ScheduledRow(long, 0, 40, True)])
    batch = builder.build([ScheduledRow(short, 0, 1, True), ScheduledRow(other, 0, 20, True)])
    assert batch.block_tables[0].tolist() == [41] + [0] * 19
    assert batch.block_tables[1].tolist() == list(range(50, 70))


def test_a_request_that_comes_back_to_its_seat_brings_its_new_blocks() -> None:
    builder = BatchBuilder(1, 4)
    one = request(0, [3, 4], [5] * 8, [6, 6])
    builder.build([ScheduledRow(one, 0, 8, True)])
    one.block_table = [7, 8, 9]
    batch = builder.build([ScheduledRow(one, 0, 9, True)])
    assert batch.block_tables.tolist() == [[7, 8, 9]]
    one.block_table += [2]
    batch = builder.build([ScheduledRow(one, 9, 1, True)])
    assert batch.block_tables.tolist() == [[7, 8, 9, 2]]


def test_a_batch_stays_as_it_was_while_the_next_is_built() -> None:
    model = ToyModel()
    engine = toy_engine(model, kv_blocks=9, block_size=2)
    engine.generate([[5] * 4, [6] * 5, [7] * 3], SamplingParams(max_tokens=6, ignore_eos=True))
    first = model.batches[0]
    copies = [array.copy() for array in (first.block_tables, first.slots)]
    engine.generate([[8] * 7], SamplingParams(max_tokens=6))
    assert [array.tolist() for array in (first.block_tables, first.slots)] == [copy.tolist() for copy in copies]
