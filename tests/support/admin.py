"""What the admin's tests share: addresses, rows with receipts, accounts with rights, a gateway without a broker."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from django.contrib.auth.models import Permission, User
from django.test import Client

from inference.serving.logs import Log
from inference.serving.messages import Delta, Finish
from playground.figures import figures_of
from playground.models import InferenceRequest

REQUESTS = "/admin/playground/inferencerequest/"
CONVERSATIONS = "/admin/playground/conversation/"
READINGS = "/admin/playground/promptread/"
MATE = "11111111-2222-4333-8444-555555555555"
RECEIPT = {
    "queue": 250.0,
    "prefill": 100.0,
    "decode": 400.0,
    "batchmates": 150.0,
    "preempted": 80.0,
    "stalled": 0.0,
    "deliver": 20.0,
    "total": 1000.0,
    "details": {
        "queue": {"no_seat": 200.0, "accept": 40.0, "behind": 10.0},
        "batchmates": [{"request_id": MATE, "ms": 150.0}],
        "caused": 33.5,
        "preemptions": 2,
        "engine": "engine-1",
        "epoch": 7,
        "first_iteration": 102,
        "last_iteration": 104,
    },
}


def address(row: InferenceRequest, action: str = "change") -> str:
    return f"{REQUESTS}{row.pk}/{action}/"


def add(owner: User, receipt: dict[str, Any] | None = None, **fields: Any) -> InferenceRequest:
    """A row; with a receipt one that is over, its figures as the gateway writes them."""
    if receipt is not None:
        fields = {"state": "completed", "finish_reason": "stop", "receipt": receipt, **figures_of(receipt), **fields}
    if not fields.keys() & {"messages", "prompt", "prompt_ids"}:
        fields["prompt"] = "hello"
    return InferenceRequest.objects.create(owner=owner, seed=fields.pop("seed", 11), **fields)


def viewer(*codenames: str, name: str = "viewer") -> Client:
    """Signed in as staff who may view requests and conversations, and what the codenames say."""
    user = User.objects.create_user(name, password="x", is_staff=True)
    own = ("view_inferencerequest", "view_conversation", *codenames)
    user.user_permissions.set(Permission.objects.filter(codename__in=own))
    client = Client()
    client.force_login(user)
    return client


class Ledger:
    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self.asked: list[tuple[str, int, int, int]] = []

    async def records(self, engine: str, epoch: int, first: int, last: int) -> list[bytes]:
        self.asked.append((engine, epoch, first, last))
        return [orjson.dumps(record) for record in self.kept]


class Engines:
    """The gateway's client: logs by request id, and the ledger."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.ledger = Ledger()
        self.failure: Exception | None = None

    async def log(self, request_id: str) -> Log:
        if self.failure:
            raise self.failure
        return self.logs.get(request_id, Log())

    def keep(self, row: InferenceRequest, token_ids: list[int], end: int = 2) -> None:
        request_id = str(row.pk)
        deltas = [Delta(request_id, i, "x", [token_id], i) for i, token_id in enumerate(token_ids, 1)]
        self.logs[request_id] = Log(True, 1, deltas, Finish(request_id, len(deltas) + 1, "stop", [end]))


class AdminGateway:
    def __init__(self) -> None:
        self.client = Engines()
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None

    async def cancel_any(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        await InferenceRequest.objects.filter(pk=request_id).aupdate(cancel_requested=True)

    async def submit(self, user: User, *, params: Any, **fields: Any) -> InferenceRequest:
        if self.refusal:
            raise self.refusal
        values = {name: value for name, value in params.to_mapping().items() if name != "seed"}
        row = InferenceRequest(id=uuid.uuid4(), owner=user, seed=params.seed, params=values, **fields)
        await row.asave(force_insert=True)
        return row
