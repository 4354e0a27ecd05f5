"""Follows the log: for what is now (`Follower`, which keeps `LiveStatus` up to date), and for what is past (`History`).

A round of the follower reads new records of all topics; if there are writers' events among them, it then reads `decisions` up to
the end that Kafka names after them. So each event is applied after every decision that its writer knew. Its replay starts again
after a take-over, after an error, and every `FRESH_SECONDS`. Until it is done the former state is shown.

The history has conflicts, timelines and refused events, from `HOURS` ago on. After an error it is read again from there.
"""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import ClassVar

import anyio
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import moment, monotonic, utc_now
from lakewarden.agent.errors import AgentError, LogCutError, TaskEndedError
from lakewarden.agent.kafka import denied_to_command, ended_tasks
from lakewarden.agent.log import Log
from lakewarden.agent.operators.live_status import LiveStatus
from lakewarden.agent.operators.log_replay import replay_log
from lakewarden.agent.operators.losses import HOUR_MS, Losses
from lakewarden.agent.operators.refused import MAX_REFUSED, RefusedEvent, last_spans, refused_event
from lakewarden.agent.operators.status import AUDIT_WINDOW, group_members
from lakewarden.agent.operators.timelines import Timelines
from lakewarden.agent.serving.log_records import decoded_all
from lakewarden.agent.settings import Settings
from lakewarden.events import AUDIT_EVENT
from lakewarden.handlers.setup import Member

logger = structlog.get_logger()

POLL_MS = 500
PAUSE_SECONDS = 0.2
"""After each round with records, so that a busy log takes some large rounds a second instead of many small ones."""
FRESH_SECONDS = 600.0
"""After this long, the state is replayed from the checkpoints again."""
AFTER_TAKE_OVER_SECONDS = 2.0
"""A rebalance moves several partitions, within about this time."""
RETRY_SECONDS = 3.0
MEMORY_BYTES = 500_000_000
"""Limit of what open transactions touch (estimated). Above it, the page doesn't know who waits for whom in the largest table."""
SILENT_SECONDS = 15.0
"""Limit for the brokers to name the ends of the topics."""
ASK_SECONDS = 5.0
"""Between two such questions: who is in the agents' group, and while no record arrives, whether the broker is there."""
HOURS = 6
"""Hours of conflicts and timelines that the page keeps, by full hours."""
MAX_RECORDS = 2_000
"""Records of the past that are folded before other tasks run, about 50 ms."""


class Changes:
    """Counts the changes of what is shown, and wakes those who wait for the next one."""

    def __init__(self) -> None:
        self.revision = 0
        self._next = anyio.Event()

    def announce(self) -> None:
        self.revision += 1
        self._next.set()
        self._next = anyio.Event()

    async def wait(self, known: int) -> None:
        while self.revision == known:
            await self._next.wait()


class _Reader:
    """Reads the log until cancelled, and after an error again."""

    WAITING: ClassVar[str]
    """The event that is logged when it can't."""

    def __init__(self, settings: Settings, changes: Changes, problem: str | None) -> None:
        self._settings = settings
        self._changes = changes
        self.problem = problem
        """Why what is shown is not current, if it is not."""

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except (AgentError, KafkaError, TimeoutError, OSError) as error:
                problem = explained(error, self._settings)
            else:
                continue
            if problem != self.problem:
                logger.info(self.WAITING, problem=problem)
                self.problem = problem
                self._changes.announce()
            await anyio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        raise NotImplementedError


class Follower(_Reader):
    """The state of all tables, as far as Kafka has it."""

    WAITING = "web.waiting"

    def __init__(self, settings: Settings, changes: Changes) -> None:
        super().__init__(settings, changes, "the log is being read")
        self.status: LiveStatus | None = None
        """None until the first replay is done."""
        self.current_at: datetime | None = None
        """When the state was known to be current last, by this machine's clock."""
        self.members: tuple[Member, ...] | None = None
        """The agents in the group. None: not known."""

    async def _follow(self) -> None:
        async with Log(self._settings, follows=True) as log:
            replay = await replay_log(log, ahead=False)
            await log.partitions(log.topics.ledger)  # an error names the topic if it is missing or hidden
            positions = dict(replay.next_offsets)
            status = LiveStatus(replay)
            audit = await log.partitions(log.topics.audit)
            since_ms = round((utc_now() - AUDIT_WINDOW).timestamp() * 1000)
            recent = await log.ends(audit) | await log.offsets_at(audit, since_ms)
            consumer = await log.seek(positions | recent)
            self._add_locks(status, chain(*(await _read_to(consumer, audit)).values()))
            self.status = status
            self.members = await group_members(log, self._settings.group)
            await self._rounds(log, consumer, list(positions), status)

    async def _rounds(
        self, log: Log, consumer: AIOKafkaConsumer, both: list[TopicPartition], status: LiveStatus
    ) -> None:
        topics = self._settings.topics
        decisions = [each for each in both if each.topic == topics.decisions]
        fresh_at = monotonic() + FRESH_SECONDS
        asked_at = 0.0
        self._current()
        while monotonic() < fresh_at:
            found: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(timeout_ms=POLL_MS)
            if any(each.topic == topics.writers for each in found):
                for partition, records in (await _read_to(consumer, decisions)).items():
                    found.setdefault(partition, []).extend(records)
            if monotonic() - asked_at > ASK_SECONDS:
                if not found:
                    await _ends(consumer, decisions)
                    _require_tasks(consumer)
                await self._ask_members(log)
                asked_at = monotonic()
            for number in sorted({each.partition for each in found if each.topic != topics.audit}):
                status.add(
                    number,
                    found.get(TopicPartition(topics.writers, number), []),
                    found.get(TopicPartition(topics.decisions, number), []),
                )
            for partition, records in found.items():
                if partition.topic == topics.audit:
                    self._add_locks(status, records)
            if found:
                status.limit_memory(MEMORY_BYTES)
                self._current()
                await anyio.sleep(PAUSE_SECONDS)
            if status.taken_over:
                fresh_at = min(fresh_at, monotonic() + AFTER_TAKE_OVER_SECONDS)

    async def _ask_members(self, log: Log) -> None:
        with anyio.fail_after(SILENT_SECONDS):
            members = await group_members(log, self._settings.group)
        if members != self.members:
            self.members = members
            self._changes.announce()

    def _current(self) -> None:
        self.problem, self.current_at = None, utc_now()
        self._changes.announce()

    @staticmethod
    def _add_locks(status: LiveStatus, records: Iterable[ConsumerRecord]) -> None:
        for step in decoded_all(AUDIT_EVENT, records):
            status.add_lock_step(step)


class History(_Reader):
    """What happened in the last hours."""

    WAITING = "web.history-waiting"

    def __init__(self, settings: Settings, changes: Changes) -> None:
        super().__init__(settings, changes, None)
        self.losses = Losses(HOURS)
        self.timelines = Timelines()
        self.refused: deque[RefusedEvent] = deque(maxlen=MAX_REFUSED)
        self.complete = False
        """Whether everything of the last hours was read."""

    async def _follow(self) -> None:
        topics = self._settings.topics
        since_ms = (moment().wall_ms // HOUR_MS - HOURS + 1) * HOUR_MS
        async with Log(self._settings, follows=True) as log:
            timed = await log.partitions(topics.conflicts, topics.decisions, topics.writers)
            starts = await log.ends(timed) | await log.offsets_at(timed, since_ms) | await last_spans(log)
            ends = await log.ends(starts)
            consumer = await log.seek(starts)
            self.losses = Losses(HOURS)
            self.timelines = Timelines(self.losses.add_bypassed)
            self.refused.clear()
            self.complete = False
            while True:
                found = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
                for partition, records in found.items():
                    self._add(partition, records)
                if not found:
                    _require_tasks(consumer)
                    if self.complete:
                        continue
                positions = {each: await consumer.position(each) for each in ends}
                self.complete = all(positions[each] >= end for each, end in ends.items())
                self.problem = None
                self._changes.announce()
                if self.complete:
                    self.timelines.drop_before(moment().wall_ms / 1000 - HOURS * 3600)
                    await anyio.sleep(PAUSE_SECONDS)

    def _add(self, partition: TopicPartition, records: list[ConsumerRecord]) -> None:
        topics = self._settings.topics
        for record in records:
            if partition.topic == topics.writers:
                self.timelines.add_event(record)
            elif partition.topic == topics.decisions:
                self.timelines.add_decision(record)
            elif partition.topic == topics.conflicts:
                self.losses.add(record)
            elif (found := refused_event(record)) is not None:
                self.refused.append(found)


def explained(error: Exception, settings: Settings) -> str:
    """Why the log can't be read, and what to do."""
    if isinstance(error, AgentError):
        return str(error)
    return denied_to_command(error) or f"Kafka at {settings.bootstrap_servers} doesn't answer: {error!r}"


def _require_tasks(consumer: AIOKafkaConsumer) -> None:
    if ended := ended_tasks(consumer):
        raise TaskEndedError(f"a task of Kafka's client has ended: {ended}")


async def _ends(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    with anyio.fail_after(SILENT_SECONDS):
        return dict(await consumer.end_offsets(partitions))


async def _read_to(
    consumer: AIOKafkaConsumer, partitions: list[TopicPartition]
) -> dict[TopicPartition, list[ConsumerRecord]]:
    """The records of these partitions up to the ends that Kafka names now."""
    ends = await _ends(consumer, partitions)
    found: dict[TopicPartition, list[ConsumerRecord]] = {}
    behind = [each for each in partitions if await consumer.position(each) < ends[each]]
    silent_at = monotonic() + SILENT_SECONDS
    while behind:
        batch = await consumer.getmany(*behind, timeout_ms=POLL_MS)
        for partition, records in batch.items():
            found.setdefault(partition, []).extend(records)
        behind = [each for each in behind if await consumer.position(each) < ends[each]]
        if batch:
            silent_at = monotonic() + SILENT_SECONDS
        elif monotonic() > silent_at:
            _require_tasks(consumer)
            raise LogCutError(
                f"{behind[0].topic} ends at offset {ends[behind[0]]} of partition {behind[0].partition}, and Kafka returns "
                "no record before it"
            )
    return found
