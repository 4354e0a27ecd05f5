"""The AsyncAPI document, validated by the AsyncAPI project's parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.corpus import recorded
from tests.pages.asyncapi import document
from tests.real.events.asyncapi_parser import validate

pytestmark = [pytest.mark.real]


def recorded_events() -> list[dict[str, Any]]:
    """The recorded events, as JSON objects."""
    return [json.loads(record.value) for record in recorded()]


def test_the_asyncapi_project_finds_the_document_valid() -> None:
    """Its parser checks the document and its references."""
    assert validate(document()).diagnostics == []


def test_the_parser_finds_a_reference_that_leads_nowhere() -> None:
    """A validator that finds nothing would prove nothing."""
    described = document()
    described["operations"]["consumeAudit"]["channel"] = {"$ref": "#/channels/none"}

    found = validate(described).diagnostics

    assert any(each["path"][:2] == ["operations", "consumeAudit"] for each in found)


def test_every_recorded_event_is_valid_in_the_document() -> None:
    """A client generated from the document accepts what agents and writers publish, and later fields too."""
    events = recorded_events()
    later = [{**event, "added_later": 1} for event in events]

    refused = validate(document(), events + later).refused

    assert len(refused) == 2 * len(events)
    assert not any(refused)


def test_an_event_that_does_not_fit_its_schema_is_refused() -> None:
    """As above: the validator must be able to fail."""
    granted = next(event for event in recorded_events() if event["type"] == "commit-granted")
    without_grant = {name: value for name, value in granted.items() if name != "grant"}

    [missing, wrong, unknown] = validate(
        document(), [without_grant, {**granted, "lease_seconds": "long"}, {**granted, "type": "imagined"}]
    ).refused

    assert missing == ["must have required property 'grant'"]
    assert wrong == ["must be number"]
    assert unknown == ["no message"]
