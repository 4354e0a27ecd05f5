"""Where Chromium is."""

from __future__ import annotations

import shutil


def find_chromium() -> str | None:
    """The path of Chromium, or None."""
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
