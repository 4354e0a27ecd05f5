"""Which transactions of a table get an abort when the agent stops the table.

An unexpected exception stops a table (`agent/serving/partition/stopped_tables.py`). Every transaction that is open *in the log*
is aborted:

1. Verdicts are applied to the state while a step decides. So a step that fails leaves a state that is ahead of the log, and what
   it decided is not published. Open in the log are the transactions that the state has as open, those about which the failed
   step had decided, and the one whose intent it was reading.
2. The reason is `not-allowed`. Of a granted transaction it is `lease-lost`, because its lock is not renewed any more and its
   writer may be publishing. A grant that the failed step decided is in no log, and its transaction gets `not-allowed`.
3. A transaction that had ended before the failed step has its answer in the log, and gets no other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lakewarden.events import CommitIntent
from lakewarden.handlers.table.machine import EventRead, Input
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Admit,
    Effect,
    GrantCommit,
    RenewGrant,
    SkipBatch,
)


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A transaction of a stopped table that needs an abort."""

    transaction: str
    writer: str
    granted: bool

    @property
    def reason(self) -> Literal["lease-lost", "not-allowed"]:
        """The reason of its abort (rule 2)."""
        return "lease-lost" if self.granted else "not-allowed"


@dataclass(frozen=True, slots=True)
class FailedStep:
    """What a step that failed leaves behind: its effects, which are not published, and the intent that it was reading."""

    undecided: Sequence[Effect] = ()
    intent: CommitIntent | None = None


NO_STEP = FailedStep()
"""The table was not stopped by a step."""


def answered_before(state: TableState, input_: Input) -> str | None:
    """The transaction that had ended before a step on this input: the answer to its event repeats one in the log (rule 3)."""
    transaction = input_.event.transaction if isinstance(input_, EventRead) else None
    return transaction if transaction in state.closed else None


def failed_step(input_: Input, effects: Sequence[Effect], answered: str | None) -> FailedStep:
    """What a failed step leaves behind. `answered`: from `answered_before`, before the step."""
    undecided = [
        each for each in effects if answered is None or getattr(each, "transaction", None) != answered
    ]
    event = input_.event if isinstance(input_, EventRead) else None
    return FailedStep(undecided, event if isinstance(event, CommitIntent) else None)


def open_in_log(state: TableState, failed: FailedStep) -> list[OpenInLog]:
    """The transactions that need an abort (rule 1), with rule 2."""
    decided = [
        each
        for each in failed.undecided
        if isinstance(each, Admit | AbortTransaction | GrantCommit | RenewGrant | SkipBatch)
    ]
    granting = {each.transaction for each in decided if isinstance(each, GrantCommit)}
    lapsing = {
        each.transaction
        for each in decided
        if isinstance(each, AbortTransaction) and each.transaction in state.lapsed
    }
    writers = {each.transaction: each.writer for each in decided}
    writers.update((each.id, each.writer) for each in state.open())
    if failed.intent is not None and failed.intent.transaction not in state.closed:
        writers.setdefault(failed.intent.transaction, failed.intent.writer)
    found: list[OpenInLog] = []
    for transaction, writer in writers.items():
        kept = state.transactions.get(transaction)
        running = kept is not None and kept.phase is Phase.GRANTED and transaction not in granting
        found.append(OpenInLog(transaction, writer, running or transaction in lapsing))
    return found
