"""The teaching controls of the scheduler page, on a running engine; and a span of iterations to take home."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from support.browser import LONG, OpenPage
from support.server import Answer, Server, scripted_model, serving

REPLIES = [{"match": "long", "text": LONG}, {"match": "short", "text": "Yes."}]
RUNNING = "[data-stat=running] .stat-value"
FEEDBACK = ".controls .feedback"
POLICY = ".policy:not(.warn)"  # the one in force


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = scripted_model(tmp_path_factory.mktemp("controls"), step_ms=10, replies=REPLIES, default={"text": "Well."})
    with serving(model=model, max_num_seqs="4", kv_blocks="256") as running:
        yield running


async def stream(server: Server, text: str) -> None:
    async with server.chat() as chat:
        await chat.read(await chat.generate(text, max_tokens=400, temperature=0), Answer())


async def press(page: Page, name: str) -> None:
    await page.locator("[data-testid=controls]").get_by_role("button", name=name, exact=True).click()


async def test_under_static_batching_ended_seats_are_seen_idle(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    await press(page, "static")
    await expect(page.locator(FEEDBACK)).to_have_attribute("data-state", "done")
    await expect(page.locator(POLICY)).to_have_text("static batching", timeout=10_000)
    before = asyncio.create_task(stream(server, "a long one, alone in its batch"))
    await expect(page.locator(RUNNING)).to_have_text("1", timeout=10_000)
    first = [asyncio.create_task(stream(server, text)) for text in ("a long one", "a short one", "short", "short too")]
    await before
    await expect(page.locator("[data-stat=running]")).to_contain_text("idle", timeout=20_000)
    late = asyncio.create_task(stream(server, "another short one"))
    chip = page.locator("[data-testid=waiting] .queue-chip")
    await expect(chip).to_contain_text("static batch: 1 still run", timeout=10_000)
    await asyncio.gather(*first, late)
    await expect(page.locator(".legend").first).to_contain_text("seat idle, held by its batch")
    await press(page, "continuous")
    await expect(page.locator(POLICY)).to_have_text("continuous batching", timeout=10_000)


async def test_a_policy_that_must_wait_for_the_batch_is_told(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    runs = asyncio.create_task(stream(server, "a long one"))
    await expect(page.locator(RUNNING)).to_have_text("1", timeout=10_000)
    await press(page, "Pause the engine")
    await expect(page.locator(".scheduler-bar")).to_contain_text("engine paused", timeout=10_000)
    await press(page, "static")
    bar, pressed = page.locator(".scheduler-bar"), page.locator(".choice [aria-pressed=true]").first
    await page.reload()  # the engine itself says so
    await expect(bar).to_contain_text("switching to static when the batch ends", timeout=15_000)
    await expect(page.locator(POLICY)).to_have_text("continuous batching")
    await expect(pressed).to_have_text("static")
    await press(page, "continuous")
    await expect(bar).not_to_contain_text("switching", timeout=10_000)
    await press(page, "Resume the engine")
    await asyncio.wait_for(runs, 30)


async def test_who_waits_for_a_paused_engine_waits_on_and_its_blocks_can_change(
    open_page: OpenPage, server: Server
) -> None:
    page = await open_page("/scheduler/")
    await press(page, "Pause the engine")
    await expect(page.locator(".scheduler-bar")).to_contain_text("engine paused", timeout=10_000)
    figures = page.locator("[data-stat=kv] .stat-sub")
    before = await figures.inner_text()
    await page.get_by_label("KV blocks", exact=True).fill("128")
    await press(page, "Apply")
    await expect(figures).not_to_have_text(before, timeout=15_000)
    await expect(page.get_by_label("KV blocks", exact=True)).to_have_value("128")
    waits = asyncio.create_task(stream(server, "a short one"))
    time = page.locator("[data-testid=waiting] .queue-time")
    shown = await time.inner_text()
    await expect(time).not_to_have_text(shown, timeout=10_000)  # though no iteration comes
    await page.get_by_label("KV blocks", exact=True).fill("5")
    await press(page, "Apply")
    await expect(page.locator(FEEDBACK)).to_have_attribute("data-state", "refused", timeout=15_000)
    await expect(page.get_by_label("KV blocks", exact=True)).to_have_value("5")  # to be mended, not typed again
    await page.get_by_label("KV blocks", exact=True).fill("256")
    await press(page, "Apply")
    await press(page, "Resume the engine")
    await asyncio.wait_for(waits, 20)


async def test_the_engine_is_paused_stepped_and_goes_on(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    await press(page, "Pause the engine")
    await expect(page.locator(".scheduler-bar")).to_contain_text("engine paused")
    waits = asyncio.create_task(stream(server, "a short one"))
    await expect(page.locator("[data-testid=waiting] .queue-chip")).to_contain_text("engine paused", timeout=10_000)
    await press(page, "One iteration")
    await expect(page.locator(RUNNING)).to_have_text("1", timeout=10_000)
    assert not waits.done()
    await press(page, "Resume the engine")
    await asyncio.wait_for(waits, 20)


async def test_fewer_seats_and_a_dozen_requests(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    await page.get_by_label("Seats").fill("2")
    await press(page, "Apply")
    await expect(page.locator("[data-stat=running]")).to_contain_text("of 2 seats", timeout=15_000)
    await press(page, "Send 12 requests")
    await expect(page.locator(FEEDBACK)).to_have_text("12 requests are on their way.", timeout=15_000)
    await expect(page.locator("[data-testid=waiting]")).to_contain_text("no seat: 2 of 2 taken", timeout=15_000)
    await expect(page.locator("[data-testid=waiting] .queue-chip")).to_have_count(0, timeout=60_000)
    await page.get_by_label("Seats").fill("4")
    await press(page, "Apply")
    await expect(page.locator("[data-stat=running]")).to_contain_text("of 4 seats", timeout=15_000)


@pytest.mark.parametrize("form", ["JSON", "Perfetto trace"])
async def test_the_visible_span_is_taken_home(open_page: OpenPage, server: Server, form: str, tmp_path: Path) -> None:
    await stream(server, "a long one")
    page = await open_page("/scheduler/")
    await page.get_by_role("button", name="Hold the picture").click()
    await page.locator(".transport summary").click()
    async with page.expect_download() as promise:
        await page.get_by_role("link", name=form).click()
    download = await promise.value
    await download.save_as(tmp_path / "span.json")
    span = json.loads((tmp_path / "span.json").read_text())
    last = int(await page.locator("[data-testid=inspector]").get_attribute("data-n") or 0)
    if form == "JSON":
        assert span["records"][-1]["n"] == last
    else:
        assert span["traceEvents"]
