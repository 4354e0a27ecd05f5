"""Consumes what other agents publish. It starts before this agent owns a partition, so that it misses no event.

| topic | event | use |
| --- | --- | --- |
| `audit` | a lock was released, acquired or refused | hints for the keepers that wait for it (`handlers/lease/lock_queue.py`) |
| `decisions` | `partition-taken` | a paused owner may resume; this agent was replaced; another one has its `group_instance_id` |
| `ledger` | a record of another agent | the owner applies it, or records its own again (`handlers/table/ledger.py`) |

An owner is *replaced* when another agent's `partition-taken` follows its own in the log. From there on its decisions don't count
(`handlers/table/replay.py`), so the session ends, and the next one takes the partition over again.
"""

from collections.abc import Collection, Iterable, Mapping

import anyio
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.errors import DuplicateInstanceError, ReplacedError
from lakewarden.agent.kafka import reader, start_client
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.log_records import decoded
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings

RENEWAL = b'"type":"lock-renewed"'
"""Identifies a renewal without decoding the record."""
TAKE_OVER = b'"type":"partition-taken"'
"""Identifies a take-over without decoding the record."""


class PeerListener:
    """One consumer for all partitions that the agent owns. The caller stops `consumer`."""

    def __init__(self, lasting: Lasting, owners: Mapping[int, PartitionOwner]) -> None:
        self.consumer = reader(lasting.settings)
        self._settings = lasting.settings
        self._topics = lasting.settings.topics
        self._owners = owners
        self._undecodable = lasting.undecodable
        self._terms = lasting.terms
        self._read_until: dict[int, int] = {}
        self._progress = anyio.Event()

    async def open(self, audit: Iterable[TopicPartition], partitions: int) -> None:
        """Start the consumer. It reads every event that is published after this returns."""
        assigned = [
            *audit,
            *(
                TopicPartition(topic, number)
                for topic in (self._topics.decisions, self._topics.ledger)
                for number in range(partitions)
            ),
        ]
        await start_client(self.consumer, self._settings)
        self.consumer.assign(assigned)
        await self.consumer.seek_to_end(*assigned)
        for partition in assigned:
            await self.consumer.position(partition)

    async def listen(self) -> None:
        """Consume until cancelled. Raises `ReplacedError` when another agent has replaced this one as an owner."""
        while True:
            for partition, records in (await self.consumer.getmany(timeout_ms=1_000)).items():
                for record in records:
                    if partition.topic == self._topics.audit:
                        self._on_lock_event(record)
                    elif partition.topic == self._topics.ledger:
                        self._on_ledger_record(record)
                    else:
                        self._on_decision(record)
                if partition.topic == self._topics.decisions:
                    self._read_until[partition.partition] = records[-1].offset + 1
            self._progress.set()
            self._progress = anyio.Event()
            require_not_replaced(self._owners.values())

    def read_until(self, number: int) -> int:
        """The offset in this partition of `decisions` up to which the records have been read, exclusive."""
        return self._read_until.get(number, 0)

    async def progress(self) -> None:
        """Wait until more records have been read, or for a second."""
        with anyio.move_on_after(1.0):
            await self._progress.wait()

    def _on_lock_event(self, record: ConsumerRecord) -> None:
        if RENEWAL in (record.value or b""):  # nearly all records are renewals, and no contender needs them
            return
        if (event := decoded(events.AUDIT_EVENT, record, self._undecodable)) is not None:
            for owner in self._owners.values():
                owner.tables.locks.hint(event)

    def _on_decision(self, record: ConsumerRecord) -> None:
        owner, value = self._owners.get(record.partition), record.value or b""
        if TAKE_OVER not in value if owner is None else owner.records.term.encode() in value:
            return  # nearly all records: decisions of this agent, or of another one about its own partitions
        decision = decoded(events.DECISION_RECORD, record, self._undecodable)
        if isinstance(decision, events.PartitionTaken):
            require_unique_instance(decision, self._settings, self._terms)
            if owner is not None:
                owner.on_partition_taken(decision, record.offset)

    def _on_ledger_record(self, record: ConsumerRecord) -> None:
        owner = self._owners.get(record.partition)
        if owner is None or owner.records.term.encode() in (record.value or b""):
            return  # nearly all records: this agent published them
        if (entry := decoded(events.LEDGER_EVENT, record, self._undecodable)) is not None:
            owner.on_others_entry(entry, record.offset)


def require_unique_instance(taken: events.PartitionTaken, settings: Settings, terms: Collection[str]) -> None:
    """Raise `DuplicateInstanceError` if another process took a partition over under this agent's `group_instance_id`.

    aiokafka's heartbeats don't name the instance, so Kafka doesn't report the duplicate: the two would take turns for ever.
    The agent that was there first ends: it is the one that a restart has left behind, if one of the two is.
    """
    if (
        settings.group_instance_id is not None
        and taken.instance == settings.group_instance_id
        and taken.term not in terms
    ):
        raise DuplicateInstanceError(
            f"agent {taken.agent} has the same group_instance_id as this agent, {settings.group_instance_id}, "
            f"and has replaced it in group {settings.group}; give each running agent one of its own "
            "($LAKEWARDEN_GROUP_INSTANCE_ID), or end the other process"
        )


def require_not_replaced(owners: Iterable[PartitionOwner]) -> None:
    """Raise `ReplacedError` if another agent took one of these partitions over after its owner here did."""
    for owner in owners:
        if owner.replaced:
            raise ReplacedError(f"another agent took partition {owner.number} over after this one did")
