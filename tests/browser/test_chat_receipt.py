"""Under an answer: where its time went, and from each word to the iteration that made it."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Page, expect
from support.browser import LONG, OpenPage
from support.server import Answer, Server

COMPOSER = "#composer-text"
ANSWER = ".turn:last-child .markdown"
RECEIPT = ".turn:last-child .receipt"
WORDS = f"{ANSWER} a.word"


async def ask(page: Page, text: str) -> None:
    await page.fill(COMPOSER, text)
    await page.press(COMPOSER, "Enter")


async def test_the_strip_is_named_on_focus_and_a_table_when_opened(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "What is the capital of France?")
    legend, table = page.locator(f"{RECEIPT} .receipt-legend"), page.locator(f"{RECEIPT} table")
    await expect(page.locator(RECEIPT)).to_contain_text("first token", timeout=30_000)
    await expect(legend).to_be_hidden()
    await expect(table).to_be_hidden()
    await page.press(COMPOSER, "Shift+Tab")
    for _ in range(10):
        if await page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
        await page.keyboard.press("Shift+Tab")
    await expect(legend).to_be_visible()
    await expect(legend).to_contain_text("decode")
    await page.keyboard.press("Enter")
    await expect(table).to_be_visible()
    await expect(legend).to_be_hidden()
    await expect(table.locator(".receipt-sum")).to_contain_text("In all")
    shares = await page.locator(f"{RECEIPT} .part").evaluate_all("all => all.map(one => +one.style.flexGrow)")
    assert abs(sum(shares) - 1) < 0.01
    await expect(page.locator(f"{RECEIPT} a", has_text="iteration").first).to_have_attribute(
        "href", re.compile(r"^/scheduler/\?engine=.+&epoch=\d+&n=\d+$")
    )


def number_of(href: str) -> int:
    return int(parse_qs(urlsplit(href).query)["n"][0])


async def test_each_word_leads_to_its_iteration_with_one_tab_stop(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "A long one")
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=60_000)
    await expect(page.locator(ANSWER)).to_have_text(LONG)
    links = await page.locator(WORDS).evaluate_all(
        "all => all.map(a => [a.textContent, a.getAttribute('href'), a.tabIndex])"
    )
    assert [text for text, _, _ in links] == re.findall(r"\w+", LONG)
    numbers = [number_of(href) for _, href, _ in links]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 80
    assert [tab for _, _, tab in links].count(0) == 1
    await page.focus(f"{WORDS}[tabindex='0']")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        await page.keyboard.press(key)
    assert await page.evaluate("document.activeElement.href") == await page.locator(WORDS).nth(11).evaluate(
        "a => a.href"
    )
    await page.keyboard.press("End")
    assert await page.locator(f"{WORDS}[tabindex='0']").count() == 1
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/scheduler/\?.*n=\d+"))


async def test_after_a_reload_the_words_are_linked_again(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "What is the capital of France?")
    await expect(page.locator(WORDS).first).to_be_visible(timeout=30_000)
    before = await page.locator(WORDS).evaluate_all("all => all.map(a => a.href)")
    await page.reload()
    await page.wait_for_selector(RECEIPT)
    await page.focus(f"{RECEIPT} summary")
    await expect(page.locator(WORDS).first).to_be_attached()
    assert await page.locator(WORDS).evaluate_all("all => all.map(a => a.href)") == before


async def test_who_waits_sees_its_place_and_why(open_page: OpenPage, server: Server) -> None:
    page = await open_page()

    async def other() -> None:
        async with server.chat() as chat:
            await chat.read(await chat.generate("A long one", max_tokens=300), Answer())

    others = [asyncio.create_task(other()) for _ in range(36)]
    await asyncio.sleep(0.5)
    await ask(page, "What is the capital of France?")
    progress = page.locator(".turn:last-child .progress[data-phase=queued]")
    await expect(progress).to_contain_text(re.compile(r"\d+ ahead of you · .+"), timeout=30_000)
    await expect(page.locator(RECEIPT)).to_be_visible(timeout=60_000)
    await page.locator(f"{RECEIPT} summary").click()
    await expect(page.locator(f"{RECEIPT} .receipt-sub", has_text="behind another one")).to_be_visible()
    await asyncio.gather(*others)
