"""Batchscope's engine: continuous batching over a paged KV cache, usable without a web server.

    from inference import Engine, EngineConfig, SamplingParams

Names are handed on lazily: a process that only needs `inference.config` never loads torch.
"""

from typing import Any

__all__ = ["Engine", "EngineConfig", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from inference.engine import Engine

        return Engine
    if name in ("EngineConfig", "SamplingParams"):
        from inference import config

        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
