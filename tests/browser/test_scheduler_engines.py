"""Two engines behind one broker: all of them at once, and each alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.async_api import expect
from support.browser import LONG, OpenPage
from support.server import OWN, ROOT, Answer, Server, scripted_model, serving

from playground.private_broker import runtime_folder, url_of

NAMES = ["engine-1", "engine-2"]
LINE = ".small-tape .overview-line"
INK = """canvases => {
  const colours = new Set();
  for (const canvas of canvases) {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (const colour of new Uint32Array(data.buffer)) colours.add(colour);
  }
  return colours.size;
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    replies = [{"match": "long", "text": LONG}]
    return scripted_model(tmp_path_factory.mktemp("engines"), step_ms=20, replies=replies, default={"text": "No."})


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[Server]:
    """What `serve` starts, and another engine beside it."""
    with serving(model=model, max_num_seqs="4") as running, another_engine(running, model, NAMES[1]):
        yield running


@contextlib.contextmanager
def another_engine(server: Server, model: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    env |= {
        "BATCHSCOPE_DATA_DIR": str(server.data_dir),
        "BATCHSCOPE_REDIS_URL": url_of(runtime_folder(server.data_dir)),
        "BATCHSCOPE_MODEL": model,
        "BATCHSCOPE_MAX_NUM_SEQS": "4",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "engine", "--name", name], env=env)
    yield process
    process.terminate()
    process.wait(30)


async def stream(server: Server, text: str) -> None:
    async with server.chat() as chat:
        await chat.read(await chat.generate(text, max_tokens=400, temperature=0), Answer())


async def test_two_engines_are_seen_together_and_each_alone(open_page: OpenPage, server: Server) -> None:
    page = await open_page("/scheduler/")
    choice = page.locator(".engine-choice select")
    await expect(choice.locator("option")).to_have_text([*NAMES, "all engines"], timeout=60_000)
    await choice.select_option("*")
    await expect(page.locator(".small-tape h2")).to_have_text(NAMES)
    await expect(page.locator(".small-tape .warn")).to_have_count(0, timeout=60_000)  # both have loaded
    streams = [asyncio.create_task(stream(server, f"A long one, number {n}")) for n in range(16)]
    await expect(page.locator(LINE)).to_contain_text(["4 running", "4 running"], timeout=30_000)
    for name in NAMES:
        assert await page.locator(f".small-tape[data-engine={name}] canvas").evaluate_all(INK) > 3
    await asyncio.gather(*streams)
    await page.get_by_role("button", name=NAMES[1]).click()
    await expect(page.locator("[data-testid=tape]")).to_be_visible()
    await expect(choice).to_have_value(NAMES[1])
    await expect(page.locator("[data-testid=inspector] .badge")).to_have_text("latest")


async def test_the_history_of_an_engine_that_was_killed_is_still_looked_at(
    open_page: OpenPage, server: Server, model: str
) -> None:
    gone = "engine-3"
    page = await open_page("/scheduler/")
    bar, inspector = page.locator(".scheduler-bar"), page.locator("[data-testid=inspector]")
    choice = page.locator(".engine-choice select")
    with another_engine(server, model, gone) as engine:
        await expect(choice.locator("option")).to_have_text([*NAMES, gone, "all engines"], timeout=60_000)
        await choice.select_option(gone)
        await expect(bar.locator(".warn")).to_have_count(0, timeout=60_000)  # it has loaded
        streams = [asyncio.create_task(stream(server, f"A long one, number {n}")) for n in range(12)]
        await expect(page.locator("[data-stat=running] .stat-value")).to_have_text("4", timeout=30_000)
        await page.get_by_role("button", name="Hold the picture").click()
        await page.locator("[data-testid=tape]").focus()
        await page.keyboard.press("ArrowLeft")
        epoch, n = [await inspector.get_attribute(name) for name in ("data-epoch", "data-n")]
        engine.send_signal(signal.SIGKILL)
        await expect(bar).to_contain_text("not running", timeout=30_000)
    await expect(inspector).to_have_attribute("data-n", n)
    await expect(choice).to_have_value(gone)
    link = f"/scheduler/?engine={gone}&epoch={epoch}&n={n}"
    assert page.url == server.base_url + link
    await asyncio.gather(*streams)
    later = await open_page(link)
    await expect(later.locator("[data-testid=inspector]")).to_have_attribute("data-epoch", epoch, timeout=15_000)
    await expect(later.locator("[data-testid=inspector]")).to_have_attribute("data-n", n)
    await expect(later.locator(".scheduler-bar")).to_contain_text("not running")
    await later.get_by_role("button", name="Back to live").click()
    await expect(later.locator("[data-testid=tape]")).to_contain_text("This engine is not running")
