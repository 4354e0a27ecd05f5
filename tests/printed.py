"""What commands print, as the documents show it: `$ COMMAND` and the lines below, in a block.

A test passes what its command has printed to `as_shown`. The page shows the same lines. A block with a line `…` has some of
them, in their order; `…` at the end of a line stands for its rest. Addresses, paths, ids, times and numbers may be others.

LAKEWARDEN_TEST_RECORD=1 writes the lines to the page instead, with the page's names of places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES, MOST_COLUMNS = 14, 130
_ANY: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "TIME"),
    (r"(?:[a-z0-9]+://|(?<![\w.])/)[^\s,;]+", "PLACE"),
    (r"\b[\w.-]+:\d{4,5}\b", "PLACE"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b(?:[a-z]+-)?[0-9a-f]{8}\b", "ID"),
    (r"\b(?:arrivals|departures|shop|crm)\b", "WRITER"),
    (r"\d[\d,.]*", "0"),
    (r"\b0 (?:ms|s|min|h)\b", "0 s"),
    (r"\b(0 \w{3,}?)s\b", r"\1"),
    (r" +", " "),
)
"""What differs between two runs, and what stands for it."""


_PLACES = (
    (r"(?:file://)?/tmp/pytest[^\s,;]*/", "s3://lake/"),
    (r"s3://lakewarden-[\w-]+", "s3://lake"),
    (r"127\.0\.0\.1:\d+", "kafka:9092"),
)
"""Places in tests, and on pages."""


def as_shown(page: str, command: str, printed: str, names: Mapping[str, str] | None = None) -> None:
    """Check the block of a page that shows the output of a command. `names`: of places in this test, and on the page.

    `PAGE#HEADING`: the first block below that heading.
    """
    page, _, heading = page.partition("#")
    file = ROOT / page
    text = file.read_text(encoding="utf-8")
    above = text.index(f"# {heading}\n") if heading else 0
    before, indent, shown = _block(text[above:], command)
    before = text[:above] + before
    for here, there in (names or {}).items():
        printed = printed.replace(here, there)
    if os.environ.get("LAKEWARDEN_TEST_RECORD") == "1":
        lines = [f"{indent}{line}".rstrip() + "\n" for line in _shortened(printed)]
        file.write_text(before + "".join(lines) + text[len(before + shown) :], encoding="utf-8")
        return
    lines = [line for line in shown.splitlines() if line.strip() != "…"]
    left_out = r"(?:.*\n)*" if len(lines) < shown.count("\n") else ""
    wanted = left_out.join(["", *(re.escape(_alike(line)).replace("…", ".*") + "\n" for line in lines), ""])
    found = "".join(f"{_alike(line)}\n" for line in printed.splitlines())
    assert re.fullmatch(wanted, found), f"{page} shows another output of `{command}`:\n{printed}"


def _block(text: str, command: str) -> tuple[str, str, str]:
    """What is before the lines below `$ COMMAND`, their indent, and the lines up to the next command or the block's end."""
    found = re.search(
        rf"^(?P<indent> *)\$ {re.escape(command)}\n(?P<lines>(?:(?! *\$ |```).*\n)*)", text, re.MULTILINE
    )
    assert found is not None, f"no block shows `{command}`"
    lines = found["lines"]
    if found["indent"]:
        lines = re.match(r"(?: {4}.*\n|\n(?= {4}))*", lines)[0]  # type: ignore[index]
    return text[: found.start("lines")], found["indent"], lines


def _alike(line: str) -> str:
    """A line without what differs between two runs."""
    for pattern, instead in _ANY:
        line = re.sub(pattern, instead, line)
    return line.strip()


def _shortened(printed: str) -> list[str]:
    """The lines as a page has them."""
    for here, there in _PLACES:
        printed = re.sub(here, there, printed)
    lines = [
        line if len(line) <= MOST_COLUMNS else f"{line[:MOST_COLUMNS].rpartition(' ')[0]} …"
        for line in printed.splitlines()
    ]
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 4], "…", *lines[-3:]]
