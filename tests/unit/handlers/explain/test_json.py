"""The names in the JSON of `lock show` and `status`. Those of `explain` are in `test_transaction.py`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lakewarden.agent.locks.commands import LockContents
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView


def test_the_names_of_status_are_fixed() -> None:
    """The dataclasses are printed as they are."""
    assert names(TableView) == (
        "table lock transactions incomplete refused condition last_commit pace_seconds waits_known"
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
    assert names(LockContents) == (
        "table lock shared_with_hudi state owner valid_until_ms seconds_left written_ms validity_seconds drift_seconds extra "
        "why version valid_until written_about"
    )
