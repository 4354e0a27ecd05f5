"""`docs/examples/pause.py` plays what docs/pause.md tells, line by line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.timeout(180)
def test_the_two_clients_of_the_pause_story_do_what_the_story_says() -> None:
    played = subprocess.run(
        [sys.executable, str(DOCS / "examples" / "pause.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    told = [line for line in (DOCS / "pause.md").read_text().splitlines() if _is_played(line)]
    assert played.returncode == 0, played.stdout
    assert _lines(played.stdout.splitlines()) == _lines(told)


def _is_played(line: str) -> bool:
    """An act's title, or a line of its transcript."""
    return re.match(r"## \d\. |    [\d.]+ s  ", line) is not None


def _lines(lines: list[str]) -> list[str]:
    """What is said, without blank lines and with the seconds left open."""
    said = (re.sub(r"[\d.]+ s\b", "N s", line.removeprefix("## ")).strip() for line in lines)
    return [line for line in said if line]
