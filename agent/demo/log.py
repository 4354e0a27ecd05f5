"""Reads the records of a run: markers and conflicts from Kafka, and the conflicts that the conflicts job wrote to Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
import pyarrow.dataset
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter

from lakewarden.agent.demo.errors import DemoError
from lakewarden.agent.errors import AgentError
from lakewarden.agent.log import Log
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import (
    CONFLICT_EVENT,
    DEFAULT_PARTITIONS,
    DEFAULT_PREFIX,
    WRITER_EVENT,
    ConflictDetected,
    EventBase,
    Undecodable,
    WriterEventUnion,
    decode,
)

READ_SECONDS = 30.0
"""Only ends a hang: a demo's log has some thousand records and is read in less than a second."""

T = TypeVar("T", bound=EventBase)


@dataclass(frozen=True, slots=True)
class ConflictLog:
    """The records of one table, in the order of each topic."""

    conflicts: Sequence[ConflictDetected] = ()
    writer_events: Sequence[WriterEventUnion] = field(default=(), repr=False)

    @property
    def victims(self) -> set[str]:
        """The transactions that conflicts aborted."""
        return {conflict.victim for conflict in self.conflicts}


def read_log(bootstrap_servers: str, table: str) -> ConflictLog:
    """Read all records of `table` from the demo's own Kafka."""
    settings = KafkaSettings(
        bootstrap_servers=bootstrap_servers, topic_prefix=DEFAULT_PREFIX, kafka_security_protocol="PLAINTEXT"
    )

    async def read(log: Log, topic: str, kind: TypeAdapter[T]) -> list[T]:
        partitions = [TopicPartition(topic, number) for number in range(DEFAULT_PARTITIONS)]
        found = await log.read(dict.fromkeys(partitions))
        events: list[T] = []
        for record in (record for records in found.values() for record in records):
            event = decode(kind, record.value)
            if not isinstance(event, Undecodable) and event.table == table:
                events.append(event)
        return events

    async def read_both() -> ConflictLog:
        with anyio.fail_after(READ_SECONDS):
            async with Log(settings) as log:
                return ConflictLog(
                    await read(log, log.topics.conflicts, CONFLICT_EVENT),
                    await read(log, log.topics.writers, WRITER_EVENT),
                )

    try:
        return anyio.run(read_both)
    except (TimeoutError, KafkaError, AgentError) as error:
        raise DemoError(f"the log could not be read from Kafka at {bootstrap_servers}: {error!r}") from error


def victims_in_parquet(folder: Path) -> set[str] | None:
    """The aborted transactions that the conflicts job has written; None before its first readable file."""
    try:
        files = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive")
        victims = files.to_table(columns=["victim"])["victim"].drop_null()
    except (OSError, ValueError):
        return None
    return set(victims.to_pylist())
