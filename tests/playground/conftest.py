"""Accounts, and a gateway that stands in for broker and engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson
import pytest
from django.contrib.auth.models import User

from inference.scheduling.request import RequestRefused
from inference.serving.client import BlockMap, Control, RecordLine, Span, line_of
from inference.serving.messages import Delta, EngineStatus, Finish, Queued
from playground.drain import get_drain
from playground.models import InferenceRequest


class FakeLedger:
    """Iterations that are kept: of one engine, by (epoch, n), each as JSON."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], bytes] = {}

    async def engines(self) -> list[str]:
        return ["engine-1"]

    async def spans(self, engine: str) -> list[Span]:
        epochs = sorted({epoch for epoch, _ in self.kept})
        numbers = {epoch: [n for known, n in self.kept if known == epoch] for epoch in epochs}
        return [Span(epoch, min(numbers[epoch]), max(numbers[epoch])) for epoch in epochs]

    async def records(self, engine: str, epoch: int, first: int, last: int) -> list[bytes]:
        names = [(epoch, n) for n in range(first, last + 1)]
        return [self.kept[name] for name in names if name in self.kept]

    async def pages(self, engine: str, epoch: int, first: int, last: int) -> AsyncIterator[list[bytes]]:
        for start in range(first, last + 1, 4):
            yield await self.records(engine, epoch, start, min(last, start + 3))

    async def block_map(self, engine: str, epoch: int, n: int) -> BlockMap | None:
        blocks = BlockMap()
        for number in range(1, n + 1):
            if (epoch, number) not in self.kept:
                return None
            told = orjson.loads(self.kept[epoch, number])
            blocks.apply(told["blocks"], told["kv"]["total"])
        return blocks


class FakeClient:
    """The engines' side: statuses and iteration records, as a test sets them."""

    def __init__(self) -> None:
        self.statuses: list[EngineStatus] = []
        self.history: list[dict[str, Any]] = []
        self.records: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()  # to be heard of by who watches
        self.ledger = FakeLedger()
        self.controls: list[Control] = []

    async def control(self, control: Control) -> None:
        self.controls.append(control)

    async def engines(self, max_age: float = 0.0) -> list[EngineStatus]:
        return self.statuses

    async def newest_iterations(self, engine: str, count: int) -> list[RecordLine]:
        return [line_of(orjson.dumps(record)) for record in self.history[-count:]]

    def ledger_feed(self) -> FakeFeed:
        return FakeFeed(self)


class FakeFeed:
    """Of the one engine, what a test puts into `records`."""

    def __init__(self, client: FakeClient) -> None:
        self._client = client

    async def read(self, engines: Iterable[str]) -> dict[str, list[RecordLine]]:
        told: list[RecordLine] = []
        while not self._client.records.empty():
            told += [line_of(orjson.dumps(record)) for record in self._client.records.get_nowait()]
        return {"engine-1": told} if told and "engine-1" in engines else {}


class FakeGateway:
    """Rows are real; answers are the words of what was asked, one a delta. What says "slow" ends by cancel only."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.cancelled: set[str] = set()
        self.refusal: Exception | None = None
        self.followers = 0

    async def ensure_started(self) -> None:
        pass

    async def submit_all(
        self, user: User, *, params: Any, received_at: float = 0.0, ref: str = "", **fields: Any
    ) -> list[InferenceRequest]:
        if self.refusal is not None:
            raise self.refusal
        family = []
        for one in params.siblings():
            row = InferenceRequest(owner=user, seed=one.seed or 7, params=one.to_mapping(), ref=ref, **fields)
            await row.asave(force_insert=True)
            row.position = 3
            family.append(row)
        return family

    async def cancel(self, user: User, request_id: str) -> bool:
        found = await InferenceRequest.objects.filter(owner=user, pk=request_id).aexists()
        if found:
            self.cancelled.add(request_id)
        return found

    async def follow(
        self, user: User, request_id: str, after_seq: int = 0, row: Any = None
    ) -> AsyncIterator[Delta | Finish | Queued]:
        row = await InferenceRequest.objects.filter(owner=user, pk=request_id).afirst()
        if row is None:
            raise RequestRefused("not_found", "there is no such request")
        self.followers += 1
        try:
            async for event in self._events(row):
                if isinstance(event, Queued) or event.seq > after_seq:
                    yield event
        finally:
            self.followers -= 1

    async def _events(self, row: InferenceRequest) -> AsyncIterator[Delta | Finish | Queued]:
        request_id, words = str(row.pk), row.asked.split()
        if "explode" in words:
            raise ZeroDivisionError("a secret of the server: /etc/passwd")
        if "patient" in words:
            yield Queued(request_id, 2, "no_seat", 1500.0)
            yield Queued(request_id, 0, "behind")
        for i, word in enumerate(words, 1):
            logprobs = [{"token_id": i, "token": word, "logprob": -0.5, "top": []}] if "likely" in words else None
            yield Delta(request_id, i, word + " ", [i], i, logprobs=logprobs)
        while "slow" in words and request_id not in self.cancelled:
            await asyncio.sleep(0.005)
        reason = "cancelled" if request_id in self.cancelled else "stop"
        error = ("error", "numerical_error", "the model gave no number") if "nan" in words else (reason, "", "")
        receipt = {"queue": 1.0, "prefill": 2.0, "decode": 3.0, "total": 6.0}
        end = [{"token_id": 2, "token": "", "logprob": -0.25, "top": [{"token_id": 7, "token": "x", "logprob": -2.0}]}]
        yield Finish(
            request_id,
            len(words) + 1,
            error[0],
            [],
            5,
            len(words),
            0,
            error[1],
            error[2],
            receipt,
            logprobs=end if "likely" in words else None,
        )


def _gateway_everywhere(monkeypatch: pytest.MonkeyPatch, gateway: FakeGateway) -> None:
    from playground.http import api, control, health, iterations
    from playground.http.openai import api as programs
    from playground.sockets import base, broadcast, chat, registry, snapshot

    broadcast.get_broadcast.cache_clear()  # one of an earlier test has that one's loop
    registry.get_open_sockets.cache_clear()
    for module in (api, programs, control, health, iterations, base, broadcast, chat, snapshot):
        monkeypatch.setattr(module, "get_gateway", lambda: gateway)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    fake = FakeGateway()
    _gateway_everywhere(monkeypatch, fake)
    return fake


@pytest.fixture(autouse=True)
def nothing_drains() -> None:
    get_drain.cache_clear()


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def _user(name: str, **fields: Any) -> User:
    return User.objects.create_user(name, password=f"password of {name}", **fields)


@pytest.fixture
def alice(db: None) -> User:
    return _user("alice")


@pytest.fixture
def bob(db: None) -> User:
    return _user("bob")


@pytest.fixture
def staff(db: None) -> User:
    return _user("staff", is_staff=True)


@pytest.fixture
def root(db: None) -> User:
    return User.objects.create_superuser("root", password="password of root")
