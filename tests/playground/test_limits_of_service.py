"""A running service: one count for both doors, and the numbers that a refused program is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import websockets
from support.api_keys import http_client, make_account, make_key
from support.server import Server, scripted_model, serving

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = scripted_model(tmp_path_factory.mktemp("limits"), default={"text": "one two three four five"})
    with serving(model=model, requests_per_minute="3") as running:
        make_account(running, "ann")
        yield running


async def test_requests_by_both_doors_count_together(server: Server) -> None:
    key = make_key(server, user="ann")
    address = f"ws://127.0.0.1:{server.port}/ws/v1/"
    with http_client(server, key) as http:
        assert [http.post("/v1/chat/completions", json=BODY).status_code for _ in range(2)] == [200, 200]
        async with websockets.connect(address, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
            ends = []
            for ref in ("third", "fourth"):
                await socket.send(json.dumps({"type": "generate", "ref": ref, "prompt": "x", "params": {"seed": 1}}))
                while (frame := json.loads(await socket.recv()))["type"] not in ("finished", "error"):
                    pass
                ends.append(frame)
        assert ends[0]["type"] == "finished"
        assert (ends[1]["code"], ends[1]["ref"]) == ("rate_limited", "fourth")
        sentence = r"your account may send 3 requests a minute and has sent 3; try again in (\d+) s"
        assert re.fullmatch(sentence, ends[1]["message"])
        refused = http.post("/v1/chat/completions", json=BODY)
    told = re.fullmatch(sentence, refused.json()["error"]["message"])
    assert told is not None
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, told[1])


def test_a_superuser_s_key_is_not_limited_by_the_settings(server: Server) -> None:
    with http_client(server, make_key(server)) as http:
        assert {http.post("/v1/chat/completions", json=BODY).status_code for _ in range(5)} == {200}
