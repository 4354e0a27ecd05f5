"""The names in `lakewarden explain --output json` never change, whatever the code calls them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from lakewarden.agent.operators.explain_json import KINDS, json_name
from lakewarden.handlers.explain import timeline

NAMES: dict[type, str] = {
    timeline.Explanation: "who table fate waits_for markers beats repeated steps others attempts",
    timeline.RecordRef: "topic offset at_ms recorded_ms",
    timeline.TransactionRef: "transaction writer batch_id sequence",
    timeline.EventRef: "type transaction writer where",
    timeline.Cause: "event offset",
    timeline.SharedPlace: "partition file_group operation other_file_group other_operation",
    timeline.Outcome: "phase reason version where",
    timeline.RelatedTransaction: "who fate places",
    timeline.Blocker: "who why shared",
    timeline.LastBlocker: "who fate",
    timeline.LostConflict: "winner phase by offsets_older rule kind entries places mine theirs",
    timeline.Heartbeats: "count first last longest_gap_ms gap_after",
}
STEPS: dict[str, str] = {
    "opened": (
        "where batch_id admission priority conflict_rule heartbeat_seconds lock scope scope_size alongside open_before"
    ),
    "waiting": "where what behind",
    "admitted": "where agent cause waited_ms freed_by reserved",
    "touched": "first where events markers new partitions",
    "met": "where who phase came_second conflict rule shared places",
    "aborted": (
        "where agent reason retriable detail losses stood cause against detected_after_ms age_seconds"
    ),
    "won": "where victim reason cause against",
    "asked": "where seq markers",
    "granted": "where agent grant lease_seconds seq lock_owner cause waited_ms freed_by alone_ms",
    "renewed": "first where agent times lease_seconds seq lock_owner",
    "completed": "where grant version batch_id stood",
    "skipped": "where agent committed_transaction version",
    "abandoned": "where reason",
    "ignored": "first where type events stood",
    "void": "where agent type reason taken_by taken_at",
    "taken": "where agent",
    "lock": "where type agent lock owner holder valid_until detail adopted times",
}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_the_field_names_of_each_part_are_fixed(kind: Any) -> None:
    """A program that reads them breaks if one is renamed or removed."""
    assert [json_name(kind, each.name) for each in fields(kind)] == NAMES[kind].split()


@pytest.mark.parametrize("kind", get_args(timeline.Step), ids=lambda kind: kind.__name__)
def test_the_kind_and_the_field_names_of_each_step_are_fixed(kind: Any) -> None:
    """Likewise."""
    assert [json_name(kind, each.name) for each in fields(kind)] == STEPS[KINDS[kind]].split()


def test_every_kind_of_step_has_its_own_name() -> None:
    """A program selects steps by `kind`."""
    assert sorted(KINDS.values()) == sorted(STEPS)
    assert set(KINDS) == set(get_args(timeline.Step))


def test_the_values_that_classify_are_fixed() -> None:
    """They are documented in docs/explain.md, and programs compare them."""
    assert get_args(timeline.WaitReason) == ("computing", "earlier in the line", "granted", "publishing")
    assert get_args(timeline.VictimRule) == ("landed", "granted", "protected", "priority", "sequence")
    assert get_args(timeline.Awaited) == ("admission", "grant")
