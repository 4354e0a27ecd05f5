"""Kafka for a writer: its clients, and an event loop for blocking callers.

Drivers and executors run synchronous Python in threads, and aiokafka needs an event loop. `LoopThread` runs that loop in one
daemon thread. Every call into it has a timeout *inside* the loop, and another one outside, so no caller waits forever. Its
failure, whatever it is, is raised as `AgentUnreachable`, which names the brokers and the cause.

The settings may contain functions of the user: one that returns the settings, a token provider. They may raise anything, and
aiokafka passes that on. So background work never ends by an exception, and never ends other background work:

- A background loop (`spawn`) that raised is logged and started again after `RESTART_SECONDS`.
- A single background action (`start_soon`) that raised is logged.
- A `CancelledError` that was not requested of the task counts as raised. Asyncio raises it in a task that awaits a future, or
  another task, which was cancelled, and aiokafka cancels tasks of its own. The loop's task group would take it for an end on
  request, and end the background work of all transactions without a log line.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import anyio
from aiokafka.errors import (
    BrokerNotAvailableError,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    ConcurrentTransactions,
    CorruptRecordException,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    ReplicaNotAvailableError,
    StaleLeaderEpochCodeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownProducerId,
)
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import BlockingPortal

from lakewarden.events import access
from lakewarden.spark_jobs.gate.errors import AgentUnreachable, GateError, InvalidKafkaOptions
from lakewarden.spark_jobs.gate.kafka_options import ClientOptions, KafkaSettings, client_options
from lakewarden.spark_jobs.gate.logs import EventLogger

SEND_TIMEOUT_SECONDS = 10.0
"""For the acknowledgement of one record. Longer than a leader election, which takes a few seconds."""

GRACE_SECONDS = 5.0
"""Added to the timeout inside the loop. After the sum of both, a caller treats the loop as stuck."""

RESTART_SECONDS = 1.0
"""Before a background loop that raised is started again."""

BEAT_SECONDS = 0.5
"""How often the loop notes that it runs."""
STALL_SECONDS = 2.0
"""The shortest time without a beat that an error names."""

STOP_SECONDS = 2.0
"""For a client to close its connections."""

NEEDED_RIGHTS = (
    "a driver needs read and write on the topic writers and read on decisions, an executor write on writers "
    "(docs/security.md)"
)

_SENT_AGAIN = (
    OutOfOrderSequenceNumber,
    UnknownProducerId,
    InvalidProducerIdMapping,
    InvalidProducerEpoch,
    ProducerFenced,
    ProducerClosed,
    CorruptRecordException,
    BrokerNotAvailableError,
    ReplicaNotAvailableError,
    StaleLeaderEpochCodeError,
    ConcurrentTransactions,
    UnknownError,
)
"""In this order: the broker has forgotten the producer's id, as after a loss of records; another send has replaced the producer;
the record was damaged on its way; a broker is away (Kafka calls code 13 NETWORK_EXCEPTION); aiokafka doesn't know the code."""

T = TypeVar("T")

log = EventLogger("lakewarden.kafka")


async def make_producer(
    bootstrap_servers: str, kafka: KafkaSettings | None, *, topic: str, client_id: str, timeout: float
) -> Any:
    """Return a started producer for `topic`: all replicas acknowledge, its retries make no duplicates, it sends without delay."""
    from aiokafka import AIOKafkaProducer

    options = await _options(kafka)
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        request_timeout_ms=int(timeout * 1000),
        compression_type=options.compression_type,
        **_arguments(options, client_id),
    )
    try:
        return await _started(producer, options)
    except ClusterAuthorizationFailedError as error:
        # An idempotent producer needs the right to write to some topic; this client has it for none.
        raise TopicAuthorizationFailedError(topic) from error


async def make_consumer(bootstrap_servers: str, kafka: KafkaSettings | None, *, client_id: str) -> Any:
    """Return a started consumer without a group, which reads what it is assigned and commits nothing."""
    from aiokafka import AIOKafkaConsumer

    options = await _options(kafka)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **_arguments(options, client_id),
    )
    access.read_every_batch(consumer)
    return await _started(consumer, options)


async def _options(kafka: KafkaSettings | None) -> ClientOptions:
    """The options. A function runs in a thread of its own: while it waits for a vault, the loop sends the heartbeats."""
    if not callable(kafka):
        return client_options(kafka)
    options: ClientOptions = await asyncio.wrap_future(access.in_thread(lambda: client_options(kafka)))
    return options


def _arguments(options: ClientOptions, client_id: str) -> dict[str, Any]:
    """aiokafka's arguments. A file that can't be used is an `InvalidKafkaOptions`, which names it."""
    try:
        return options.arguments(client_id)
    except access.AccessError as error:
        raise InvalidKafkaOptions(f"kafka options: {error}") from None


async def _started(client: Any, options: ClientOptions) -> Any:
    options.read_password_again(client)
    try:
        await client.start()
    except BaseException as error:
        await access.stop_client(client)
        if isinstance(error, KafkaConnectionError) and (problem := options.token_problem()) is not None:
            raise KafkaConnectionError(problem) from error
        raise
    access.repeat_requests(client)
    return client


class LoopThread:
    """A daemon thread with an event loop. The first call starts it; `close`, or Python's exit, ends it.

    `close` cancels background work. A loop that is still open when Python finalises would hang the
    exit, because its thread no longer runs when it is asked to end; an exit handler closes it before.
    """

    def __init__(self, bootstrap_servers: str, *, name: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._name = name
        self._lock = threading.Lock()
        self._loop: threading.Thread | None = None
        self._portal: BlockingPortal | None = None
        self._task_host: Future[None] | None = None
        self._tasks: TaskGroup | None = None
        self._process = os.getpid()
        self._beat = 0.0
        """When the loop last noted that it ran, in monotonic seconds."""
        self._stalls: deque[tuple[float, float]] = deque(maxlen=16)
        """The end and the length of each time for which the loop did not run."""
        _threads.add(self)

    @property
    def started(self) -> bool:
        """Whether the thread runs in this process: a forked child has none of its parent's threads."""
        return self._portal is not None and self._process == os.getpid()

    @property
    def _task_group(self) -> TaskGroup:
        assert self._tasks is not None
        return self._tasks

    def portal(self) -> BlockingPortal:
        """Return the way into the loop; start the loop if needed. Raise `GateError` if it runs in the parent of this process."""
        if self._portal is not None and not self.started:
            raise GateError(
                f"this gate is connected in process {self._process}, and process {os.getpid()} was forked from it: create "
                "another gate after the fork, in the function that the child runs"
            )
        with self._lock:
            if self._portal is None:
                self._loop, self._portal = _start_loop(self._name)
                self._process = os.getpid()
                self._task_host = None
            if self._task_host is None or self._task_host.done():
                self._task_host, self._tasks = self._portal.start_task(self._run_tasks)
            return self._portal

    def call(self, function: Callable[[], Awaitable[T]], *, timeout: float, doing: str, facts: str = "") -> T:
        """Run `function` in the loop and wait for its result, at most `timeout` seconds. `facts` ends every message."""

        async def bounded() -> T:
            with anyio.fail_after(timeout):
                return await function()

        began = monotonic()
        future: Future[T] = self.portal().start_task_soon(bounded)
        try:
            return future.result(timeout + GRACE_SECONDS)
        except AgentUnreachable as error:
            raise AgentUnreachable(f"{error} {facts}".rstrip()) from error.__cause__
        except GateError:
            raise
        except Exception as error:
            future.cancel()
            stood_still = self.stood_still(monotonic() - began)
            raise unreachable(
                self.bootstrap_servers, doing, timeout, error, facts, stood_still=stood_still
            ) from error

    def stood_still(self, seconds: float) -> str:
        """Name the longest time in the last so many seconds for which this loop did not run, or return nothing."""
        now = monotonic()
        longest = max([now - self._beat, *(length for end, length in self._stalls if end > now - seconds)])
        if not self.started or longest < STALL_SECONDS:
            return ""
        return (
            f"; this process itself did not run for {longest:.0f} s: code held Python's interpreter lock (GIL), such as a long "
            "regular expression, or the process was paused or had no CPU time"
        )

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        """Run `function` in the background until it returns. If it raises, log the error and run it again."""

        async def start() -> None:
            self.spawn_inside(function, name=name)

        self.portal().start_task_soon(start)

    def spawn_inside(self, function: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        """As `spawn`, for callers inside the loop."""

        async def run_until_returned() -> None:
            while True:
                try:
                    await function()
                except BaseException as error:  # whatever it is, the loop must go on
                    if _must_end(error):
                        raise
                    log.exception("background.restarted", task=name, error=repr(error))
                    await anyio.sleep(RESTART_SECONDS)
                else:
                    return

        self._task_group.start_soon(run_until_returned, name=name)

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run `function(*arguments)` once in the background, and log an error. Call it inside the loop only."""

        async def run() -> None:
            try:
                await function(*arguments)
            except BaseException as error:  # whatever it is, it must not end the other tasks
                if _must_end(error):
                    raise
                log.exception("background.failed", task=function.__name__, error=repr(error))

        self._task_group.start_soon(run, name=function.__name__)

    def close(self) -> None:
        """Cancel what runs in the loop and end it. A loop that is stuck is left to its daemon thread."""
        if not self.started:
            return
        with self._lock:
            loop, portal, task_host = self._loop, self._portal, self._task_host
            self._loop = self._portal = self._task_host = None
        if loop is None or portal is None:
            return
        if task_host is not None:
            task_host.cancel()
        with suppress(RuntimeError):  # the loop has ended
            portal.start_task_soon(portal.stop)
        loop.join(GRACE_SECONDS)

    async def _run_tasks(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        async with anyio.create_task_group() as tasks:
            self._beat = monotonic()
            task_status.started(tasks)
            while True:
                await anyio.sleep(BEAT_SECONDS)
                last, self._beat = self._beat, monotonic()
                if self._beat - last >= STALL_SECONDS:
                    self._stalls.append((self._beat, self._beat - last))


def _start_loop(name: str) -> tuple[threading.Thread, BlockingPortal]:
    """As anyio's `start_blocking_portal`, which ends without a time limit, so that a thread of its own had to end it.

    From Python 3.12 on, no thread can be started in an exit handler.
    """
    started: Future[BlockingPortal] = Future()

    async def run() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    def run_loop() -> None:
        try:
            anyio.run(run)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run_loop, daemon=True, name=name)
    thread.start()
    return thread, started.result()


def _must_end(error: BaseException) -> bool:
    """Whether an error ends the running task: its cancellation, if that was requested, or the end of the process."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return not isinstance(error, Exception)


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the loops that are still open. Exit handlers of their users were registered later, so they have run before."""
    for thread in list(_threads):
        thread.close()


class SharedProducer:
    """The producer of all sends in a loop, made by the first one. Call it inside the loop only.

    - A producer that failed a send is replaced. After an idempotent producer has dropped a batch, the broker may refuse its next
      ones, because a sequence number is missing.
    - Its other sends have the time until it has stopped. Then they fail with `ProducerClosed`, after which they are sent again.
    """

    def __init__(self, thread: LoopThread, make: Callable[[], Awaitable[Any]]) -> None:
        self._thread = thread
        self._make = make
        self._opening = anyio.Lock()
        self._producer: Any = None
        self._pending: set[asyncio.Future[Any]] = set()

    async def ready(self) -> Any:
        if self._producer is None:
            async with self._opening:
                if self._producer is None:
                    self._producer = await self._make()
        return self._producer

    async def send(
        self, topic: str, key: bytes, value: bytes, partition: Callable[[], int | None] = lambda: None
    ) -> Awaitable[int]:
        """Pass a record to the producer. Await the result for its offset. `partition` is asked when there is a producer.

        After some errors, the record is sent once more, by a new producer. The broker may have kept an earlier
        try whose answer was lost: then the log has the record twice.
        """
        try:
            sent = await self._send(topic, key, value, partition)
        except KafkaError as error:
            require_sent_again(error)
            sent = await self._send(topic, key, value, partition)

        async def offset() -> int:
            try:
                return await sent
            except KafkaError as error:
                require_sent_again(error)
                return await (await self._send(topic, key, value, partition))

        return offset()

    async def _send(
        self, topic: str, key: bytes, value: bytes, partition: Callable[[], int | None]
    ) -> Awaitable[int]:
        producer = await self.ready()
        try:
            sent = asyncio.ensure_future(await producer.send(topic, value, key, partition=partition()))
        except BaseException:
            self._replace(producer)
            raise
        self._pending.add(sent)
        sent.add_done_callback(self._pending.discard)

        async def offset() -> int:
            try:
                return int((await sent).offset)
            except BaseException:
                self._replace(producer)
                raise

        return offset()

    def _replace(self, producer: Any) -> None:
        if self._producer is producer:
            self._producer = None
            self._thread.start_soon(_stop_producer, producer, self._pending)
            self._pending = set()

    async def stop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await access.stop_client(producer)


def require_sent_again(error: KafkaError) -> None:
    """Raise the error, unless a new producer sends the record once more. aiokafka repeats no request for a producer's id."""
    if not isinstance(error, _SENT_AGAIN) and not (
        isinstance(error, BrokerResponseError) and error.retriable
    ):
        raise error


async def _stop_producer(producer: Any, pending: set[asyncio.Future[Any]]) -> None:
    await access.stop_client(producer)
    for each in list(pending):
        if not each.done():
            each.set_exception(ProducerClosed())


def unreachable(
    bootstrap_servers: str, doing: str, timeout: float, error: BaseException, facts: str, *, stood_still: str
) -> AgentUnreachable:
    """Return the error for a Kafka that doesn't answer."""
    if isinstance(error, TopicAuthorizationFailedError):
        topics = error.args[0] if error.args else "its topics"
        names = topics if isinstance(topics, str) else ", ".join(sorted(topics))
        return AgentUnreachable(
            f"Kafka denies this writer access to the topic {names}: {doing} failed; nothing was committed by this call; "
            f"{NEEDED_RIGHTS}; brokers={bootstrap_servers} {facts}".rstrip()
        )
    timed_out = isinstance(error, TimeoutError | FutureTimeout)
    cause = f"no answer within {timeout:g} s" if timed_out else str(error) or type(error).__name__
    problem = "kafka is unreachable"
    if isinstance(error, BrokerResponseError):
        problem = "kafka answered with an error"
    if type(error) is UnknownError:
        cause = "the code -1, or one that is newer than this client"
    remedy = "check the brokers and their security settings"
    if isinstance(error, MessageSizeTooLargeError):
        remedy = "raise max.message.bytes of the topic (docs/kafka.md)"
    return AgentUnreachable(
        f"{problem}: {doing} failed: {cause}{stood_still}; nothing was committed by this call; {remedy}, then restart the query; "
        f"brokers={bootstrap_servers} {facts}".rstrip()
    )
