"""The names in the JSON of `lock show` and `status`. Those of `explain` are in `test_transaction.py`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lakewarden.agent.cli import lock_text
from lakewarden.agent.locks.commands import LockContents
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView


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
