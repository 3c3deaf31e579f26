"""The chat page in a real browser, against the whole service."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Page, WebSocketRoute, expect
from support.browser import LONG, OpenPage

COMPOSER = "#composer-text"
ANSWER = ".turn:last-child .markdown"
RECEIPT = ".turn:last-child .receipt"


async def ask(page: Page, text: str) -> None:
    await page.fill(COMPOSER, text)
    await page.press(COMPOSER, "Enter")


async def test_a_message_is_answered_with_a_receipt(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "What is the capital of France?")
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=30_000)
    await expect(page.locator(ANSWER)).to_have_text("The capital of France is Paris.")
    await expect(page.locator(f"{ANSWER} strong")).to_have_text("Paris")
    await expect(page.locator(RECEIPT)).to_contain_text("tokens in")
    await expect(page.locator(".conversation[data-current=true]")).to_contain_text("What is the capital of France?")
    assert "?c=" in page.url


async def test_a_conversation_is_renamed_and_deleted(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "Anything at all")
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=30_000)
    row = page.locator(".conversation[data-current=true]")
    await row.hover()
    await row.get_by_role("button", name="Rename").click()
    await page.fill(".rename", "A <b>new</b> name")
    await page.press(".rename", "Enter")
    await expect(row).to_contain_text("A <b>new</b> name")
    await page.reload()
    await expect(page.locator("h1")).to_have_text("A <b>new</b> name")
    await row.hover()
    await row.get_by_role("button", name="Delete").click()
    await page.locator("dialog").get_by_role("button", name="Cancel").click()
    await expect(row).to_be_visible()
    await row.hover()
    await row.get_by_role("button", name="Delete").click()
    await page.locator("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("A <b>new</b> name")).to_have_count(0)
    await expect(page.locator(".empty")).to_be_visible()


async def test_stop_keeps_the_part_so_far(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "A long one")
    await expect(page.locator(ANSWER)).to_contain_text("Word 5.", timeout=30_000)
    await page.get_by_test_id("stop").click()
    await expect(page.locator(".turn:last-child .ending")).to_have_text("Stopped by you.")
    part = await page.inner_text(ANSWER)
    assert LONG.startswith(part)
    assert len(part) < len(LONG)
    await page.reload()
    await expect(page.locator(ANSWER)).to_have_text(part)


async def test_escape_stops_too(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "A long one")
    await expect(page.locator(ANSWER)).to_contain_text("Word 2.", timeout=30_000)
    await page.press(COMPOSER, "Escape")
    await expect(page.locator(".turn:last-child .ending")).to_have_text("Stopped by you.")


async def test_a_reload_in_mid_stream_gives_the_whole_text_and_keeps_the_settings(open_page: OpenPage) -> None:
    page = await open_page()
    await page.click("button[aria-controls=settings]")
    await page.fill("#setting-temperature", "0")
    await page.fill("#setting-max_tokens", "1000")
    await ask(page, "A long one")
    await expect(page.locator(ANSWER)).to_contain_text("Word 20.", timeout=30_000)
    await page.reload()
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=60_000)
    await expect(page.locator(ANSWER)).to_have_text(LONG)
    await expect(page.locator("#setting-temperature")).to_have_value("0")
    await expect(page.locator("#setting-max_tokens")).to_have_value("1000")


async def test_a_server_without_room_is_not_a_lost_connection(open_page: OpenPage) -> None:
    page = await open_page("/")
    await page.route_web_socket("**/ws/chat/", lambda socket: socket.close(code=1013, reason="8 are allowed"))
    await page.reload()
    await expect(page.locator(".toolbar .connection")).to_contain_text("Too many pages open; next try in")
    await expect(page.locator(".toolbar .connection span[title]")).to_have_attribute("title", re.compile("Close other"))


async def test_a_cut_connection_comes_back_and_loses_nothing(open_page: OpenPage) -> None:
    page = await open_page()
    sockets = []
    await page.route_web_socket("**/ws/chat/", lambda route: sockets.append((route, route.connect_to_server())))
    await page.reload()
    await page.wait_for_selector("[data-state=live]")
    await ask(page, "A long one")
    await expect(page.locator(ANSWER)).to_contain_text("Word 10.", timeout=30_000)
    route, upstream = sockets[-1]
    await route.close(code=1011)  # first: else the page may yet send something to what is closed
    await upstream.close()
    await expect(page.locator(".toolbar .connection")).to_contain_text("Reconnecting in")
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=60_000)
    await expect(page.locator(ANSWER)).to_have_text(LONG)
    assert len(sockets) == 2


async def test_what_is_sent_while_the_server_drains_is_kept_and_sent_afterwards(open_page: OpenPage) -> None:
    page = await open_page()
    sockets: list[tuple[WebSocketRoute, WebSocketRoute]] = []
    asked: list[int] = []  # by the place of the socket

    def listen(route: WebSocketRoute) -> None:
        upstream, place = route.connect_to_server(), len(sockets)

        def on_message(message: str | bytes) -> None:
            if json.loads(message)["type"] == "generate":
                asked.append(place)
            upstream.send(message)

        route.on_message(on_message)
        sockets.append((route, upstream))

    await page.route_web_socket("**/ws/chat/", listen)
    await page.reload()
    await page.wait_for_selector("[data-state=live]")
    route, upstream = sockets[-1]
    route.send(json.dumps({"type": "draining"}))
    await expect(page.locator(".notice")).to_contain_text("what you send now is kept")
    await ask(page, "What is the capital of France?")
    await expect(page.locator(".turn:last-child")).to_contain_text("Sending")
    await expect(page.locator(".notice")).to_contain_text("what you send now is kept")
    assert asked == []
    await route.close(code=1012)
    await upstream.close()
    await expect(page.locator(ANSWER)).to_have_text("The capital of France is Paris.", timeout=60_000)
    await expect(page.locator(".notice")).to_have_count(0)
    assert asked == [1]


async def test_a_message_that_the_server_refuses_since_it_drains_is_sent_again(open_page: OpenPage) -> None:
    page = await open_page()
    sockets: list[tuple[WebSocketRoute, WebSocketRoute]] = []

    def refuse(route: WebSocketRoute) -> None:
        upstream, place = route.connect_to_server(), len(sockets)

        def on_message(text: str | bytes) -> None:
            message = json.loads(text)
            if message["type"] == "generate" and not place:
                route.send(json.dumps({"type": "error", "code": "draining", "message": "", "ref": message["ref"]}))
            else:
                upstream.send(text)

        route.on_message(on_message)
        sockets.append((route, upstream))

    await page.route_web_socket("**/ws/chat/", refuse)
    await page.reload()
    await page.wait_for_selector("[data-state=live]")
    await ask(page, "What is the capital of France?")
    await expect(page.locator(".turn:last-child")).to_contain_text("Sending")
    route, upstream = sockets[-1]
    await route.close(code=1012)
    await upstream.close()
    await expect(page.locator(ANSWER)).to_have_text("The capital of France is Paris.", timeout=60_000)


async def test_another_conversation_meanwhile_does_not_stop_the_answer(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "A long one")
    await expect(page.locator(ANSWER)).to_contain_text("Word 3.", timeout=30_000)
    address = page.url
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".empty")).to_be_visible()
    await page.go_back()
    assert page.url == address
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=60_000)
    await expect(page.locator(ANSWER)).to_have_text(LONG)


async def test_answer_again_replaces_the_answer(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "What is the capital of France?")
    await page.get_by_role("button", name="Answer again").click(timeout=30_000)
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=30_000)
    await page.reload()
    await expect(page.locator(".turn")).to_have_count(1)
    await expect(page.locator(ANSWER)).to_have_text("The capital of France is Paris.")


async def test_nothing_hostile_runs_or_loads(open_page: OpenPage) -> None:
    page = await open_page()
    question = "<img src=x onerror=window.ran=6> hostile <svg/onload=window.ran=7>"
    await ask(page, question)
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=60_000)
    for _ in range(2):
        await expect(page.locator(ANSWER)).to_contain_text("<img src=x onerror=")
        await expect(page.locator(ANSWER)).to_contain_text("The end.")
        await expect(page.locator(".question")).to_have_text(
            "<img src=x onerror=window.ran=6> hostile <svg/onload=window.ran=7>"
        )
        assert await page.evaluate("window.ran") is None
        assert await page.locator("#chat :is(img, iframe, script, style, .turn svg:not(.icon))").count() == 0
        links = await page.locator(f"{ANSWER} a:not(.word)").evaluate_all("all => all.map(a => [a.href, a.rel])")
        rel = "noopener noreferrer nofollow"
        assert links == [["https://evil.example/a.png", rel], ["https://example.org/", rel]]
        await page.reload()
        await page.wait_for_selector(RECEIPT)


async def test_code_is_named_and_copied(open_page: OpenPage) -> None:
    page = await open_page(permissions=["clipboard-read", "clipboard-write"])
    await ask(page, "Some code please")
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=30_000)
    await expect(page.locator(".code-lang")).to_have_text("Python")
    await expect(page.locator(".code .hljs-string")).to_have_text("'hello'")
    await page.get_by_role("button", name="Copy").first.click()
    assert await page.evaluate("navigator.clipboard.readText()") == "print('hello')\n"


async def test_an_input_methods_enter_sends_nothing_and_shift_enter_breaks_the_line(open_page: OpenPage) -> None:
    page = await open_page()
    await page.fill(COMPOSER, "ni hao")
    composing = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true})"
    await page.evaluate(f"document.querySelector('{COMPOSER}').dispatchEvent({composing})")
    await page.press(COMPOSER, "Shift+Enter")
    await expect(page.locator(COMPOSER)).to_have_value("ni hao\n")
    assert await page.locator(".turn").count() == 0


async def test_scrolling_up_while_it_streams_is_left_alone(open_page: OpenPage) -> None:
    page = await open_page(width=360, height=460)
    await ask(page, "A long one")
    await expect(page.locator(ANSWER)).to_contain_text("Word 40.", timeout=30_000)
    await page.evaluate("document.querySelector('.thread').scrollTo({top: 0})")
    await expect(page.get_by_role("button", name="To the newest message")).to_be_visible()
    await expect(page.locator(RECEIPT)).to_be_attached(timeout=60_000)
    assert await page.evaluate("document.querySelector('.thread').scrollTop") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_has_no_sideways_scroll(open_page: OpenPage, scheme: str) -> None:
    page = await open_page(width=360, height=740, color_scheme=scheme)
    await ask(page, "Some code please")
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=30_000)
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    await page.click("button[aria-controls=conversations]")
    await expect(page.get_by_role("button", name="New chat")).to_be_in_viewport()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="New chat")).not_to_be_in_viewport()
    await page.click("button[aria-controls=settings]")
    await expect(page.locator("#settings")).to_be_in_viewport()
    assert await page.evaluate("document.documentElement.scrollWidth") == 360


async def test_the_language_and_the_theme_can_be_chosen(open_page: OpenPage) -> None:
    page = await open_page(color_scheme="light")
    await page.click("[data-theme-toggle]")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.click("[data-menu] summary")
    await page.select_option("[data-language-form] select", "zh-hans")
    await expect(page.locator(COMPOSER)).to_have_attribute("placeholder", "问点什么…")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_the_theme_follows_the_system_until_one_is_chosen(open_page: OpenPage) -> None:
    page = await open_page(color_scheme="dark")
    html = page.locator("html")
    await expect(html).to_have_attribute("data-theme", "dark")
    await page.emulate_media(color_scheme="light")
    await expect(html).to_have_attribute("data-theme", "light")
    await page.click("[data-theme-toggle]")
    await expect(html).to_have_attribute("data-theme", "dark")
    await page.emulate_media(color_scheme="dark")
    await page.emulate_media(color_scheme="light")
    await expect(html).to_have_attribute("data-theme", "dark")
