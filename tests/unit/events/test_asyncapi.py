from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lakewarden.events import DEFAULT_PREFIX, Topics
from lakewarden.events.asyncapi import ASYNCAPI_FILE, document, render
from tests.unit.events.building import TYPES


def test_the_asyncapi_file_is_up_to_date() -> None:
    """Tools read the file, and reviews show its changes."""
    assert ASYNCAPI_FILE.read_text(encoding="utf-8") == render(), "run `python -m lakewarden.events.asyncapi`"


def test_the_module_writes_the_asyncapi_file(tmp_path: Path) -> None:
    """Developers update the file with `python -m lakewarden.events.asyncapi`."""
    target = tmp_path / "asyncapi.json"

    subprocess.run([sys.executable, "-m", "lakewarden.events.asyncapi", str(target)], check=True, timeout=30)

    assert target.read_text(encoding="utf-8") == render()


def test_the_document_has_every_topic_and_every_event() -> None:
    """A new event must appear in it."""
    described = document()
    addresses = {each["address"].format(prefix=DEFAULT_PREFIX) for each in described["channels"].values()}
    in_channels = {name for each in described["channels"].values() for name in each["messages"]}

    assert addresses == {each.name for each in Topics().settings()}
    assert in_channels == set(described["components"]["messages"]) == TYPES


def test_clients_generated_from_the_document_accept_unknown_fields_and_send_a_type() -> None:
    """A later version adds fields, and an event without a type can't be decoded."""
    schemas = document()["components"]["schemas"]

    assert not [name for name, each in schemas.items() if "additionalProperties" in each]
    assert not [
        name
        for name, each in schemas.items()
        if "type" in each["properties"] and "type" not in each["required"]
    ]
