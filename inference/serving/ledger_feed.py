"""New iteration records of all engines, as they come.

Knows: the streams of records. Must not know: sockets, which engines live, what is kept of older records.
"""

from __future__ import annotations

from collections.abc import Iterable

from inference.serving.broker_web import WebBroker
from inference.serving.record_lines import RecordLine, line_of

BEFORE = 2000  # ms
AT_ONCE = 300  # of an engine; where more have come, the rest follows with the next call


class LedgerFeed:
    """A reader's place in each engine's records. Each reader has one of its own."""

    def __init__(self, broker: WebBroker) -> None:
        self._broker = broker
        self._cursors: dict[str, str] = {}

    async def read(self, engines: Iterable[str]) -> dict[str, list[RecordLine]]:
        """What is new of these engines, newest last. Of one that was not asked for before, it begins a little before
        its newest record, so that what comes between a look at its history and this is not missed.

        Raises one of broker.UNREACHABLE; the next call goes on from there.
        """
        for engine in set(engines) - set(self._cursors):
            self._cursors[engine] = _a_little_before(await self._broker.ledger_end(engine))
        wanted = {engine: self._cursors[engine] for engine in engines}
        found = await self._broker.read_ledgers(wanted, AT_ONCE) if wanted else {}
        self._cursors |= {engine: cursor for engine, (cursor, _) in found.items()}
        return {engine: [line_of(record) for record in records] for engine, (_, records) in found.items()}


def _a_little_before(entry_id: str) -> str:
    """A stream's ids begin with the milliseconds of the server's clock."""
    return f"{max(0, int(entry_id.partition('-')[0]) - BEFORE)}-0"
