"""Follows the log for what is past: conflicts, timelines, refused events. It begins `HOURS` ago."""

from collections import deque

import anyio
import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import moment
from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import ended_tasks
from lakewarden.agent.log import Log
from lakewarden.agent.operators.losses import HOUR_MS, Losses
from lakewarden.agent.operators.refused import MAX_REFUSED, RefusedEvent, last_spans, refused_event
from lakewarden.agent.operators.timelines import Timelines
from lakewarden.agent.settings import Settings
from lakewarden.agent.web.follower import POLL_MS, RETRY_SECONDS, Changes, explained

log = structlog.get_logger()

PAUSE_SECONDS = 0.2
HOURS = 6
"""Hours of conflicts and timelines that the page keeps, by full hours."""
MAX_RECORDS = 2_000
"""Records that are folded before other tasks run, about 50 ms."""


class History:
    """What happened in the last hours."""

    def __init__(self, settings: Settings, changes: Changes) -> None:
        self._settings = settings
        self._changes = changes
        self.losses = Losses(HOURS)
        self.timelines = Timelines()
        self.refused: deque[RefusedEvent] = deque(maxlen=MAX_REFUSED)
        self.complete = False
        """Whether everything of the last hours was read."""
        self.problem: str | None = None
        """Why the log can't be read, if it can't."""

    async def run(self) -> None:
        """Follow the log until cancelled. After an error it is read again from the beginning of the time that is kept."""
        while True:
            try:
                await self._follow()
            except (AgentError, KafkaError, TimeoutError, OSError) as error:
                problem = explained(error, self._settings)
                if problem != self.problem:
                    log.info("web.history-waiting", problem=problem)
                    self.problem = problem
                    self._changes.announce()
            await anyio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        settings, topics = self._settings, self._settings.topics
        since_ms = (moment().wall_ms // HOUR_MS - HOURS + 1) * HOUR_MS
        async with Log(settings, follows=True) as log:
            timed = await log.partitions(topics.conflicts, topics.decisions, topics.writers)
            starts = await log.offsets_at(timed, since_ms)
            starts |= await last_spans(log)
            consumer = await log.consumer()
            consumer.assign([*timed, *(each for each in starts if each not in timed)])
            ends = await consumer.end_offsets(list(starts))
            for partition in consumer.assignment():
                start = starts.get(partition)
                if start is None:
                    await consumer.seek_to_end(partition)
                else:
                    consumer.seek(partition, start)
            self.losses = Losses(HOURS)
            self.timelines = Timelines(self.losses.add_bypassed)
            self.refused.clear()
            self.complete = False
            while True:
                found = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
                for partition, records in found.items():
                    self._add(partition, records)
                if not found and (ended := ended_tasks(consumer)):
                    raise AgentError(f"a task of Kafka's client has ended: {ended}")
                if not found and self.complete:
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
