"""Each view in Chromium while `make demo` runs: two Spark queries, which conflict."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import pytest
from playwright.async_api import Page, expect

from tests.browser.browsing import SCREENSHOTS, fits_a_phone, opened, screenshot
from tests.processes import processes_with

pytestmark = [pytest.mark.real, pytest.mark.timeout(2500)]

DAYS = 20
"""Enough to open all views before both queries have written them."""
HANG_SECONDS = 1200.0
"""Only ends a hang: the demo starts Kafka and three Spark drivers."""
VIEW_SECONDS = 300.0
"""A view need not wait longer for a demo that has ended."""
ADDRESS = r"what happens is also shown at (http://127\.0\.0\.1:\d+/)"


@contextmanager
def running_demo(folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the demo. It is interrupted at the end of the block, if it still runs."""
    command = [sys.executable, "docs/examples/demo/demo.py"]
    options = ["--days", str(DAYS), "--data", str(folder)]
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [*command, *options, "--picture", str(folder.parent / "demo.svg")],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "COLUMNS": "140"},
        )
    try:
        yield demo
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(HANG_SECONDS)


async def printed_address(demo: subprocess.Popen[bytes], log: Path) -> str:
    """The address of the page, which the demo prints."""
    with anyio.fail_after(HANG_SECONDS):
        while (found := re.search(ADDRESS, log.read_text())) is None:
            assert demo.poll() is None, log.read_text()
            await anyio.sleep(0.2)
    return found[1]


async def test_each_view_shows_what_the_demo_does_and_a_conflict_appears_on_an_open_page(
    tmp_path: Path,
) -> None:
    log = tmp_path / "demo.log"
    with TemporaryDirectory(prefix="demo-") as folder, running_demo(Path(folder, "data"), log) as demo:
        address = await printed_address(demo, log)
        async with opened(address, VIEW_SECONDS * 1000) as (page, complaints):
            await page.goto("/losses")
            await expect(page.get_by_role("status").first).to_have_text("Live")
            await expect(
                page.get_by_role("row", name=re.compile("arrivals.*departures")).first
            ).to_be_visible()
            assert await page.evaluate("performance.getEntriesByType('navigation').length") == 1

            await page.get_by_role("link", name=re.compile("flights_optimistic")).first.click()
            lost = page.get_by_role("link", name=re.compile("lost to (arrivals|departures)")).first
            story = await lost.get_attribute("href")
            assert story is not None
            table = await page.evaluate("location.pathname + location.search")
            views = {
                table: "flights_optimistic",
                "/": "flights_optimistic",
                "/losses": "month=1/day=",
                "/waits": "wait",
                "/locks": "lock",
                "/refused": "refused",
                "/agents": "Kafka partitions",
            }
            for path, text in views.items():
                await page.goto(path)
                await expect(page.locator("main")).to_contain_text(text, ignore_case=True)
                await fits_a_phone(page, path)

            await page.goto(story)
            await expect(page.locator(".story")).to_contain_text("ABORTED (conflict)")
            await pictures(page, table, story)
            running = demo.poll() is None
    assert running, "the views were those of a running demo"
    assert complaints == []
    assert demo.returncode == 130
    assert "CONFLICT with" in log.read_text()
    assert processes_with(folder) == []


async def pictures(page: Page, table: str, story: str) -> None:
    """The pictures of docs/web.md."""
    if SCREENSHOTS is None:
        return
    for name, path in (("web-table", f"{table}&minutes=1"), ("web-transaction", story)):
        await page.goto(path)
        await expect(page.locator("main")).to_contain_text("flights_optimistic")
        await screenshot(page, name)
