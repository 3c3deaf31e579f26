"""What an engine's heartbeat says of it: whether it serves, loads, hangs or has failed.

Knows: the heartbeat. Must not know: who asks, HTTP. A heartbeat alone counts for nothing: an engine with work must also
have stepped (or said that there is nothing to step, while it is paused or a batch fills).
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.serving.messages import EngineStatus


def verdict(engines: Sequence[EngineStatus], now: float, hang_timeout: float) -> str:
    """ "ok" if any engine serves; else the reason: "engine_draining", "loading", "hung", "failed", "no_engine"."""
    words = {state_of(engine, now, hang_timeout) for engine in engines}
    word = next((word for word in ("ok", "draining", "loading", "hung", "failed") if word in words), "no_engine")
    return "engine_draining" if word == "draining" else word  # "draining" alone is said of a web process


def state_of(engine: EngineStatus, now: float, hang_timeout: float) -> str:
    """ "ok", "draining", "loading", "hung" or "failed". now: Unix seconds."""
    if engine.state != "ready":
        return "loading" if engine.state == "loading" else "failed"
    if engine.busy and now - engine.progress_at > hang_timeout:
        return "hung"
    return "draining" if engine.draining else "ok"
