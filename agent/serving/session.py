"""One session of the agent: the connection to Kafka, the membership in the consumer group, and the owned partitions.

These tasks run in it:

| task | file |
| --- | --- |
| consume events, and load partitions that the group has assigned (take-over) | this one, `partition/`, `takeover.py` |
| publish the decisions | `publisher.py` |
| run the periodic check | `periodic_check.py` |
| consume what other agents publish | `peer_listener.py` |
| commit checkpoints | `checkpoint.py` |

A session ends when Kafka does not accept a decision, does not answer, has lost records of the log, or has assigned the
partitions to another agent. It also ends when one of its tasks, or a background task of a Kafka client, has ended without a
request (`unrequested.py`): the session would stay in the group and decide nothing.

Its end takes these steps: stop consuming, ask whether Kafka has lost a ledger, publish the decisions, release the locks under
which no grant runs, commit the checkpoints, close the clients. All together take at most `shutdown_seconds`, also if Kafka
doesn't answer. A lock that is not released in time expires. A lost ledger is recorded again before the other steps, and this may
take `RESTORE_SECONDS` more, because only this process knows the entries.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import ConsumerRecord

from lakewarden.agent import errors
from lakewarden.agent.clock import monotonic
from lakewarden.agent.kafka import (
    BATCH_BYTES,
    FETCH_BYTES,
    ended_tasks,
    ensure_topics,
    producer,
    rotating,
    start_client,
)
from lakewarden.agent.locks.keeper import SleepWatch
from lakewarden.agent.locks.table_locks import Ownership, Shared
from lakewarden.agent.log import Log
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.assignor import StickyAssignor
from lakewarden.agent.serving.checkpoint import Checkpoint, Checkpoints
from lakewarden.agent.serving.gauges import measure, set_partition_gauges
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.peer_listener import PeerListener, require_not_replaced
from lakewarden.agent.serving.periodic_check import PeriodicCheck
from lakewarden.agent.serving.takeover import load
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import Stores
from lakewarden.agent.unrequested import guarded
from lakewarden.agent.watching.supervisor import Assignment
from lakewarden.events.access import stop_client
from lakewarden.handlers.group.readiness import AgentFacts

log = structlog.get_logger()

RECORDS_AT_ONCE = 200
"""Most events that are decided before other tasks run: about 30 ms where each event has 100 markers."""
TURN_SECONDS = 0.05
"""If deciding takes longer, the next batch is smaller: a heartbeat to the group needs about ten turns of the event loop."""
FULL_SECONDS = 0.005
"""How long the agent waits before it looks again whether a full publisher has room."""
COMMIT_SECONDS = 1.0
METADATA_SECONDS = 30
"""How often Kafka's metadata is refreshed, and so the longest time until a change of the number of partitions is noticed."""
HEARTBEAT_SHARE = 0.3
"""Share of the session timeout: the longest interval of heartbeats to the group."""
MAX_HEARTBEAT_SECONDS = 1.0
"""An agent learns of a rebalance with its next heartbeat, and the other agents wait for it until then."""
LEDGER_QUESTION_SECONDS = 3.0
LEDGER_QUESTION_SHARE = 0.3
"""How long the end of a session waits for the extent of the ledger, and the share of `shutdown_seconds` that it takes at most:
Kafka may be what has ended the session. The broker answers each of the two requests after a running fetch."""
RELEASE_SHARE = 0.7
"""Share of the time that is left then, for publishing, releasing the locks and committing. The rest is the clients'."""
RESTORE_SECONDS = 60.0
"""How long it may take to record a lost ledger again: about 500,000 entries. The grace periods in deploy/ and in
docker-compose.yml include it."""
REVOKE_SHARE = 0.5
"""Share of the session timeout: the time limit for releasing revoked partitions, before the group stops waiting."""


def heartbeat_seconds(settings: Settings) -> float:
    """The interval of heartbeats to the group. A suspension for the rest of the session timeout may end the membership."""
    return min(MAX_HEARTBEAT_SECONDS, settings.session_timeout_seconds * HEARTBEAT_SHARE)


class KafkaSession(ConsumerRebalanceListener):  # type: ignore[misc]
    """The clients and the partitions of one session."""

    def __init__(self, lasting: Lasting, stores: Stores) -> None:
        self._lasting = lasting
        self._settings = lasting.settings
        self._topic = lasting.settings.topics.writers
        self._stores = stores
        self._watch = SleepWatch()
        self._memory = MemoryBudget(
            lasting.settings.memory_bytes, lasting.note_memory, lasting.metrics.memory_evictions.inc
        )
        self._owners: dict[int, PartitionOwner] = {}
        self._log = Log(lasting.settings)
        self._clients: list[Any] = []
        """In the order of their stop."""
        self._check: PeriodicCheck | None = None
        self._assigned = False
        self._assigned_at = 0.0

    async def open(self, tasks: anyio.abc.TaskGroup) -> None:
        settings = self._settings
        self._partitions = await ensure_topics(
            settings,
            settings.topics,
            settings.partitions,
            settings.replication,
            check=not self._lasting.topics_checked,
        )
        self._lasting.topics_checked = True
        self._cluster = await self._log.cluster_id()
        log.info(
            "kafka.connected",
            bootstrap_servers=settings.bootstrap_servers,
            partitions=self._partitions,
            group=settings.group,
        )
        self._tasks = tasks
        self._assignor = StickyAssignor(self._topic, settings.agent_id)
        self._consumer = AIOKafkaConsumer(
            **settings.kafka_client(),
            group_id=settings.group,
            group_instance_id=settings.group_instance_id,
            partition_assignment_strategy=(self._assignor,),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
            session_timeout_ms=round(settings.session_timeout_seconds * 1000),
            heartbeat_interval_ms=round(heartbeat_seconds(settings) * 1000),
        )
        rotating(self._consumer, settings)
        sender = producer(settings)
        self._peers = PeerListener(self._lasting, self._owners)
        self._clients = [self._consumer, sender, self._peers.consumer]
        self._checkpoints = Checkpoints(self._consumer, self._topic, self._partitions)
        self._publisher = Publisher(sender, batch_bytes=BATCH_BYTES, on_queued=self._count_record)
        await start_client(sender, settings)
        tasks.start_soon(self._publisher.run)
        tasks.start_soon(self._watch.run)
        await self._peers.open(await self._log.partitions(settings.topics.audit), self._partitions)
        self._clients.append(await self._log.consumer())
        self._consumer.subscribe([self._topic], listener=self)
        await start_client(self._consumer, settings)

    async def serve(self) -> None:
        """Consume, decide, check and commit until cancelled. Raises the error that ends the session."""
        check = self._check = PeriodicCheck(self._settings, self._consumer, self._partitions, self._owners)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run, "watching the publisher", self._publisher.watch)
            tasks.start_soon(_run, "the periodic check", check.run)
            tasks.start_soon(_run, "committing checkpoints", self._commit_periodically)
            tasks.start_soon(_run, "consuming what other agents publish", self._peers.listen)
            await _run("consuming events", self._consume)

    async def close(self) -> None:
        self._check = None
        seconds = self._settings.shutdown_seconds
        ends_at = monotonic() + seconds
        ends_at += await self._restore_ledgers(min(LEDGER_QUESTION_SECONDS, seconds * LEDGER_QUESTION_SHARE))
        await self._release_partitions(list(self._owners), (ends_at - monotonic()) * RELEASE_SHARE)
        for index, client in enumerate(self._clients):
            left = max(0.0, ends_at - monotonic()) / (len(self._clients) - index)
            await stop_client(client, left / 2)  # it may take that twice
        await self._log.close()

    async def _restore_ledgers(self, seconds: float) -> float:
        """Record again what the owners know of a ledger that has lost entries, before others take over (decision record 50).

        With a producer of its own: Kafka may refuse what the session's publishes after a loss. `seconds`: the time limit for the
        question what the ledgers have. Returns how long the recording took.
        """
        owners = {
            TopicPartition(self._settings.topics.ledger, number): owner
            for number, owner in self._owners.items()
            if owner.phase in ("replaying", "live", "paused")
        }
        with anyio.move_on_after(seconds):
            await self._compare_ledgers(owners)
        lost = [owner for owner in owners.values() if owner.seen.ledger_lost]
        if not lost:
            return 0.0
        began = monotonic()
        problem: str | None = f"Kafka has not acknowledged all entries for {RESTORE_SECONDS:g} s"
        sender = producer(self._settings)
        self._clients.append(sender)
        batches = 0
        with anyio.move_on_after(RESTORE_SECONDS):
            try:
                batches = await self._record_again(lost, sender)
                problem = None
            except (KafkaError, errors.PublishFailedError) as error:
                problem = str(error) or repr(error)
        numbers = [owner.number for owner in lost]
        if problem is None:
            log.warning("ledger.restored", partitions=numbers, batches=batches)
        else:
            log.error("ledger.not-restored", partitions=numbers, problem=problem)
        return monotonic() - began

    async def _record_again(self, owners: Iterable[PartitionOwner], sender: AIOKafkaProducer) -> int:
        publisher, count = Publisher(sender, batch_bytes=BATCH_BYTES), 0
        await start_client(sender, self._settings)
        self._tasks.start_soon(publisher.run)
        for owner in owners:
            for record in owner.tables.ledger_records():
                publisher.put(record)
                count += 1
                if count % RECORDS_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                    if publisher.full:
                        await publisher.flush()
        await publisher.flush()
        return count

    async def _compare_ledgers(self, owners: Mapping[TopicPartition, PartitionOwner]) -> None:
        if not owners:
            return
        known = {each: owner.seen.ledger_extent for each, owner in owners.items()}
        try:
            beginnings = await self._log.beginnings(owners)
            ends = await self._log.ends(owners)
        except KafkaError as error:
            log.debug("kafka.offsets-unknown", problem=str(error) or repr(error))
            return
        for each, (beginning, end) in known.items():
            if beginnings[each] > beginning or ends[each] < end:
                owners[each].seen.ledger_lost = True

    def facts(self) -> AgentFacts | None:
        """What the agent's readiness depends on, or None while the session is not open."""
        if self._check is None:
            return None
        return AgentFacts(
            monotonic(),
            assigned=self._assigned,
            partitions=tuple(self._owners[number].facts() for number in sorted(self._owners)),
            queued_at=self._publisher.oldest_queued_at,
            checked_at=self._check.ended_at,
            unowned=self._unowned(),
        )

    def _unowned(self) -> tuple[int, ...]:
        assigned = self._assignor.assigned if self._assigned else None
        return () if assigned is None else tuple(sorted(set(range(self._partitions)) - assigned))

    def assignment(self) -> Assignment | None:
        """The assigned partitions, or None while the session is not open or the group has assigned none yet."""
        if self._check is None or not self._assigned:
            return None
        return Assignment(self._partitions, frozenset(self._owners))

    async def set_gauges(self) -> None:
        """Set the gauges of the partitions, their tables, the publisher and the memory."""
        metrics = self._lasting.metrics
        found = await measure(self._owners.values(), metrics, monotonic())
        set_partition_gauges(metrics, found)
        metrics.memory_used.set(self._memory.used)
        metrics.unacknowledged.set(0 if self._check is None else self._publisher.unacknowledged)

    def _count_record(self, topic: str) -> None:
        name = topic.removeprefix(f"{self._settings.topic_prefix}.")
        self._lasting.metrics.published.labels(name).inc()

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
        shared = Shared(self._settings, self._publisher, self._stores, self._tasks, self._watch)
        ownership = Ownership(number, shared, self._partitions, self._cluster)
        self._owners[number] = PartitionOwner(ownership, self._lasting, self._memory)
        self._lasting.terms.append(ownership.term)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Pause the owners before the next ones start. Those that can't resume are released."""
        self._assigned = False
        self._checkpoints.interrupt()
        self._lasting.mark_not_ready()
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
        return owner.phase in ("live", "paused") and not owner.tables.stopped.reasons and not owner.replaced

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
        except errors.PublishFailedError as error:
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
        except (errors.PublishFailedError, KafkaError, IllegalStateError) as error:
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
            if await self._load_owners():
                last = monotonic()
            self._report_ready()
            if self._publisher.full:
                await anyio.sleep(FULL_SECONDS)
                last = monotonic()
                continue
            batches = await self._consumer.getmany(timeout_ms=200, max_records=at_once)
            read_at = monotonic()
            gap, last = read_at - last, read_at
            if gap > self._settings.session_timeout_seconds - heartbeat_seconds(self._settings):
                # Another agent may have decided the events that were fetched before the suspension.
                raise errors.SuspendedError(
                    f"nothing was consumed for {gap:.0f} s: the process or its machine was suspended"
                )
            await self._pass_to_owners(batches, read_at)
            at_once = _next_size(at_once, monotonic() - read_at)
            await anyio.lowlevel.checkpoint()

    async def _pass_to_owners(
        self, batches: Mapping[TopicPartition, list[ConsumerRecord]], read_at: float
    ) -> None:
        """Pass fetched records to the owners that the partitions had when they were fetched.

        A partition may be revoked and assigned again while this waits for Kafka. Its former owner, which is paused or released,
        ignores the records. The next one gets them from the consumer, after those before them.
        """
        fetched = [
            (self._owners.get(partition.partition), partition, records)
            for partition, records in batches.items()
        ]
        for owner, partition, records in fetched:
            if owner is not None:
                await self._require_no_hole(owner, partition, records[0].offset)
                owner.consume(records, read_at)
                owner.finish_replay(records[-1].offset + 1)

    async def _load_owners(self) -> bool:
        """Load the owners of newly assigned partitions. False if there are none."""
        loading = [owner for owner in self._owners.values() if owner.phase == "loading"]
        if loading:
            await load(loading, self._log, self._consumer, self._publisher, self._partitions)
            require_not_replaced(self._owners.values())
        return bool(loading)

    def _report_ready(self) -> None:
        """Mark the agent as ready when every assigned partition is live for the first time since the assignment."""
        live = self._assigned and all(owner.phase in ("live", "refused") for owner in self._owners.values())
        if live and not self._lasting.ready.is_set():
            self._lasting.mark_ready()
            seconds = monotonic() - self._assigned_at
            self._lasting.metrics.replay_seconds.observe(seconds)
            log.info(
                "partitions.live",
                partitions=sorted(self._owners),
                tables=sum(len(owner.tables.states) for owner in self._owners.values()),
                replay_seconds=round(seconds, 3),
            )

    async def _require_no_hole(self, owner: PartitionOwner, partition: TopicPartition, first: int) -> None:
        """Raise `LogCutError` if events between the owner's position and `first` were removed before it has read them.

        Other holes are usual: the markers of a transactional producer have offsets and are no records.
        """
        position = owner.position
        if owner.phase not in ("replaying", "live") or first <= position:
            return
        beginning = (await self._consumer.beginning_offsets([partition]))[partition]
        if beginning > position:
            raise errors.LogCutError(
                f"topic {self._topic} begins at offset {beginning} of partition {owner.number}, and this agent has read only up "
                f"to {position}: events were removed before it read them"
            )

    async def _resume_owners(self) -> None:
        """Resume the paused owners, or replace those whose partition another agent took during the pause."""
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
            log.info("partitions.lost-while-paused", partitions=numbers)
            self._checkpoints.forget(numbers)
            await self._release_locks(replaced, self._settings.session_timeout_seconds * REVOKE_SHARE / 3)

    async def _commit_periodically(self) -> None:
        while True:
            await anyio.sleep(COMMIT_SECONDS)
            self._require_running_clients()
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

    def _require_running_clients(self) -> None:
        for client in self._clients:
            for name, end in ended_tasks(client).items():
                raise errors.TaskEndedError(
                    f"the task {name} of an {type(client).__name__} has ended ({end}); without it the agent would read or "
                    "publish nothing"
                )


def _next_size(at_once: int, seconds: float) -> int:
    """The most events of the next batch, after deciding the last one took so long."""
    if seconds > TURN_SECONDS:
        return max(1, at_once // 2)
    if seconds < TURN_SECONDS / 2:
        return min(RECORDS_AT_ONCE, 2 * at_once)
    return at_once


async def _run(name: str, task: Callable[[], Awaitable[None]]) -> None:
    with guarded(name):
        await task()
