"""The JSON schema of every event by topic, as a checked-in file, so that a review shows each change on the wire.

`python -m lakewarden.events.schema` writes `schema.json` in this folder, or the file named as its argument. A test compares the
file with the models. The schema describes events as this version writes them. Readers ignore fields that they don't know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lakewarden.events.base import PROTOCOL
from lakewarden.events.codec import (
    AUDIT_EVENT,
    CONFLICT_EVENT,
    DECISION_RECORD,
    LEDGER_EVENT,
    MAX_EVENT_BYTES,
    WRITER_EVENT,
)
from lakewarden.events.operator import DeadLetter
from lakewarden.events.topics import Topics

SCHEMA_FILE = Path(__file__).with_name("schema.json")

_BY_TOPIC: tuple[tuple[str, str, TypeAdapter[Any]], ...] = (
    ("writers", "table", WRITER_EVENT),
    ("decisions", "table", DECISION_RECORD),
    ("conflicts", "table", CONFLICT_EVENT),
    ("audit", "table", AUDIT_EVENT),
    ("ledger", "table, newline, writer", LEDGER_EVENT),
    ("dead_letters", "the original key", TypeAdapter(DeadLetter)),
)


def schema() -> dict[str, Any]:
    """The topics: settings, key, and the schema of the values."""
    topics = Topics()
    settings = {each.name: each for each in topics.settings()}
    schemas, shared = TypeAdapter.json_schemas(
        [(name, "serialization", adapter) for name, _, adapter in _BY_TOPIC]
    )
    described = {}
    for attribute, key, _ in _BY_TOPIC:
        name = getattr(topics, attribute)
        described[name] = {
            "key": key,
            "partitions": settings[name].partitions,
            "config": settings[name].config,
            "value": schemas[attribute, "serialization"],
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"lakewarden wire protocol {PROTOCOL}",
        "max_event_bytes": MAX_EVENT_BYTES,
        "topics": described,
        "$defs": shared["$defs"],
    }


def render() -> str:
    """The text of the file: sorted keys, indented, one newline at the end."""
    return json.dumps(schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else SCHEMA_FILE).write_text(render(), encoding="utf-8")
