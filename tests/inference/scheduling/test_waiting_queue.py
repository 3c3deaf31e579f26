"""Who is next: priorities that age, users who get their share, first come first served inside."""

import random
from collections import Counter
from typing import Any

import pytest

from inference.config import SamplingParams
from inference.scheduling.ledger import WAITING_SHOWN
from inference.scheduling.request import Request
from inference.scheduling.shares import MOST_DEBTS
from inference.scheduling.waiting_queue import PREEMPTED, WaitingQueue

AGEING = 1000.0


def request(name: str, user: str = "", priority: int = 0) -> Request:
    return Request(name, [7], SamplingParams(priority=priority), seed=0, user=user)


def queue(*requests: Request, now: float = 0.0, **settings: Any) -> WaitingQueue:
    result = WaitingQueue(AGEING, **settings)
    for one in requests:
        result.add(one, now)
    return result


def served(of: WaitingQueue, now: float = 0.0, tokens: int = 10) -> list[str]:
    """Names in the order in which they are admitted, each served `tokens` tokens of answer and gone at once."""
    names = []
    while (head := of.head(now)) is not None:
        of.admit(head)
        of.shares.charge(head.user, 2 * tokens)
        of.ended(head)
        names.append(head.request_id)
    return names


def test_first_come_first_served() -> None:
    assert served(queue(*(request(name) for name in "abcd"))) == ["a", "b", "c", "d"]


def test_the_higher_priority_goes_first() -> None:
    levels = {"low": -2, "a": 0, "high": 2, "b": 0, "urgent": 1}
    assert served(queue(*(request(n, priority=p) for n, p in levels.items()))) == ["high", "urgent", "a", "b", "low"]


def test_users_take_turns_by_what_they_have_had() -> None:
    flood = [request(f"a{i}", "a") for i in range(6)]
    assert served(queue(*flood, request("b0", "b"), request("b1", "b"))) == [
        "a0",
        "b0",
        "a1",
        "b1",
        "a2",
        "a3",
        "a4",
        "a5",
    ]


def test_shares_are_weighed_in_tokens_not_in_requests() -> None:
    one = queue(*(request(f"{user}{i}", user) for i in range(6) for user in "ab"))
    tokens: Counter[str] = Counter()
    order = []
    for _ in range(8):
        head = one.head(0.0)
        assert head is not None
        one.admit(head)
        size = 30 if head.user == "a" else 10
        one.shares.charge(head.user, size)
        one.ended(head)
        tokens[head.user] += size
        order.append(head.user)
    assert order == list("abbbabbb"), "a's requests are three times as long"
    assert tokens == {"a": 60, "b": 60}


def test_tokens_of_answers_count_twice() -> None:
    one = queue(request("a0", "a"), request("b0", "b"), request("a1", "a"), request("b1", "b"))
    for prompt, answers in ((19, 0), (0, 10)):
        head = one.head(0.0)
        assert head is not None
        one.admit(head, prompt)
        one.charge_answers([head] * answers)
    head = one.head(0.0)
    assert head is not None
    assert head.request_id == "a1", "19 tokens of a prompt are less than 10 of an answer"


def test_nobody_saves_up_by_staying_away() -> None:
    one = queue(request("b0", "b"), *(request(f"a{i}", "a") for i in range(9)))
    assert served(one)[-1] == "a8"
    for i in range(4):
        one.add(request(f"a{i}", "a"), 0.0)
        one.add(request(f"b{i}", "b"), 0.0)
        one.add(request(f"new{i}", "new"), 0.0)
    order = served(one)
    assert Counter(name.rstrip("0123456789") for name in order[:6]) == {"a": 2, "b": 2, "new": 2}


def test_a_newcomer_starts_at_the_level_of_those_who_are_served() -> None:
    one = queue(*(request(f"a{i}", "a") for i in range(20)))
    for _ in range(10):
        head = one.head(0.0)
        assert head is not None
        one.admit(head)
        one.charge_answers([head] * 10)
        one.ended(head)
    for i in range(10):
        one.add(request(f"b{i}", "b"), 0.0)
    assert served(one)[:6] == ["a10", "b0", "a11", "b1", "a12", "b2"], "not as much as a has had before b came"


def test_nobody_gets_rid_of_a_debt_by_leaving() -> None:
    one = queue(request("a0", "a"), request("b0", "b"))
    a = one.head(0.0)
    assert a is not None
    one.admit(a)
    one.charge_answers([a] * 1000)
    one.ended(a)
    one.add(request("a1", "a"), 0.0)
    one.add(request("b1", "b"), 0.0)
    assert served(one) == ["b0", "b1", "a1"]


def test_waiting_raises_a_request_class_by_class() -> None:
    one = queue(request("low", priority=-2))
    first = []
    for i in range(4):
        one.add(request(f"at{i}", priority=0), i * AGEING)
        first.append(one.head(i * AGEING).request_id)  # type: ignore[union-attr]
    assert first == ["at0"] * 4
    assert served(one, 3.5 * AGEING) == ["at0", "at1", "low", "at2", "at3"], "it rose to their class before at3 came"


def test_a_name_that_is_used_again_does_not_bring_back_the_one_who_had_it() -> None:
    first, second = request("same"), request("same")
    one = queue(first)
    one.remove(first)
    one.add(second, AGEING / 2)
    assert one.head(AGEING) is second
    assert one.requests == {"same": second}
    one.admit(second)
    assert second.standing == 0, "it has not waited for long enough to rise"


def test_low_priority_is_served_however_many_high_ones_come() -> None:
    one = queue(request("low", "x", priority=-2))
    now, turn = 0.0, 0
    while True:
        now += 100.0
        turn += 1
        for i in range(3):  # more than can be served
            one.add(request(f"high{turn}-{i}", random.Random(turn).choice("abc"), priority=2), now)
        head = one.head(now)
        assert head is not None
        one.admit(head)
        one.shares.charge(head.user, 15)
        one.ended(head)
        if head.request_id == "low":
            break
        assert now < 10 * AGEING, "four classes up, and then its user has had the least"


def test_a_flood_takes_nothing_from_the_others() -> None:
    """Five users, one of whom sends ten times as much: equal shares of tokens, by Jain's index, while all wait."""
    draw = random.Random(7)
    one, had = WaitingQueue(AGEING), Counter[str]()
    for i in range(400):
        one.add(request(f"flood{i}", "flood"), float(i))
    for user in "abcd":
        for i in range(40):
            one.add(request(f"{user}{i}", user), float(i))
    running: list[Request] = []
    for step in range(300):
        while len(running) < 8 and (head := one.head(float(step))) is not None:
            one.admit(head, 10)
            running.append(head)
            had[head.user] += 10
        one.charge_answers(running)
        had.update(2 * [each.user for each in running])
        for each in [r for r in running if draw.random() < 0.05]:
            running.remove(each)
            one.ended(each)
    assert {r.user for r in one.requests.values()} == set(had), "all wait to the end"
    shares = list(had.values())
    assert len(shares) == 5
    assert sum(shares) ** 2 / (5 * sum(share**2 for share in shares)) >= 0.95


def test_a_user_at_the_cap_is_passed_over_until_one_ends() -> None:
    one = queue(*(request(f"a{i}", "a") for i in range(3)), request("b0", "b"), max_running_per_user=1)
    first = one.head(0.0)
    assert first is not None
    one.admit(first)
    assert one.shares.at_cap("a")
    assert one.head(0.0).request_id == "b0"  # type: ignore[union-attr]
    one.admit(one.head(0.0))  # type: ignore[arg-type]
    assert one.head(0.0) is None
    assert len(one) == 2
    one.ended(first)
    assert one.head(0.0).request_id == "a1"  # type: ignore[union-attr]


def test_requests_without_a_user_have_no_cap() -> None:
    one = queue(*(request(str(i)) for i in range(3)), max_running_per_user=1)
    for _ in range(3):
        head = one.head(0.0)
        assert head is not None
        one.admit(head)
    assert len(one) == 0


def test_the_preempted_come_first_by_rank() -> None:
    one = queue(*(request(name, priority=2 if name == "urgent" else 0) for name in ("a", "b", "urgent", "c")))
    taken = []
    for _ in range(3):
        head = one.head(0.0)
        assert head is not None
        one.admit(head)
        taken.append(head)
    assert [r.request_id for r in taken] == ["urgent", "a", "b"]
    for r in (taken[2], taken[0], taken[1]):
        one.put_back(r)
    one.add(request("later", priority=2), 0.0)
    assert [r.request_id for r in one.first_ones()] == ["a", "b", "urgent", "later", "c"]
    assert served(one) == ["a", "b", "urgent", "later", "c"]


@pytest.mark.parametrize("count", [3, WAITING_SHOWN, WAITING_SHOWN + 50])
def test_the_first_ones_are_those_who_will_be_served(count: int) -> None:
    draw = random.Random(count)
    users = [draw.choice("abc") for _ in range(count)]
    one = queue(*(request(f"{user}{i}", user) for i, user in enumerate(users)))
    shown = [r.request_id for r in one.first_ones()]
    assert shown == served(one)[:WAITING_SHOWN]


def test_leaving_keeps_the_order_of_the_others() -> None:
    requests = [request(f"{user}{i}", user) for i in range(3) for user in "ab"]
    one = queue(*requests)
    one.remove(requests[0])
    one.remove(requests[3])
    assert served(one) == ["b0", "a1", "a2", "b2"]
    assert len(one) == 0


def test_books_of_users_who_are_gone_are_closed() -> None:
    one = queue(request("stays", "z", priority=-2))
    for i in range(5000):
        new = request(f"r{i}", f"user {i}")
        one.add(new, 0.0)
        one.admit(new, 300)
        one.ended(new)
    assert len(one.shares._debts) <= MOST_DEBTS
    assert len(one.shares._had) == 1
    assert served(one) == ["stays"]
    assert one.shares.is_empty


def test_a_debt_is_caught_up_with_however_many_newcomers_there_are() -> None:
    """Sixty users wait at any time, each of them new; one has had more than they before."""
    one, served_to_others = WaitingQueue(1e9), 0
    heavy = request("heavy", "a")
    one.add(heavy, 0.0)
    one.admit(heavy)
    for i in range(60):
        one.add(request(f"new{i}", f"user {i}"), 0.0)
    one.shares.charge("a", 400)
    one.add(request("again", "a"), 0.0)
    while (head := one.head(0.0)) is not None and head.request_id != "again":
        one.admit(head)
        one.shares.charge(head.user, 10)
        one.ended(head)
        served_to_others += 1
        one.add(request(f"later{served_to_others}", f"later {served_to_others}"), 0.0)
        assert served_to_others < 4000
    assert served_to_others > 400, "the debt counts, too"


def test_one_that_was_preempted_outranks_all_that_were_not() -> None:
    low, high = request("low", priority=-2), request("high", priority=2)
    one = queue(low, high)
    for each in (low, high):
        one.admit(each)
    assert high.rank < low.rank
    one.put_back(low)
    one.admit(low)
    assert low.standing == PREEMPTED
    assert low.rank < high.rank


def test_entries_of_those_who_left_do_not_pile_up() -> None:
    one = queue(request("stays"))
    for i in range(10_000):
        new = request(f"r{i}")
        one.add(new, 0.0)
        one.remove(new)
    assert len(one._rises) < 1100
    assert one.head(AGEING).request_id == "stays"  # type: ignore[union-attr]
    assert one._level == {"stays": 1}


@pytest.mark.parametrize("users", [1, 5000])
def test_the_first_ones_are_found_without_a_look_at_all(users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = queue(*(request(f"r{i}", f"user {i % users}") for i in range(5000)))
    looked_at: list[str] = []
    place = WaitingQueue._place

    def counted(self: WaitingQueue, group: Any, user: str) -> tuple[float, int, str]:
        looked_at.append(user)
        return place(self, group, user)

    monkeypatch.setattr(WaitingQueue, "_place", counted)
    assert [r.request_id for r in one.first_ones()] == [f"r{i}" for i in range(WAITING_SHOWN)]
    assert len(looked_at) <= 2 * WAITING_SHOWN
