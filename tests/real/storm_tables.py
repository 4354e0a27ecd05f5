"""The simplest possible table: a file to which each commit appends a line.

The append of one short line is atomic, even if its writer is killed. The table does not refuse a second commit of a batch or two
publishes at once: the tests check whether these happen.
"""

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
    """The file of a table."""
    return Path(table.removeprefix("file://")) / "commits"


def append(table: str, line: Line) -> None:
    """Publish a commit."""
    path = path_of(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(target, (json.dumps(asdict(line)) + "\n").encode())
    finally:
        os.close(target)


def lines(table: str) -> list[Line]:
    """All commits in their order."""
    path = path_of(table)
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


def commit_of(table: str, writer: str, batch: int) -> Line | None:
    """The commit of a writer's batch, or None."""
    return next((line for line in lines(table) if (line.writer, line.batch) == (writer, batch)), None)
