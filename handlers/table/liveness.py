"""Which writers live.

A writer whose events stop for `heartbeat_misses` of its own heartbeat intervals is lost, and its transaction aborted
(`writer-lost`). A writer that comes back finds its abort, not a second chance. A granted one is judged by its lease alone
(`grants.py`).

Lag is not death: an event that waits in Kafka unread is no silence. So silence is counted, on the agent's monotonic clock, over
the span for which the agent has caught up with the log (`CaughtUp`), and no further:

- It ends when the log's end was *asked* that the reading has come to since. The answer covers what was appended before the
  request was sent, and nothing else: however long the answer, the reading and the judging took, none of it is silence.
- It begins with the first check of an unbroken row. Where Kafka does not answer, its end is not reached in time, or the check
  comes so late that the process must have stood still, perhaps with its machine, the row begins anew: writers were not heard,
  or could not speak, and have all their intervals again.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import Phase


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All that was in the log at `until` has been read, and so at each check from `since` on. Monotonic seconds."""

    since: float
    until: float


def abort_silent_writers(context: StepContext, caught_up: CaughtUp | None) -> None:
    """Abort whoever was silent for too long; `caught_up` is None while the agent lags."""
    if caught_up is None:
        return
    for transaction in context.state.open():
        limit = transaction.heartbeat_seconds * context.state.settings.heartbeat_misses
        silent = caught_up.until - max(transaction.last_event_at, caught_up.since)
        if transaction.phase is not Phase.GRANTED and silent > limit:
            context.abort(
                transaction, "writer-lost", detail=f"nothing heard for {silent:.1f} s, limit {limit:.1f} s"
            )
