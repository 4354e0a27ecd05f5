"""An open page in Chromium: its first paint, and what it needs while an hour's updates arrive.

The server reports at most one update of a view each second, so an hour has at most 3,600. Here the page's stream is fed: the next
update comes as soon as the page has drawn the last one. At each the page's script fetches the page again, which differs from the
last one, and replaces what it shows. The pages are those that the server has sent for some states, one after the other and again,
so that only the browser is measured.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
from playwright.async_api import Browser, CDPSession, Page, Route, async_playwright

from tests.bench.figures import summary

PATIENCE_MS = 600_000.0
SAMPLES = 4
UPDATES_AT_ONCE = 50
"""Between two of them the driver talks to the browser."""

_PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
  const found = list.getEntriesByName("first-contentful-paint")[0];
  if (found) done(found.startTime);
}).observe({type: "paint", buffered: true}))"""
FED = "window.EventSource = class { constructor() { window.fed = this; } };"
"""A script that replaces the page's stream by one that is fed."""
_UPDATE = """async (count) => {
  for (let number = 0; number < count; number++) {
    const shown = document.getElementById("main");
    window.fed.onmessage({ data: `fed ${number}` });
    while (document.getElementById("main") === shown) await new Promise(requestAnimationFrame);
  }
}"""


class OpenPages:
    """A browser. `pid` is that of its first process."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self._address = address
        self.name = f"Chromium {browser.version}"
        own = {each.pid for each in psutil.Process().children(recursive=True) if "chrom" in each.name()}
        self.pid = min(own)

    async def page(self) -> Page:
        """A new page without an address."""
        page = await self._browser.new_page(base_url=self._address)
        page.set_default_timeout(PATIENCE_MS)
        return page

    async def first_paints(self, page: Page, count: int) -> dict[str, Any]:
        """Open the page so many times. Milliseconds until the first text was drawn."""
        painted: list[float] = []
        for _ in range(count):
            await page.goto("/")
            painted.append(await page.evaluate(_PAINTED))
        return summary(painted)

    async def fed(self, texts: Sequence[str], updates: int) -> list[dict[str, Any]]:
        """What another page needs after some of the updates, and after all. `texts`: the pages that it fetches in turn."""
        page, sent = await self.page(), itertools.cycle(texts)

        async def answer(route: Route) -> None:
            if route.request.resource_type == "fetch":
                await route.fulfill(body=next(sent), content_type="text/html")
            else:
                await route.continue_()

        await page.add_init_script(FED)
        await page.route("**/*", answer)
        await page.goto("/")
        meter = await page.context.new_cdp_session(page)
        await meter.send("Performance.enable")
        found = []
        done = 0
        for sample in range(1, SAMPLES + 1):
            while done < updates * sample // SAMPLES:
                count = min(UPDATES_AT_ONCE, updates * sample // SAMPLES - done)
                await page.evaluate(_UPDATE, count)
                done += count
            found.append(await _needs(meter, done))
        await page.close()
        return found


@asynccontextmanager
async def opened(chromium: str, address: str) -> AsyncIterator[OpenPages]:
    """A browser while the block runs."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu"],
            env={**os.environ, "TMPDIR": "/tmp"},
        )
        try:
            yield OpenPages(browser, address)
        finally:
            await browser.close()


async def _needs(meter: CDPSession, updates: int) -> dict[str, Any]:
    """What a page has needed so far, after a garbage collection. `cpu_seconds`: of its own thread: script, style and layout."""
    await meter.send("HeapProfiler.collectGarbage")
    answer = await meter.send("Performance.getMetrics")
    found = {each["name"]: each["value"] for each in answer["metrics"]}
    return {
        "updates": updates,
        "heap_mb": round(found["JSHeapUsedSize"] / 1e6, 2),
        "nodes": int(found["Nodes"]),
        "listeners": int(found["JSEventListeners"]),
        "documents": int(found["Documents"]),
        "cpu_seconds": round(found["ThreadTime"], 2),
    }
