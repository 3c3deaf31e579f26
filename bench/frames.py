"""Frame times of the scheduler page in a real Chromium at 60 iterations a second of 64 rows: `python -m bench.frames`.

Knows: how to feed the page made-up iterations over a socket answered in the browser, and how to time its frames.
Must not know: the engine; there is none, and no server. Needs the page's bundle (`npm run build`) and Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.made_up import BLOCKS, Iterations, snapshot

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "static" / "dist"
ORIGIN = "http://frames.test"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
FRAME_S = 0.05  # as playground/sockets/scheduler.py sends them
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PAGE = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>frames</title>
<link rel="stylesheet" href="/app.css"></head><body><main id="main"><div id="scheduler" data-history></div></main>
<script src="/scheduler.js"></script></body></html>"""
TIMING = """(() => {
  const times = (window.frames_ = { gaps: [], work: [] });
  const real = requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (draw) => real((now) => {
    const began = performance.now();
    draw(now);
    times.work.push(performance.now() - began);
  });
  let last = 0;
  const tick = (now) => { if (last) times.gaps.push(now - last); last = now; real(tick); };
  real(tick);
})();"""


def chromium() -> str | None:
    """The system's browser; None: Playwright's own."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


async def answer(route: Any) -> None:
    """The page's files, and an empty KV map to start from."""
    path = route.request.url.removeprefix(ORIGIN).split("?")[0]
    file = DIST / path.lstrip("/")
    if path == "/scheduler/":
        await route.fulfill(body=PAGE, content_type="text/html")
    elif path == "/scheduler/blocks/":
        body = {
            "engine": "engine-1",
            "epoch": 1,
            "n": 0,
            "total": BLOCKS,
            "blocks": [[0, 0, -1]] * BLOCKS,
            "owners": [],
        }
        await route.fulfill(json=body)
    elif file.is_file():
        await route.fulfill(body=file.read_bytes(), content_type=TYPES.get(file.suffix, "text/plain"))
    else:
        await route.fulfill(json={"records": [], "epochs": []})


async def feed(socket: Any, seats: int, per_second: float) -> None:
    """Frames as the service sends them: what has been made since the last one, 20 times a second."""
    made = Iterations(seats, per_second)
    socket.send(json.dumps({"type": "hello", "protocol": 1}))
    socket.send(json.dumps(snapshot(seats)))
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    while True:
        due = int((loop.time() - began) * per_second) - sent
        records = [made.record() for _ in range(due)]
        sent += due
        if records:
            socket.send(json.dumps({"type": "iterations", "engine": "engine-1", "records": records}))
        await asyncio.sleep(FRAME_S)


async def measure(seats: int, per_second: float, seconds: float, width: int, ratio: float) -> dict[str, list[float]]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = await browser.new_page(viewport={"width": width, "height": 1300}, device_scale_factor=ratio)
        feeding: list[asyncio.Task[None]] = []
        await page.add_init_script(TIMING)
        await page.route(f"{ORIGIN}/**", answer)
        await page.route_web_socket(
            "**/ws/scheduler/", lambda socket: feeding.append(asyncio.create_task(feed(socket, seats, per_second)))
        )
        await page.goto(f"{ORIGIN}/scheduler/")
        await page.wait_for_selector("[data-testid=tape]")
        await page.wait_for_timeout(3000)  # until the tape is full of work
        await page.evaluate("frames_.gaps.length = frames_.work.length = 0")
        await page.wait_for_timeout(1000 * seconds)
        times = await page.evaluate("frames_")
        for task in feeding:
            task.cancel()
        await browser.close()
    return times


def told(name: str, values: Sequence[float]) -> str:
    ordered = sorted(values)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    figures = f"median {statistics.median(ordered):.1f} ms, p95 {p95:.1f} ms, longest {ordered[-1]:.1f} ms"
    return f"{name}: {figures}, {len(ordered)} frames"


def main() -> None:
    parser = argparse.ArgumentParser(description="Frame times of the scheduler page")
    parser.add_argument("--seats", type=int, default=64)
    parser.add_argument("--rate", type=float, default=60.0, help="iterations a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--ratio", type=float, default=1.0, help="device pixels a CSS pixel")
    options = parser.parse_args()
    times = asyncio.run(measure(options.seats, options.rate, options.seconds, options.width, options.ratio))
    print(told("from frame to frame", times["gaps"]))
    print(told("drawing in a frame", times["work"]))


if __name__ == "__main__":
    main()
