"""A gate whose agent grants everything at once, in this process: a transaction costs no Kafka.

Everything else is the gate's own code. It keeps the markers that each transaction declared, those of executors included.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from lakewarden.events import CommitIntent, CommitRequested, Marker, MarkerCreated, WriterEventUnion
from lakewarden.spark_jobs import CommitGate, Sink
from lakewarden.spark_jobs.gate.event_publisher import Intent
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.spark.memory_channel import MemoryChannel


class MemoryGate(CommitGate):
    """Writes batches to sinks, one after the other."""

    def __init__(self, folder: Path) -> None:
        """`folder` receives the markers of executors."""
        super().__init__(MemoryChannel.bootstrap_servers)
        self._memory = MemoryChannel()
        self._channel = self._memory  # type: ignore[assignment]
        self._folder = folder

    @property
    def events(self) -> list[WriterEventUnion]:
        """What the writers have sent."""
        return self._memory.events

    def prepare(self, intent: Intent) -> Transaction:
        txn = super().prepare(intent)
        txn.executor_channel = lambda: _file_channel(self._folder / f"{txn.id}.markers")  # type: ignore[method-assign]
        return txn

    def write(self, sink: Callable[[], Sink], batch: DataFrame, batch_id: int, *, declared: bool) -> None:
        """Write a batch as a streaming query does. `declared`: whether the batch finds its scope before."""
        self._memory.events.clear()
        admission: Any = "queued" if declared else "optimistic"
        self.foreach_batch(sink(), writer="rows", max_attempts=1, admission=admission)(batch, batch_id)

    def partitions(self) -> tuple[set[str], set[str]]:
        """Return the partitions of the last batch's scope, and these with those of its markers."""
        scope: list[Marker] = []
        markers: list[Marker] = []
        for event in self._memory.events:
            if isinstance(event, CommitIntent):
                scope.extend(event.scope)
                markers.extend(event.scope)
                file = self._folder / f"{event.transaction}.markers"
                lines = file.read_text().splitlines() if file.exists() else []
                markers.extend(Marker(**json.loads(line)) for line in lines)
            if isinstance(event, MarkerCreated | CommitRequested):
                markers.extend(event.markers)
        return {marker.partition for marker in scope}, {marker.partition for marker in markers}


def _file_channel(file: Path) -> Any:
    """Return a channel for executors that writes markers to a file. Its class is pickled by value: executors lack this module."""
    path = str(file)

    class FileChannel:
        def touch_all(self, markers: Iterable[Any]) -> None:
            lines = [f"{marker.model_dump_json()}\n" for marker in markers]
            with open(path, "a") as stream:  # noqa: PTH123 - pickled by value
                stream.writelines(lines)

        def touch(self, partition: str, file_group: str, operation: str) -> None:
            raise NotImplementedError(f"{uuid.uuid4()}")

    return FileChannel()
