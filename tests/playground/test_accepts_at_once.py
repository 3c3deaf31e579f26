"""Web processes that accept at the same moment: together they let in no more than there is room for.

Each thread here has its own connection, as each web process has. On SQLite and on PostgreSQL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.contrib.auth.models import User
from django.db import connections

from inference.scheduling.request import RequestRefused
from playground import rows
from playground.models import InferenceRequest

pytestmark = pytest.mark.django_db(transaction=True)
AT_ONCE, ROUNDS = 8, 5


def accepted(owners: list[User], room: rows.Room, size: int = 1) -> int:
    """How many requests of AT_ONCE callers are let in, who all ask at once, with `size` requests each."""
    together = Barrier(AT_ONCE)

    def ask(owner: User) -> int:
        family = [InferenceRequest(owner=owner, prompt="hello", seed=n) for n in range(size)]
        try:
            together.wait(20)
            rows.create(family, room)
            return len(family)
        except RequestRefused:
            return 0
        finally:
            connections.close_all()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sum(threads.map(ask, owners))


@pytest.mark.parametrize(("room", "size", "fit"), [(5, 1, 5), (1, 1, 1), (7, 2, 6)])
def test_the_service_s_limit_is_exact(alice: User, bob: User, room: int, size: int, fit: int) -> None:
    for _ in range(ROUNDS):
        assert accepted([alice, bob] * (AT_ONCE // 2), rows.Room(room), size) == fit
        assert InferenceRequest.objects.count() == fit
        InferenceRequest.objects.all().delete()


def test_an_account_s_limit_is_exact(alice: User, bob: User) -> None:
    for _ in range(ROUNDS):
        assert accepted([alice, bob] * (AT_ONCE // 2), rows.Room(100, of_one=3)) == 6
        assert {alice.requests.count(), bob.requests.count()} == {3}
        InferenceRequest.objects.all().delete()
