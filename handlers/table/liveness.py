"""Which writers are lost, and which transactions are open for too long.

- A writer is lost when the agent reads no event of it for `heartbeat_misses` of its own heartbeat intervals. Its transaction is
  aborted (`writer-lost`). If the writer comes back, it finds that abort and must open a new transaction.
- A granted transaction is judged by its grant lease alone (`grants.py`).
- An observed transaction has heartbeats while its watcher sees signs of life. When it is silent for as long, because its writer
  or its watcher is gone, its outcome is unknown (`outcome-unknown`). Its footprint counts as committed from then on, and it
  blocks no other transaction any more. The same after `max_transaction`. If it completes later, that commit counts then.
- With `max_transaction`, a transaction that has been open for longer is aborted (`timed-out`), whatever its writer publishes.
  Heartbeats continue while the writer's work hangs. The time counts from when this agent read or replayed the intent, so it
  starts again with a take-over.

Lag is not silence: an event may wait in Kafka, unread. So the agent counts silence on its own monotonic clock, and only over
the span for which it has read the whole log (`CaughtUp`):

- The span ends when the agent *requested* the end offset of the log, if it has read up to that offset since. The answer covers
  what was appended before the request, however long the answer and the reading took.
- The span begins with the first check of an unbroken series of such checks. The series breaks when Kafka doesn't answer, when
  the agent doesn't reach the end in time, or when a check is so late that the process must have been suspended. The agent
  could not read events then, or the writers could not send them. Each writer gets all its intervals again.
"""

from dataclasses import dataclass
from typing import Literal

from lakewarden.handlers.table.detection import judge_landing
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import Phase, Transaction


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The agent has read everything that was in the log at `until`, and likewise at each check since `since`.

    Monotonic seconds.
    """

    since: float
    until: float


def abort_silent_writers(context: StepContext, caught_up: CaughtUp | None) -> None:
    """Abort the transactions of writers that were silent for too long. `caught_up` is None while the agent lags."""
    if caught_up is None:
        return
    for transaction in context.state.open():
        limit = transaction.heartbeat_seconds * context.state.settings.heartbeat_misses
        silent = caught_up.until - max(transaction.last_event_at, caught_up.since)
        if transaction.phase is not Phase.GRANTED and silent > limit:
            detail = f"the agent read no event of this writer for {silent:.1f} s, limit {limit:.1f} s"
            _end(context, transaction, "writer-lost", detail)


def abort_overdue(context: StepContext) -> None:
    """Abort the transactions that have been open for longer than `max_transaction`."""
    limit = context.state.settings.max_transaction
    if not limit:
        return
    for transaction in context.state.open():
        age = context.now - transaction.opened_at
        if transaction.phase is not Phase.GRANTED and age > limit:
            detail = f"open for {age:.1f} s; limit {limit:g} s (max_transaction_seconds)"
            _end(context, transaction, "timed-out", detail)


def _end(
    context: StepContext, transaction: Transaction, reason: Literal["writer-lost", "timed-out"], detail: str
) -> None:
    if transaction.phase is not Phase.OBSERVED:
        context.abort(transaction, reason, detail=detail)
        return
    context.abort(transaction, "outcome-unknown", detail=detail)
    judge_landing(context, transaction)
