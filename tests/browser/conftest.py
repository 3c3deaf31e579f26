"""A real server with the scripted model, and a real Chromium. A page that logs an error or asks another host for
anything fails its test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright
from support.browser import REPLIES, OpenPage
from support.chromium import LAUNCH_ARGS, executable
from support.server import Server, scripted_model, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = scripted_model(
        tmp_path_factory.mktemp("browser"), step_ms=10, replies=REPLIES, default={"text": "Nothing to say."}
    )
    with serving(model=model, max_num_seqs="16") as running:
        yield running


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable(), args=LAUNCH_ARGS)
        yield browser
        await browser.close()


@pytest.fixture
async def open_page(server: Server, chromium: Browser) -> AsyncIterator[OpenPage]:
    """Opens a path, signed in. What went wrong on the pages is told at the end."""
    wrong: list[str] = []
    contexts = []

    async def open_(path: str = "/", *, width: int = 1280, height: int = 800, **options: object) -> Page:
        context = await chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        cookies = [{"name": name, "value": value, "url": server.base_url} for name, value in server.cookies.items()]
        await context.add_cookies(cookies)
        page = await context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error on the page: {error}"))
        page.on("console", lambda message: message.type == "error" and wrong.append(f"console: {message.text}"))
        page.on("response", lambda r: r.status >= 400 and wrong.append(f"{r.status} for {r.url}"))
        own = urlsplit(server.base_url).netloc
        page.on("request", lambda r: urlsplit(r.url).netloc != own and wrong.append(f"request elsewhere: {r.url}"))
        await page.goto(server.base_url + path)
        await page.wait_for_selector("[data-state=live]")
        return page

    yield open_
    for context in contexts:
        await context.close()
    assert wrong == []
