"""What Kafka and the third query kept of the run: markers, conflicts, and the conflicts once more as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
import pyarrow.dataset
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter

from lakewarden.agent.demo.errors import DemoError
from lakewarden.events import (
    CONFLICT_EVENT,
    WRITER_EVENT,
    ConflictDetected,
    EventBase,
    Topics,
    Undecodable,
    WriterEventUnion,
    decode,
)

READ_SECONDS = 30.0
"""A demo's log holds some thousand records and is read in less than a second."""

T = TypeVar("T", bound=EventBase)


@dataclass(frozen=True, slots=True)
class ConflictLog:
    """The records of one table, each topic in its own order."""

    conflicts: Sequence[ConflictDetected] = ()
    writer_events: Sequence[WriterEventUnion] = field(default=(), repr=False)


def read_log(bootstrap_servers: str, table: str, topics: Topics | None = None) -> ConflictLog:
    """Everything that the log says of `table` up to now."""
    names = topics or Topics()

    async def read() -> ConflictLog:
        with anyio.fail_after(READ_SECONDS):
            return ConflictLog(
                await _read_topic(bootstrap_servers, names.conflicts, CONFLICT_EVENT, table),
                await _read_topic(bootstrap_servers, names.writers, WRITER_EVENT, table),
            )

    try:
        return anyio.run(read)
    except (TimeoutError, KafkaError) as error:
        raise DemoError(f"Kafka at {bootstrap_servers} did not hand out its log: {error!r}") from error


def victims_in_parquet(folder: Path) -> set[str] | None:
    """The aborted transactions that the third query wrote down; None while it has written nothing readable."""
    try:
        files = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive")
        return set(files.to_table(columns=["victim"])["victim"].to_pylist())
    except (OSError, KeyError, ValueError):
        return None


async def _read_topic(bootstrap_servers: str, topic: str, kind: TypeAdapter[T], table: str) -> list[T]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        numbers = await _partitions(consumer, topic)
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        if not partitions:
            return []
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        found: list[T] = []
        unread = {
            partition for partition in partitions if ends[partition] > await consumer.position(partition)
        }
        while unread:
            for partition, records in (await consumer.getmany(*unread, timeout_ms=1000)).items():
                for record in records:
                    event: T | Undecodable = decode(kind, record.value)
                    if not isinstance(event, Undecodable) and event.table == table:
                        found.append(event)
                if await consumer.position(partition) >= ends[partition]:
                    unread.discard(partition)
        return found
    finally:
        await consumer.stop()


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    await consumer.topics()
    return set(consumer.partitions_for_topic(topic) or ())
