"""Operators that request the end of open transactions, as `lakewarden abort` does, or correct the ledger (decision 20)."""

from __future__ import annotations

from typing import Any

from aiokafka.structs import TopicPartition

from lakewarden.events import (
    LEDGER_EVENT,
    WRITER_EVENT,
    AbortRequested,
    BatchCommitted,
    CommitIntent,
    LedgerCorrected,
    decode,
    encode,
)
from lakewarden.handlers.table.replay import subject
from tests.simulation.whole.broker import Record
from tests.simulation.whole.scenario import AT, TOPICS
from tests.simulation.whole.strangers import Injector

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


class Corrections(Injector):
    """States what the ledger has: the last batch that is committed according to the logs, when the correction is written.

    So it changes nothing but that the entry names the correction.
    """

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""
        if not self._chance or record.topic != TOPICS.ledger:
            return
        entry = decode(LEDGER_EVENT, record.value)
        if not isinstance(entry, BatchCommitted) or entry.corrected_at is not None:
            return
        delay = self._random.expovariate(1 / DELAY_SECONDS)
        if self._random.random() < self._chance and self._timeline.now + delay < self._until:
            self._count += 1
            name = f"correction/{self._count}"
            where = TopicPartition(TOPICS.writers, record.partition)
            self._timeline.after(delay, lambda: self._correct(where, name, entry.table, entry.writer))

    def _correct(self, where: TopicPartition, name: str, table: str, writer: str) -> None:
        if where.topic not in self._broker.missing:
            self._state(
                where, name, table, writer, batch_id=self._world.oracles.knowledge.last_batch(table, writer)
            )

    def _state(self, where: TopicPartition, name: str, table: str, writer: str, **stated: Any) -> None:
        correction = LedgerCorrected(
            event_id=name,
            table=table,
            transaction=name,
            writer=writer,
            at=AT,
            operator="operator",
            reason="after a look at the table",
            **stated,
        )
        self._broker.append(where, table.encode(), encode(correction))


class Editions(Corrections):
    """Lowers what the ledger has by one batch. That gives the writer an edition, and it begins with that batch again."""

    def _correct(self, where: TopicPartition, name: str, table: str, writer: str) -> None:
        last = self._world.oracles.knowledge.last_batch(table, writer)
        if last >= 0 and self._world.begin_again(writer, last):
            self._state(where, name, table, writer, batch_id=last - 1 if last else None, edition=name)
