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
    """The tags of all models, at any depth of the schema."""
    if isinstance(node, dict):
        if "const" in (tag := node.get("properties", {}).get("type", {})):
            yield tag["const"]
        for value in node.values():
            yield from tags(value)


def test_the_schema_file_is_up_to_date() -> None:
    """A review must see a renamed field or a changed limit as a change of `schema.json`."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == render(), "run `python -m lakewarden.events.schema`"


def test_the_schema_has_every_topic_and_every_event() -> None:
    """Authors of clients in other languages generate code from it."""
    described = schema()

    assert set(described["topics"]) == {each.name for each in Topics().settings()}
    assert set(tags(described)) == {
        "commit-intent",
        "marker-created",
        "writer-heartbeat",
        "commit-requested",
        "commit-completed",
        "transaction-abandoned",
        "abort-requested",
        "ledger-corrected",
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
        "locks-handed-over",
        "ledger-copied",
    }


def test_the_module_writes_the_schema_file(tmp_path: Path) -> None:
    """Developers update the file with `python -m lakewarden.events.schema`."""
    target = tmp_path / "schema.json"

    subprocess.run([sys.executable, "-m", "lakewarden.events.schema", str(target)], check=True, timeout=30)

    assert target.read_text(encoding="utf-8") == render()
    assert json.loads(render())["topics"]["lakewarden.ledger"]["key"] == "table, newline, writer"
