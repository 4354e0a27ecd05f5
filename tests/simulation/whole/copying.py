"""A copy of the ledger from another topic prefix that was interrupted (`lakewarden migrate`, docs/decisions/0029).

Batch 0 of each writer was committed under the old prefix. The writers begin with it again, as after a lost checkpoint of Spark.

1. Each partition of the ledger has the beginning of a copy, and none of its entries. Agents that start now must refuse it.
2. An operator stops the agents, deletes the topics and copies again, as docs/recovery.md says, and starts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from aiokafka.structs import TopicPartition

from lakewarden.events import BatchCommitted, LedgerCopied, encode, ledger_key, partition_name
from tests.simulation.timeline import Timeline
from tests.simulation.whole.broker import Broker
from tests.simulation.whole.oracles import Oracles
from tests.simulation.whole.scenario import TOPICS
from tests.simulation.whole.table import Commit, LakeTable, Landed
from tests.simulation.whole.writers import Job

AT = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 0
"""The batch of each writer that the old prefix has."""


class InterruptedCopy:
    """The copy, and the operator who repeats it."""

    def __init__(self, timeline: Timeline, broker: Broker, oracles: Oracles, jobs: Sequence[Job]) -> None:
        self._timeline = timeline
        self._broker = broker
        self._oracles = oracles
        self._jobs = jobs

    def begin(self, at: float, restart_agents: Callable[[], None]) -> None:
        """Interrupt the copy before the run, and complete it at a time."""
        for job in self._jobs:
            _land(job.table, job.writer)
            self._oracles.knowledge.on_copied(_transaction(job.writer), job.table.uri, job.writer, BATCH)
        for number in range(self._broker.counts[TOPICS.ledger]):
            self._append(number, _copied(number, complete=False))
        self._timeline.plan(at, partial(self._copy_again, restart_agents))

    def _copy_again(self, restart_agents: Callable[[], None]) -> None:
        self._timeline.log("log", "the topics are deleted, and the ledger is copied again")
        restart_agents()
        self._broker.group.committed.clear()
        for where in self._broker.logs:
            self._broker.remove_from(where, 0)
            self._oracles.knowledge.on_loss(where.topic, where.partition, 0, 0)
        for number in range(self._broker.counts[TOPICS.ledger]):
            self._append(number, _copied(number, complete=False))
            for job in self._jobs:
                if job.partition == number:
                    self._append(number, _entry(job))
            self._append(number, _copied(number, complete=True))

    def _append(self, number: int, record: BatchCommitted | LedgerCopied) -> None:
        key = (
            ledger_key(record.table, record.writer)
            if isinstance(record, BatchCommitted)
            else ledger_key(record.table, "", "ledger-copied")
        )
        self._broker.append(TopicPartition(TOPICS.ledger, number), key, encode(record))


def _transaction(writer: str) -> str:
    return f"{writer}-{BATCH}-copied"


def _land(table: LakeTable, writer: str) -> None:
    commit = Commit(_transaction(writer), writer, BATCH, frozenset(), "file-group", began=0.0, deadline=1.0)
    table.landed.append(Landed(commit, table.version() + 1, 0.0))


def _entry(job: Job) -> BatchCommitted:
    transaction = _transaction(job.writer)
    return BatchCommitted(
        event_id=f"copied-{job.writer}",
        table=job.table.uri,
        transaction=transaction,
        writer=job.writer,
        at=AT,
        batch_id=BATCH,
        version=str(job.table.version_of(transaction)),
    )


def _copied(number: int, *, complete: bool) -> LedgerCopied:
    return LedgerCopied(
        event_id=f"copied-{number}-{complete}",
        table=partition_name(number),
        at=AT,
        source="old",
        complete=complete,
    )
