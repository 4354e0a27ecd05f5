"""Markers from executors, which connect to Kafka themselves instead of going through the driver.

**Rule.** A task publishes the markers of what it is about to write, and waits for the acknowledgement, *before* it writes.

**Reason.** The driver publishes `commit-requested` after its tasks have ended. So every marker precedes the request in the
log, whose order decides. And the earlier a marker is in the log, the less compute a losing transaction wastes.

`ExecutorChannel` pickles into a Spark closure, Kafka options included. Each Python worker process keeps one producer per
gate, however many tasks it runs, so a producer is never used under the credentials of another gate. A forked process creates
its own. Beyond `MAX_PRODUCERS`, the one that was used longest ago is closed.
"""

import atexit
import contextlib
import os
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from lakewarden.events import Marker, MarkerCreated, Operation, Topics, encode, event_chunks
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from lakewarden.spark_jobs.gate.kafka import (
    SEND_TIMEOUT_SECONDS,
    STOP_SECONDS,
    LoopThread,
    SharedProducer,
    make_producer,
)
from lakewarden.spark_jobs.gate.kafka_options import EXECUTOR_CLIENT_ID, KafkaSettings
from lakewarden.spark_jobs.gate.scope import as_markers, marker_of

MAX_PRODUCERS = 16
"""Kept per worker process. A driver that makes a gate per batch would otherwise leave one producer for each."""


@dataclass(frozen=True, slots=True)
class ExecutorChannel:
    """Publishes markers of one transaction, from the process in which it is unpickled."""

    bootstrap_servers: str
    topic_prefix: str
    table: str
    transaction: str
    writer: str
    kafka: KafkaSettings | None = field(default=None, repr=False)
    timeout: float = SEND_TIMEOUT_SECONDS
    share: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """Channels with the same value use one producer in each worker process. They must have the same `kafka`."""

    def touch(self, partition: str, file_group: str, operation: Operation) -> None:
        """Publish a marker: this task is about to write the file group. Returns when Kafka has acknowledged it."""
        self.touch_all([marker_of(partition, file_group, operation)])

    def touch_all(self, markers: Iterable[Marker]) -> None:
        """Publish markers. Returns when Kafka has acknowledged all of them."""
        for chunk in event_chunks(as_markers(markers)):
            event = MarkerCreated(
                event_id=uuid.uuid4().hex,
                table=self.table,
                transaction=self.transaction,
                writer=self.writer,
                at=datetime.now(UTC),
                markers=chunk,
            )
            facts = f"table={self.table} writer={self.writer} transaction={self.transaction}"
            _producer(self).send(self.table.encode(), encode(event), facts)


class _ProducerThread:
    """One producer in a loop thread of its own, for all tasks of a worker process."""

    def __init__(
        self, bootstrap_servers: str, kafka: KafkaSettings | None, topic: str, timeout: float
    ) -> None:
        self._topic = topic
        self._timeout = timeout
        self._thread = LoopThread(bootstrap_servers, name="lakewarden-executor")
        self._producer = SharedProducer(
            self._thread,
            partial(
                make_producer,
                bootstrap_servers,
                kafka,
                topic=topic,
                client_id=EXECUTOR_CLIENT_ID,
                timeout=timeout,
            ),
        )

    def send(self, key: bytes, value: bytes, facts: str) -> None:
        async def send() -> int:
            return await (await self._producer.send(self._topic, key, value))

        self._thread.call(send, timeout=self._timeout, doing="publishing markers", facts=facts)

    def stop(self) -> None:
        """Close the producer; ignore that Kafka doesn't answer."""
        if self._thread.started:
            with contextlib.suppress(AgentUnreachable):
                self._thread.call(self._producer.stop, timeout=STOP_SECONDS, doing="closing")
        self._thread.close()


_producers: dict[tuple[int, str], _ProducerThread] = {}
"""In the order of their last use."""
_producers_lock = threading.Lock()


@atexit.register
def _stop_producers() -> None:
    for (pid, _), thread in list(_producers.items()):
        if pid == os.getpid():
            thread.stop()


def _producer(channel: ExecutorChannel) -> _ProducerThread:
    # Keyed by process id: a forked child has its parent's dictionary, but not the thread of its parent's producer.
    key = (os.getpid(), channel.share)
    with _producers_lock:
        found = _producers.pop(key, None)
        if found is None:
            topic = Topics(channel.topic_prefix).writers
            found = _ProducerThread(channel.bootstrap_servers, channel.kafka, topic, channel.timeout)
        _producers[key] = found
        oldest = next(iter(_producers))
        closed = _producers.pop(oldest) if len(_producers) > MAX_PRODUCERS else None
    if closed is not None and oldest[0] == os.getpid():
        closed.stop()
    return found
