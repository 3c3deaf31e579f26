"""Asking a running engine for something: the checks and the handing on that the page and the command line share.

Knows: what engines say of themselves. Must not know: HTTP, who may ask (whoever calls this has seen to that).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from inference.config import ParameterError
from inference.scheduling.request import RequestRefused
from inference.serving.client import UNREACHABLE, Control, EngineClient, EngineStatus

log = logging.getLogger("batchscope.controls")


async def hand_on(client: EngineClient, control: Control) -> None:
    """Hand a control on to its engine, which shows the effect in its next status. Raises RequestRefused."""
    try:
        status = named(await client.engines(), control.engine)
        if status.state != "ready":
            raise RequestRefused("engine_unavailable", f"{status.name} is {status.state}; try again when it is ready")
        control.check(status.settings)
        await client.control(control)
    except ParameterError as error:
        raise RequestRefused("bad_params", str(error)) from None
    except UNREACHABLE:
        raise RequestRefused("engine_unavailable", "no engine can be reached now; try again in a moment") from None
    log.info("control_asked: %s of %s, by %s, %s", control.action, status.name, control.by, control.values)


def named(engines: Sequence[EngineStatus], name: str) -> EngineStatus:
    """The engine of that name; the only one where none is named. Raises RequestRefused."""
    if not name and len(engines) == 1:
        return engines[0]
    for status in engines:
        if status.name == name:
            return status
    names = ", ".join(status.name for status in engines) or "none"
    if not name:
        raise RequestRefused("not_found", f"say which engine; there are: {names}")
    raise RequestRefused("not_found", f"there is no engine named {name[:64]!r}; there are: {names}")
