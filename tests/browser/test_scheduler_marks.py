"""What the tape and its cards show of rarer things: preemption, several tokens at once, seats kept in a pause, an order
that only the engine can refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect
from support.browser import OpenPage
from support.server import Answer, Server, scripted_model, serving

RUNNING = "[data-stat=running] .stat-value"
INSPECTOR = "[data-testid=inspector]"
CHIP = "[data-testid=waiting] .queue-chip"
FEEDBACK = ".controls .feedback"
REPLIES = [
    {"match": "count", "text": " ".join(str(n) for n in range(500, 560))},
    {"match": "song", "text": "la la la la " * 40},
]
BLOCKS = 24  # of 16 tokens: two requests of 200 tokens, not three


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = scripted_model(tmp_path_factory.mktemp("marks"), step_ms=15, replies=REPLIES, default={"text": "No."})
    with serving(
        model=model, max_num_seqs="4", kv_blocks=str(BLOCKS), prefix_caching="false", draft_tokens="4"
    ) as running:
        yield running


async def stream(server: Server, text: str) -> Answer:
    async with server.chat() as chat:
        return await chat.read(await chat.generate(text, max_tokens=180, temperature=0), Answer())


async def press(page: Page, name: str) -> None:
    await page.locator("[data-testid=controls]").get_by_role("button", name=name, exact=True).click()


async def records(server: Server) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(cookies=server.cookies, timeout=30.0) as http:
        answer = await http.get(f"{server.base_url}/scheduler/iterations/")
        return answer.raise_for_status().json()["records"]


async def test_a_preemption_is_seen_on_the_tape_and_in_the_queue(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/", height=1000)
    streams = [asyncio.create_task(stream(server, f"count {n} times, please")) for n in range(4)]
    lost = page.locator(f"{CHIP} .queue-lost").first
    await expect(lost).to_contain_text("tok computed before", timeout=30_000)
    answers = await asyncio.gather(*streams)
    assert {answer.finished["finish_reason"] for answer in answers} <= {"stop", "length"}
    found = await records(server)
    at = next(i for i, record in enumerate(found) if record["preempted"])
    request_id = found[at]["preempted"][0]
    before = found[at - 1]
    assert request_id in [row["request_id"] for row in before["rows"]]
    await page.goto(f"{server.base_url}/scheduler/?epoch={before['epoch']}&n={before['n']}")
    row = page.locator(f"{INSPECTOR} tbody tr", has_text=f"#{request_id[-5:]}")
    await expect(row).to_contain_text("preempted")


async def test_a_chip_tells_how_long_the_prompt_is(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    streams = [asyncio.create_task(stream(server, f"count {n} times, please")) for n in range(6)]
    await expect(page.locator(CHIP).last).to_contain_text("tok", timeout=30_000)
    texts = await page.locator(CHIP).all_inner_texts()
    waiting = {one["request_id"][-5:]: one["tokens"] for record in await records(server) for one in record["waiting"]}
    assert texts
    for text in texts:
        name = re.search(r"#(\w{5})", text)[1]
        assert f"{waiting[name]} tok" in text
    await asyncio.gather(*streams)


async def test_a_decode_of_several_tokens_says_so(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    await stream(server, "sing a song")
    await expect(page.locator(RUNNING)).to_have_text("0")
    drafted = [record for record in await records(server) if any(row["accepted"] == 4 for row in record["rows"])]
    record = drafted[-1]
    await page.goto(f"{server.base_url}/scheduler/?epoch={record['epoch']}&n={record['n']}")
    row = page.locator(f"{INSPECTOR} tbody tr").first
    await expect(row).to_contain_text("decode 5 · drafts 4/4")
    await expect(page.locator(".tape-foot .legend")).to_contain_text("several tokens at once")


async def test_who_has_a_seat_keeps_it_while_the_engine_is_paused(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    first = asyncio.create_task(stream(server, "count once"))
    await expect(page.locator(RUNNING)).to_have_text("1", timeout=10_000)
    await press(page, "Pause the engine")
    await expect(page.locator(".scheduler-bar")).to_contain_text("engine paused")
    late = asyncio.create_task(stream(server, "hello"))
    await expect(page.locator(CHIP)).to_contain_text("engine paused", timeout=10_000)
    newcomer = await open_page("/scheduler/")
    for one in (page, newcomer):
        await expect(one.locator(RUNNING)).to_have_text("1")
        await expect(one.locator(f"{INSPECTOR} tbody tr")).to_contain_text("keeps its seat")
        await expect(one.locator(f"{INSPECTOR} .sentence")).to_contain_text("the engine is paused")
    await press(page, "Resume the engine")
    await asyncio.wait_for(asyncio.gather(first, late), 30)


async def test_what_only_the_engine_can_refuse_is_told_until_the_next_order(
    open_page: OpenPage, server: Server
) -> None:
    page = await open_page("/scheduler/")
    running = asyncio.create_task(stream(server, "count once"))
    await expect(page.locator(RUNNING)).to_have_text("1", timeout=10_000)
    await press(page, "Pause the engine")
    await expect(page.locator(".scheduler-bar")).to_contain_text("engine paused")
    await page.get_by_role("spinbutton", name="KV blocks").fill("3")
    await press(page, "Apply")
    await expect(page.locator(FEEDBACK)).to_have_attribute("data-state", "refused", timeout=10_000)
    await expect(page.locator(FEEDBACK)).to_contain_text("Refused by the engine at")
    await expect(page.locator(FEEDBACK)).to_contain_text("kv_blocks would be 3")
    await expect(page.get_by_role("spinbutton", name="KV blocks")).to_have_value("3")  # to be mended there
    await press(page, "Resume the engine")
    await expect(page.locator(FEEDBACK)).to_have_text("The engine goes on.")
    await running
