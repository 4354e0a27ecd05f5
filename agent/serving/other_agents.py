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
from lakewarden.agent.kafka import partitions_of, reader, started
from lakewarden.agent.serving.partition import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.events import AUDIT_EVENT, DECISION_RECORD, PartitionTaken, Undecodable, decode

RENEWAL = b'"type":"lock-renewed"'
TAKE = b'"type":"partition-taken"'
"""How these can be told without decoding them."""


class Ears:
    """One reader, for whatever partitions are owned. `consumer` is for its user to stop."""

    def __init__(self, settings: Settings, owners: Mapping[int, PartitionOwner]) -> None:
        self.consumer = reader(settings)
        self._settings = settings
        self._topics = settings.topics
        self._owners = owners

    async def open(self, partitions: int) -> None:
        """Start; what is said from now on will be heard."""
        listened = await partitions_of(self._settings, self._topics.audit)
        listened += [TopicPartition(self._topics.decisions, number) for number in range(partitions)]
        await started(self.consumer, self._settings)
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
                        self._hear_of_lock(record.value or b"")
                    else:
                        self._hear_of_take(record)
            require_unreplaced(self._owners.values())

    def _hear_of_lock(self, value: bytes) -> None:
        if RENEWAL in value:  # nearly all of them, and nobody waits for one
            return
        event = decode(AUDIT_EVENT, value)
        if not isinstance(event, Undecodable):
            for owner in self._owners.values():
                owner.locks.heard(event)

    def _hear_of_take(self, record: ConsumerRecord) -> None:
        owner = self._owners.get(record.partition)
        if owner is None or TAKE not in (record.value or b""):
            return
        taken = decode(DECISION_RECORD, record.value)
        if isinstance(taken, PartitionTaken):
            owner.heard_taken(taken, record.offset)


def require_unreplaced(owners: Iterable[PartitionOwner]) -> None:
    """Raise `ReplacedError` where another has taken a partition after its owner here did."""
    for owner in owners:
        if owner.replaced:
            raise ReplacedError(f"another agent has taken partition {owner.number} over after this one did")
