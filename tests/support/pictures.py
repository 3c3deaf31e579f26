"""Takes the pictures of the READMEs and docs from a running service with the default model: `make pictures`."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright
from support.chromium import LAUNCH_ARGS, executable
from support.server import ROOT, Answer, Server, serving

FOLDER = ROOT / "docs" / "pictures"
QUESTIONS = ROOT / "tests" / "data" / "mt_bench_questions.jsonl"
QUESTION = "Explain in three short bullet points why the sky is blue, then show a one-line Python example."


async def ask(server: Server, question: str, rng: random.Random) -> None:
    async with server.chat() as chat:
        request_id = await chat.generate(question, max_tokens=rng.choice((12, 40, 90, 160)), seed=rng.randrange(99))
        await chat.read(request_id, Answer())


async def traffic(server: Server) -> None:
    """Questions that keep coming, more than there are seats."""
    rng = random.Random(4)
    questions = [json.loads(line)["turns"][0] for line in QUESTIONS.read_text().splitlines()]
    asking: set[asyncio.Task[None]] = set()
    for question in itertools.cycle(questions):
        task = asyncio.create_task(ask(server, question, rng))
        asking.add(task)
        task.add_done_callback(asking.discard)
        while len(asking) >= 20:
            await asyncio.sleep(0.05)


async def new_page(browser: Browser, server: Server, scheme: str, width: int = 1400, height: int = 900) -> Page:
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    cookies = [{"name": name, "value": value, "url": server.base_url} for name, value in server.cookies.items()]
    await context.add_cookies(cookies)
    return await context.new_page()


SCHEDULER_PAGES = {  # color scheme, width, height
    "light": ("light", 1400, 1160),
    "dark": ("dark", 1400, 1160),
    "narrow": ("light", 360, 1100),
    "wide": ("dark", 2560, 1300),
}


async def take_scheduler(server: Server, browser: Browser) -> None:
    """Under the same traffic: continuous batching on every page, an iteration chosen, then static batching."""
    pages = {name: await new_page(browser, server, *size) for name, size in SCHEDULER_PAGES.items()}
    for page in pages.values():
        await page.goto(f"{server.base_url}/scheduler/")
    busy = asyncio.create_task(traffic(server))
    await asyncio.sleep(12)
    for name, page in pages.items():
        await shoot(page, f"scheduler-{name}")
    light = pages["light"]
    tape = light.locator("[data-testid=tape] canvas.over")
    await tape.click(position={"x": 420, "y": 130})
    await light.mouse.move(0, 0)
    await shoot(light, "scheduler-iteration")
    await light.get_by_role("button", name="Back to live").click()
    await light.get_by_role("button", name="static", exact=True).click()
    await light.locator(".legend", has_text="seat idle").wait_for(timeout=60_000)
    await light.wait_for_timeout(6000)
    for scheme in ("light", "dark"):
        await shoot(pages[scheme], f"scheduler-static-{scheme}")
    busy.cancel()


async def shoot(page: Page, name: str) -> None:
    await page.bring_to_front()
    await page.wait_for_timeout(600)
    await page.screenshot(path=FOLDER / f"{name}.png")


async def take(server: Server, browser: Browser) -> None:
    for scheme in ("light", "dark"):
        page = await new_page(browser, server, scheme)
        await page.goto(f"{server.base_url}/")
        await page.wait_for_selector("[data-state=live]")
        await page.fill("#composer-text", QUESTION)
        await page.press("#composer-text", "Enter")
        await page.wait_for_selector(".receipt", timeout=60_000)
        await page.screenshot(path=FOLDER / f"chat-{scheme}.png")
    await take_scheduler(server, browser)
    admin = await new_page(browser, server, "light")
    await admin.goto(f"{server.base_url}/admin/playground/inferencerequest/")
    await admin.screenshot(path=FOLDER / "admin-light.png")


async def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with serving(max_num_seqs="16", max_num_batched_tokens="96", kv_blocks="200") as server:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=executable(), args=LAUNCH_ARGS)
            await take(server, browser)
            await browser.close()
    for path in sorted(Path(FOLDER).glob("*.png")):
        print(path.relative_to(ROOT), path.stat().st_size // 1024, "kB")


if __name__ == "__main__":
    asyncio.run(main())
