"""Markers from executors, which connect to Kafka themselves instead of going through the driver.

**Rule.** A task publishes the markers of what it is about to write, and waits for the acknowledgement, *before* it writes.

**Reason.** The driver publishes `commit-requested` after its tasks have ended. So every marker precedes the request in the
log, whose order decides. And the earlier a marker is in the log, the less a losing transaction computes in vain.

`ExecutorChannel` pickles into a Spark closure, Kafka settings included. Each Python worker process keeps one producer per
broker address and settings, however many tasks it runs. A forked process creates its own.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio

from lakewarden.events import Marker, MarkerCreated, Operation, Topics, encode
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from lakewarden.spark_jobs.gate.kafka import (
    SEND_TIMEOUT_SECONDS,
    STOP_SECONDS,
    KafkaSettings,
    LoopThread,
    make_producer,
    stop_quietly,
)
from lakewarden.spark_jobs.gate.markers import event_chunks


@dataclass(frozen=True, slots=True)
class ExecutorChannel:
    """Publishes markers of one transaction, from the process in which it is unpickled."""

    bootstrap_servers: str
    topic_prefix: str
    table: str
    transaction: str
    writer: str
    kafka: KafkaSettings | None = None
    timeout: float = SEND_TIMEOUT_SECONDS

    def touch(self, partition: str, file_group: str, operation: Operation) -> None:
        """Publish a marker: this task is about to write the file group. Returns when Kafka has acknowledged it."""
        self.touch_all([Marker(partition=partition, file_group=file_group, operation=operation)])

    def touch_all(self, markers: Iterable[Marker]) -> None:
        """Publish markers. Returns when Kafka has acknowledged all of them."""
        topic = Topics(self.topic_prefix).writers
        for chunk in event_chunks(markers):
            event = MarkerCreated(
                event_id=uuid.uuid4().hex,
                table=self.table,
                transaction=self.transaction,
                writer=self.writer,
                at=datetime.now(UTC),
                markers=chunk,
            )
            facts = f"table={self.table} writer={self.writer} transaction={self.transaction}"
            _producer(self).send(topic, self.table.encode(), encode(event), self.timeout, facts)


class _ProducerThread:
    """One producer in a loop thread of its own, for all tasks of a worker process."""

    def __init__(self, bootstrap_servers: str, kafka: KafkaSettings | None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._kafka = kafka
        self._thread = LoopThread(bootstrap_servers, name="lakewarden-executor")
        self._opening = anyio.Lock()
        self._producer: Any = None

    def send(self, topic: str, key: bytes, value: bytes, timeout: float, facts: str) -> None:
        """Publish one record and wait for its acknowledgement."""
        self._thread.call(
            self._send(topic, key, value), timeout=timeout, doing="publishing markers", facts=facts
        )

    def stop(self) -> None:
        """Close the producer; ignore that Kafka doesn't answer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(AgentUnreachable):
                self._thread.call(lambda: stop_quietly(producer), timeout=STOP_SECONDS, doing="closing")

    def _send(self, topic: str, key: bytes, value: bytes) -> Callable[[], Awaitable[None]]:
        async def send() -> None:
            async with self._opening:
                if self._producer is None:
                    self._producer = await make_producer(self._bootstrap_servers, self._kafka)
                producer = self._producer
            try:
                await producer.send_and_wait(topic, value, key)
            except BaseException:
                # The broker may refuse an idempotent producer that has dropped a record (`channel.py`): replace it.
                if self._producer is producer:
                    self._producer = None
                    self._thread.start_soon(stop_quietly, producer)
                raise

        return send


_producers: dict[tuple[int, str, bytes], _ProducerThread] = {}
_producers_lock = threading.Lock()


@atexit.register
def _stop_producers() -> None:
    for (pid, _, _), thread in list(_producers.items()):
        if pid == os.getpid():
            thread.stop()


def _producer(channel: ExecutorChannel) -> _ProducerThread:
    # Keyed by process id: a forked child has its parent's dictionary, but not the thread of its parent's producer.
    key = (os.getpid(), channel.bootstrap_servers, _fingerprint(channel.kafka))
    with _producers_lock:
        if key not in _producers:
            _producers[key] = _ProducerThread(channel.bootstrap_servers, channel.kafka)
        return _producers[key]


def _fingerprint(kafka: KafkaSettings | None) -> bytes:
    """Return the same bytes for equal settings: tasks that unpickle copies of the same settings share a producer."""
    if callable(kafka):
        code = getattr(kafka, "__code__", None)
        described = repr(
            (
                getattr(kafka, "__module__", ""),
                getattr(kafka, "__qualname__", ""),
                getattr(code, "co_code", b""),
            )
        )
    else:
        described = repr(sorted((kafka or {}).items(), key=lambda pair: pair[0]))
    return hashlib.sha256(described.encode()).digest()
