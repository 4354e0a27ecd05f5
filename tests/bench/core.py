"""The production core of one table, without Kafka. Times are CPU times: other programs would show in wall-clock time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lakewarden.events import WriterEventUnion
from lakewarden.handlers.table.effects import Effect
from lakewarden.handlers.table.machine import EventRead, Input, LockConfirmed, step
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from tests.bench import writer_events
from tests.bench.writer_events import completed, requested

TABLE = f"{writer_events.TABLES}/in-memory"
FOREVER = 1e9


class Core:
    """A table. Each step returns the seconds that it took."""

    def __init__(self, settings: TableSettings | None = None) -> None:
        self.state = TableState(TABLE, settings or TableSettings())
        self.now = 0.0
        self.offset = -1
        self.effects: Sequence[Effect] = ()
        """Of the last step."""

    def step(self, given: Input) -> float:
        began = time.thread_time()
        self.effects = step(self.state, given)
        return time.thread_time() - began

    def read(self, event: WriterEventUnion) -> float:
        self.offset += 1
        return self.step(EventRead(event, self.offset, self.now, self.now))

    def lock(self) -> None:
        """The agent acquires the lock."""
        self.step(LockConfirmed(self.now, self.offset, LockView("agent", FOREVER, 0.0)))

    def commit(self, transaction: str) -> tuple[float, float]:
        """Request, with the grant, and completion."""
        asked = self.read(requested(TABLE, transaction))
        grant: Any = self.state.transactions[transaction].granted
        return asked, self.read(completed(TABLE, transaction, grant))
