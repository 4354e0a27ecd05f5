"""A table as simple as one can be: a file to which each commit appends a line.

An append of one short line is one step: a reader sees all of it or nothing, whenever its writer is killed. Nothing in it
refuses a second commit of a batch, or one beside another: whether that happens is what the tests ask.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One commit."""

    writer: str
    batch: int
    transaction: str
    grant: str


def path_of(table: str) -> Path:
    """The file of a table's URI."""
    return Path(table.removeprefix("file://")) / "commits"


def append(table: str, line: Line) -> None:
    """Commit."""
    path = path_of(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(target, (json.dumps(asdict(line)) + "\n").encode())
    finally:
        os.close(target)


def lines(table: str) -> list[Line]:
    """All commits, in their order."""
    path = path_of(table)
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


def commit_of(table: str, writer: str, batch: int) -> Line | None:
    """The commit of a writer's batch, if it is there."""
    return next((line for line in lines(table) if (line.writer, line.batch) == (writer, batch)), None)
