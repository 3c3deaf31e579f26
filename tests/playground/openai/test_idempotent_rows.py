"""The table of calls under a key: who is first, what is found again, and for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from inference.scheduling.request import RequestRefused
from playground import rows
from playground.access.keys import create_key
from playground.idempotency import KEPT, MadeAlready, earlier, hash_of
from playground.models import ApiKey, IdempotentCall, InferenceRequest

ROOM = rows.Room(100)
BODY = {"seed": 1, "messages": [{"role": "user", "content": "hello"}]}


def key_of(owner: User, name: str = "first") -> ApiKey:
    return ApiKey.objects.filter(owner=owner, name=name).first() or create_key(owner, name)[0]


def call(owner: User, key: str = "k", body: dict | None = None, by: str = "first") -> IdempotentCall:
    body_hash = hash_of("/v1/chat/completions", body or BODY)
    return IdempotentCall(api_key=key_of(owner, by), key=key, body_hash=body_hash)


def family(owner: User, count: int = 2, by: str = "first") -> list[InferenceRequest]:
    return [InferenceRequest(owner=owner, key=key_of(owner, by), prompt="hello", seed=n) for n in range(count)]


def finish(made: list[InferenceRequest], state: str) -> None:
    InferenceRequest.objects.filter(pk__in=[row.pk for row in made]).update(state=state)


def test_a_hash_is_of_what_is_said_and_not_of_how() -> None:
    again = dict(reversed(BODY.items()))
    assert hash_of("/a", BODY) == hash_of("/a", again)
    assert len({hash_of("/a", BODY), hash_of("/b", BODY), hash_of("/a", {**BODY, "seed": 2})}) == 3


def test_the_second_finds_the_first_ones_requests(alice: User) -> None:
    made = family(alice, 3)
    assert earlier(call(alice)) is None
    rows.create(made, ROOM, call(alice))
    assert [row.pk for row in earlier(call(alice)) or ()] == [row.pk for row in made]
    finish(made, "completed")
    assert len(earlier(call(alice)) or ()) == 3


@pytest.mark.django_db(transaction=True)
def test_who_loses_the_race_has_written_nothing(alice: User) -> None:
    rows.create(family(alice), ROOM, call(alice))
    with pytest.raises(MadeAlready):
        rows.create(family(alice), ROOM, call(alice))
    assert (InferenceRequest.objects.count(), IdempotentCall.objects.count()) == (2, 1)
    with transaction.atomic():  # and what stands around it goes on
        with pytest.raises(MadeAlready):
            rows.create(family(alice), ROOM, call(alice))
        rows.create(family(alice), ROOM, call(alice, "another"))
    assert InferenceRequest.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_what_finds_no_room_leaves_no_call_behind(alice: User) -> None:
    with pytest.raises(RequestRefused, match="1 are allowed"):
        rows.create(family(alice), rows.Room(1), call(alice))
    assert not IdempotentCall.objects.exists()
    rows.create(family(alice), ROOM, call(alice))


def test_another_body_is_a_conflict(alice: User) -> None:
    rows.create(family(alice), ROOM, call(alice))
    with pytest.raises(RequestRefused, match="another body") as refused:
        earlier(call(alice, body={**BODY, "seed": 2}))
    assert refused.value.code == "conflict"


def test_keys_are_each_accounts_own(alice: User, bob: User) -> None:
    rows.create(family(alice), ROOM, call(alice))
    assert earlier(call(bob)) is None
    rows.create(family(bob), ROOM, call(bob))
    assert {row.owner for row in earlier(call(bob)) or ()} == {bob}


def test_and_each_api_keys_own(alice: User) -> None:
    """Two programs of one account may both call their first order "order-1"."""
    first = family(alice)
    rows.create(first, ROOM, call(alice))
    assert earlier(call(alice, body={**BODY, "seed": 2}, by="second")) is None
    second = family(alice, by="second")
    rows.create(second, ROOM, call(alice, by="second"))
    assert [row.pk for row in earlier(call(alice)) or ()] == [row.pk for row in first]
    assert [row.pk for row in earlier(call(alice, by="second")) or ()] == [row.pk for row in second]


@pytest.mark.parametrize("state", ["cancelled", "failed", "expired"])
def test_what_had_no_answer_is_made_anew(alice: User, state: str) -> None:
    made = family(alice)
    rows.create(made, ROOM, call(alice))
    finish(made[:1], state)
    finish(made[1:], "completed")
    assert earlier(call(alice)) is None
    rows.create(family(alice), ROOM, call(alice))
    assert len(earlier(call(alice)) or ()) == 2


def test_what_is_being_given_up_is_made_anew(alice: User) -> None:
    made = family(alice)
    rows.create(made, ROOM, call(alice))
    rows.ask_cancel(str(made[0].pk))
    assert earlier(call(alice)) is None


def test_what_is_gone_is_made_anew(alice: User) -> None:
    made = family(alice)
    rows.create(made, ROOM, call(alice))
    made[0].delete()
    assert earlier(call(alice)) is None


def test_after_a_day_it_is_forgotten(alice: User) -> None:
    rows.create(family(alice), ROOM, call(alice))
    rows.create(family(alice), ROOM, call(alice, "young"))
    IdempotentCall.objects.filter(key="k").update(created_at=timezone.now() - KEPT - timedelta(minutes=1))
    assert earlier(call(alice, body={**BODY, "seed": 2})) is None
    rows.create(family(alice), ROOM, call(alice, "third"))
    assert set(IdempotentCall.objects.values_list("key", flat=True)) == {"young", "third"}
