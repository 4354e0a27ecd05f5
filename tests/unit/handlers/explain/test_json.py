"""The names in the JSON of `explain`, `lock show`, `lock audit` and `status` never change, even if the code renames its own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from lakewarden.agent.cli import lock_text
from lakewarden.agent.locks.commands import AuditResult, LockView
from lakewarden.agent.operators.explain_json import KINDS, json_name
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.lock_audit import (
    Interval,
    LockReport,
    Loss,
    Overlap,
    PermanentRefusal,
    Position,
    Report,
)

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
        "where batch_id admission priority conflict_rule heartbeat_seconds lock scope scope_size alongside open_before "
        "admission_reason observed"
    ),
    "waiting": "where what behind",
    "admitted": "where agent cause waited_ms freed_by reserved turn",
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
    "abort-requested": "where operator reason",
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
    assert get_args(timeline.WaitReason) == (
        "computing",
        "earlier in the line",
        "granted",
        "publishing",
        "earlier turn",
    )
    assert get_args(timeline.VictimRule) == (
        "landed",
        "observed",
        "granted",
        "protected",
        "priority",
        "sequence",
    )
    assert get_args(timeline.Awaited) == ("admission", "grant")


def test_the_names_of_status_are_fixed() -> None:
    """The dataclasses are printed as they are."""
    assert names(TableView) == (
        "table lock transactions incomplete refused condition last_commit pace_seconds"
    )
    assert names(LockHolder) == "held lock agent owner valid_until last_step detail waiting"
    assert names(TransactionView) == (
        "transaction writer batch_id phase since waiting_on partitions file_groups granted revoked "
        "waiting_since blockers"
    )


def names(kind: Any) -> str:
    return " ".join(each.name for each in fields(kind))


def test_the_names_of_lock_show_are_fixed() -> None:
    """Absent fields are null, never left out."""
    absent = LockView(
        table="s3://lake/t",
        lock="s3://lake/locks/t.json",
        shared_with_hudi=False,
        state="absent",
        owner=None,
        valid_until_ms=None,
        seconds_left=None,
        written_ms=None,
        validity_seconds=30.0,
        drift_seconds=0.5,
        extra={},
        why=None,
        version=None,
    )

    assert " ".join(lock_text.view_fields(absent)) == (
        "table lock shared_with_hudi state owner valid_until valid_until_ms seconds_left written_about drift_seconds extra "
        "why version"
    )


def test_the_names_of_lock_audit_are_fixed() -> None:
    """Of the result, of each lock, and of what a lock lists."""
    at = Position(0, 0)
    interval = Interval("o", "a", 0.0, 1.0, "lease", at, at)
    overlap = Overlap(interval, interval, 0.0, 1.0)
    loss, refusal = Loss("o", "a", 0.0, None, None, at), PermanentRefusal("forbidden", 1, "a", 0.0, at)
    lock = LockReport(
        "l", (), 500.0, 1, 1, 1, 1, 1, 1, interval, 1, (overlap,), 1, overlap, (loss,), (refusal,), ()
    )

    printed = lock_text.audit_fields(AuditResult(Report(1, 0, (lock,)), 1, ((at, "not JSON"),)))

    assert " ".join(printed) == ("proven events duplicates unreadable unreadable_records violations locks")
    [lock_fields] = printed["locks"]
    assert " ".join(lock_fields) == (
        "lock tables drift_seconds acquisitions renewals releases lost refused requests longest violations overlaps "
        "within_drift closest losses hindrances cut"
    )
    assert " ".join(printed["unreadable_records"][0]) == "partition offset why"
    assert " ".join(lock_fields["overlaps"][0]) == "since until seconds earlier later"
    assert " ".join(lock_fields["longest"]) == "owner agent since until seconds ended_by first last"
    assert " ".join(lock_fields["losses"][0]) == "owner agent at why holder partition offset"
    assert " ".join(lock_fields["hindrances"][0]) == "why times last_agent last_at partition offset"
