"""The writers: drivers with their executors, with the rules of `spark_jobs/`.

A transaction's state is the production state machine (`progress.py` with `grant.py`), and the events are the
production events. The code around it is modelled here, because in production it consists of threads and Spark:

| production | what is modelled |
| --- | --- |
| `transaction.py` | `Attempt` |
| `event_publisher.py` | heartbeats, the shared `seq`, `commit-completed` published twice |
| `channel.py` | the term that counts; a producer is discarded when a send fails or takes too long |
| `batches.py` | retries with `queued` admission and everything touched as scope |
| `sinks/paimon/` | the order of its queries: the batch, the base, the grant; then publish and read back |

A driver is a process. Its `Job` survives it: the writer's name and the progress of Spark's checkpoint. Executors are not
processes here. Their markers reach Kafka at any time, once or twice, even after the transaction has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from lakewarden.events import (
    DECISION_RECORD,
    WRITER_EVENT,
    Abort,
    Admission,
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    LocksHandedOver,
    Marker,
    MarkerCreated,
    PartitionTaken,
    TransactionAbandoned,
    Undecodable,
    WriterEventUnion,
    WriterHeartbeat,
    counts,
    decode,
    encode,
)
from lakewarden.spark_jobs.gate import progress
from lakewarden.spark_jobs.gate.progress import GatePhase, GateProgress, GrantLease
from tests.simulation.whole.clients import SimConsumer, SimProducer
from tests.simulation.whole.processes import Process
from tests.simulation.whole.scenario import TOPICS, Workload
from tests.simulation.whole.table import Commit, LakeTable
from tests.simulation.whole.upgrade import is_unknown

if TYPE_CHECKING:
    from tests.simulation.whole.run import World

T = TypeVar("T")

TABLE_TRIES = 3
"""Attempts to query a table that doesn't answer."""


class DriverFailed(Exception):
    """The query fails and is restarted."""


class AttemptStopped(Exception):
    """This attempt has ended. It is retried if `retriable`."""

    def __init__(self, reason: str, *, retriable: bool, abort: Abort | None = None) -> None:
        super().__init__(reason)
        self.retriable = retriable
        self.abort = abort


@dataclass(frozen=True, slots=True)
class WriterTiming:
    """As `event_publisher.Timing`, with the timeouts around it. Seconds."""

    heartbeat: float = 1.5
    admission_timeout: float = 10.0
    queue_timeout: float = 60.0
    grant_timeout: float = 60.0
    margin: float = 0.4
    send_timeout: float = 4.0
    table_timeout: float = 0.8
    restart_after_failure: float = 2.0
    max_attempts: int = 5


TIMING = WriterTiming()


@dataclass(slots=True)
class Job:
    """What survives a driver."""

    writer: str
    table: LakeTable
    partition: int
    workload: Workload
    next_batch: int = 0
    process: str = ""
    """Name of its newest driver."""
    done: bool = False
    """Whether a batch that began after the faults is in Spark's checkpoint."""


class Channel:
    """As `channel.py`: one producer, and a consumer of one partition of `decisions`."""

    def __init__(self, process: Process, job: Job) -> None:
        self._process = process
        self._job = job
        self._producer: SimProducer | None = None
        self._handlers: dict[str, Callable[[DecisionEventUnion, int], None]] = {}
        self._term: str | None = None
        self._position = 0
        self._doubted: set[str | None] = set()
        self._opening = anyio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start to read `decisions` at its end."""
        where = TopicPartition(TOPICS.decisions, self._job.partition)
        consumer = SimConsumer()
        await consumer.start()
        consumer.assign([where])
        await consumer.seek_to_end(where)
        log = self._process.kafka.broker.logs[where]
        self._note_term(log)
        self._position = len(log)
        self.spawn(self._read(consumer))

    def spawn(self, program: Any) -> None:
        """Run a program in the background."""
        task = asyncio.create_task(program)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def subscribe(self, transaction: str, handler: Callable[[DecisionEventUnion, int], None]) -> None:
        """Dispatch the decisions on a transaction."""
        self._handlers[transaction] = handler

    def unsubscribe(self, transaction: str) -> None:
        """Stop to dispatch them."""
        self._handlers.pop(transaction, None)

    async def send(self, event: WriterEventUnion) -> int:
        """Publish and wait for the acknowledgement. Raises `DriverFailed` if Kafka refuses it, or it takes too long."""
        return await self.acknowledged(await self.publish(event))

    async def publish(self, event: WriterEventUnion) -> Awaitable[Any]:
        """Pass an event to the producer, which keeps the order."""
        async with self._opening:
            if self._producer is None:
                self._producer = SimProducer()
            producer = self._producer
        return await producer.send(TOPICS.writers, encode(event), event.table.encode(), self._job.partition)

    async def acknowledged(self, sent: Awaitable[Any]) -> int:
        """Return the offset once it is acknowledged."""
        problem = "Kafka did not acknowledge in time"
        with anyio.move_on_after(TIMING.send_timeout):
            try:
                return int((await sent).offset)
            except KafkaError as error:
                problem = f"Kafka refuses an event: {error}"
        producer, self._producer = self._producer, None
        if producer is not None:
            self.spawn(_stop(producer))
        raise DriverFailed(problem)

    async def _read(self, consumer: SimConsumer) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=2_000)).values():
                for record in records:
                    if record.offset > self._position:
                        self._term = None
                        await self._find_term(record.offset)
                    self._position = record.offset + 1
                    if not self._dispatch(record.value, record.offset):
                        await self._find_term(record.offset)
                        self._dispatch(record.value, record.offset)

    async def _find_term(self, end: int) -> None:
        kafka, where = self._process.kafka, TopicPartition(TOPICS.decisions, self._job.partition)
        first = kafka.broker.beginnings[where]
        self._note_term(await kafka.call_until_answered(lambda: kafka.broker.logs[where][first:end]))

    def _note_term(self, records: Iterable[Any]) -> None:
        for record in records:
            decision = decode(DECISION_RECORD, record.value)
            if isinstance(decision, PartitionTaken):
                self._term = decision.term

    def _dispatch(self, value: bytes, offset: int) -> bool:
        """Dispatch a decision. Return False if the log must be searched for the term in force first."""
        decision = decode(DECISION_RECORD, value)
        if isinstance(decision, Undecodable):
            assert is_unknown(value)
        elif isinstance(decision, PartitionTaken):
            self._term = decision.term
        elif not isinstance(decision, LocksHandedOver):
            if not counts(decision, self._term) and decision.term not in self._doubted:
                self._doubted.add(decision.term)
                return False
            if counts(decision, self._term) and (handler := self._handlers.get(decision.transaction)):
                handler(decision, offset)
        return True


async def _stop(producer: SimProducer) -> None:
    with anyio.move_on_after(2.0):
        await producer.stop()


@dataclass(slots=True)
class AttemptPlan:
    """As `batches._Attempt`."""

    number: int
    admission: Admission
    scope: tuple[Marker, ...]


class Driver:
    """One driver process of a job."""

    def __init__(self, world: World, process: Process, job: Job) -> None:
        self.world = world
        self.process = process
        self.job = job
        self.random = process.random
        self.channel = Channel(process, job)

    async def run(self) -> None:
        """Run batch after batch, until all are done, or until this driver fails after a newer one took the job over."""
        await self.channel.open()
        while not self.job.done:
            await anyio.sleep(self.draw_seconds(self.job.workload.think))
            batch, began = self.job.next_batch, self.process.node.timeline.now
            try:
                await self._batch(batch)
            except DriverFailed as error:
                self.process.node.log(f"batch {batch} fails: {error}")
                if self.job.process != self.process.node.name:
                    return
                await anyio.sleep(TIMING.restart_after_failure)
                continue
            # Spark's own commit log follows a moment later. A driver that dies in between repeats the batch.
            await anyio.sleep(self.draw_seconds(0.02))
            self.job.next_batch = max(self.job.next_batch, batch + 1)
            if began > self.world.scenario.fault_free_from:
                self.job.done = True

    def draw_seconds(self, mean: float) -> float:
        return min(self.random.expovariate(1 / mean), 5 * mean)

    async def _batch(self, batch: int) -> None:
        """As `BatchWriter.__call__`."""
        touches = self.job.workload.draw_touches(self.random)
        scope = touches if self.job.workload.queued else ()
        attempt = AttemptPlan(1, "queued" if scope else "optimistic", tuple(scope))
        while True:
            running = Attempt(self, batch, attempt, touches)
            try:
                await running.run()
            except AttemptStopped as stopped:
                self.process.node.log(f"{running.name} stops: {stopped}")
                if not stopped.retriable or attempt.number >= TIMING.max_attempts:
                    raise DriverFailed(str(stopped)) from None
                attempt = await self._next(attempt, running, stopped)
            else:
                return

    async def _next(self, last: AttemptPlan, running: Attempt, stopped: AttemptStopped) -> AttemptPlan:
        touched = dict.fromkeys((*last.scope, *running.published_markers))
        touched.update(dict.fromkeys(await running.read_back()))
        if stopped.abort is None or not stopped.abort.conflicts:
            await anyio.sleep(self.random.uniform(0, min(2.0, 0.1 * 2**last.number)))
        return AttemptPlan(last.number + 1, "queued", tuple(touched))


@dataclass(slots=True)
class Publish:
    """What is known of a publish: it landed, it didn't, or unknown."""

    begun: bool = False
    version: int | None = None
    unanswered: bool = False


class Attempt:
    """One transaction: `transaction.Transaction` with a body like that of the Paimon sink."""

    def __init__(self, driver: Driver, batch: int, attempt: AttemptPlan, touches: tuple[Marker, ...]) -> None:
        self.driver = driver
        self.job = driver.job
        self.batch = batch
        self.id = f"{self.job.writer}-{batch}-{driver.process.random.getrandbits(32):08x}"
        self.published_markers: list[Marker] = []
        self._plan = attempt
        self._touches = touches
        self._channel = driver.channel
        self._node = driver.process.node
        self._world = driver.world
        self._oracles = driver.world.oracles
        self._progress = GateProgress(self.job.table.uri, self.job.writer, TIMING.margin)
        self._changed = anyio.Event()
        self._order = anyio.Lock()
        self._intent_offset: int | None = None
        self._publish = Publish()
        self._touched: dict[Marker, None] = {}
        self._number: tuple[int, int] | None = None
        self._events = 0

    @property
    def name(self) -> str:
        return self.id

    async def run(self) -> None:
        """Run from the intent to the end. Raises `AttemptStopped` or `DriverFailed` unless it is known to be committed."""
        try:
            await self._open()
            await self._body()
        except (AttemptStopped, DriverFailed) as error:
            await self._finish(str(error))
            raise
        await self._finish(None)
        if self._progress.abort is not None:
            raise AttemptStopped(
                "aborted", retriable=self._progress.abort.retriable, abort=self._progress.abort
            )

    async def read_back(self) -> list[Marker]:
        """Read back all published markers from the log, also those of executors. Empty if Kafka doesn't answer."""
        start = self._intent_offset
        kafka = self.driver.process.kafka
        where = TopicPartition(TOPICS.writers, self.job.partition)
        if start is None:
            return []
        records = await kafka.call(lambda: kafka.broker.logs[where][start:])
        found: list[Marker] = []
        for record in records or []:
            if self.id.encode() in record.value:
                event = decode(WRITER_EVENT, record.value)
                if isinstance(event, MarkerCreated | CommitRequested) and event.writer == self.job.writer:
                    found.extend(event.markers)
        return found

    # -- opening -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._channel.subscribe(self.id, self._apply_decision)
        workload = self.job.workload
        intent = CommitIntent(
            **self._common(),
            batch_id=self.batch,
            admission=self._plan.admission,
            priority=workload.priority,
            conflict_rule=workload.rule,
            scope=self._plan.scope,
            lock=self.job.table.lock,
            heartbeat_seconds=TIMING.heartbeat,
        )
        self._intent_offset = await self._channel.send(self._world.change_intent(intent))
        self._channel.spawn(self._beat())
        queued = self._plan.admission == "queued"
        timeout = TIMING.queue_timeout if queued else TIMING.admission_timeout
        await self._until(
            lambda: self._progress.phase is not GatePhase.OPENING or self._progress.abort is not None, timeout
        )
        self._raise_if_aborted()
        if self._progress.committed is not None:
            return
        if self._progress.phase is GatePhase.OPENING:
            raise DriverFailed("the intent was not answered")

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(TIMING.heartbeat)
            if self._progress.phase is GatePhase.ENDED:
                return
            try:
                with anyio.move_on_after(TIMING.send_timeout):
                    await self._counted(lambda seq: WriterHeartbeat(**self._common(), seq=seq))
            except DriverFailed:
                continue

    async def _counted(self, event: Callable[[int], WriterEventUnion]) -> None:
        async with self._order:
            sent = await self._channel.publish(event(self._progress.send_times.next_seq(self._node.now())))
        await self._channel.acknowledged(sent)

    # -- the body ----------------------------------------------------------------------------------------------------

    async def _body(self) -> None:
        if self._progress.committed is not None:
            return
        table = self.job.table
        if table.records_batches:
            found = await self._query_table(self._look_up)
            if found is not None:
                await self._commit(None, 0.0, replayed=found)
                return
        ordered = self.job.workload.rule == "ordered"
        if not ordered:
            await self._touch(self._touches[:1], executors=False)
        base = await self._query_table(table.version)
        assert base is not None
        if ordered:
            # Only numbers depend on it, so it is read as soon as the turn is known.
            assert self._progress.admitted is not None
            assert self._progress.admitted.turn is not None
            self._number = base, self._progress.admitted.turn
        began = self._node.timeline.now
        if many := self._world.draw_many_markers(self.job.workload.operation):
            await self._touch(many, executors=False)
        for marker in self._touches:
            await self._touch((marker,), executors=self.driver.random.random() < 0.6)
            if self._world.draw_hung_body():
                self._node.log(f"{self.id} hangs")
                await self._until(lambda: self._progress.abort is not None, math.inf)
            await anyio.sleep(self.driver.draw_seconds(self.job.workload.compute))
            self._raise_if_aborted()
        await self._commit(base, began, replayed=None)

    async def _touch(self, markers: tuple[Marker, ...], *, executors: bool) -> None:
        self._raise_if_aborted()
        self._touched.update(dict.fromkeys(markers))
        if executors:
            await self._run_tasks(markers)
        else:
            await self._channel.send(MarkerCreated(**self._common(), markers=markers))
            self.published_markers.extend(markers)
        self._raise_if_aborted()

    async def _run_tasks(self, markers: tuple[Marker, ...]) -> None:
        """Publish markers as executors do, before they write. The first copy in Kafka ends the task."""
        ended = anyio.Event()
        kafka, timeline, random = self.driver.process.kafka, self._node.timeline, self.driver.random
        where, key = TopicPartition(TOPICS.writers, self.job.partition), self.job.table.uri.encode()
        for copy in range(1 if random.random() < 0.7 else 2):
            event = MarkerCreated(**self._common(), markers=markers)
            value, late = encode(event), random.random() < 0.3

            def publish(value: bytes = value) -> None:
                kafka.broker.append(where, key, value)
                self._node.deliver(ended.set)

            seconds = random.expovariate(1 / 5.0) if copy and late else random.expovariate(1 / 0.05)
            timeline.plan(kafka.reachable_from(timeline.now + seconds), publish)
        with anyio.move_on_after(TIMING.send_timeout) as waiting:
            await ended.wait()
        if waiting.cancelled_caught:
            raise DriverFailed("the tasks could not reach Kafka")

    async def _commit(self, base: int | None, began: float, *, replayed: int | None) -> None:
        """Request the grant and publish under it."""
        self._progress.request()
        await self._counted(lambda seq: CommitRequested(**self._common(), seq=seq))
        await self._until(
            lambda: self._progress.lease is not None or self._progress.abort is not None, TIMING.grant_timeout
        )
        if self._progress.lease is None and self._progress.abort is None:
            self._progress.end()
            raise DriverFailed("no grant came in time")
        self._require_grant(self._progress.begin_publish(self._node.now()))
        table = self.job.table
        if replayed is None and table.records_batches:
            replayed = await self._query_table(self._look_up)
        if replayed is not None:
            self._publish.version = replayed
        else:
            assert base is not None
            await self._land(base, began)
        self._oracles.on_grant_finished(self.id)
        held = self._progress.lease
        assert held is not None
        await self._publish_completion(held.grant, self._publish.version)

    async def _land(self, base: int, began: float) -> None:
        """As the Paimon sink's publish: check, write, and read back if there was no answer."""
        table = self.job.table
        touched, rule = frozenset(self._touched), self.job.workload.rule
        while self._publish.version is None:
            await anyio.sleep(self.driver.draw_seconds(self.job.workload.publish) + self._world.draw_hang())
            after: int | None = None
            if table.fenced:
                after = await self._query_table(table.version)
                same = await self._query_table(lambda: table.unchanged(base, touched, rule, self._number))
                if not same:
                    raise AttemptStopped("the base changed", retriable=True)
            self._require_grant(self._progress.check_lease(self._node.now()))
            held = self._progress.lease
            assert held is not None
            assert held.deadline is not None
            deadline = self._node.clock.when(held.deadline)
            self._oracles.on_publish(self.id, deadline)
            commit = Commit(
                self.id,
                self.job.writer,
                self.batch,
                touched,
                rule,
                began,
                deadline,
                self._number,
                self._edition,
            )
            await self._write(commit, after)

    async def _write(self, commit: Commit, after: int | None) -> None:
        table, timeline = self.job.table, self._node.timeline
        self._publish.begun = True
        before, self._publish.unanswered = self._publish.unanswered, True
        self._node.log(f"{self.id} publishes after {after}, {commit.deadline - timeline.now:.3f} s left")
        self._world.before_publish(self._node)
        await anyio.lowlevel.checkpoint()  # the window: a driver stopped here writes when it resumes
        answered = await self._request(lambda: (table.publish(commit, after, timeline.now),), writes=True)
        self._world.at_publish(self._node)
        if answered is not None:
            self._publish.unanswered = before
            self._publish.version = answered[0]
            return
        found = await self._query_table(lambda: table.version_of(self.id))
        if found is None:
            raise DriverFailed("the outcome of the publish is unknown")
        self._publish.version = found

    @property
    def _edition(self) -> str | None:
        return None if self._progress.admitted is None else self._progress.admitted.edition

    def _look_up(self) -> int | None:
        return self.job.table.look_up_batch(self.job.writer, self.batch, self._edition)

    async def _query_table(self, query: Callable[[], T]) -> T:
        for _ in range(TABLE_TRIES):
            answer = await self._request(lambda: (query(),), writes=False)
            if answer is not None:
                return answer[0]
        raise DriverFailed("the table does not answer")

    async def _request(self, act: Callable[[], tuple[T]], *, writes: bool) -> tuple[T] | None:
        """Send one request to the table's storage. Return None if there was no answer."""
        timeline, node = self._node.timeline, self._node
        fate = self._world.table_faults.fate(node.name, writes=writes, now=timeline.now)
        future: asyncio.Future[tuple[T] | None] = node.loop.create_future()

        def arrives(answer: tuple[T] | None) -> None:
            if not future.done():
                future.set_result(answer)

        def acts() -> None:
            answer = act()
            if fate.answers is not None and fate.answer is None:
                timeline.after(fate.answers, lambda: node.deliver(lambda: arrives(answer)))

        if fate.acts is not None:
            timeline.after(fate.acts, acts)
        self.driver.process.kafka.on_request(node)
        with anyio.move_on_after(TIMING.table_timeout):
            return await future
        return None

    async def _publish_completion(self, grant: str, version: int | None) -> None:
        event = CommitCompleted(**self._common(), grant=grant, version=str(version), batch_id=self.batch)
        for _ in range(2):
            try:
                await self._channel.send(event)
            except DriverFailed:
                continue
            return

    async def _finish(self, reason: str | None) -> None:
        known = self._progress.abort is not None or self._progress.committed is not None
        self._progress.end()
        published = self._publish.version is not None
        unknown = self._publish.unanswered and not published
        if not published and not unknown:
            self._oracles.on_grant_finished(self.id)
            if not known and self._intent_offset is not None:
                with suppress(DriverFailed):
                    await self._channel.send(
                        TransactionAbandoned(**self._common(), reason=reason or "nothing")
                    )
        self._channel.unsubscribe(self.id)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _apply_decision(self, decision: DecisionEventUnion, offset: int) -> None:
        before = self._progress.lease
        change = self._progress.apply(decision, offset)
        held = self._progress.lease
        if held is not None and held is not before and held.deadline is not None:
            self._oracles.on_grant(self.id, self._node, held.grant, self._node.clock.when(held.deadline))
        if change is not progress.Change.NONE:
            self._node.log(
                f"{self.id} applies {decision.type}{getattr(decision, 'reason', '') and ' ' + getattr(decision, 'reason', '')}"
            )
        self._changed.set()
        self._changed = anyio.Event()

    async def _until(self, holds: Callable[[], bool], timeout: float) -> None:
        with anyio.move_on_after(timeout):
            while not holds():
                await self._changed.wait()

    def _raise_if_aborted(self) -> None:
        abort = self._progress.abort
        if abort is not None:
            raise AttemptStopped(f"abort {abort.reason}", retriable=abort.retriable, abort=abort)

    def _require_grant(self, verdict: Any) -> None:
        if isinstance(verdict, GrantLease):
            return
        if isinstance(verdict, Abort):
            raise AttemptStopped(f"abort {verdict.reason}", retriable=verdict.retriable, abort=verdict)
        raise AttemptStopped("the grant lease expired", retriable=True)

    def _common(self) -> dict[str, Any]:
        self._events += 1
        return {
            "event_id": f"{self.id}/{self._node.name}/{self._events}",
            "table": self.job.table.uri,
            "transaction": self.id,
            "writer": self.job.writer,
            "at": self._oracles.wall(self._node),
        }
