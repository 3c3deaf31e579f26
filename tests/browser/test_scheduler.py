"""The scheduler page in a real browser, while real sockets stream."""

from __future__ import annotations

import asyncio

from playwright.async_api import expect
from support.browser import OpenPage
from support.server import Answer, Server

SOCKETS = 16
RUNNING = "[data-stat=running] .stat-value"
TAPE = "[data-testid=tape] > canvas:first-child"
FILM = "[data-testid=tape] .film canvas"
ROWS = "[data-testid=inspector] tbody tr"
INK = """canvases => {
  const colours = new Set();
  for (const canvas of canvases) {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (const colour of new Uint32Array(data.buffer)) colours.add(colour);
  }
  return colours.size;
}"""


async def stream(server: Server, text: str) -> str:
    async with server.chat() as chat:
        answer = await chat.read(await chat.generate(text, max_tokens=500, temperature=0), Answer())
    return answer.finished["finish_reason"]


async def test_rows_appear_while_sixteen_sockets_stream_and_go_afterwards(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/", height=1000)
    streams = [asyncio.create_task(stream(server, f"A long one, number {n}")) for n in range(SOCKETS)]
    await expect(page.locator(RUNNING)).to_have_text(str(SOCKETS), timeout=30_000)
    await expect(page.locator(ROWS)).to_have_count(SOCKETS)
    await expect(page.locator("[data-testid=inspector]")).to_contain_text(f"{SOCKETS} separate sequences")
    assert await page.locator(FILM).evaluate_all(INK) > 5
    assert await asyncio.gather(*streams) == ["stop"] * SOCKETS
    await expect(page.locator(RUNNING)).to_have_text("0", timeout=15_000)
    await expect(page.locator("[data-stat=kv]")).to_contain_text("used 0")
    await expect(page.locator("[data-stat=rate] .stat-value")).to_have_text("0", timeout=10_000)


async def test_who_waits_stands_there_with_a_reason(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    streams = [asyncio.create_task(stream(server, f"A long one, number {n}")) for n in range(SOCKETS + 2)]
    waiting = page.locator("[data-testid=waiting] .queue-chip")
    await expect(waiting).to_have_count(2, timeout=30_000)
    await expect(waiting.first).to_contain_text(f"no seat: {SOCKETS} of {SOCKETS} taken")
    await expect(waiting.nth(1)).to_contain_text("1 ahead of it")
    await asyncio.gather(*streams)
    await expect(waiting).to_have_count(0, timeout=15_000)


async def test_pause_holds_the_picture_and_an_iteration_can_be_chosen(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    title = page.locator("[data-testid=inspector] h2")
    await stream(server, "What is the capital of France?")
    await expect(page.locator(RUNNING)).to_have_text("0")
    await page.get_by_role("button", name="Hold the picture").click()
    held = await title.inner_text()
    await stream(server, "What is the capital of France?")
    await expect(page.locator(".standing")).to_contain_text("iterations since")
    assert await title.inner_text() == held
    await page.locator("[data-testid=tape]").focus()
    await page.keyboard.press("ArrowLeft")
    await expect(title).not_to_have_text(held)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Back to live").click()
    await expect(title).not_to_have_text(held)


async def test_the_pointer_tells_what_lies_under_it(open_page: OpenPage, server: Server) -> None:
    await stream(server, "What is the capital of France?")
    page = await open_page("/scheduler/")
    tape = page.locator(TAPE)
    box = await tape.bounding_box()
    await page.mouse.move(box["x"] + box["width"] - 124 - 30, box["y"] + 25)
    await expect(page.locator(".tooltip")).to_contain_text("Iteration")


async def test_a_phone_shows_all_of_it_without_sideways_scroll(open_page: OpenPage, server: Server) -> None:
    await stream(server, "What is the capital of France?")
    page = await open_page("/scheduler/", width=360, height=740, device_scale_factor=3)
    await expect(page.locator("[data-testid=tape]")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    width, shown = await page.locator(TAPE).evaluate("c => [c.width, c.clientWidth]")
    assert width == shown * 3
