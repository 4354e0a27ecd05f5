"""Which transactions of a table get an abort when the agent stops the table.

An unexpected exception stops a table (`agent/serving/partition/stopped_tables.py`). Every transaction that is open *in the log*
is aborted:

1. Decisions are applied to the state while a step decides. So a step that fails leaves a state that is ahead of the log, and what
   it decided is not published. Open in the log are the transactions that the state has as open, those about which the failed
   step had decided, and the one whose intent it was reading.
2. The reason is `not-allowed`. Of a granted transaction it is `lease-lost`, because its lock is not renewed any more and its
   writer may be publishing. A grant that the failed step decided is in no log, and its transaction gets `not-allowed`.
3. A transaction that had ended before the failed step has its answer in the log, and gets no other one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lakewarden.events import UNSTAMPED, Abort, CommitGranted, CommitIntent, DecisionEvent
from lakewarden.handlers.table.effects import Effect
from lakewarden.handlers.table.machine import EventRead, Input
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import OPEN, Phase


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


def aborts_of_stop(state: TableState, failed: FailedStep, offset: int, detail: str) -> list[Abort]:
    """The abort of each transaction that is open in the log, not stamped. `offset`: that of the last event that was applied."""
    decided = [each for each in failed.undecided if isinstance(each, DecisionEvent)]
    granting = {each.transaction for each in decided if isinstance(each, CommitGranted)}
    lapsing = {
        each.transaction for each in decided if isinstance(each, Abort) and each.transaction in state.lapsed
    }
    writers = {each.transaction: each.writer for each in decided}
    writers.update((each.id, each.writer) for each in state.open())
    if failed.intent is not None and failed.intent.transaction not in state.closed:
        writers.setdefault(failed.intent.transaction, failed.intent.writer)
    found: list[Abort] = []
    for transaction, writer in writers.items():
        kept = state.transactions.get(transaction)
        running = kept is not None and kept.phase is Phase.GRANTED and transaction not in granting
        granted = running or transaction in lapsing
        found.append(
            Abort.model_construct(
                **UNSTAMPED,
                table=state.uri,
                transaction=transaction,
                writer=writer,
                agent="",
                cause_offset=offset,
                reason="lease-lost" if granted else "not-allowed",
                retriable=granted,
                detail=detail,
            )
        )
    return found


def answer_to_refused(
    state: TableState | None, transaction: str, writer: str | None, *, stopped: bool
) -> Literal["abort", "abort once", "nothing"]:
    """How the agent answers an event that it refuses. `state` and `stopped`: of its table.

    | its transaction | answer |
    | --- | --- |
    | has ended | none: it has its answer, also if the table has been stopped since |
    | is unknown, or its table is stopped | `abort(not-allowed)`, once |
    | is granted | none: a granted transaction is never aborted for it. If the event was its completion, its grant lapses |
    | is open | `abort(not-allowed)`, because part of what it touches is unknown |
    | is open, and of another writer | none: the event is not of this transaction |
    """
    if state is not None and transaction in state.closed:
        return "nothing"
    found = None if state is None or stopped else state.transactions.get(transaction)
    if found is None:
        return "abort once"
    if found.phase not in OPEN - {Phase.GRANTED} or found.writer != writer:
        return "nothing"
    return "abort"
