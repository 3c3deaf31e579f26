"""The pages of the APIs in a real browser: they render under the policy, without errors or a request to elsewhere."""

from __future__ import annotations

import pytest
from playwright.async_api import Page
from support.api_keys import make_key
from support.browser import OpenPage
from support.server import Server

PAGES = ["/docs/api/", "/docs/websocket/"]
WIDTHS = [360, 1280, 2560]


async def words(page: Page) -> str:
    """All text on the page, that in the viewer's shadow roots too."""
    return await page.evaluate("""() => {
      const read = (node) => [...node.childNodes].map((child) =>
        child.nodeType === Node.TEXT_NODE ? child.textContent
          : read(child) + (child.shadowRoot ? read(child.shadowRoot) : "")).join(" ");
      return read(document.body);
    }""")


async def test_the_websocket_api(open_page: OpenPage) -> None:
    page = await open_page("/docs/websocket/")
    text = await words(page)
    for part in ("Batchscope WebSocket API", "/ws/v1/", "/ws/scheduler/", "generate", "first_seq", "4401", "1013"):
        assert part in text


async def authorise(page: Page, key: str) -> None:
    await page.click("button.authorize")
    await page.fill(".auth-container input", key)
    await page.click(".auth-btn-wrapper button[type=submit]")
    await page.click(".auth-btn-wrapper button.btn-done")


async def call(page: Page, path: str) -> str:
    """Try an operation out with the values that the page proposes; what it shows of the answer."""
    await page.click(f"[data-path='{path}']")
    await page.click("button.try-out__btn")
    await page.click("button.execute")
    await page.wait_for_selector(".live-responses-table .response")
    return await page.locator(".live-responses-table .response").inner_text()


async def test_the_http_api_and_calls_from_its_page(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/docs/api/")
    assert "Chat completion" in await words(page)
    await authorise(page, make_key(server))
    models = await call(page, "/v1/models")
    assert "200" in models
    assert '"owned_by"' in models
    await page.click("[data-path='/v1/models']")  # folded
    answer = await call(page, "/v1/chat/completions")
    assert "200" in answer
    assert "The capital of France is **Paris**." in answer


@pytest.mark.parametrize("path", PAGES)
async def test_both_themes_follow_the_switch(open_page: OpenPage, path: str) -> None:
    page = await open_page(path, color_scheme="light")

    async def ground() -> tuple[str, str]:
        """The page's colour and the viewer's."""
        return await page.evaluate("""() => {
          const colour = (node) => getComputedStyle(node).backgroundColor;
          const viewer = document.querySelector("#api .swagger-ui, asyncapi-viewer");
          return [colour(document.documentElement), colour(viewer)];
        }""")

    light = await ground()
    await page.click("[data-theme-toggle]")
    await page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    dark = await ground()
    assert light[0] == light[1]
    assert dark[0] == dark[1]
    assert light != dark


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES)
async def test_nothing_is_wider_than_the_window(open_page: OpenPage, path: str, width: int) -> None:
    page = await open_page(path, width=width)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_reached_from_the_menu_by_keyboard(open_page: OpenPage) -> None:
    page = await open_page("/")
    await page.focus("[data-menu] summary")
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="WebSocket API").focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/docs/websocket/")
    await page.wait_for_selector("asyncapi-viewer[data-state=live]")
    await page.get_by_role("link", name="HTTP", exact=True).click()
    await page.wait_for_selector("#api[data-state=live]")


async def test_the_frame_speaks_chinese(open_page: OpenPage) -> None:
    page = await open_page("/docs/websocket/", locale="zh-CN")
    assert "WebSocket 接口" in await page.title()
    assert "客户端" in await words(page)
