"""Operators that request the end of open transactions, as `lakewarden abort` does (docs/decisions/0020)."""

from __future__ import annotations

from datetime import UTC, datetime

from lakewarden.events import WRITER_EVENT, AbortRequested, CommitIntent, decode, encode
from lakewarden.handlers.table.replay import subject
from tests.simulation.whole.broker import Record
from tests.simulation.whole.scenario import TOPICS
from tests.simulation.whole.strangers import Injector

AT = datetime(2026, 1, 1, tzinfo=UTC)
DELAY_SECONDS = 2.0
"""Mean, after the intent."""


class Operators(Injector):
    """Publishes requests to end transactions, some time after their intents."""

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""
        if not self._chance or record.topic != TOPICS.writers:
            return
        event = decode(WRITER_EVENT, record.value)
        if not isinstance(event, CommitIntent) or self._random.random() >= self._chance:
            return
        delay = self._random.expovariate(1 / DELAY_SECONDS)
        if self._timeline.now + delay >= self._until:
            return
        self._count += 1
        table, transaction, writer = subject(event)
        request = AbortRequested(
            event_id=f"operator/{self._count}",
            table=table,
            transaction=transaction,
            writer=writer,
            at=AT,
            operator="operator",
            reason="the table is needed",
        )
        self._publish(record.partition, table, encode(request), delay)
