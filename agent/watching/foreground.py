"""The watcher as a foreground process: connects to Kafka, watches, and stops on a signal."""

import asyncio
import resource
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from lakewarden.agent import errors
from lakewarden.agent.kafka import producer, start_client
from lakewarden.agent.log import Log
from lakewarden.agent.settings import Settings
from lakewarden.agent.unrequested import guarded
from lakewarden.agent.watching.watcher import Publish, Watcher
from lakewarden.events import WriterEventUnion, encode
from lakewarden.events.access import stop_client

log = structlog.get_logger(__name__)

MEMORY_BYTES = 768 * 1024 * 1024
"""Limit of the own data of a watcher, and of `assess`. A commit of 100,000 files takes 350 MB."""
RETRY_SECONDS = 5.0
"""Between two tries to reach Kafka."""


def limit_memory() -> None:
    """Bound this process's memory: a file of a table must not end the process, nor what runs beside it."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


async def watch_until_signal(settings: Settings, on_ready: Callable[[], object]) -> None:
    """Watch the tables of `settings.watch` until SIGINT or SIGTERM. Calls `on_ready` when Kafka is connected."""
    if not settings.watch:
        raise errors.SettingsError("no table to watch; name one with --table, or set LAKEWARDEN_WATCH")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, tasks.cancel_scope)
        async with publishing(settings) as publish:
            on_ready()
            await Watcher(settings, settings.watch, publish).run()
    log.info("watch.stopped")


@asynccontextmanager
async def publishing(settings: Settings) -> AsyncGenerator[Publish]:
    """A function that publishes a watcher's events, and retries until Kafka has acknowledged them.

    After a failure it connects again: Kafka refuses what follows a refused record, and a client may have ended (`ended_tasks`).
    """
    client = await _connect(settings)
    connecting = anyio.Lock()

    async def publish(events: list[WriterEventUnion]) -> None:
        nonlocal client
        while True:
            used = client
            try:
                with anyio.fail_after(2 * settings.kafka_request_timeout_seconds), guarded("publishing"):
                    await _send(used, settings, events)
                return
            except (KafkaError, errors.TaskEndedError, TimeoutError) as error:
                # Sent again as a whole: a repeated event changes nothing.
                log.warning("watch.not-published", events=len(events), why=repr(error))
            await anyio.sleep(RETRY_SECONDS)
            async with connecting:
                if client is used:  # another table's events may have replaced it
                    try:
                        await stop_client(used)
                        client = await _connect(settings)
                    except (errors.AgentError, KafkaError, OSError) as error:
                        log.warning("watch.kafka-refused", why=str(error) or repr(error))

    try:
        yield publish
    finally:
        await stop_client(client)


async def _send(client: AIOKafkaProducer, settings: Settings, events: list[WriterEventUnion]) -> None:
    sent = [
        await client.send(settings.topics.writers, key=each.table.encode(), value=encode(each))
        for each in events
    ]
    await asyncio.gather(*sent)


async def _connect(settings: Settings) -> AIOKafkaProducer:
    while True:
        try:
            async with Log(settings) as reading:
                await reading.partitions(settings.topics.writers)
            client = producer(settings)
            await start_client(client, settings)
            return client
        except errors.KafkaUnreachableError as error:
            log.warning("watch.kafka-unreachable", why=str(error))
            await anyio.sleep(RETRY_SECONDS)
        except errors.KafkaRefusedError:
            raise
        except errors.AgentError as error:
            raise errors.AgentError(f"{error}; a watcher needs write on it, and no other right") from error


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("watch.stopping", signal=signal.Signals(number).name)
            scope.cancel()
            return
