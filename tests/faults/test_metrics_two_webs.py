"""Two web processes and one engine: each web answers for all, at once, also right after everything was cancelled."""

import time

import httpx
import websockets
from prometheus_client.parser import text_string_to_metric_families
from support.server import Answer, Chat
from support.webs import second_web

GAUGES = ("num_requests_running", "num_requests_waiting", "requests_unclaimed", "kv_cache_usage_perc", "engine_busy")
STREAMS = 40


def scrape(server, address):
    """Sums by name, over all labels."""
    answer = httpx.get(address + "/metrics", cookies=server.cookies, timeout=30.0)
    answer.raise_for_status()
    sums = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            name = sample.name.removeprefix("batchscope:")
            sums[name] = sums.get(name, 0) + sample.value
    return sums


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


async def test_each_answers_for_all(make_server):
    few = {"max_num_seqs": "8", "resume_grace": "0"}
    server = make_server(**few)
    server.start().login()
    cookie = "; ".join(f"{name}={value}" for name, value in server.cookies.items())
    with second_web(server) as other:
        both = (server.base_url, other)
        socket = other.replace("http", "ws") + "/ws/chat/"
        async with websockets.connect(socket, origin=other, additional_headers={"Cookie": cookie}) as connection:
            chat = Chat(connection)
            await chat.read(await chat.generate("story 1 please", max_tokens=9), Answer())
            one = {"type": "generate", "messages": [{"role": "user", "content": "story 2 please"}]}
            for _ in range(STREAMS // 8):
                await chat.send(**one, params={"n": 8, "max_tokens": 600})
            await chat.receive_type("delta")
            assert wait_for(lambda: scrape(server, server.base_url)["num_requests_waiting"] == STREAMS - 8, 5)
            for address in both:
                busy = scrape(server, address)
                assert (busy["num_requests_running"], busy["sockets_open"], busy["web_processes"]) == (8, 1, 2)
        ended = 1 + STREAMS  # the socket is closed, so all of them are cancelled at once
        assert wait_for(lambda: scrape(server, other)["request_success_total"] == ended, 30)
        assert wait_for(lambda: not any(scrape(server, server.base_url)[name] for name in GAUGES), 2)
        assert not any(scrape(server, other)[name] for name in GAUGES)
        time.sleep(1.0)  # what the other one has counted is in the broker then
        first, second = (scrape(server, address) for address in both)
        counted = [name for name in first if name.endswith(("_total", "_count", "_sum", "_bucket"))]
        assert {name: first[name] for name in counted} == {name: second[name] for name in counted}
        assert first["requests_accepted_total"] == first["request_success_total"] == ended
        assert first["sockets_opened_total"] == first["sockets_closed_total"] == 1
        assert first["deltas_sent_total"] > 0
