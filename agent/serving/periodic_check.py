"""The periodic check of Kafka, of the number of partitions, and of writers and grants whose time is up.

- Each check requests the end offsets of the log, and waits until the agent has consumed up to them. The owners then judge as of
  the time of the *request*, because later events may not have been consumed yet (`handlers/table/liveness.py`).
- A check that is late by several intervals means that this process, perhaps the machine, was suspended. The silence of a writer
  up to then proves nothing.
- Kafka has lost records if the log ends before the agent's position, if the ledger ends before the agent's last entry or begins
  later than before, or if a record was acknowledged at an offset below an earlier one. The session ends, and the take-over of the
  next one finds out what is missing (`takeover.py`).
- If the client's metadata know no partition of `writers` any more, Kafka is asked whether the topic exists. If it doesn't, the
  session ends, and the next one creates it. Every half minute, the same is asked of topics whose offsets no check requests.
- If Kafka has not answered for a session timeout, and not for `SILENCE_SECONDS`, the session ends. The group may have assigned
  the partitions to other agents. After a suspension Kafka has one more check to answer.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

import anyio
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import KafkaUnreachableError, LogCutError
from lakewarden.agent.kafka import partitions_known
from lakewarden.agent.log import Log
from lakewarden.agent.serving.checkpoint import require_same_partitions
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings

log = structlog.get_logger()

MIN_END_OFFSETS_SECONDS = 1.0
"""For the request of the end offsets: the broker answers it after a running fetch, which may take half a second."""
POLL_SECONDS = 0.005
LEDGER_BEGINNING_SECONDS = 10.0
"""How often it is asked where the ledger begins. Compaction doesn't move that, only a wrong setting or a person."""
TOPIC_SECONDS = 5.0
"""How often, and for how long, Kafka is asked whether a topic still exists of which the client's metadata know no partition."""
TOPICS_SECONDS = 30.0
"""How often it is asked which topics there are. Without `decisions` no writer sends an intent, so no publish would fail."""
SILENCE_SECONDS = 10.0
"""The shortest silence that ends the session. After the death of a broker, the controller waits `broker.session.timeout.ms` (9 s)
before its partitions get another leader."""
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
        self._checked_topic_at = 0.0
        self._interval = settings.check_seconds
        self._end_offsets_seconds = max(self._interval, MIN_END_OFFSETS_SECONDS)
        self._last = self._answered = monotonic()
        self._silent = False
        self._beginnings_asked_at = self._topics_asked_at = monotonic()
        self.ended_at: float | None = None
        """When the last check ended, in monotonic seconds."""

    async def run(self) -> None:
        """Check until cancelled. Raises the error that ends the session."""
        while True:
            await anyio.sleep(self._interval)
            await self._check()

    async def _check(self) -> None:
        known = partitions_known(self._consumer, self._topic)
        require_same_partitions(known, self._partitions, self._settings)
        if known is None and monotonic() - self._checked_topic_at >= TOPIC_SECONDS:
            self._checked_topic_at = monotonic()
            await self._require_topic(self._topic)
        await self._require_other_topics()
        asked_at = monotonic()
        read = [
            (each, each.position, *each.seen.ledger_extent)
            for each in self._owners.values()
            if each.phase in ("replaying", "live")
        ]
        ends, ledger_ends = await self._end_offsets()
        self._require_complete_log(read, ends, ledger_ends, await self._ledger_beginnings())
        for owner in self._owners.values():
            if owner.number in ends:
                owner.lag.note_end(ends[owner.number], asked_at)
        await self._wait_for_position(ends)
        now = monotonic()
        stalled = now - self._last > STALL_FACTOR * self._interval + self._end_offsets_seconds
        self._last = now
        if ends or not self._owners:
            self._answered = now
        self._check_kafka(now - self._answered, stalled=stalled)
        for owner in list(self._owners.values()):
            await owner.tick(now, asked_at, ends.get(owner.number), stalled=stalled)
        self.ended_at = monotonic()

    async def _require_topic(self, topic: str) -> None:
        """Raise `LogCutError` if Kafka has the topic no more. Without `writers`, the group has no partitions to miss it."""
        try:
            with anyio.move_on_after(TOPIC_SECONDS):
                async with Log(self._settings) as topics:
                    present = await topics.exists(topic)
                if not present:
                    raise LogCutError(
                        f"topic {topic} no longer exists: it was deleted, and the agent creates it again, empty"
                    )
        except (KafkaError, KafkaUnreachableError) as error:
            log.debug("kafka.topics-unknown", problem=str(error) or repr(error))

    async def _require_other_topics(self) -> None:
        """The same for the topics that no other check reads. A broker that knows none may just have started."""
        now = monotonic()
        if now - self._topics_asked_at < TOPICS_SECONDS or not self._owners:
            return
        self._topics_asked_at = now
        present: set[str] = set()
        with anyio.move_on_after(self._end_offsets_seconds), suppress(KafkaError):
            present = await self._consumer.topics()
        topics = self._settings.topics
        for topic in (topics.decisions, topics.audit, topics.conflicts, topics.dead_letters):
            if present and topic not in present:
                await self._require_topic(topic)

    def _require_complete_log(
        self,
        read: Iterable[tuple[PartitionOwner, int, int, int]],
        ends: Mapping[int, int],
        ledger_ends: Mapping[int, int],
        ledger_beginnings: Mapping[int, int],
    ) -> None:
        """Raise `LogCutError` if the log has lost records.

        `read`: the positions, and where the ledger began and ended, before the ends were requested.
        """
        ledger = self._settings.topics.ledger
        for owner, position, first_entry, ledger_end in read:
            number = owner.number
            if owner.seen.cut is not None:
                raise LogCutError(owner.seen.cut)
            if self._owners.get(number) is not owner:
                continue
            if (end := ends.get(number, position)) < position:
                raise LogCutError(
                    f"topic {self._topic} ends at offset {end} of partition {number}, and this agent has read up to "
                    f"{position}: Kafka has lost records"
                )
            end, beginning = ledger_ends.get(number, ledger_end), ledger_beginnings.get(number, first_entry)
            if end < ledger_end or beginning > first_entry:
                owner.seen.ledger_lost = True
            if end < ledger_end:
                raise LogCutError(
                    f"topic {ledger} ends at offset {end} of partition {number}, and this agent's last entry is at "
                    f"{ledger_end - 1}: Kafka has lost records"
                )
            if beginning > first_entry:
                raise LogCutError(
                    f"topic {ledger} begins at offset {beginning} of partition {number} instead of {first_entry}: its first "
                    "entries were removed; set cleanup.policy=compact"
                )

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
        if seconds > max(SILENCE_SECONDS, self._settings.session_timeout_seconds) and not stalled:
            raise KafkaUnreachableError(f"Kafka has not answered for {seconds:.0f} s")

    async def _end_offsets(self) -> tuple[dict[int, int], dict[int, int]]:
        """The current end offsets of the log and of the ledger, or empty results if Kafka does not answer in time."""
        topics = self._topic, self._settings.topics.ledger
        ends = await self._offsets(self._consumer.end_offsets, topics)
        events, entries = (
            {each.partition: end for each, end in ends.items() if each.topic == topic} for topic in topics
        )
        return events, entries

    async def _ledger_beginnings(self) -> dict[int, int]:
        """Where the ledger begins, or an empty result if Kafka does not answer in time, or was asked a while ago."""
        now = monotonic()
        if now - self._beginnings_asked_at < LEDGER_BEGINNING_SECONDS:
            return {}
        self._beginnings_asked_at = now
        found = await self._offsets(self._consumer.beginning_offsets, [self._settings.topics.ledger])
        return {each.partition: beginning for each, beginning in found.items()}

    async def _offsets(
        self,
        request: Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, int]]],
        topics: Iterable[str],
    ) -> dict[TopicPartition, int]:
        partitions = [TopicPartition(topic, number) for topic in topics for number in self._owners]
        if not partitions:
            return {}
        with anyio.move_on_after(self._end_offsets_seconds):
            try:
                return await request(partitions)
            except KafkaError as error:
                log.debug("kafka.offsets-unknown", problem=str(error) or repr(error))
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
                        continue  # the partition was revoked during the check
                    owner.advance_to(position)
