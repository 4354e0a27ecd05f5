from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakewarden.events import Topics
from lakewarden.events.schema import SCHEMA_FILE, render, schema


def tags(node: Any) -> Iterator[str]:
    """The tags of all models, wherever they are in the schema."""
    if isinstance(node, dict):
        if "const" in (tag := node.get("properties", {}).get("type", {})):
            yield tag["const"]
        for value in node.values():
            yield from tags(value)


def test_the_wire_is_the_one_that_was_reviewed() -> None:
    """A field renamed or a bound moved shows up as a change of `schema.json`, never by surprise at a writer."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == render(), "run `python -m lakewarden.events.schema`"


def test_every_topic_and_every_event_is_in_the_schema() -> None:
    """Authors of writers in other languages read nothing else."""
    described = schema()

    assert set(described["topics"]) == {each.name for each in Topics().settings()}
    assert set(tags(described)) == {
        "commit-intent",
        "marker-created",
        "writer-heartbeat",
        "commit-requested",
        "commit-completed",
        "transaction-abandoned",
        "admitted",
        "abort",
        "commit-granted",
        "grant-renewed",
        "already-committed",
        "conflict-detected",
        "lock-acquired",
        "lock-renewed",
        "lock-released",
        "lock-lost",
        "lock-refused",
        "batch-committed",
        "conflicts-lost",
        "dead-letter",
        "partition-taken",
    }


def test_the_writer_of_the_schema_writes_what_is_compared(tmp_path: Path) -> None:
    """`python -m lakewarden.events.schema` is how the file is renewed."""
    target = tmp_path / "schema.json"

    subprocess.run([sys.executable, "-m", "lakewarden.events.schema", str(target)], check=True, timeout=30)

    assert target.read_text(encoding="utf-8") == render()
    assert json.loads(render())["topics"]["lakewarden.ledger"]["key"] == "table, newline, writer"
