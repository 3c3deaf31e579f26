"""Web processes that write the same ends at the same moment: each end is one's, and none waits for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.contrib.auth.models import User
from django.db import connections

from inference.serving.messages import Finish
from playground import rows
from playground.models import InferenceRequest

ROWS, ROUNDS = 40, 3


@pytest.mark.django_db(transaction=True)
def test_the_same_ends_in_another_order(alice: User) -> None:
    for _ in range(ROUNDS):
        family = [InferenceRequest(owner=alice, prompt="x", seed=1) for _ in range(ROWS)]
        rows.create(family, rows.Room(10_000))
        outcomes = [rows.Outcome(Finish(str(row.pk), 1, "stop", finished_at=2.0), "answer", 1) for row in family]
        together = Barrier(2)

        def write(mine: list[rows.Outcome], together: Barrier = together) -> list[str]:
            try:
                together.wait(20)
                ended = rows.apply((), mine)
                rows.correct({one.finish.request_id: {"total": 1.0} for one in mine})
                return [end.outcome.finish.request_id for end in ended]
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(write, (outcomes, outcomes[::-1]))
        assert sorted(first + second) == sorted(str(row.pk) for row in family)
