"""What an open page needs in Chromium: it must not grow with the updates that it has shown."""

from __future__ import annotations

import itertools
from importlib.resources import files

import anyio
import pytest
from playwright.async_api import CDPSession, Route, expect

from tests.browser.browsing import opened
from tests.unit.agent.web.test_server import served, table

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

HTML = """<!doctype html><title>page</title><script src="/static/page.js" defer></script>
<body data-base="" data-live="/" data-version="v{0}"><p id="connection"></p><main id="main">{0} fetched</main></body>"""
FED = "window.EventSource = class { constructor() { window.fed = this; } };"
"""A script that replaces the page's stream by one that is fed."""
UPDATES = """async () => {
  for (let number = 0; number < 100; number++) {
    const shown = document.getElementById("main");
    window.fed.onmessage({ data: `fed ${number}` });
    while (document.getElementById("main") === shown) await new Promise(requestAnimationFrame);
  }
}"""
"""Feeds 100 updates: the next one as soon as the page has drawn the last one."""
PATIENCE_MS = 600_000.0
GROWTH = 1.25
"""Between the first quarter of the updates and the last one. What a page kept of each update would grow fourfold."""


async def test_an_open_page_keeps_nothing_of_the_updates_that_it_has_shown() -> None:
    """400 updates of a page that lists 200 tables; each differs from the one before."""
    tables = [table(f"s3://lake/t{number}") for number in range(200)]
    async with (
        served(*tables) as (client, _, _),
        opened(str(client.make_url("")), PATIENCE_MS) as (page, complaints),
    ):
        shown = await (await client.get("/")).text()
        texts = itertools.cycle(shown.replace("t77", f"state-{each}") for each in range(20))

        async def answer(route: Route) -> None:
            if route.request.resource_type == "fetch":
                await route.fulfill(body=next(texts), content_type="text/html")
            else:
                await route.continue_()

        await page.add_init_script(FED)
        await page.route("**/*", answer)
        await page.goto("/")
        meter = await page.context.new_cdp_session(page)
        await meter.send("Performance.enable")
        needs = []
        for _ in range(4):
            await page.evaluate(UPDATES)
            needs.append(await needs_of(meter))
            print(needs[-1])

    first, *_, last = needs
    assert last["Nodes"] <= first["Nodes"] * GROWTH
    assert last["JSHeapUsedSize"] <= first["JSHeapUsedSize"] * GROWTH
    assert last["JSEventListeners"] == first["JSEventListeners"]
    assert last["Documents"] == first["Documents"]
    assert complaints == []


async def needs_of(meter: CDPSession) -> dict[str, float]:
    """What the page needs after a garbage collection."""
    await meter.send("HeapProfiler.collectGarbage")
    answer = await meter.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in answer["metrics"]}


async def test_an_update_that_comes_while_the_page_is_fetched_is_fetched_too() -> None:
    """Otherwise the page is one update behind until the next one."""
    script = files("lakewarden.agent.web").joinpath("static", "page.js").read_text()
    fetched, first = 0, anyio.Event()

    async def answer(route: Route) -> None:
        nonlocal fetched
        if route.request.resource_type == "script":
            await route.fulfill(body=script, content_type="text/javascript")
            return
        if route.request.resource_type == "fetch":
            fetched += 1
            if fetched == 1:
                await first.wait()
        await route.fulfill(body=HTML.format(fetched), content_type="text/html")

    async with opened("http://page.test") as (shown, _):
        await shown.add_init_script(FED)
        await shown.route("**/*", answer)
        await shown.goto("/")
        await shown.evaluate("window.fed.onmessage({ data: 'second' })")
        await shown.evaluate("window.fed.onmessage({ data: 'third' })")
        first.set()
        await expect(shown.locator("main")).to_have_text("2 fetched")
