"""The agent: one consumer group member, the partitions it owns, and the tasks that move them.

A session lasts as long as Kafka takes what is decided. If it does not, the session ends, everything that was in memory is
dropped, and the next session rebuilds it from the log: there is no second way to recover.

Stopping, in this order: intake stops → what was decided is published → locks without a running grant are released → offsets are
committed → clients are closed. Each part is bounded; what could not be released lapses by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from lakewarden.agent.clock import monotonic
from lakewarden.agent.committed import CommitPoint, decided_from, partitions_then
from lakewarden.agent.errors import (
    KafkaRefusedError,
    KafkaUnreachableError,
    LogBrokenError,
    PartitionsChangedError,
    ReplacedError,
    SettingsError,
    SleptError,
)
from lakewarden.agent.kafka import (
    FETCH_BYTES,
    committed_offsets,
    ensure_topics,
    forbidden,
    partitions_of,
    producer,
    read_to_end,
    reader,
    started,
    stopped,
)
from lakewarden.agent.locks import SleepWatch, Stores
from lakewarden.agent.partition import PartitionOwner
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.settings import Settings
from lakewarden.events import AUDIT_EVENT, DECISION_RECORD, PartitionTaken, Undecodable, decode
from lakewarden.handlers.replay import Position

log = structlog.get_logger()

RECORDS_AT_ONCE = 200
"""Events decided before other tasks get a turn, at most: some 30 ms where each brings 100 markers."""
TURN_SECONDS = 0.05
"""Deciding for longer, fewer are taken the next time: the group's heartbeats need some ten turns of the event loop each."""
COMMIT_SECONDS = 1.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits between sessions; the last one repeats."""
METADATA_SECONDS = 30
"""After so long a topic that was given more partitions is noticed."""
MIN_ENDS_SECONDS = 1.0
"""For Kafka to say where the log ends: it answers behind a fetch, which may wait for half a second."""
REACH_SECONDS = 0.005
HEARTBEAT_SHARE = 0.3
"""Of the session timeout: between two heartbeats to the group. Whoever sleeps for the rest of it may be taken for dead."""
REVOKE_SHARE = 0.5
"""Of the session timeout: how long giving partitions up may take before the group stops waiting for us."""
RENEWAL = b'"type":"lock-renewed"'
TAKE = b'"type":"partition-taken"'
"""How these can be told without decoding them."""
STALL_FACTOR = 3
"""A periodic check this many intervals late says that the process slept: silence before it proves nothing."""


class Agent:
    """Serves until `stop` is called. `ready` is set whenever every assigned partition is live."""

    def __init__(self, settings: Settings) -> None:
        if not settings.allow:
            raise SettingsError(
                "allow is empty, so no table would be served; name tables: --allow 's3://bucket/warehouse/*'"
            )
        self.settings = settings
        self.ready = anyio.Event()
        self._stopping = anyio.Event()

    def stop(self) -> None:
        """Ask for an orderly stop."""
        self._stopping.set()

    def not_ready(self) -> None:
        """Not every partition is live. An event that is not set is kept: somebody may be waiting for it."""
        if self.ready.is_set():
            self.ready = anyio.Event()

    async def run(self) -> None:
        """Serve, session after session, until stopped. Raises only what no retry can mend."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            stores = Stores(settings, stack)
            if settings.lock_root is not None:
                await stores.for_lock(settings.lock_root + "/locks/probe.json")
            failures = 0
            while not self._stopping.is_set():
                problem = await self._session(stores)
                if problem is None:
                    continue
                if (right := forbidden(problem, settings)) is not None:
                    raise KafkaRefusedError(right)
                wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures = 0 if self.ready.is_set() else failures + 1
                self.not_ready()
                log.warning(
                    "kafka.waiting",
                    bootstrap_servers=settings.bootstrap_servers,
                    problem=str(problem),
                    retry_seconds=wait,
                )
                with anyio.move_on_after(wait):
                    await self._stopping.wait()

    async def _session(self, stores: Stores) -> Exception | None:
        """One session; what ended it, None for an orderly stop."""
        session = _Session(self, stores)
        ended_by: Exception | None = None
        try:
            async with anyio.create_task_group() as background:
                try:
                    async with anyio.create_task_group() as foreground:
                        foreground.start_soon(self._cancel_on_stop, foreground.cancel_scope)
                        await session.open(background)
                        await session.serve()
                finally:
                    # Publisher and locks run on in the background until this is done; each part is bounded.
                    with anyio.CancelScope(shield=True):
                        await session.close()
                    background.cancel_scope.cancel()
        except* (
            KafkaError,
            KafkaUnreachableError,
            LogBrokenError,
            SleptError,
            ReplacedError,
            OSError,
            IllegalStateError,
        ) as problems:
            ended_by = _first(problems)
        return ended_by

    async def _cancel_on_stop(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel("stop was asked for")


def _first(problems: BaseExceptionGroup[Exception]) -> Exception:
    leaf: BaseException = problems
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, Exception)
    return leaf


class _Session(ConsumerRebalanceListener):  # type: ignore[misc]
    """Clients and partitions of one session."""

    def __init__(self, agent: Agent, stores: Stores) -> None:
        self._agent = agent
        self._settings = agent.settings
        self._topics = agent.settings.topics
        self._stores = stores
        self._watch = SleepWatch()
        self._owners: dict[int, PartitionOwner] = {}
        self._committed: dict[int, CommitPoint] = {}
        self._partitions = 0
        self._assigned = False
        self._assigned_at = 0.0

    async def open(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the clients and join the group."""
        settings = self._settings
        self._partitions = await ensure_topics(
            settings, self._topics, settings.partitions, settings.replication
        )
        log.info(
            "kafka.connected",
            bootstrap_servers=settings.bootstrap_servers,
            partitions=self._partitions,
            group=settings.group,
        )
        self._tasks = tasks
        self._producer = producer(settings)
        self._publisher = Publisher(self._producer)
        self._consumer = AIOKafkaConsumer(
            **settings.kafka_client(),
            client_id=settings.agent_id,
            group_id=settings.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
            session_timeout_ms=round(settings.session_timeout_seconds * 1000),
            heartbeat_interval_ms=round(settings.session_timeout_seconds * HEARTBEAT_SHARE * 1000),
        )
        await started(self._producer, settings)
        tasks.start_soon(self._publisher.run)
        tasks.start_soon(self._watch.run)
        await self._open_ears()
        self._consumer.subscribe([self._topics.writers], listener=self)
        await started(self._consumer, settings)

    async def _open_ears(self) -> None:
        """Listen, from before we own anything, for what the agents tell of locks and of partitions that they take."""
        listened = await partitions_of(self._settings, self._topics.audit)
        listened += [TopicPartition(self._topics.decisions, number) for number in range(self._partitions)]
        self._ears = reader(self._settings)
        await started(self._ears, self._settings)
        self._ears.assign(listened)
        await self._ears.seek_to_end(*listened)
        for partition in listened:
            await self._ears.position(partition)

    async def serve(self) -> None:
        """Read, decide, check and commit until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publisher.watch)
            tasks.start_soon(self._check_periodically)
            tasks.start_soon(self._commit_periodically)
            tasks.start_soon(self._listen)
            await self._read()

    async def close(self) -> None:
        """The orderly end; see the module's rules."""
        seconds = self._settings.shutdown_seconds
        await self._give_up(list(self._owners), seconds * 0.7)
        for name in ("_consumer", "_producer", "_ears"):
            if (client := getattr(self, name, None)) is not None:
                await stopped(client, seconds * 0.1)

    # -- assignment --------------------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Own them, from the lowest number up (a set comes in any order); they are loaded by the reading task."""
        for number in sorted(each.partition for each in assigned):
            self._owners[number] = PartitionOwner(
                number, self._settings, self._publisher, self._stores, self._tasks, self._watch
            )
        self._assigned, self._assigned_at = True, monotonic()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Stop deciding for them before the next owner starts."""
        self._assigned = False
        self._agent.not_ready()
        await self._give_up(
            sorted(each.partition for each in revoked), self._settings.session_timeout_seconds * REVOKE_SHARE
        )

    async def _give_up(self, numbers: list[int], seconds: float) -> None:
        """Leave partitions, in order and within so many seconds: a third for each part, so that none takes another's time."""
        owners = [self._owners.pop(number) for number in numbers if number in self._owners]
        if not owners:
            return  # which also means that the session may have ended before it was open
        points = {owner.number: owner.commit_point() for owner in owners}
        for owner in owners:
            owner.leave()
        try:
            with anyio.move_on_after(seconds / 3):
                await self._publisher.flush()
        except LogBrokenError as error:
            log.warning("partition.decisions-lost", partitions=numbers, problem=str(error))
        with anyio.move_on_after(seconds / 3) as releasing:
            async with anyio.create_task_group() as tasks:
                for owner in owners:
                    tasks.start_soon(owner.release)
        if releasing.cancelled_caught:
            log.warning(
                "locks.left-to-lapse",
                partitions=numbers,
                tables=sorted(uri for owner in owners for uri in owner.unreleased()),
                waited_seconds=round(seconds / 3, 1),
                detail="they could not be given back in the time that was left for it, and lapse by themselves",
            )
        try:
            with anyio.move_on_after(seconds / 3):
                await self._publisher.flush()
                await self._commit({number: point for number, point in points.items() if point is not None})
        except (LogBrokenError, KafkaError, IllegalStateError) as error:
            log.warning("partition.given-up-uncommitted", partitions=numbers, problem=str(error))
        for number in numbers:
            self._committed.pop(number, None)

    async def _load(self, owners: list[PartitionOwner]) -> None:
        settings, topics = self._settings, self._topics
        self._require_partitions(self._partitions_now())
        for owner in owners:
            owner.take_over()
        await self._publisher.flush()
        committed = await committed_offsets(settings, settings.group)
        writers = {owner.number: TopicPartition(topics.writers, owner.number) for owner in owners}
        beginnings = await self._consumer.beginning_offsets(list(writers.values()))
        starts: dict[int, tuple[int, Position]] = {}
        for number, partition in writers.items():
            known = committed.get(partition)
            offset, metadata = (known.offset, known.metadata) if known else (-1, "")
            self._require_partitions(partitions_then(metadata))
            decisions = decided_from(metadata)
            if 0 <= offset < beginnings[partition]:
                log.error(
                    "log.beginning-lost",
                    partition=number,
                    committed=offset,
                    beginning=beginnings[partition],
                    detail="retention removed events of open transactions; they are aborted as unknown when heard of",
                )
            starts[number] = (max(offset, beginnings[partition]), decisions)
        spans: dict[TopicPartition, int | None] = {}
        for number, (_, decisions) in starts.items():
            spans[TopicPartition(topics.decisions, number)] = decisions.offset
            spans[TopicPartition(topics.ledger, number)] = None
        records = await read_to_end(settings, spans)
        # Asked only now: whatever was decided before this has its cause before these ends.
        ends = await self._consumer.end_offsets(list(writers.values()))
        for owner in owners:
            if owner.phase != "loading":
                continue
            start, decisions = starts[owner.number]
            owner.load(
                start,
                ends[writers[owner.number]],
                decisions,
                records[TopicPartition(topics.decisions, owner.number)],
                records[TopicPartition(topics.ledger, owner.number)],
            )
        self._require_unreplaced()

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        last = monotonic()
        at_once = RECORDS_AT_ONCE
        while True:
            loading = [owner for owner in self._owners.values() if owner.phase == "loading"]
            if loading:
                await self._load(loading)
                last = monotonic()
            live = self._assigned and all(owner.phase == "live" for owner in self._owners.values())
            if live and not self._agent.ready.is_set():
                self._agent.ready.set()
                log.info(
                    "partitions.live",
                    partitions=sorted(self._owners),
                    tables=self._tables(),
                    replay_seconds=round(monotonic() - self._assigned_at, 3),
                )
            if self._publisher.full:
                await anyio.sleep(0.005)
                last = monotonic()
                continue
            batches = await self._consumer.getmany(timeout_ms=200, max_records=at_once)
            read_at = monotonic()
            slept, last = read_at - last, read_at
            if slept > self._settings.session_timeout_seconds * (1 - HEARTBEAT_SHARE):
                # What was fetched before is decided by somebody else by now.
                raise SleptError(f"nothing was read for {slept:.0f} s: this process slept, or its machine")
            for partition, records in batches.items():
                owner = self._owners.get(partition.partition)
                if owner is not None:
                    owner.take(records, read_at)
                    owner.finish_replay(records[-1].offset + 1)
            took = monotonic() - read_at
            if took > TURN_SECONDS:
                at_once = max(1, at_once // 2)
            elif took < TURN_SECONDS / 2:
                at_once = min(RECORDS_AT_ONCE, 2 * at_once)
            await anyio.lowlevel.checkpoint()

    def _tables(self) -> int:
        return sum(len(owner.tables) for owner in self._owners.values())

    async def _check_periodically(self) -> None:
        interval = self._settings.check_seconds
        ends_seconds = max(interval, MIN_ENDS_SECONDS)
        last = answered = monotonic()
        silent = False
        while True:
            await anyio.sleep(interval)
            self._require_partitions(self._partitions_now())
            asked_at = monotonic()
            ends = await self._ends(ends_seconds)
            await self._reach(ends, interval)
            now = monotonic()
            stalled, last = now - last > STALL_FACTOR * interval + ends_seconds, now
            answered = now if ends or not self._owners else answered
            if silent != (now - answered > 2 * ends_seconds):
                silent = not silent
                where = self._settings.bootstrap_servers
                if silent:
                    log.warning(
                        "kafka.silent",
                        bootstrap_servers=where,
                        detail="waiting for it; nothing is decided meanwhile",
                    )
                else:
                    log.info("kafka.answers-again", bootstrap_servers=where)
            if now - answered > self._settings.session_timeout_seconds and not stalled:
                # The group may have given our partitions to others: whoever can't hear of it must not hold their locks.
                raise KafkaUnreachableError(f"Kafka has not answered for {now - answered:.0f} s")
            for owner in list(self._owners.values()):
                owner.tick(now, asked_at, ends.get(owner.number), stalled=stalled)

    def _partitions_now(self) -> int | None:
        """How many partitions the topic has, as far as the consumer has heard."""
        return len(self._consumer.partitions_for_topic(self._topics.writers) or ()) or None

    def _require_partitions(self, count: int | None) -> None:
        """Stop where the topic's partitions were another number: a table's events are then in two of them."""
        if count is not None and count != self._partitions:
            topic = self._topics.writers
            raise PartitionsChangedError(
                f"topic {topic} has {max(count, self._partitions)} partitions and had {min(count, self._partitions)}: tables "
                "have moved between them, and the order of their events is lost; stop agents and writers, and start both "
                f"with another topic prefix (now {self._settings.topic_prefix})"
            )

    async def _ends(self, timeout: float) -> dict[int, int]:
        """The log's ends, asked anew; nothing where Kafka does not answer in time."""
        partitions = [TopicPartition(self._topics.writers, number) for number in self._owners]
        if not partitions:
            return {}
        with anyio.move_on_after(timeout):
            try:
                ends = await self._consumer.end_offsets(partitions)
            except KafkaError as error:
                log.debug("kafka.ends-unknown", problem=str(error) or repr(error))
                return {}
            return {partition.partition: end for partition, end in ends.items()}
        return {}

    async def _reach(self, ends: dict[int, int], timeout: float) -> None:
        """Wait for the reading to come to these ends: a log that is written to has always something newer unread.

        What is at its end and no event (Kafka's marks of a transactional producer) is passed here.
        """
        with anyio.move_on_after(timeout):
            while behind := [
                owner
                for owner in self._owners.values()
                if owner.phase in ("replaying", "live") and owner.position < ends.get(owner.number, 0)
            ]:
                await anyio.sleep(REACH_SECONDS)
                for owner in behind:
                    try:
                        position = await self._consumer.position(
                            TopicPartition(self._topics.writers, owner.number)
                        )
                    except IllegalStateError:
                        continue  # it was taken from us meanwhile
                    owner.passed(position)

    async def _listen(self) -> None:
        """Hear what the agents, this one too, say of locks (`handlers/turns.py`) and of partitions (`handlers/replay.py`)."""
        while True:
            for partition, records in (await self._ears.getmany(timeout_ms=1_000)).items():
                for record in records:
                    if partition.topic == self._topics.audit:
                        self._hear_of_lock(record.value or b"")
                    else:
                        self._hear_of_take(record)
            self._require_unreplaced()

    def _require_unreplaced(self) -> None:
        for owner in self._owners.values():
            if owner.replaced:
                raise ReplacedError(
                    f"another agent has taken partition {owner.number} over after this one did"
                )

    def _hear_of_lock(self, value: bytes) -> None:
        if RENEWAL in value:  # nearly all of them, and nobody waits for one
            return
        event = decode(AUDIT_EVENT, value)
        if not isinstance(event, Undecodable):
            for owner in self._owners.values():
                owner.heard(event)

    def _hear_of_take(self, record: ConsumerRecord) -> None:
        owner = self._owners.get(record.partition)
        if owner is None or TAKE not in (record.value or b""):
            return
        taken = decode(DECISION_RECORD, record.value)
        if isinstance(taken, PartitionTaken):
            owner.heard_taken(taken, record.offset)

    async def _commit_periodically(self) -> None:
        while True:
            await anyio.sleep(COMMIT_SECONDS)
            points = {owner: owner.commit_point() for owner in self._owners.values()}
            moved = {
                owner: point
                for owner, point in points.items()
                if point is not None and self._committed.get(owner.number) != point
            }
            if moved:
                await self._publisher.flush()
                # Who was given up meanwhile has committed its own last point.
                await self._commit(
                    {
                        owner.number: point
                        for owner, point in moved.items()
                        if self._owners.get(owner.number) is owner
                    }
                )

    async def _commit(self, points: dict[int, CommitPoint]) -> None:
        offsets = {
            TopicPartition(self._topics.writers, number): OffsetAndMetadata(
                point.offset, point.metadata(self._partitions)
            )
            for number, point in points.items()
            if number not in self._committed or point.offset >= self._committed[number].offset
        }
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except CommitFailedError:
            # The group has moved on without us; the next owner replays a little more.
            log.info("offsets.not-ours", partitions=sorted(points))
            return
        self._committed.update(points)
