"""Strangers: clients with the right to write to `writers` that publish forged events among those of the writers.

A stranger reads all topics, so it knows every id, name and grant. It doesn't use another writer's name together with that
writer's transaction on that writer's table: such a record is the writer's own for every reader. It tries everything else, right
after the record that it forges from, or some time later.

| forged | why it must not count |
| --- | --- |
| heartbeat, markers, request, abandonment, completion, intent | the transaction is of another writer |
| completion with a wrong grant | the log has no such grant for the transaction |
| completion of an unknown transaction | the log has no such transaction |
| unreadable event | it names another writer |
| the same transaction id, opened and requested on another table | its decisions are about another table |
| bytes | they are no event |

`Misplaced` publishes true events, in a partition that is not their table's.

`UsedIds` does so on a table that no agent serves, each time with an answer that bears the names of the writer's transaction.

Each forged event has an id that begins with `FORGED`, by which the oracles know it.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from aiokafka.structs import TopicPartition

from lakewarden.events import (
    DECISION_RECORD,
    WRITER_EVENT,
    Abort,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    LocksHandedOver,
    Marker,
    MarkerCreated,
    PartitionTaken,
    TransactionAbandoned,
    Undecodable,
    WriterEventUnion,
    WriterHeartbeat,
    decode,
    encode,
)
from tests.simulation.whole.broker import Record
from tests.simulation.whole.scenario import AT, FORGED, STRANGER, TOPICS

if TYPE_CHECKING:
    from tests.simulation.whole.run import World

HUGE = 2**62
FORBIDDEN = "gs://elsewhere/t"
"""A table that no agent serves."""


class Injector:
    """Publishes records to `writers` after some of those that it sees."""

    def __init__(self, world: World, random: Random, chance: float) -> None:
        """`chance`: for each event that it may follow."""
        self._world, self._timeline, self._broker = world, world.timeline, world.broker
        self._random = random
        self._chance = chance
        self._until = world.scenario.fault_free_from
        """Most publish nothing later."""
        self._count = 0

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""

    def _publish(self, partition: int, table: str, value: bytes, delay: float = 0.0) -> None:
        where = TopicPartition(TOPICS.writers, partition)
        self._timeline.after(delay, partial(self._broker.append, where, table.encode(), value))


class Strangers(Injector):
    """Publishes forged events about the transactions whose records it sees."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._grants: dict[str, str] = {}
        """By transaction."""
        self._elsewhere: set[str] = set()
        """Transactions whose ids are opened on a table of the strangers: once, as a replay may not know a repeated intent."""
        self._open_elsewhere: set[str] = set()
        """Those whose intents are in the log."""
        self._own: dict[int, str] = {}
        """By partition: a table of the strangers."""

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""
        if record.topic not in (TOPICS.writers, TOPICS.decisions) or FORGED.encode() in record.value:
            return
        kind: Any = WRITER_EVENT if record.topic == TOPICS.writers else DECISION_RECORD
        event = decode(kind, record.value)
        if (
            isinstance(event, PartitionTaken | LocksHandedOver | Undecodable)
            or event.table not in self._world.tables
        ):
            return
        if isinstance(event, CommitGranted):
            self._grants[event.transaction] = event.grant
        if isinstance(event, CommitRequested) and event.transaction in self._open_elsewhere:
            request = self._build(CommitRequested, self._names_elsewhere(event), seq=event.seq)
            self._timeline.after(0.0, lambda: self._publish_all(record.partition, [request]))
        if self._random.random() >= self._chance:
            return
        delay = 0.0 if self._random.random() < 0.5 else self._random.expovariate(1 / 2.0)
        if self._timeline.now + delay < self._until:
            records = self._forge(event)
            self._timeline.after(delay, lambda: self._publish_all(record.partition, records))

    def _publish_all(self, partition: int, records: list[tuple[str, bytes]]) -> None:
        for table, value in records:
            event = decode(WRITER_EVENT, value)
            if table in self._own.values() and not isinstance(event, Undecodable):
                self._open_elsewhere.add(event.transaction)
            self._broker.append(TopicPartition(TOPICS.writers, partition), table.encode(), value)

    def _forge(self, event: WriterEventUnion | DecisionEventUnion) -> list[tuple[str, bytes]]:
        own: dict[str, Any] = {"table": event.table, "transaction": event.transaction, "writer": STRANGER}
        theirs = {**own, "writer": event.writer}
        grant = self._grants.get(event.transaction, "0:0")
        everything = Marker(partition="d=0", file_group="*", operation="delete")
        build = self._build
        kind = self._random.randrange(12)
        if isinstance(event, CommitIntent) and self._random.random() < 0.5:
            kind = 11
        if isinstance(event, Abort | CommitCompleted) and self._random.random() < 0.5:
            kind = 5  # the id of a transaction that has ended
        match kind:
            case 0:
                return [build(WriterHeartbeat, own, seq=HUGE)]
            case 1:
                return [build(MarkerCreated, own, markers=(everything,))]
            case 2:
                return [build(CommitRequested, own, seq=HUGE, markers=(everything,))]
            case 3:
                return [build(TransactionAbandoned, own, reason="forged")]
            case 4:
                return [build(CommitCompleted, own, grant=grant, batch_id=HUGE)]
            case 5:
                lock = self._world.tables[event.table].lock
                return [build(CommitIntent, own, batch_id=HUGE, lock=lock)]
            case 6:
                return [build(CommitCompleted, theirs, grant=grant + "0", batch_id=HUGE)]
            case 7:
                unknown = {**theirs, "transaction": f"{FORGED}{self._count}"}
                return [build(CommitCompleted, unknown, grant=grant, batch_id=HUGE)]
            case 8:
                table, value = build(MarkerCreated, own, markers=(everything,))
                return [(table, value.replace(b'"d=0"', b"7"))]
            case 9:
                return [(event.table, self._random.randbytes(20))]
            case _ if event.transaction in self._elsewhere:
                return []
            case _:
                self._elsewhere.add(event.transaction)
                return [build(CommitIntent, self._names_elsewhere(event), heartbeat_seconds=60.0)]

    def _names_elsewhere(self, event: WriterEventUnion | DecisionEventUnion) -> dict[str, Any]:
        table = self._own_table(self._world.partition_of(event.table))
        return {"table": table, "transaction": event.transaction, "writer": event.writer}

    def _build(self, kind: Any, names: dict[str, Any], **fields: Any) -> tuple[str, bytes]:
        self._count += 1
        return names["table"], encode(kind(event_id=f"{FORGED}{self._count}", at=AT, **names, **fields))

    def _own_table(self, partition: int) -> str:
        number = 0
        while partition not in self._own:
            table = f"s3://lake/{STRANGER}-{number}"
            self._own.setdefault(self._world.partition_of(table), table)
            number += 1
        return self._own[partition]


class UsedIds(Injector):
    """Publishes markers on a table that is not allowed, with the transaction and the writer of the markers before them.

    They get an abort, which concerns no transaction of the writer.
    """

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""
        if not self._chance or record.topic != TOPICS.writers or FORGED.encode() in record.value:
            return
        event = decode(WRITER_EVENT, record.value)
        if not isinstance(event, MarkerCreated) or self._random.random() >= self._chance:
            return
        self._count += 1
        names = {"table": FORBIDDEN, "event_id": f"{FORGED}used-{self._count}", "at": AT}
        value = encode(event.model_copy(update=names))
        self._publish(record.partition, FORBIDDEN, value)


class Misplaced(Injector):
    """Publishes copies of writers' events in another Kafka partition, as a producer with another partitioner would.

    Each has an id of its own that begins with `FORGED`. Its owner must answer the transaction once, as not allowed.
    """

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""
        late = self._timeline.now >= self._until
        if not self._chance or late or record.topic != TOPICS.writers or FORGED.encode() in record.value:
            return
        event = decode(WRITER_EVENT, record.value)
        if isinstance(event, Undecodable) or self._random.random() >= self._chance:
            return
        self._count += 1
        partitions = self._broker.counts[TOPICS.writers]
        other = (record.partition + self._random.randrange(1, partitions)) % partitions
        value = encode(event.model_copy(update={"event_id": f"{FORGED}misplaced-{self._count}"}))
        self._publish(other, event.table, value)
