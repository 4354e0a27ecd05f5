"""What an agent hears of the others, from before it owns anything: of locks in `audit`, of partitions in `decisions`.

- Locks that were released or taken: the keepers that wait want to know (`handlers/lease/lock_queue.py`).
- Partitions that were taken. An owner after whose take another's stands in the log is `replaced`: nothing that it decides counts
  (`handlers/table/replay.py`), so its session ends, and the next one takes them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.errors import ReplacedError
from lakewarden.agent.kafka import partitions_of, reader, start_client
from lakewarden.agent.serving.partition import PartitionOwner, skip_undecodable
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    AUDIT_EVENT,
    DECISION_RECORD,
    PartitionTaken,
    Undecodable,
    UndecodableRecords,
    decode,
)

RENEWAL = b'"type":"lock-renewed"'
"""How a renewal can be recognised without decoding it."""


class PeerListener:
    """One reader, for whatever partitions are owned. `consumer` is for its user to stop."""

    def __init__(
        self,
        settings: Settings,
        owners: Mapping[int, PartitionOwner],
        undecodable: UndecodableRecords | None = None,
    ) -> None:
        self.consumer = reader(settings)
        self._settings = settings
        self._topics = settings.topics
        self._owners = owners
        self._undecodable = undecodable or UndecodableRecords()

    async def open(self, partitions: int) -> None:
        """Start; what is said from now on will be heard."""
        listened = await partitions_of(self._settings, self._topics.audit)
        listened += [TopicPartition(self._topics.decisions, number) for number in range(partitions)]
        await start_client(self.consumer, self._settings)
        self.consumer.assign(listened)
        await self.consumer.seek_to_end(*listened)
        for partition in listened:
            await self.consumer.position(partition)

    async def listen(self) -> None:
        """Hear until cancelled. Raises `ReplacedError` when another has taken a partition of ours."""
        while True:
            for partition, records in (await self.consumer.getmany(timeout_ms=1_000)).items():
                for record in records:
                    if partition.topic == self._topics.audit:
                        self._on_lock_event(record)
                    else:
                        self._on_decision(record)
            require_not_replaced(self._owners.values())

    def _on_lock_event(self, record: ConsumerRecord) -> None:
        if RENEWAL in (record.value or b""):  # nearly all of them, and nobody waits for one
            return
        event = decode(AUDIT_EVENT, record.value)
        if isinstance(event, Undecodable):
            skip_undecodable(record, event, self._undecodable)
            return
        for owner in self._owners.values():
            owner.locks.observe(event)

    def _on_decision(self, record: ConsumerRecord) -> None:
        owner = self._owners.get(record.partition)
        if owner is None or owner.term.encode() in (
            record.value or b""
        ):  # nearly all: the owner published them
            return
        decision = decode(DECISION_RECORD, record.value)
        if isinstance(decision, Undecodable):
            skip_undecodable(record, decision, self._undecodable)
        elif isinstance(decision, PartitionTaken):
            owner.on_partition_taken(decision, record.offset)


def require_not_replaced(owners: Iterable[PartitionOwner]) -> None:
    """Raise `ReplacedError` where another has taken a partition after its owner here did."""
    for owner in owners:
        if owner.replaced:
            raise ReplacedError(f"another agent has taken partition {owner.number} over after this one did")
