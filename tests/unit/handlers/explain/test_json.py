"""The names in the JSON of `lock show`, `lock audit` and `status`. Those of `explain` are in `test_transaction.py`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lakewarden.agent.cli import lock_text
from lakewarden.agent.locks.commands import AuditResult, LockContents
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView
from lakewarden.handlers.explain.lock_audit import (
    AuditPosition,
    AuditReport,
    Interval,
    LeaseOverlap,
    LockReport,
    Loss,
    PermanentRefusal,
)


def test_the_names_of_status_are_fixed() -> None:
    """The dataclasses are printed as they are."""
    assert names(TableView) == (
        "table lock transactions incomplete refused condition last_commit pace_seconds"
    )
    assert names(LockHolder) == "held lock agent owner valid_until last_step detail waiting"
    assert names(TransactionView) == (
        "transaction writer batch_id phase since waiting_on partitions file_groups granted revoked "
        "waiting_since blockers runs_at"
    )


def names(kind: Any) -> str:
    return " ".join(each.name for each in fields(kind))


def test_the_names_of_lock_show_are_fixed() -> None:
    """Absent fields are null, never left out."""
    absent = LockContents(
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
    at = AuditPosition(0, 0)
    interval = Interval("o", "a", 0.0, 1.0, "lease", at, at)
    overlap = LeaseOverlap(interval, interval, 0.0, 1.0)
    loss, refusal = Loss("o", "a", 0.0, None, None, at), PermanentRefusal("forbidden", 1, "a", 0.0, at)
    lock = LockReport(
        "l", (), 500.0, 1, 1, 1, 1, 1, 1, interval, 1, (overlap,), 1, overlap, (loss,), (refusal,), ()
    )

    printed = lock_text.audit_fields(AuditResult(AuditReport(1, 0, (lock,)), 1, ((at, "not JSON"),)))

    assert " ".join(printed) == ("proven events duplicates unreadable unreadable_records violations locks")
    [lock_fields] = printed["locks"]
    assert " ".join(sorted(lock_fields)) == (
        "acquisitions closest cut drift_seconds hindrances lock longest losses lost overlaps refused releases renewals requests "
        "tables violations within_drift"
    )
    assert " ".join(sorted(printed["unreadable_records"][0])) == "offset partition why"
    assert " ".join(sorted(lock_fields["overlaps"][0])) == "earlier later seconds since until"
    assert " ".join(sorted(lock_fields["longest"])) == "agent ended_by first last owner seconds since until"
    assert " ".join(sorted(lock_fields["losses"][0])) == "agent at holder offset owner partition why"
    assert " ".join(sorted(lock_fields["hindrances"][0])) == "last_agent last_at offset partition times why"
