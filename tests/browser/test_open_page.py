"""What an open page needs in Chromium: it must not grow with the updates that it has shown."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Route, expect

from tests.bench import page
from tests.bench.open_page import FED
from tests.bench.run import Run, Size
from tests.browser.browsing import opened
from tests.kafka_fixture import KafkaServer

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

HTML = """<!doctype html><title>page</title><script src="/static/page.js" defer></script>
<body data-base="" data-live="/" data-version="v{0}"><p id="connection"></p><main id="main">{0} fetched</main></body>"""
GROWTH = 1.25
"""Between the first quarter of the updates and the last one. What a page kept of each update would grow fourfold."""


def test_an_open_page_keeps_nothing_of_the_updates_that_it_has_shown(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    """1,000 tables, of which a page lists 200."""
    size = Size(web_transactions=60, web_updates=3, web_fed_updates=400)
    report = page.measure(Run(size, kafka.bootstrap_servers, topic_prefix, tmp_path))

    for row in page.rows(report):
        print(" | ".join(row))
    first, *_, last = report["fed"]
    assert (first["updates"], last["updates"]) == (100, 400)
    assert last["nodes"] <= first["nodes"] * GROWTH
    assert last["heap_mb"] <= first["heap_mb"] * GROWTH
    assert last["listeners"] == first["listeners"]
    assert last["documents"] == first["documents"]


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
