"""The documents that are generated from the code: `python -m tests.pages` writes them all. A test compares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.pages import assessment, asyncapi, configuration, metrics, releases, store_answers, writers

ROOT: Final = Path(__file__).parents[2]
PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/assess.svg": assessment.render,
    "docs/configuration.md": configuration.render,
    "docs/metrics.md": metrics.render,
    "docs/releases.md": releases.render,
    "docs/store-answers.md": store_answers.render,
    "docs/writers.md": writers.render,
    "events/asyncapi.json": asyncapi.render,
}
