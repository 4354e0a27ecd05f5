"""Events that the owner of a partition refuses: those that can't be decoded, and those of tables that it doesn't serve.

- A table is not served if it is not allowed, if it is stopped, or if it exceeds `max_tables`.
- Nor is it if its place is another Kafka partition, also in a replay: otherwise two owners would decide about one table. The
  producer of its event has another partitioner.

A refused event goes to the dead letters. If its transaction can be decoded, the owner publishes one `abort(not-allowed)`, unless
the transaction has its answer, or is granted (`handlers/table/stopping.py`). An open transaction is closed by it.
"""

from collections import OrderedDict
from collections.abc import Container
from functools import partial

import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import monotonic
from lakewarden.agent.metrics.partition_metrics import PartitionMetrics
from lakewarden.agent.serving.partition.own_records import MAX_REASON, OwnRecords
from lakewarden.agent.serving.partition.tables import Tables
from lakewarden.events import Undecodable
from lakewarden.handlers.table.machine import Tick, replay_decision
from lakewarden.handlers.table.replay import Subject
from lakewarden.handlers.table.stopping import answer_to_refused

log = structlog.get_logger()

MAX_REFUSED = 10_000
"""Refused transactions that are remembered, so that each gets one abort."""


class RefusedEvents:
    """Answers the refused events of one partition."""

    def __init__(self, tables: Tables, records: OwnRecords, observer: PartitionMetrics) -> None:
        self._tables = tables
        self._records = records
        self._observer = observer
        self._answered: OrderedDict[Subject, None] = OrderedDict()
        """Unknown transactions that have their abort, oldest first."""

    def refuse(self, record: ConsumerRecord, bad: Undecodable, aborted: Container[Subject]) -> None:
        """Refuse an event. `aborted`: during a replay, of what the log has an abort."""
        reason = bad.reason[:MAX_REASON]
        log.warning(
            "event.refused",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            table=bad.table,
            reason=reason,
        )
        self._records.put(self._records.dead_letter(record, reason))
        if bad.transaction is None or bad.table is None:
            return
        subject = bad.table, bad.transaction, bad.writer or ""
        if subject in aborted:
            return
        stopped, state = bad.table in self._tables.stopped, self._tables.states.get(bad.table)
        answer = answer_to_refused(state, bad.transaction, bad.writer, stopped=stopped)
        if answer == "nothing" or (answer == "abort once" and not self._first(subject)):
            return
        abort = self._records.refusal(record, bad, reason)
        self._observer.on_refusal(abort, served=state is not None)
        if answer == "abort" and state is not None:
            close = partial(replay_decision, state, abort, monotonic())
            self._tables.attempt(bad.table, close)
            self._tables.step(bad.table, Tick(monotonic(), record.offset, None))

    def _first(self, subject: Subject) -> bool:
        """Whether this is the first refused event of an unknown transaction; remember it."""
        if subject in self._answered:
            return False
        self._answered[subject] = None
        if len(self._answered) > MAX_REFUSED:
            self._answered.popitem(last=False)
        return True
