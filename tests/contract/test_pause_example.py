"""`docs/examples/pause.py` prints the transcripts that docs/pause.md shows."""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_example_prints_the_transcripts_of_the_page() -> None:
    example = subprocess.run(
        [sys.executable, str(DOCS / "examples" / "pause.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    shown = [line for line in (DOCS / "pause.md").read_text().splitlines() if _is_transcript(line)]
    assert example.returncode == 0, example.stdout
    assert _without_seconds(example.stdout.splitlines()) == _without_seconds(shown)


def _is_transcript(line: str) -> bool:
    """A scene's title, or a line of its transcript."""
    return re.match(r"## \d\. |    [\d.]+ s  ", line) is not None


def _without_seconds(lines: list[str]) -> list[str]:
    """The lines that are not blank, with every duration replaced."""
    texts = (re.sub(r"[\d.]+ s\b", "N s", line.removeprefix("## ")).strip() for line in lines)
    return [text for text in texts if text]
