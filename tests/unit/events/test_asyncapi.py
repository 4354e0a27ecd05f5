from __future__ import annotations

import json
import re
from typing import Any, get_args

from pydantic import TypeAdapter

from lakewarden.events import (
    DEFAULT_PREFIX,
    EVENT,
    AbortReason,
    DeadLetter,
    Topics,
    Undecodable,
    canonical_table,
    decode,
    encode,
)
from tests.corpus import page, recorded
from tests.pages.asyncapi import document
from tests.unit.events.building import TYPES


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


# docs/protocol.md and docs/events.md agree with the code and the recorded events.

TEXTS = [each.read_text(encoding="utf-8") for each in page.PAGES]
TEXT = "\n".join(TEXTS)
BLOCKS = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)


def event_of(block: str) -> Any:
    """The event in a JSON block. An example leaves out the fields that the page has once: they come from the corpus."""
    adapter: TypeAdapter[Any] = TypeAdapter(DeadLetter) if '"dead-letter"' in block else EVENT
    shown = json.loads(block)
    recorded_event = next(json.loads(each.value) for each in recorded() if each.type == shown["type"])
    event = decode(adapter, json.dumps(recorded_event | shown).encode())
    assert not isinstance(event, Undecodable), event
    return event


def test_the_generated_parts_are_up_to_date() -> None:
    """A changed field, limit or topic changes the page."""
    assert [page.render(each) for each in TEXTS] == TEXTS, "run `python -m tests.corpus.page`"


def test_the_page_has_a_section_for_every_event() -> None:
    """A new event needs one."""
    sections = set(re.findall(r"^#{3,4} `([a-z-]+)`$", TEXT, re.MULTILINE))
    generated = {what.removeprefix("event ") for what in page.parts(TEXT) if what.startswith("event ")}

    assert sections == generated == TYPES


def test_every_example_is_an_event_and_encodes_to_the_same_fields() -> None:
    """Authors of clients copy the examples."""
    for block in BLOCKS:
        example, written = json.loads(block), json.loads(encode(event_of(block)))

        assert _named(written, example) == example


def _named(written: Any, example: Any) -> Any:
    """What a recorded example names of an event that is written now, with the fields that came after it."""
    match example:
        case dict():
            return {name: _named(written[name], each) for name, each in example.items()}
        case list():
            return [_named(one, each) for one, each in zip(written, example, strict=True)]
        case _:
            return written


def test_there_is_an_example_of_every_event() -> None:
    assert {json.loads(block)["type"] for block in BLOCKS} == TYPES


def test_the_page_explains_every_abort_reason_and_every_topic() -> None:
    """A writer in another language handles each reason."""
    assert not [reason for reason in get_args(AbortReason) if f"| `{reason}` |" not in TEXT]
    assert not [each.name for each in Topics().settings() if f"`{each.name}`" not in TEXT]


def test_the_examples_of_canonical_uris_are_right() -> None:
    """Two clients that differ here use different keys for one table."""
    section = TEXT.split("### The canonical URI of a table")[1].split("###")[0]
    rows = [row.split("|")[2] for row in section.splitlines() if "→" in row]

    pairs = [
        ([each.strip(" `") for each in left.split(",")], right.strip(" `"))
        for left, _, right in (row.partition("→") for row in rows)
    ]

    assert len(pairs) == 5
    for spelled, canonical in pairs:
        assert {canonical_table(each) for each in spelled} == {canonical}
