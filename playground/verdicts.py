"""What an engine's heartbeat says of it: whether it serves, loads, hangs or has failed.

Knows: the heartbeat. Must not know: who asks, HTTP. A heartbeat alone counts for nothing: an engine with work must also
have stepped (or said that there is nothing to step, while it is paused or a batch fills).
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.serving.messages import EngineStatus


def verdict(engines: Sequence[EngineStatus], now: float, hang_timeout: float) -> str:
    """ "ok" if any engine serves; else the reason: "loading", "hung", "failed", "no_engine"."""
    words = {state_of(engine, now, hang_timeout) for engine in engines}
    return next((word for word in ("ok", "loading", "hung", "failed") if word in words), "no_engine")


def state_of(engine: EngineStatus, now: float, hang_timeout: float) -> str:
    """ "ok", "loading", "hung" or "failed". now: Unix seconds."""
    if engine.state != "ready":
        return "loading" if engine.state == "loading" else "failed"
    return "hung" if engine.busy and now - engine.progress_at > hang_timeout else "ok"
