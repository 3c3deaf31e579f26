"""The frames of /ws/scheduler/ as their readers see them, for the description of the protocol.

Knows: fields and what they mean. Must not know: who watches, how a frame is made (snapshot.py, broadcast.py): records
are passed on as the engine wrote them, so nothing is built from these models. Tests hold real frames against them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from inference.scheduling.ledger import IterationRecord, KVUse, Row, Waiting


class FeedModel(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class BlockState(FeedModel):
    """KV blocks of an engine's pool after a record, as /scheduler/blocks/ answers too."""

    epoch: int
    n: int
    """of the record after which the blocks were so"""
    start: int
    """number of the first block listed"""
    total: int
    """blocks in the pool"""
    blocks: list[tuple[int, int, int]]
    """of each: references, 1 where a prefix can be found in it again, and its holder's place in `owners` or -1"""
    owners: list[str]
    """ids of requests"""


class Refused(FeedModel):
    """The last control that the engine refused."""

    action: str
    text: str
    """a sentence for people"""
    at: float
    """Unix seconds"""


class EngineView(FeedModel):
    """One engine at the moment of the snapshot."""

    engine: str
    state: Literal["loading", "ready", "failed"]
    busy: bool
    """whether it has requests"""
    model: str
    epoch: int
    """of its process: rises at each restart"""
    settings: dict[str, Any]
    """those in force; `most`: the limits that it was started with"""
    costs: dict[str, float]
    """prices that it has learnt on its own iterations, in ms"""
    paused: bool
    slow_ms: float
    """ms that each iteration is made to last, at least; 0: full speed"""
    refused: Refused | None
    kv: KVUse | dict[str, int]
    """KV blocks; empty while it loads"""
    running: list[Row]
    """those who have a seat, as their newest iteration had them"""
    waiting: list[Waiting]
    waiting_total: int
    records: list[IterationRecord]
    """newest last; of a long history the rest follows in `iterations` frames"""
    blocks: BlockState | None
    """null: `blocks` frames follow, if the map is known"""


class SnapshotFrame(FeedModel):
    """How all engines look. Comes after `hello`, and again when an engine comes, goes or changes its state."""

    type: Literal["snapshot"]
    engines: list[EngineView]


class IterationsFrame(FeedModel):
    """What has happened since the frame before. Frames may be left out for a reader that falls behind; `epoch` and `n`
    of a record tell."""

    type: Literal["iterations"]
    engine: str
    records: list[IterationRecord]
    """newest last"""


class BlocksFrame(BlockState):
    """A part of the block map after a snapshot's newest record. Each later record's `blocks` are applied to it."""

    type: Literal["blocks"]
    engine: str
