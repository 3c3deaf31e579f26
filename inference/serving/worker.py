"""The engine's process: the main thread steps the engine (step_loop.py), the broker thread (link.py) carries requests
and outputs.

Knows: how the process starts and ends. Must not know: Django, sockets, Redis commands, what a step is.
An exception that the engine did not foresee ends the process: the supervisor starts another, which goes on from the
logs. Nothing is ever continued in doubt.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import Any

from inference.config import EngineConfig, ParameterError
from inference.execution.models.errors import ModelError
from inference.serving.faults import count_faults
from inference.serving.ledger_store import LedgerKeep
from inference.serving.link import BrokerLink
from inference.serving.messages import EngineStatus
from inference.serving.orders import Drain, Order, Stop
from inference.serving.step_loop import Worker
from inference.text.errors import TokenizerError

log = logging.getLogger("batchscope.engine")

EXIT_CRASHED = 1
EXIT_NO_MODEL = 3  # the engine could not be made: a setting or a model file is wrong
FAILED_SHOWN = 120.0  # seconds that the status "failed" is kept


def run_worker(
    config: EngineConfig,
    redis_url: str,
    name: str,
    make_engine: Callable[[EngineConfig], Any] | None = None,
    keep: LedgerKeep | None = None,
    drain_timeout: float = 0.0,
) -> int:
    """Run one engine against a broker until SIGTERM or SIGINT; the exit status. Call it from the main thread.

    `make_engine` stands in for the engine in tests; `keep` says how much of the ledger is kept, and where;
    `drain_timeout`, for how many seconds at most it goes on with what it has; a second signal ends that.
    """
    status = EngineStatus(
        name=name,
        pid=os.getpid(),
        state="loading",
        busy=False,
        progress_at=time.time(),
        detail=f"loading model {os.path.basename(config.model)}",
        model=os.path.basename(config.model),
        settings=_shown(config),
    )
    orders: SimpleQueue[Order] = SimpleQueue()
    loading = True
    draining = drain_timeout <= 0

    def on_signal(*_: Any) -> None:
        nonlocal draining
        if loading:  # nothing runs yet that would have to be given back
            raise SystemExit(0)
        orders.put(Stop() if draining else Drain(drain_timeout))
        draining = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    consumer = f"{name}@{os.getpid()}.{secrets.token_hex(4)}"
    link = BrokerLink(redis_url, name, consumer, orders, status, keep)
    count_faults(link.totals)
    link.start()
    _stand_back()
    try:
        engine = (make_engine or _make_engine)(config)
    except (ModelError, TokenizerError, ParameterError) as error:  # each says in one sentence what is wrong
        log.error("engine_failed: %s", error)
        link.announce(replace(status, state="failed", detail=str(error)), FAILED_SHOWN)
        return EXIT_NO_MODEL
    except Exception:
        log.exception("engine_crashed")
        return EXIT_CRASHED
    engine.epoch = link.epoch()
    loading = False
    try:
        Worker(engine, link, orders, replace(status, epoch=engine.epoch)).run()
    except Exception:
        log.exception("engine_crashed")
        return EXIT_CRASHED
    link.close()
    return 0


def _stand_back() -> None:
    """The thread that computes, and those that kernels start from it, let others have a core for the moment that they
    want one: the broker thread, which was started before, the broker, the web. (Linux keeps this for each thread.)"""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5))


def _make_engine(config: EngineConfig) -> Any:
    from inference.engine import Engine  # heavy: loads torch, while the broker thread says "loading"

    return Engine(config)


def _shown(config: EngineConfig) -> dict[str, Any]:
    """Settings for the scheduler page: no paths."""
    return {k: v for k, v in asdict(config).items() if k not in ("model", "model_cache")}
