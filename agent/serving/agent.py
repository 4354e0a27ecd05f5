"""The agent: a member of the consumer group, the partitions that it owns, and the tasks that serve them.

At its start the agent probes the store of `lock_root`. It waits for a store that does not answer, and exits if the store refuses
access or ignores conditions.

A *session* is one connection to Kafka: clients, group membership and partitions. These tasks run in it:

| task | file |
| --- | --- |
| consume events, and load partitions that the group has assigned (take-over) | this one, `partition/`, `takeover.py` |
| publish the decisions | `publisher.py` |
| run the periodic check | `periodic_check.py` |
| consume what other agents publish | `peer_listener.py` |
| commit checkpoints | `checkpoint.py` |

A session ends when Kafka does not accept a decision, does not answer, has lost records of the log, or has assigned the
partitions to another agent. The agent then discards all state in memory, and the next session rebuilds it from the log. There is
no other way of recovery.

An orderly stop takes these steps, each with a time limit: stop consuming, publish the decisions, release the locks under which no
grant runs, commit the checkpoints, close the clients. A lock that is not released in time expires.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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
    LogCutError,
    PublishFailedError,
    ReplacedError,
    SettingsError,
    SuspendedError,
)
from lakewarden.agent.kafka import (
    BATCH_BYTES,
    FETCH_BYTES,
    ensure_topics,
    missing_right,
    producer,
    rotating,
    start_client,
    stop_client,
)
from lakewarden.agent.locks.keeper import SleepWatch, Stores
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.assignor import StickyAssignor
from lakewarden.agent.serving.checkpoint import Checkpoint, Checkpoints
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.peer_listener import PeerListener, require_not_replaced
from lakewarden.agent.serving.periodic_check import PeriodicCheck
from lakewarden.agent.serving.takeover import load
from lakewarden.agent.settings import AGENT_CLIENT_ID, Settings
from lakewarden.agent.stores import LocationError, StoreProbeError, StoreUnreachableError
from lakewarden.events import UndecodableRecords

log = structlog.get_logger()

RECORDS_AT_ONCE = 200
"""Most events that are decided before other tasks run: about 30 ms where each event has 100 markers."""
TURN_SECONDS = 0.05
"""If deciding takes longer, the next batch is smaller: a heartbeat to the group needs about ten turns of the event loop."""
COMMIT_SECONDS = 1.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Back-off between sessions; the last value repeats, until a session was healthy for `HEALTHY_SECONDS`."""
HEALTHY_SECONDS = 60.0
"""A session that was ready for so long before it ended. One that ends earlier may end for the same reason again."""
STORE_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Back-off between probes of a store that does not answer at the start; the last value repeats."""
METADATA_SECONDS = 30
"""How often Kafka's metadata is refreshed, and so the longest time until a change of the number of partitions is noticed."""
HEARTBEAT_SHARE = 0.3
"""Of the session timeout: the longest interval of heartbeats to the group."""
MAX_HEARTBEAT_SECONDS = 1.0
"""An agent learns of a rebalance with its next heartbeat, and the other agents wait for it until then."""
MAX_TERMS = 10_000
"""Own terms that are remembered. Of older ones, no record is on its way to the log any more."""
REVOKE_SHARE = 0.5
"""Of the session timeout: the time limit for releasing revoked partitions, before the group stops waiting."""


class Agent:
    """Serves until `stop` is called. `ready` is set while every assigned partition is live."""

    def __init__(self, settings: Settings) -> None:
        if not settings.allow:
            raise SettingsError(
                "allow is empty, so no table would be served; set it: --allow 's3://bucket/warehouse/*'"
            )
        own_id = {} if settings.kafka_client_id else {"kafka_client_id": AGENT_CLIENT_ID}
        self.settings = settings.model_copy(update=own_id)
        self.ready = anyio.Event()
        self.undecodable = UndecodableRecords()
        """Counts the decisions, ledger entries and audit events that this agent could not decode, in all its sessions."""
        self.unpublishable: dict[str, str] = {}
        """Tables whose record a broker refused for its size, with the reason. Each is stopped in all later sessions."""
        self.terms: deque[str] = deque(maxlen=MAX_TERMS)
        """The terms of all partition owners that this process has had."""
        self.topics_checked = False
        """Whether the settings of the topics were compared. The first session does it."""
        self._ready_at: float | None = None
        """When this session became ready for the first time."""
        self._ever_ready = False
        self._stopping = anyio.Event()

    def stop(self) -> None:
        """Request an orderly stop."""
        self._stopping.set()

    def mark_not_ready(self) -> None:
        """Replace `ready` if it is set. An event that is not set stays, because a caller may wait for it."""
        if self.ready.is_set():
            self.ready = anyio.Event()

    def mark_ready(self) -> None:
        """Set `ready`: every assigned partition is live."""
        self.ready.set()
        self._ever_ready = True
        if self._ready_at is None:
            self._ready_at = monotonic()

    def _was_healthy(self) -> bool:
        return self._ready_at is not None and monotonic() - self._ready_at >= HEALTHY_SECONDS

    async def run(self) -> None:
        """Serve in session after session until stopped. Raises only errors that a retry would not resolve.

        Brokers that refuse the agent's credentials end it at its start. Later it retries: a rotation may be under way.
        """
        settings = self.settings
        async with AsyncExitStack() as stack:
            stores = Stores(settings, stack)
            await self._wait_for_lock_root(stores)
            failures = 0
            while not self._stopping.is_set():
                problem = await self._run_session(stores)
                if problem is None:
                    continue
                if isinstance(problem, KafkaRefusedError) and not self._ever_ready:
                    raise problem
                if (right := missing_right(problem, settings)) is not None:
                    raise KafkaRefusedError(right)
                failures = 0 if self._was_healthy() else failures
                wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
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
        """Run one session. Return the error that ended it, or None after an orderly stop."""
        session = KafkaSession(self, stores)
        self._ready_at = None
        ended_by: Exception | None = None
        try:
            async with anyio.create_task_group() as background:
                try:
                    async with anyio.create_task_group() as foreground:
                        foreground.start_soon(self._cancel_on_stop, foreground.cancel_scope)
                        await session.open(background)
                        await session.serve()
                finally:
                    # The publisher and the locks run in the background until this is done. Each step has a time limit.
                    with anyio.CancelScope(shield=True):
                        await session.close()
                    background.cancel_scope.cancel()
        except* (
            KafkaError,
            KafkaRefusedError,
            KafkaUnreachableError,
            LogCutError,
            PublishFailedError,
            SuspendedError,
            ReplacedError,
            OSError,
            IllegalStateError,
        ) as problems:
            ended_by = _first_leaf(problems)
        return ended_by

    async def _wait_for_lock_root(self, stores: Stores) -> None:
        """Open and probe the store of `lock_root`, again and again while it does not answer, until stopped."""
        lock_root = self.settings.lock_root
        if lock_root is None:
            return
        refusal: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_on_stop, tasks.cancel_scope)
                await _retry_unreachable(stores, lock_root)
                tasks.cancel_scope.cancel()
        except* (StoreProbeError, LocationError) as problems:
            refusal = _first_leaf(problems)
        if refusal is not None:
            raise refusal

    async def _cancel_on_stop(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel("stop requested")


async def _retry_unreachable(stores: Stores, lock_root: str) -> None:
    for failures in itertools.count():
        try:
            await stores.for_lock(lock_root + "/locks/probe.json")
        except StoreUnreachableError as error:
            wait = STORE_RETRY_SECONDS[min(failures, len(STORE_RETRY_SECONDS) - 1)]
            log.warning("store.waiting", store=lock_root, problem=str(error), retry_seconds=wait)
            await anyio.sleep(wait)
        else:
            return


def _first_leaf(problems: BaseExceptionGroup[Exception]) -> Exception:
    leaf: BaseException = problems
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, Exception)
    return leaf


def heartbeat_seconds(settings: Settings) -> float:
    """The interval of heartbeats to the group. A suspension for the rest of the session timeout may end the membership."""
    return min(MAX_HEARTBEAT_SECONDS, settings.session_timeout_seconds * HEARTBEAT_SHARE)


class KafkaSession(ConsumerRebalanceListener):  # type: ignore[misc]
    """The clients and the partitions of one session."""

    def __init__(self, agent: Agent, stores: Stores) -> None:
        self._agent = agent
        self._settings = agent.settings
        self._topic = agent.settings.topics.writers
        self._stores = stores
        self._watch = SleepWatch()
        self._memory = MemoryBudget(agent.settings.memory_bytes)
        self._owners: dict[int, PartitionOwner] = {}
        self._clients: list[Any] = []
        """In the order of their stop."""
        self._assigned = False
        self._assigned_at = 0.0

    async def open(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the clients and join the consumer group."""
        settings = self._settings
        self._partitions = await ensure_topics(
            settings,
            settings.topics,
            settings.partitions,
            settings.replication,
            check=not self._agent.topics_checked,
        )
        self._agent.topics_checked = True
        log.info(
            "kafka.connected",
            bootstrap_servers=settings.bootstrap_servers,
            partitions=self._partitions,
            group=settings.group,
        )
        self._tasks = tasks
        self._consumer = AIOKafkaConsumer(
            **settings.kafka_client(),
            group_id=settings.group,
            group_instance_id=settings.instance,
            partition_assignment_strategy=(StickyAssignor(self._topic),),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
            session_timeout_ms=round(settings.session_timeout_seconds * 1000),
            heartbeat_interval_ms=round(heartbeat_seconds(settings) * 1000),
        )
        rotating(self._consumer, settings)
        sender = producer(settings)
        self._peers = PeerListener(settings, self._owners, self._agent.undecodable, self._agent.terms)
        self._clients = [self._consumer, sender, self._peers.consumer]
        self._checkpoints = Checkpoints(self._consumer, self._topic, self._partitions)
        self._publisher = Publisher(sender, batch_bytes=BATCH_BYTES)
        await start_client(sender, settings)
        tasks.start_soon(self._publisher.run)
        tasks.start_soon(self._watch.run)
        await self._peers.open(self._partitions)
        self._consumer.subscribe([self._topic], listener=self)
        await start_client(self._consumer, settings)

    async def serve(self) -> None:
        """Consume, decide, check and commit until cancelled."""
        check = PeriodicCheck(self._settings, self._consumer, self._partitions, self._owners)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publisher.watch)
            tasks.start_soon(check.run)
            tasks.start_soon(self._commit_periodically)
            tasks.start_soon(self._peers.listen)
            await self._consume()

    async def close(self) -> None:
        """Run the steps of an orderly stop, as listed at the top of the file."""
        seconds = self._settings.shutdown_seconds
        await self._release_partitions(list(self._owners), seconds * 0.7)
        for client in self._clients:
            await stop_client(client, seconds * 0.1)

    # -- assignment --------------------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Keep the owners of partitions that stay, create the others, release those that another agent has got.

        The consuming task resumes and loads them.
        """
        numbers = sorted(each.partition for each in assigned)
        lost = [number for number in self._owners if number not in numbers]
        owners = [self._owners.pop(number) for number in lost]
        for number in numbers:
            if number not in self._owners:
                self._create_owner(number)
        self._assigned, self._assigned_at = True, monotonic()
        for owner in owners:
            owner.stop_deciding()
        self._checkpoints.forget(lost)
        await self._release_locks(owners, self._settings.session_timeout_seconds * REVOKE_SHARE / 3)

    def _create_owner(self, number: int) -> None:
        owner = self._owners[number] = PartitionOwner(
            number,
            self._settings,
            self._publisher,
            self._stores,
            self._tasks,
            self._watch,
            undecodable=self._agent.undecodable,
            unpublishable=self._agent.unpublishable,
            memory=self._memory,
            partitions=self._partitions,
        )
        self._agent.terms.append(owner.term)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Pause the owners before the next ones start. Those that can't resume are released."""
        self._assigned = False
        self._agent.mark_not_ready()
        seconds = self._settings.session_timeout_seconds * REVOKE_SHARE
        numbers = sorted(each.partition for each in revoked if each.partition in self._owners)
        kept = [number for number in numbers if self._can_be_paused(self._owners[number])]
        checkpoints = {number: self._owners[number].checkpoint() for number in kept}
        for number in kept:
            self._owners[number].pause()
        await self._release_partitions([number for number in numbers if number not in kept], seconds / 2)
        if kept:
            await self._commit_last(kept, checkpoints, seconds / 2)

    def _can_be_paused(self, owner: PartitionOwner) -> bool:
        return owner.phase in ("live", "paused") and not owner.stopped and not owner.replaced

    async def _release_partitions(self, numbers: list[int], seconds: float) -> None:
        """Release partitions: publish, release the locks, commit. Each of the three steps may take a third of `seconds`."""
        owners = [self._owners.pop(number) for number in numbers if number in self._owners]
        if not owners:
            return  # also if the session has ended before it was open
        checkpoints = {owner.number: owner.checkpoint() for owner in owners}
        for owner in owners:
            owner.stop_deciding()
        try:
            with anyio.move_on_after(seconds / 3):
                await self._publisher.flush()
        except PublishFailedError as error:
            log.warning("partition.decisions-lost", partitions=numbers, problem=str(error))
        await self._release_locks(owners, seconds / 3)
        await self._commit_last(numbers, checkpoints, seconds / 3)
        self._checkpoints.forget(numbers)

    async def _release_locks(self, owners: Sequence[PartitionOwner], seconds: float) -> None:
        with anyio.move_on_after(seconds) as releasing:
            async with anyio.create_task_group() as tasks:
                for owner in owners:
                    tasks.start_soon(owner.release)
        if releasing.cancelled_caught:
            log.warning(
                "locks.left-to-lapse",
                partitions=[owner.number for owner in owners],
                tables=sorted(uri for owner in owners for uri in owner.unreleased()),
                waited_seconds=round(seconds, 1),
                detail="these locks were not released within the time limit; other agents wait until they expire",
            )

    async def _commit_last(
        self, numbers: Sequence[int], checkpoints: Mapping[int, Checkpoint | None], seconds: float
    ) -> None:
        """Commit the last checkpoints of released or paused partitions, once their decisions are in the log."""
        try:
            with anyio.move_on_after(seconds):
                await self._publisher.flush()
                await self._checkpoints.commit(
                    {number: each for number, each in checkpoints.items() if each is not None}
                )
        except (PublishFailedError, KafkaError, IllegalStateError) as error:
            log.warning("partition.released-uncommitted", partitions=numbers, problem=str(error))

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        last = monotonic()
        at_once = RECORDS_AT_ONCE
        while True:
            if self._assigned and any(owner.phase == "paused" for owner in self._owners.values()):
                await self._resume_owners()
                last = monotonic()
                continue
            loading = [owner for owner in self._owners.values() if owner.phase == "loading"]
            if loading:
                await load(loading, self._settings, self._consumer, self._publisher, self._partitions)
                require_not_replaced(self._owners.values())
                last = monotonic()
            live = self._assigned and all(
                owner.phase in ("live", "refused") for owner in self._owners.values()
            )
            if live and not self._agent.ready.is_set():
                self._agent.mark_ready()
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
            gap, last = read_at - last, read_at
            if gap > self._settings.session_timeout_seconds - heartbeat_seconds(self._settings):
                # Another agent may have decided the events that were fetched before the suspension.
                raise SuspendedError(
                    f"nothing was consumed for {gap:.0f} s: the process or its machine was suspended"
                )
            for partition, records in batches.items():
                owner = self._owners.get(partition.partition)
                if owner is not None:
                    await self._require_no_hole(owner, partition, records[0].offset)
                    owner.consume(records, read_at)
                    owner.finish_replay(records[-1].offset + 1)
            took = monotonic() - read_at
            if took > TURN_SECONDS:
                at_once = max(1, at_once // 2)
            elif took < TURN_SECONDS / 2:
                at_once = min(RECORDS_AT_ONCE, 2 * at_once)
            await anyio.lowlevel.checkpoint()

    async def _require_no_hole(self, owner: PartitionOwner, partition: TopicPartition, first: int) -> None:
        """Raise `LogCutError` if events between the owner's position and `first` were removed before it has read them.

        Other holes are usual: the markers of a transactional producer have offsets and are no records.
        """
        position = owner.position
        if owner.phase not in ("replaying", "live") or first <= position:
            return
        beginning = (await self._consumer.beginning_offsets([partition]))[partition]
        if beginning > position:
            raise LogCutError(
                f"topic {self._topic} begins at offset {beginning} of partition {owner.number}, and this agent has read only up "
                f"to {position}: events were removed before it read them"
            )

    async def _resume_owners(self) -> None:
        """Resume the paused owners, or replace those whose partition another agent took meanwhile."""
        assigned_at = self._assigned_at
        paused = [owner for owner in self._owners.values() if owner.phase == "paused"]
        for owner in paused:
            owner.publish_takeover()
        await self._publisher.flush()
        while True:
            if not self._assigned or self._assigned_at != assigned_at:
                return  # they were revoked again
            answers = {owner: owner.may_resume(self._peers.read_until(owner.number)) for owner in paused}
            if "unknown yet" not in answers.values():
                break
            await self._peers.progress()
        resumed = [owner for owner, answer in answers.items() if answer == "yes"]
        for owner in resumed:
            self._consumer.seek(TopicPartition(self._topic, owner.number), owner.position)
            owner.resume()
        if resumed:
            log.info("partitions.kept", partitions=[owner.number for owner in resumed])
        replaced = [owner for owner, answer in answers.items() if answer == "no"]
        for owner in replaced:
            owner.stop_deciding()
            self._create_owner(owner.number)
            self._owners[owner.number].follows_paused = True
        if replaced:
            numbers = [owner.number for owner in replaced]
            log.info("partitions.taken-meanwhile", partitions=numbers)
            self._checkpoints.forget(numbers)
            await self._release_locks(replaced, self._settings.session_timeout_seconds * REVOKE_SHARE / 3)

    def _tables(self) -> int:
        return sum(len(owner.tables) for owner in self._owners.values())

    async def _commit_periodically(self) -> None:
        while True:
            await anyio.sleep(COMMIT_SECONDS)
            checkpoints: dict[PartitionOwner, Checkpoint] = {}
            for owner in self._owners.values():
                checkpoint = owner.checkpoint()
                if checkpoint is not None and not self._checkpoints.is_committed(owner.number, checkpoint):
                    checkpoints[owner] = checkpoint
            if checkpoints:
                await self._publisher.flush()
                # A partition that was released during the flush has committed its own last checkpoint.
                await self._checkpoints.commit(
                    {
                        owner.number: checkpoint
                        for owner, checkpoint in checkpoints.items()
                        if self._owners.get(owner.number) is owner and owner.phase == "live"
                    }
                )
                for owner, checkpoint in checkpoints.items():
                    if self._checkpoints.is_committed(owner.number, checkpoint):
                        owner.committed = checkpoint.offset
