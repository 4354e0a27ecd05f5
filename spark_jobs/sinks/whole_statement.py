"""A statement under one grant from its start to its end, where the hook into a format's commit can't be used.

The format's own conflict check decides whether the statement commits, as without the gate. What is lost:

| with the hook | under one grant |
| --- | --- |
| statements compute side by side, and only commits wait | the statements of all partitions wait for one another |
| the lease is checked right before the commit | a driver that was paused beyond its lease commits if the format's check lets it |
| what was staged and refused is removed | it stays until the format's own clean-up |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.sinks.java import java_text

if TYPE_CHECKING:
    from lakewarden.spark_jobs.gate.commit_lookup import CommitLookup
    from lakewarden.spark_jobs.gate.transaction import Transaction

COST = (
    "each statement has the grant from its start to its end, so writers of this table wait for one another's whole "
    "statements, also in other partitions"
)
"""For the warning of a sink."""


def run_under_grant(
    txn: Transaction,
    statement: Callable[[], object],
    committed: CommitLookup,
    is_conflict: Callable[[Exception], bool],
) -> None:
    """Request the grant and execute the statement. `is_conflict` returns whether the format's check refused the commit."""

    def version() -> str | None:
        return None if txn.batch_id is None else committed(txn.writer, txn.batch_id)

    txn.check()
    with txn.commit() as grant:
        grant.check()
        try:
            statement()
        except Exception as error:
            # A commit whose answer was lost can look like a conflict with itself.
            if txn.batch_id is None or not is_conflict(error) or version() is not None:
                raise
            raise BaseChanged(
                f"a writer that bypasses the gate committed what this batch conflicts with: {java_text(error)}; nothing was "
                f"published; the batch must be computed again; table={txn.table} writer={txn.writer} transaction={txn.id}"
            ) from error
        grant.version = version()
        if txn.batch_id is not None and grant.version is None:
            raise RuntimeError("the statement succeeded, and the table doesn't show its batch")
