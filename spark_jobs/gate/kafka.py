"""Kafka for a writer: settings that pass through, one way to fail, and an event loop for blocking callers.

Drivers and executors are threads of synchronous Python; aiokafka lives in an event loop. `LoopThread` runs that loop in
one daemon thread. The rule for everything that crosses over: it is bounded in time *inside* the loop, and once more
outside, so a caller never hangs; and what fails there arrives here as `AgentUnreachable`, naming the brokers.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeAlias, TypeVar

import anyio
from aiokafka.errors import KafkaError
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from lakewarden.spark_jobs.gate.errors import AgentUnreachable

KafkaSettings: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""aiokafka's own keyword arguments (`security_protocol`, `sasl_mechanism`, …), or a function that makes them.

A function is what executors need for an `ssl_context`, which doesn't pickle: it is called where it is used.
"""

SEND_TIMEOUT_SECONDS = 10.0
"""For one record to be acknowledged. Above a leader election (a few seconds), below a person's patience."""

GRACE_SECONDS = 5.0
"""On top of the time inside the loop, before a caller gives the loop itself up as stuck."""

STOP_SECONDS = 2.0
"""For a client to say goodbye to the broker."""

T = TypeVar("T")


def settings(kafka: KafkaSettings | None) -> dict[str, Any]:
    """The keyword arguments themselves."""
    if kafka is None:
        return {}
    return dict(kafka()) if callable(kafka) else dict(kafka)


async def make_producer(bootstrap_servers: str, kafka: KafkaSettings | None) -> Any:
    """A started producer: all replicas acknowledge, no duplicates from its retries, no lingering."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        request_timeout_ms=int(SEND_TIMEOUT_SECONDS * 1000),
        **settings(kafka),
    )
    try:
        await producer.start()
    except BaseException:
        await stop_quietly(producer)
        raise
    return producer


async def stop_quietly(client: Any) -> None:
    """Close an aiokafka client in bounded time, whatever state it is in.

    In a task of its own: a consumer whose fetch was about to be tried again, as when its broker has gone, lets the cancellation
    of that fetch escape from its `stop`; in our task that would be a cancellation of ours.
    """
    from aiokafka import AIOKafkaProducer

    stopping = asyncio.ensure_future(client.stop())
    with anyio.move_on_after(STOP_SECONDS, shield=True):
        await asyncio.wait([stopping])
    with suppress(KafkaError, OSError):
        if stopping.cancel() or stopping.cancelled():
            connections = client.client if isinstance(client, AIOKafkaProducer) else client._client  # noqa: SLF001
            with anyio.move_on_after(STOP_SECONDS, shield=True):
                await connections.close()  # to which its `stop` did not come
        else:
            stopping.result()


class LoopThread:
    """A daemon thread with an event loop; started by the first call, ended by `close`, at the latest when Python exits.

    That late, a loop that is merely dropped would hang the exit: its thread doesn't run any more when it is asked to end.
    `tasks` lives as long as the thread: background work belongs there, and is cancelled by `close`.
    """

    def __init__(self, bootstrap_servers: str, *, name: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._name = name
        self._lock = threading.Lock()
        self._manager: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal | None = None
        self._running_tasks: Future[None] | None = None
        self._tasks: TaskGroup | None = None
        _threads.add(self)

    @property
    def started(self) -> bool:
        """Whether there is anything to close."""
        return self._portal is not None

    @property
    def tasks(self) -> TaskGroup:
        """Where background work of this loop runs; only inside the loop."""
        assert self._tasks is not None
        return self._tasks

    def portal(self) -> BlockingPortal:
        """The way into the loop."""
        with self._lock:
            if self._portal is None:
                self._manager = start_blocking_portal(name=self._name)
                self._portal = self._manager.__enter__()
                self._running_tasks, self._tasks = self._portal.start_task(_run_tasks)
            return self._portal

    def call(self, function: Callable[[], Awaitable[T]], *, timeout: float, doing: str, facts: str = "") -> T:
        """Run `function` in the loop and wait for its result, at most `timeout` seconds. `facts` ends every error."""

        async def bounded() -> T:
            with anyio.fail_after(timeout):
                return await function()

        future: Future[T] = self.portal().start_task_soon(bounded)
        try:
            return future.result(timeout + GRACE_SECONDS)
        except AgentUnreachable as error:
            raise AgentUnreachable(f"{error} {facts}".rstrip()) from error.__cause__
        except (KafkaError, OSError, TimeoutError, FutureTimeout) as error:
            future.cancel()
            raise unreachable(self.bootstrap_servers, doing, timeout, error, facts) from error

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `function` in the background until it ends; it handles its own errors."""

        async def spawning() -> None:
            self.tasks.start_soon(function)

        self.portal().start_task_soon(spawning)

    def close(self) -> None:
        """End the loop and whatever still runs in it; a loop that is stuck is left behind with its daemon thread."""
        with self._lock:
            manager, running_tasks = self._manager, self._running_tasks
            self._manager = self._portal = self._running_tasks = None
        if manager is None:
            return
        if running_tasks is not None:
            running_tasks.cancel()
        ending = threading.Thread(
            target=manager.__exit__, args=(None, None, None), daemon=True, name=f"{self._name}-close"
        )
        ending.start()
        ending.join(GRACE_SECONDS)


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Runs after the exit handlers of whoever uses a loop, which were registered later: their goodbye comes first."""
    for thread in list(_threads):
        thread.close()


async def _run_tasks(*, task_status: TaskStatus[TaskGroup]) -> None:
    async with anyio.create_task_group() as tasks:
        task_status.started(tasks)
        await anyio.sleep_forever()


def unreachable(
    bootstrap_servers: str, doing: str, timeout: float, error: BaseException, facts: str
) -> AgentUnreachable:
    """What a caller gets for a Kafka that doesn't answer."""
    timed_out = isinstance(error, TimeoutError | FutureTimeout)
    why = f"no answer within {timeout:g} s" if timed_out else str(error) or type(error).__name__
    return AgentUnreachable(
        f"kafka is unreachable: {doing} failed: {why}; nothing was committed by it; check the brokers and "
        f"their security settings, then restart the query; brokers={bootstrap_servers} {facts}".rstrip()
    )
