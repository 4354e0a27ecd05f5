"""The agent: one consumer group member, the partitions it owns, and the tasks that move them.

It reads what writers say and has each partition's owner decide (`partition.py`). Beside the reading run: the publishing of what
was decided (`publisher.py`), the periodic check (`check.py`), the hearing of other agents (`ears.py`), and the committing of
offsets. Partitions that Kafka's group assigns are loaded by the reading task (`loading.py`).

A session lasts as long as Kafka takes what is decided. If it does not, the session ends, everything that was in memory is
dropped, and the next session rebuilds it from the log: there is no second way to recover.

Stopping, in this order: intake stops → what was decided is published → locks without a running grant are released → offsets are
committed → clients are closed. Each part is bounded; what could not be released lapses by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import (
    KafkaRefusedError,
    KafkaUnreachableError,
    PublishFailedError,
    ReplacedError,
    SettingsError,
    SuspendedError,
)
from lakewarden.agent.kafka import (
    FETCH_BYTES,
    ensure_topics,
    missing_right,
    producer,
    start_client,
    stop_client,
)
from lakewarden.agent.locks.keeper import SleepWatch, Stores
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.checkpoint import Checkpoint, Checkpoints
from lakewarden.agent.serving.partition import PartitionOwner
from lakewarden.agent.serving.peer_listener import PeerListener, require_not_replaced
from lakewarden.agent.serving.periodic_check import PeriodicCheck
from lakewarden.agent.serving.takeover import load
from lakewarden.agent.settings import Settings
from lakewarden.events import UndecodableRecords

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
HEARTBEAT_SHARE = 0.3
"""Of the session timeout: between two heartbeats to the group. Whoever sleeps for the rest of it may be taken for dead."""
REVOKE_SHARE = 0.5
"""Of the session timeout: how long giving partitions up may take before the group stops waiting for us."""


class Agent:
    """Serves until `stop` is called. `ready` is set whenever every assigned partition is live."""

    def __init__(self, settings: Settings) -> None:
        if not settings.allow:
            raise SettingsError(
                "allow is empty, so no table would be served; name tables: --allow 's3://bucket/warehouse/*'"
            )
        self.settings = settings
        self.ready = anyio.Event()
        self.undecodable = UndecodableRecords()
        """Decisions, ledger entries and audit events that this agent could not decode, in all its sessions."""
        self._stopping = anyio.Event()

    def stop(self) -> None:
        """Ask for an orderly stop."""
        self._stopping.set()

    def mark_not_ready(self) -> None:
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
                problem = await self._run_session(stores)
                if problem is None:
                    continue
                if (right := missing_right(problem, settings)) is not None:
                    raise KafkaRefusedError(right)
                wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures = 0 if self.ready.is_set() else failures + 1
                self.mark_not_ready()
                log.warning(
                    "kafka.waiting",
                    bootstrap_servers=settings.bootstrap_servers,
                    problem=str(problem),
                    retry_seconds=wait,
                )
                with anyio.move_on_after(wait):
                    await self._stopping.wait()

    async def _run_session(self, stores: Stores) -> Exception | None:
        """One session; what ended it, None for an orderly stop."""
        session = KafkaSession(self, stores)
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
            PublishFailedError,
            SuspendedError,
            ReplacedError,
            OSError,
            IllegalStateError,
        ) as problems:
            ended_by = _first_leaf(problems)
        return ended_by

    async def _cancel_on_stop(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel("stop was asked for")


def _first_leaf(problems: BaseExceptionGroup[Exception]) -> Exception:
    leaf: BaseException = problems
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, Exception)
    return leaf


class KafkaSession(ConsumerRebalanceListener):  # type: ignore[misc]
    """Clients and partitions of one session."""

    def __init__(self, agent: Agent, stores: Stores) -> None:
        self._agent = agent
        self._settings = agent.settings
        self._topic = agent.settings.topics.writers
        self._stores = stores
        self._watch = SleepWatch()
        self._owners: dict[int, PartitionOwner] = {}
        self._clients: list[Any] = []
        """In the order in which they are stopped."""
        self._assigned = False
        self._assigned_at = 0.0

    async def open(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the clients and join the group."""
        settings = self._settings
        self._partitions = await ensure_topics(
            settings, settings.topics, settings.partitions, settings.replication
        )
        log.info(
            "kafka.connected",
            bootstrap_servers=settings.bootstrap_servers,
            partitions=self._partitions,
            group=settings.group,
        )
        self._tasks = tasks
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
        sender = producer(settings)
        self._peers = PeerListener(settings, self._owners, self._agent.undecodable)
        self._clients = [self._consumer, sender, self._peers.consumer]
        self._checkpoints = Checkpoints(self._consumer, self._topic, self._partitions)
        self._publisher = Publisher(sender)
        await start_client(sender, settings)
        tasks.start_soon(self._publisher.run)
        tasks.start_soon(self._watch.run)
        await self._peers.open(self._partitions)
        self._consumer.subscribe([self._topic], listener=self)
        await start_client(self._consumer, settings)

    async def serve(self) -> None:
        """Read, decide, check and commit until cancelled."""
        check = PeriodicCheck(self._settings, self._consumer, self._partitions, self._owners)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publisher.watch)
            tasks.start_soon(check.run)
            tasks.start_soon(self._commit_periodically)
            tasks.start_soon(self._peers.listen)
            await self._read()

    async def close(self) -> None:
        """The orderly end; see the module's rules."""
        seconds = self._settings.shutdown_seconds
        await self._release_partitions(list(self._owners), seconds * 0.7)
        for client in self._clients:
            await stop_client(client, seconds * 0.1)

    # -- assignment --------------------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Own them, from the lowest number up (a set comes in any order); they are loaded by the reading task."""
        for number in sorted(each.partition for each in assigned):
            self._owners[number] = PartitionOwner(
                number,
                self._settings,
                self._publisher,
                self._stores,
                self._tasks,
                self._watch,
                undecodable=self._agent.undecodable,
            )
        self._assigned, self._assigned_at = True, monotonic()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Stop deciding for them before the next owner starts."""
        self._assigned = False
        self._agent.mark_not_ready()
        await self._release_partitions(
            sorted(each.partition for each in revoked), self._settings.session_timeout_seconds * REVOKE_SHARE
        )

    async def _release_partitions(self, numbers: list[int], seconds: float) -> None:
        """Leave partitions, in order and within so many seconds: a third for each part, so that none takes another's time."""
        owners = [self._owners.pop(number) for number in numbers if number in self._owners]
        if not owners:
            return  # which also means that the session may have ended before it was open
        points = {owner.number: owner.checkpoint() for owner in owners}
        for owner in owners:
            owner.stop_deciding()
        try:
            with anyio.move_on_after(seconds / 3):
                await self._publisher.flush()
        except PublishFailedError as error:
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
                await self._checkpoints.commit(
                    {number: point for number, point in points.items() if point is not None}
                )
        except (PublishFailedError, KafkaError, IllegalStateError) as error:
            log.warning("partition.given-up-uncommitted", partitions=numbers, problem=str(error))
        self._checkpoints.forget(numbers)

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        last = monotonic()
        at_once = RECORDS_AT_ONCE
        while True:
            loading = [owner for owner in self._owners.values() if owner.phase == "loading"]
            if loading:
                await load(loading, self._settings, self._consumer, self._publisher, self._partitions)
                require_not_replaced(self._owners.values())
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
                raise SuspendedError(
                    f"nothing was read for {slept:.0f} s: this process slept, or its machine"
                )
            for partition, records in batches.items():
                owner = self._owners.get(partition.partition)
                if owner is not None:
                    owner.consume(records, read_at)
                    owner.finish_replay(records[-1].offset + 1)
            took = monotonic() - read_at
            if took > TURN_SECONDS:
                at_once = max(1, at_once // 2)
            elif took < TURN_SECONDS / 2:
                at_once = min(RECORDS_AT_ONCE, 2 * at_once)
            await anyio.lowlevel.checkpoint()

    def _tables(self) -> int:
        return sum(len(owner.tables) for owner in self._owners.values())

    async def _commit_periodically(self) -> None:
        while True:
            await anyio.sleep(COMMIT_SECONDS)
            points: dict[PartitionOwner, Checkpoint] = {}
            for owner in self._owners.values():
                point = owner.checkpoint()
                if point is not None and not self._checkpoints.is_committed(owner.number, point):
                    points[owner] = point
            if points:
                await self._publisher.flush()
                # Who was given up meanwhile has committed its own last point.
                await self._checkpoints.commit(
                    {
                        owner.number: point
                        for owner, point in points.items()
                        if self._owners.get(owner.number) is owner
                    }
                )
