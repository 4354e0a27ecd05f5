"""Follows the log for the page: first it reads what `status` reads, in the same way, and then it goes on.

A round reads new records of all topics. If there are writers' events among them, it then reads `decisions` up to the end that
Kafka names after them. So each event is applied after every decision that its writer knew. Everything is read again after a
take-over, after an error, and every `FRESH_SECONDS`. Until that is done the former state is shown.
"""

from collections import deque
from contextlib import aclosing
from datetime import datetime

import anyio
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import moment, monotonic, utc_now
from lakewarden.agent.errors import AgentError, TaskEndedError
from lakewarden.agent.kafka import denied_to_command, ended_tasks
from lakewarden.agent.log import Log, Readers
from lakewarden.agent.operators.log_replay import replay_log
from lakewarden.agent.operators.past import (
    HOUR_MS,
    MAX_REFUSED,
    Losses,
    RefusedEvent,
    Timelines,
    last_spans,
    readers_of,
    refused_event,
)
from lakewarden.agent.operators.status import LiveStatus, Locks, TableView, group_members, readers_of_locks
from lakewarden.agent.settings import Settings
from lakewarden.handlers.setup import Member

logger = structlog.get_logger()

POLL_MS = 500
PAUSE_SECONDS = 0.2
"""After each round with records, so that a busy log takes some large rounds a second instead of many small ones."""
FRESH_SECONDS = 600.0
"""After this long, everything is read again."""
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


class History:
    """What happened in the last hours."""

    def __init__(self) -> None:
        self.losses = Losses(HOURS)
        self.timelines = Timelines(self.losses)
        self.refused: deque[RefusedEvent] = deque(maxlen=MAX_REFUSED)

    async def readers(self, log: Log) -> Readers:
        """How the log is read into it."""
        since_ms = (moment().wall_ms // HOUR_MS - HOURS + 1) * HOUR_MS
        conflicts = await log.starts_at(await log.partitions(log.topics.conflicts), since_ms)
        return {
            **await readers_of(self.timelines, log, since_ms),
            **{each: (start, self.losses.add) for each, start in conflicts.items()},
            **{each: (start, self._refuse) for each, start in (await last_spans(log)).items()},
        }

    def _refuse(self, record: ConsumerRecord) -> None:
        event = refused_event(record)
        if event is not None:
            self.refused.append(event)


class Follower:
    """What the page shows, as far as Kafka has it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.changes = Changes()
        self.problem: str | None = "the log is being read"
        """Why what is shown is not current, if it is not."""
        self.status: LiveStatus | None = None
        """None until the log was read once."""
        self.history = History()
        self.current_at: datetime | None = None
        """When the state was known to be current last, by this machine's clock."""
        self.members: tuple[Member, ...] | None = None
        """The agents in the group. None: not known."""
        self.judged: tuple[tuple[int, int] | None, list[TableView]] = None, []
        """The tables with their conditions, of this revision and second."""

    async def run(self) -> None:
        """Read the log until cancelled, and after an error again."""
        while True:
            try:
                await self._follow()
            except (AgentError, KafkaError, TimeoutError, OSError) as error:
                problem = explained(error, self.settings)
            else:
                continue
            if problem != self.problem:
                logger.info("web.waiting", problem=problem)
                self.problem = problem
                self.changes.announce()
            await anyio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        async with Log(self.settings, follows=True) as log:
            await log.partitions(log.topics.ledger)  # an error names the topic if it is missing or hidden
            history, locks = History(), Locks()
            readers = {**await history.readers(log), **await readers_of_locks(locks, log)}
            replay = await replay_log(log, readers, ahead=False)
            consumer = await log.seek(replay.next_offsets)
            self.status, self.history = LiveStatus(replay, locks), history
            self.members = await group_members(log, self.settings.group)
            await self._rounds(log, consumer, readers, self.status)

    async def _rounds(
        self, log: Log, consumer: AIOKafkaConsumer, readers: Readers, status: LiveStatus
    ) -> None:
        topics = self.settings.topics
        both = topics.writers, topics.decisions
        decisions = [each for each in readers if each.topic == topics.decisions]
        fresh_at = monotonic() + FRESH_SECONDS
        asked_at = 0.0
        self._current()
        while monotonic() < fresh_at:
            found: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(timeout_ms=POLL_MS)
            if any(each.topic == topics.writers for each in found):
                async with aclosing(log.up_to(await _ends(consumer, decisions))) as later:
                    async for partition, records in later:
                        found.setdefault(partition, []).extend(records)
            if monotonic() - asked_at > ASK_SECONDS:
                if not found:
                    await _ends(consumer, decisions)
                    _require_tasks(consumer)
                await self._ask_members(log)
                asked_at = monotonic()
            for partition, records in found.items():
                _, take = readers[partition]
                for record in records:
                    take(record)
            for number in sorted({each.partition for each in found if each.topic in both}):
                status.add(
                    number,
                    found.get(TopicPartition(topics.writers, number), []),
                    found.get(TopicPartition(topics.decisions, number), []),
                )
            if found:
                self.history.timelines.drop_before(moment().wall_ms / 1000 - HOURS * 3600)
                status.limit_memory(MEMORY_BYTES)
                self._current()
                await anyio.sleep(PAUSE_SECONDS)
            if status.taken_over:
                fresh_at = min(fresh_at, monotonic() + AFTER_TAKE_OVER_SECONDS)

    async def _ask_members(self, log: Log) -> None:
        with anyio.fail_after(SILENT_SECONDS):
            members = await group_members(log, self.settings.group)
        if members != self.members:
            self.members = members
            self.changes.announce()

    def _current(self) -> None:
        self.problem, self.current_at = None, utc_now()
        self.changes.announce()


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
