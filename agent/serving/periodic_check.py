"""The periodic check of Kafka, of the number of partitions, and of writers and grants whose time is up.

- Each check requests the end offsets of the log, and waits until the agent has consumed up to them. The owners then judge as of
  the time of the *request*, because later events may not have been consumed yet (`handlers/table/liveness.py`).
- A check that is late by several intervals means that this process, perhaps the machine, was suspended. The silence of a writer
  up to then proves nothing.
- If the log ends before the agent's position, or a decision was acknowledged at an offset below an earlier one, Kafka has lost
  records. The session ends, and the take-over of the next one finds out what is missing (`takeover.py`).
- If Kafka has not answered for a session timeout, the session ends. The group may have assigned the partitions to other agents,
  and an agent that can't know must not hold their locks. After a suspension Kafka has one more check to answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import anyio
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import KafkaUnreachableError, LogCutError
from lakewarden.agent.kafka import partitions_known
from lakewarden.agent.serving.checkpoint import require_same_partitions
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings

log = structlog.get_logger()

MIN_END_OFFSETS_SECONDS = 1.0
"""For the request of the end offsets: the broker answers it after a running fetch, which may take half a second."""
POLL_SECONDS = 0.005
STALL_FACTOR = 3
"""A check that is late by this many intervals means that the process was suspended."""


class PeriodicCheck:
    """One check for all partitions that the agent owns."""

    def __init__(
        self,
        settings: Settings,
        consumer: AIOKafkaConsumer,
        partitions: int,
        owners: Mapping[int, PartitionOwner],
    ) -> None:
        self._settings = settings
        self._topic = settings.topics.writers
        self._consumer = consumer
        self._partitions = partitions
        self._owners = owners
        self._interval = settings.check_seconds
        self._end_offsets_seconds = max(self._interval, MIN_END_OFFSETS_SECONDS)
        self._last = self._answered = monotonic()
        self._silent = False

    async def run(self) -> None:
        """Check until cancelled. Raises the error that ends the session."""
        while True:
            await anyio.sleep(self._interval)
            await self._check()

    async def _check(self) -> None:
        require_same_partitions(
            partitions_known(self._consumer, self._topic), self._partitions, self._settings
        )
        asked_at = monotonic()
        read = [
            (each, each.position) for each in self._owners.values() if each.phase in ("replaying", "live")
        ]
        ends = await self._end_offsets()
        self._require_complete_log(read, ends)
        await self._wait_for_position(ends)
        now = monotonic()
        stalled = now - self._last > STALL_FACTOR * self._interval + self._end_offsets_seconds
        self._last = now
        if ends or not self._owners:
            self._answered = now
        self._check_kafka(now - self._answered, stalled=stalled)
        for owner in list(self._owners.values()):
            await owner.tick(now, asked_at, ends.get(owner.number), stalled=stalled)

    def _require_complete_log(
        self, read: Iterable[tuple[PartitionOwner, int]], ends: Mapping[int, int]
    ) -> None:
        """Raise `LogCutError` if the log has lost records. `read`: the positions before the ends were requested."""
        for owner, position in read:
            end = ends.get(owner.number, position)
            if self._owners.get(owner.number) is owner and end < position:
                raise LogCutError(
                    f"topic {self._topic} ends at offset {end} of partition {owner.number}, and this agent has read up to "
                    f"{position}: Kafka has lost records"
                )
            if owner.cut is not None:
                raise LogCutError(owner.cut)

    def _check_kafka(self, seconds: float, *, stalled: bool) -> None:
        """Log the beginning and the end of Kafka's silence. Raises `KafkaUnreachableError` after the session timeout."""
        if self._silent != (seconds > 2 * self._end_offsets_seconds):
            self._silent = not self._silent
            where = self._settings.bootstrap_servers
            if self._silent:
                log.warning(
                    "kafka.silent",
                    bootstrap_servers=where,
                    detail="the agent decides nothing until Kafka answers",
                )
            else:
                log.info("kafka.answers-again", bootstrap_servers=where)
        if seconds > self._settings.session_timeout_seconds and not stalled:
            raise KafkaUnreachableError(f"Kafka has not answered for {seconds:.0f} s")

    async def _end_offsets(self) -> dict[int, int]:
        """The current end offsets of the log, or an empty result if Kafka does not answer in time."""
        partitions = [TopicPartition(self._topic, number) for number in self._owners]
        if not partitions:
            return {}
        with anyio.move_on_after(self._end_offsets_seconds):
            try:
                ends = await self._consumer.end_offsets(partitions)
            except KafkaError as error:
                log.debug("kafka.ends-unknown", problem=str(error) or repr(error))
                return {}
            return {partition.partition: end for partition, end in ends.items()}
        return {}

    async def _wait_for_position(self, ends: Mapping[int, int]) -> None:
        """Wait until the agent has consumed up to these ends, at most one interval: a busy log always has unread events.

        The last records may be no events (the markers of a transactional producer). The consumer's position skips them.
        """
        with anyio.move_on_after(self._interval):
            while behind := [
                owner
                for owner in self._owners.values()
                if owner.phase in ("replaying", "live") and owner.position < ends.get(owner.number, 0)
            ]:
                await anyio.sleep(POLL_SECONDS)
                for owner in behind:
                    try:
                        position = await self._consumer.position(TopicPartition(self._topic, owner.number))
                    except IllegalStateError:
                        continue  # the partition was revoked meanwhile
                    owner.advance_to(position)
