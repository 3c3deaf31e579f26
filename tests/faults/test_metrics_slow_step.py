"""One slow step is no hang: nobody is killed, and health stays green. The other case is in test_metrics_hung_engine."""

import asyncio
import contextlib

import pytest
from support.server import Answer, scripted_model


@pytest.mark.slow
async def test_steps_of_eight_seconds(make_server, tmp_path):
    server = make_server(model=scripted_model(tmp_path, step_ms=8000, default={"text": "Yes."}))
    server.start().login()
    engine = server.children()["engine"]
    seen = set()

    async def watch():
        while True:
            seen.add((await asyncio.to_thread(server.get, "/health")).status_code)
            await asyncio.sleep(0.5)

    async with server.chat() as chat:
        watching = asyncio.create_task(watch())
        answer = await chat.read(await chat.generate("ready?", max_tokens=2), Answer())
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    assert answer.finished["finish_reason"] == "length"
    assert seen == {200}
    assert server.children()["engine"] == engine
    assert "engine_hung" not in server.output
