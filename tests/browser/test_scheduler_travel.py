"""Time travel on the scheduler page: what it shows of an iteration is what the ledger says of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Locator, Page, Route, expect
from support.browser import REPLIES, OpenPage
from support.server import Answer, Server, scripted_model, serving

SEATS = 64
ENDLESS = " ".join(f"Word {n}." for n in range(400))  # for as long as a slow machine takes to look at it
RUNNING = "[data-stat=running] .stat-value"
INSPECTOR = "[data-testid=inspector]"
TAPE = "[data-testid=tape] canvas.over"
BAR = "[data-testid=time-bar]"
IS_DRAWN = """() => {
  const canvas = document.querySelector(".kv-box canvas");
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(byte => byte % 255);
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    replies = [{"match": "endless", "text": ENDLESS}, *REPLIES]
    model = scripted_model(tmp_path_factory.mktemp("travel"), step_ms=20, replies=replies, default={"text": "No."})
    with serving(model=model, max_num_seqs=str(SEATS), kv_blocks="4096") as running:
        yield running


async def stream(server: Server, text: str) -> str:
    async with server.chat() as chat:
        request_id = await chat.generate(text, max_tokens=950, temperature=0)
        await chat.read(request_id, Answer())
    return request_id


async def ledger(server: Server, path: str) -> dict[str, Any]:
    async with httpx.AsyncClient(cookies=server.cookies, timeout=30.0) as http:
        return (await http.get(f"{server.base_url}/scheduler/{path}")).raise_for_status().json()


async def shown(page: Page) -> tuple[int, int]:
    """(epoch, n) of the iteration in the inspector."""
    inspector = page.locator(INSPECTOR)
    return int(await inspector.get_attribute("data-epoch") or 0), int(await inspector.get_attribute("data-n") or 0)


async def table(rows: Locator) -> list[list[str]]:
    return await rows.evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))")


async def compare(page: Page, server: Server) -> dict[str, Any]:
    """The inspector's rows and figures against the ledger's record; the record."""
    epoch, n = await shown(page)
    answer = await ledger(server, f"iterations/?epoch={epoch}&first={n}&last={n}")
    (record,) = answer["records"]
    rows = sorted(record["rows"], key=lambda row: row["seat"])
    seen = await table(page.locator(f"{INSPECTOR} tbody tr"))
    assert [(name[1:], int(context.replace(",", "")), int(blocks)) for name, _, context, blocks in seen] == [
        (row["request_id"][-5:], row["context"], row["blocks"]) for row in rows
    ]
    budget = record["budget"]
    await expect(page.locator("[data-figure=budget] dd")).to_have_text(
        f"{budget['used']} of {budget['limit']:,} tokens"
    )
    kv = record["kv"]
    figures = f"{kv['used']:,} used, {kv['cached']:,} cached, {kv['free']:,} free"
    await expect(page.locator("[data-figure=kv] dd")).to_have_text(figures)
    return record


async def test_under_load_a_clicked_cell_has_the_ledgers_numbers(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/", height=1200)
    streams = [asyncio.create_task(stream(server, f"An endless one, number {n}")) for n in range(SEATS)]
    await expect(page.locator(RUNNING)).to_have_text(str(SEATS), timeout=60_000)
    await expect(page.locator(f"{INSPECTOR} tbody tr")).to_have_count(SEATS)
    await page.wait_for_timeout(800)  # some dozens of iterations with all of them
    await page.get_by_role("button", name="Hold the picture").click()
    held = await shown(page)
    await page.locator(BAR).focus()
    for _ in range(5):
        await page.keyboard.press("ArrowLeft")
    await expect(page.locator(INSPECTOR)).to_have_attribute("data-n", str(held[1] - 5))
    tape = page.locator(TAPE)
    await tape.click(position={"x": (await tape.bounding_box())["width"] - 124 - 60, "y": 100})
    record = await compare(page, server)
    assert len(record["rows"]) == SEATS
    await expect(page).to_have_url(re.compile(f"epoch={record['epoch']}&n={record['n']}$"))
    await end(streams)


async def end(streams: list[asyncio.Task[str]]) -> None:
    """Their readers go: the engine is told to stop."""
    for one in streams:
        one.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


async def test_keys_on_the_time_bar_go_on_from_where_a_jump_is_heading(open_page: OpenPage, server: Server) -> None:
    running = [asyncio.create_task(stream(server, "An endless one"))]
    while (await ledger(server, "iterations/"))["newest"] is None:
        await asyncio.sleep(0.05)
    while (found := await ledger(server, "iterations/"))["newest"][1] < 400:  # more than a page is sent at first
        await asyncio.sleep(0.5)
    page = await open_page("/scheduler/")
    await expect(page.locator(INSPECTOR)).to_be_visible()

    async def late(route: Route) -> None:
        await asyncio.sleep(1.0)
        await route.continue_()

    await page.get_by_role("button", name="Hold the picture").click()
    await page.wait_for_timeout(500)
    await page.route("**/scheduler/iterations/*", late)
    await page.locator(BAR).focus()
    await page.keyboard.press("Home")
    await page.wait_for_timeout(500)  # the picture's own beat must not move the bar back
    for _ in range(3):
        await page.keyboard.press("ArrowRight")
    await expect(page.locator(INSPECTOR)).to_have_attribute("data-n", str(found["oldest"][1] + 3), timeout=15_000)
    await page.unroute_all(behavior="wait")
    await end(running)


async def test_a_link_lands_in_its_iteration_and_the_time_bar_reaches_the_oldest(
    open_page: OpenPage, server: Server
) -> None:
    await stream(server, "What is the capital of France?")
    newest = await ledger(server, "iterations/")
    epoch, n = newest["newest"]
    page = await open_page(f"/scheduler/?epoch={epoch}&n={n - 3}")
    await expect(page.locator(INSPECTOR)).to_have_attribute("data-n", str(n - 3))
    await compare(page, server)
    await page.get_by_role("button", name="Back to live").click()
    await expect(page.locator(f"{INSPECTOR} .badge")).to_have_text("latest")
    await expect(page).to_have_url(f"{server.base_url}/scheduler/")
    await page.locator(BAR).focus()
    await page.keyboard.press("Home")
    await expect(page.locator(INSPECTOR)).to_have_attribute("data-n", str(newest["oldest"][1]))
    await page.get_by_label("Jump to iteration").fill(str(n - 4))
    await page.keyboard.press("Enter")
    await expect(page.locator(INSPECTOR)).to_have_attribute("data-n", str(n - 4))
    await compare(page, server)


async def test_a_link_to_what_is_not_kept_says_so_and_names_nothing_else(open_page: OpenPage, server: Server) -> None:
    await stream(server, "What is the capital of France?")
    epoch = (await ledger(server, "iterations/"))["newest"][0]
    for link in ("?epoch=1&n=3", f"?epoch={epoch}&n=0"):
        page = await open_page(f"/scheduler/{link}")
        await expect(page.locator(".standing")).to_have_text(f"Iteration {link[-1]} is not kept.")
        await expect(page).to_have_url(f"{server.base_url}/scheduler/")


async def test_a_link_to_a_request_opens_its_card_at_its_first_iteration(open_page: OpenPage, server: Server) -> None:
    request_id = await stream(server, "What is the capital of France?")
    page = await open_page(f"/scheduler/?request={request_id}")
    card = page.locator("[data-testid=request]")
    await expect(card).to_contain_text(f"#{request_id[-5:]}")
    await expect(card).to_contain_text("decode, in shared iterations")
    where = await ledger(server, f"iterations/?request={request_id}")
    await expect(page.locator(INSPECTOR)).to_have_attribute("data-n", str(where["first"]))
    await expect(page.locator(INSPECTOR)).to_contain_text(f"#{request_id[-5:]}")
    link = card.get_by_role("link", name="in the admin")
    assert await link.get_attribute("href") == f"/admin/playground/inferencerequest/{request_id}/change/"


async def test_the_card_of_a_running_request_goes_on_until_it_is_cancelled(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    async with server.chat() as chat:
        request_id = await chat.generate("An endless one", max_tokens=950, temperature=0)
        await page.locator(INSPECTOR).get_by_role("button", name=f"#{request_id[-5:]}").click()
        card = page.locator("[data-testid=request]")
        await expect(card).to_contain_text("still running")
        last = card.locator("p .link").last
        before = await last.inner_text()
        await expect(last).not_to_have_text(before)
        await page.wait_for_timeout(700)  # what was fetched has come, and the engine has gone on
        before = await last.inner_text()
        await expect(last).not_to_have_text(before)
        await chat.send(type="cancel", request_id=request_id)
        await expect(card).not_to_contain_text("still running")
    page = await open_page(f"/scheduler/?request={request_id}")
    await expect(page.locator("[data-testid=request]")).to_contain_text("tokens answered")
    await expect(page.locator("[data-testid=request]")).not_to_contain_text("still running")


async def test_the_kv_map_says_whose_a_block_is_before_and_after(open_page: OpenPage, server: Server) -> None:
    request_id = await stream(server, "What is the capital of France?")
    where = await ledger(server, f"iterations/?request={request_id}")
    page = await open_page(f"/scheduler/?epoch={where['epoch']}&n={where['first']}")
    kv = page.locator("[data-testid=kv]")
    changed = await ledger(server, f"iterations/?epoch={where['epoch']}&first={where['first']}&last={where['first']}")
    blocks = changed["records"][0]["blocks"]
    await expect(kv).to_contain_text(f"{len({change[0] for change in blocks})} blocks changed")
    await page.wait_for_function(IS_DRAWN)
    block = next(change[0] for change in blocks if change[3] == request_id)
    await kv.locator(".kv-box").focus()
    await page.keyboard.press("ArrowRight")
    await expect(kv).to_contain_text("block 0")
    after = await ledger(server, f"blocks/?epoch={where['epoch']}&n={where['first']}")
    assert after["total"] == 4096
    assert after["owners"][after["blocks"][block][2]] == request_id


async def test_zooming_by_keys_and_a_request_pointed_at(open_page: OpenPage, server: Server) -> None:
    await stream(server, "A long one")
    page = await open_page("/scheduler/")
    await page.get_by_role("button", name="Hold the picture").click()
    await page.locator(".transport summary").click()
    span = page.locator(".exports p")
    before = await span.inner_text()
    tape = page.locator("[data-testid=tape]")
    await tape.focus()
    await page.keyboard.press("+")
    await expect(span).not_to_have_text(before)
    await page.keyboard.press("-")
    await expect(span).to_have_text(before)
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    row = page.locator(f"{INSPECTOR} tbody tr").first
    await row.get_by_role("button").hover()
    await expect(row).to_have_class("spotted")
    await row.get_by_role("button").click()
    await expect(page.locator("[data-testid=request]")).to_contain_text("prompt tokens computed")


@pytest.mark.parametrize("width", [360, 2560])
async def test_in_chinese_nothing_is_wider_than_the_page(open_page: OpenPage, server: Server, width: int) -> None:
    request_id = await stream(server, "A long one")
    page = await open_page(f"/scheduler/?request={request_id}", width=width, locale="zh-CN")
    await expect(page.locator("[data-testid=request]")).to_contain_text("解码")
    await expect(page.locator("[data-testid=kv]")).to_contain_text("块变化")
    assert await page.evaluate("document.documentElement.scrollWidth") == width
