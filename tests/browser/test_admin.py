"""The admin's pages of requests in a real browser: replay and cancel, hostile texts, a phone."""

from __future__ import annotations

import asyncio

import httpx
from playwright.async_api import Browser, Dialog, Page, expect
from support.browser import HOSTILE
from support.server import Answer, Server

LIST = "/admin/playground/inferencerequest/"
KEYS = "/admin/playground/apikey/"
MARKED = "() => { const e = document.activeElement; return e.value.slice(e.selectionStart, e.selectionEnd) }"
FINAL = ".tools .state-completed"


async def ask(server: Server, text: str, **params: object) -> str:
    async with server.chat() as chat:
        request_id = await chat.generate(text, **{"max_tokens": 500, "temperature": 0, **params})
        await chat.read(request_id, Answer())
    return request_id


async def signed_in(server: Server, chromium: Browser, path: str, width: int = 1280, **options: object) -> Page:
    """A page whose `wrong` has what it logged as an error, asked of another host, or opened as a dialog."""
    context = await chromium.new_context(viewport={"width": width, "height": 800}, **options)
    cookies = [{"name": name, "value": value, "url": server.base_url} for name, value in server.cookies.items()]
    await context.add_cookies(cookies)
    page = await context.new_page()
    page.wrong = wrong = []
    page.on("pageerror", lambda error: wrong.append(f"error on the page: {error}"))
    page.on("console", lambda message: message.type == "error" and wrong.append(f"console: {message.text}"))
    page.on("request", lambda r: r.url.startswith((server.base_url, "data:")) or wrong.append(f"elsewhere: {r.url}"))

    async def dialog(opened: Dialog) -> None:
        wrong.append(f"dialog: {opened.message}")
        await opened.dismiss()

    page.on("dialog", dialog)
    await page.goto(server.base_url + path)
    return page


async def test_run_again_and_compare(server: Server, chromium: Browser) -> None:
    request_id = await ask(server, "What is the capital of France?")
    page = await signed_in(server, chromium, f"{LIST}{request_id}/change/")
    await expect(page.locator(FINAL)).to_be_visible()
    await expect(page.locator(".timeline .part-decode").first).to_be_visible()
    await page.get_by_role("button", name="Run it again and compare").click()
    await expect(page.locator(".verdict.good")).to_contain_text("Same answer: yes", timeout=30_000)
    await expect(page.locator(".verdict.good")).to_contain_text("tokens")
    await expect(page.locator("[data-pulse]")).to_have_count(0)
    assert page.wrong == []
    await page.context.close()


async def test_cancel_while_it_runs(server: Server, chromium: Browser) -> None:
    async with server.chat() as chat:
        request_id = await chat.generate("A long one", max_tokens=500, temperature=0)
        reading = asyncio.create_task(chat.read(request_id, Answer()))
        page = await signed_in(server, chromium, f"{LIST}{request_id}/change/")
        await page.get_by_role("button", name="Cancel it").click()
        await expect(page.locator(".tools .state-cancelled")).to_be_visible(timeout=15_000)
        assert (await reading).finished["finish_reason"] == "cancelled"
    await expect(page.get_by_role("button", name="Cancel it")).to_have_count(0)
    assert page.wrong == []
    await page.context.close()


async def test_hostile_texts_do_nothing(server: Server, chromium: Browser) -> None:
    asked = f"hostile {HOSTILE}"
    async with server.chat() as chat:
        await chat.send(
            type="generate",
            ref=HOSTILE[:120],
            messages=[{"role": "user", "content": asked}],
            params={"max_tokens": 400},
        )
        request_id = (await chat.receive_type("accepted"))["request_id"]
        await chat.read(request_id, Answer())
    page = await signed_in(server, chromium, f"{LIST}{request_id}/change/")
    await expect(page.locator(".texts pre").first).to_contain_text("<script>window.ran=4</script>")
    await expect(page.locator(".texts pre").last).to_contain_text("<script>window.ran=4</script>")
    assert await page.evaluate("window.ran") is None
    for path in (LIST, f"{LIST}?q={request_id[:8]}", "/admin/playground/conversation/"):
        await page.goto(server.base_url + path)
        assert await page.evaluate("window.ran") is None
    assert page.wrong == []
    await page.context.close()


async def test_a_phone_shows_the_page_without_sideways_scroll(server: Server, chromium: Browser) -> None:
    request_id = await ask(server, "What is the capital of France?")
    page = await signed_in(server, chromium, f"{LIST}{request_id}/change/", width=360, color_scheme="dark")
    await expect(page.locator(".timeline")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    await page.goto(server.base_url + LIST)
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.wrong == []
    await page.context.close()


async def test_a_key_is_made_copied_and_works(server: Server, chromium: Browser) -> None:
    page = await signed_in(server, chromium, f"{KEYS}add/", permissions=["clipboard-read", "clipboard-write"])
    await page.keyboard.type("by keyboard")  # the form's first field has the focus
    await page.keyboard.press("Enter")
    copy = page.get_by_role("button", name="Copy")
    await expect(copy).to_be_visible()
    secret = await page.get_by_label("API key").input_value()
    assert secret.startswith("bs-")
    await _until_marked(page, secret)  # Ctrl+C takes it
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("() => navigator.clipboard.readText()") == secret
    models = httpx.get(f"{server.base_url}/v1/models", headers={"Authorization": f"Bearer {secret}"})
    assert models.status_code == 200
    await page.get_by_role("link", name="Go on to the key's page").click()
    await page.get_by_role("button", name="Revoke this key").click()
    await expect(page.get_by_text("The key is revoked.")).to_be_visible()
    assert secret not in await page.content()
    models = httpx.get(f"{server.base_url}/v1/models", headers={"Authorization": f"Bearer {secret}"})
    assert models.status_code == 401
    assert page.wrong == []


async def _until_marked(page: Page, text: str) -> None:
    """The page's script marks it a moment after it is there."""
    async with asyncio.timeout(10):
        while await page.evaluate(MARKED) != text:
            await asyncio.sleep(0.05)
