"""Where the time of one request went: the latency receipt.

Knows: the moments that a request passes. Must not know: the clock (every moment is handed in), why it waited.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestTimes:
    """Moments of a request's life, None or 0 = not yet. `*_ms`: ms of one monotonic clock; `*_at`: Unix seconds."""

    arrived_ms: float
    started_ms: float | None = None
    first_token_ms: float | None = None
    started_at: float = 0.0
    first_token_at: float = 0.0

    def start(self, ms: float, wall: float) -> None:
        """Its first iteration begins. Later calls, after a preemption, change nothing."""
        if self.started_ms is None:
            self.started_ms, self.started_at = ms, wall

    def token(self, ms: float, wall: float) -> None:
        """A token came; the first one counts."""
        if self.first_token_ms is None:
            self.first_token_ms, self.first_token_at = ms, wall

    def receipt(self, ended_ms: float) -> dict[str, float]:
        """Parts in ms that add up to `total`.

        queue: arrival to first iteration.  prefill: from there to the first token.  decode: from there to the end.
        """
        started = ended_ms if self.started_ms is None else self.started_ms
        first_token = ended_ms if self.first_token_ms is None else self.first_token_ms
        return {
            "queue": started - self.arrived_ms,
            "prefill": first_token - started,
            "decode": ended_ms - first_token,
            "total": ended_ms - self.arrived_ms,
        }
