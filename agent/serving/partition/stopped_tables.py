"""The stopped tables of one partition.

**A table is stopped** by any unexpected exception: in deciding, in building or encoding what was decided, in its lock's task, in
the replay, by a violated invariant, and by a record that is too large for Kafka. The agent and the other tables continue.

1. A step publishes all of its records or none. They are built, encoded and measured before the first of them is queued.
2. A step that fails leaves a state that is ahead of the log. That state is never used again, except for the names of its open
   transactions. What the failed step decided is not published, and the next owner rebuilds the state from the log, where it
   never happened.
3. Every transaction that is open in the log gets an abort (`handlers/table/stopping.py`). It has names and a text, and nothing
   of what failed before. Its `cause_offset` is that of the failed event: a replay applies the event, which is a fact, and then
   closes the transaction.
4. The lock is left to expire, as a grant may run under it.
5. The owner refuses later events of the table (dead letter, `abort(not-allowed)`).
6. The partition's checkpoint doesn't move while one of its tables is stopped. It stays where it was computed last, before the
   failed step. So the next owner finds every event since, also the completion of a commit that ran during the stop.
7. A table that fails during a replay is stopped too, and its transactions are aborted when the owner goes live.
8. A table whose record a *broker* refused for its size is stopped at the end of the next session's replay: the agent would
   decide the same again.

The next owner of the partition starts the table again: after a restart of the agent, or when the partition moves.
"""

from collections import deque
from collections.abc import Container

import structlog

from lakewarden.agent.serving.partition.log_seen import Progress
from lakewarden.agent.serving.partition.own_records import MAX_REASON, OwnRecords
from lakewarden.events import Abort
from lakewarden.handlers.table.effects import Effect
from lakewarden.handlers.table.machine import EventRead, Input
from lakewarden.handlers.table.replay import Subject, subject
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.stopping import NO_STEP, FailedStep, aborts_of_stop

log = structlog.get_logger()

MAX_RECENT = 200
"""Latest inputs of all tables that are kept for the log line of a stopped table."""
STOPPED = "table is stopped: "
"""Begins the `detail` of each abort because of a stopped table, as text."""


class StoppedTables:
    """Which tables are stopped, and what their writers are answered."""

    def __init__(self, progress: Progress, records: OwnRecords) -> None:
        self.reasons: dict[str, str] = {}
        """By table, in the order of the stops."""
        self._progress = progress
        self._records = records
        self._recent: deque[str] = deque(maxlen=MAX_RECENT)

    def __contains__(self, uri: str) -> bool:
        return uri in self.reasons

    def note(self, uri: str, step_input: Input) -> None:
        """Keep a step's input for the log line of a stop."""
        self._recent.append(f"{uri} {_summary(step_input)}")

    def why(self, uri: str) -> str:
        reason = self.reasons[uri][: MAX_REASON // 2]
        return f"{STOPPED}{reason}; restart the agent to rebuild it from the log; table={uri}"

    def add(self, uri: str, state: TableState, error: Exception, failed: FailedStep = NO_STEP) -> None:
        reason = (str(error) or repr(error)).encode(errors="backslashreplace").decode()
        self.reasons[uri] = reason
        log.error(
            "table.stopped",
            table=uri,
            reason=reason,
            open=[each.id for each in state.open()],
            unpublished=[_effect_name(each) for each in failed.undecided],
            recent=[each for each in self._recent if each.startswith(f"{uri} ")],
            exc_info=error,
        )

    def abort_open(
        self, uri: str, state: TableState, failed: FailedStep = NO_STEP, *, unless: Container[Subject] = ()
    ) -> list[Abort]:
        """Abort the transactions of a stopped table that are open in the log (rule 3), and return the aborts."""
        aborts = aborts_of_stop(state, failed, self._progress.last_applied, self.why(uri))
        found = [each for each in aborts if subject(each) not in unless]
        for each in found:
            self._records.decision(uri.encode(), each)
        return found


def _summary(step_input: Input) -> str:
    """One input, for the log line of a stopped table."""
    if isinstance(step_input, EventRead):
        event = step_input.event
        return f"{step_input.offset} {event.type} {event.transaction} of {event.writer}"
    return f"{step_input.offset} {type(step_input).__name__}"


def _effect_name(effect: Effect) -> str:
    """One effect that is not published, for the log line of a stopped table."""
    return f"{type(effect).__name__} {getattr(effect, 'transaction', '')}".strip()
