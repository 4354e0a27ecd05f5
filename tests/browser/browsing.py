"""A page in Chromium, and what it complains about."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from PIL import Image
from playwright.async_api import Page, Request, ViewportSize, async_playwright, expect

from tests.waiting import PATIENCE_SECONDS

SCREENSHOTS = os.environ.get("LAKEWARDEN_TEST_SCREENSHOTS")
"""A folder for the screenshots of the documentation."""
PATIENCE_MS = PATIENCE_SECONDS * 1000
PHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1180, "height": 760}


def find_chromium() -> str | None:
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


@asynccontextmanager
async def opened(address: str, patience_ms: float = PATIENCE_MS) -> AsyncIterator[tuple[Page, list[str]]]:
    """A browser's page, and what it complains about: errors, and what the Content-Security-Policy has blocked."""
    expect.set_options(timeout=patience_ms)
    complaints: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            page = await browser.new_page(base_url=address, viewport=DESK)
            page.set_default_timeout(patience_ms)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on(
                "console",
                lambda message: complaints.append(message.text) if message.type == "error" else None,
            )
            page.on("requestfailed", lambda request: complaints.extend(_failure(request)))
            yield page, complaints
        finally:
            await browser.close()


async def fits_a_phone(page: Page, path: str) -> None:
    """The page that is open isn't wider than a phone."""
    await page.set_viewport_size(PHONE)
    wide = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{path} is {wide} pixels wider than a phone"
    await page.set_viewport_size(DESK)


async def screenshot(page: Page, name: str, *, whole: bool = True) -> None:
    """Take a screenshot for the documentation, in 256 colours: of the whole page, or what is seen first."""
    path = Path(SCREENSHOTS or ".") / f"{name}.png"
    await page.screenshot(path=path, full_page=whole)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path)


def _failure(request: Request) -> list[str]:
    """Why a request failed. A stream ends with its page."""
    ended = request.failure is not None and "ERR_ABORTED" in request.failure
    return [] if ended else [f"{request.url}: {request.failure}"]
