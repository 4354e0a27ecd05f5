"""Two writers of the same file groups of a Hudi table, with the product's own agent."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.spark_jobs import CommitGate, GateEvent, HudiSink
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.spark.fake_agent import PATIENCE_SECONDS
from tests.spark.sinks.cases import HUDI_OPTIONS, timeline_of

pytestmark = [pytest.mark.real]

BATCHES = 3
ROWS = 200
COLUMNS = "flight long, day int, departure string"


def test_two_writers_of_the_same_file_groups_lose_nothing(
    kafka: KafkaServer,
    topic_prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each batch updates every row, so all rows are those of the batch that was committed last, and each batch is there once."""
    table = tmp_path / "hudi"
    sink = HudiSink(str(table), keys=["flight"], partition_by=["day"], options=HUDI_OPTIONS)
    events: list[GateEvent] = []
    raised: list[BaseException] = []

    both_admitted = threading.Barrier(2)
    begin = HudiWrite.begin

    def begin_together(self: HudiWrite, answer: Any) -> None:
        intent = self._txn.intent
        if (intent.batch_id, intent.attempt) == (0, 1) and self._txn.writer != "seed":
            both_admitted.wait(PATIENCE_SECONDS)
        begin(self, answer)

    monkeypatch.setattr(HudiWrite, "begin", begin_together)

    def batch(tag: str) -> Any:
        rows = spark.range(0, ROWS, 1, 2).selectExpr(
            "id flight", "cast(id % 2 as int) day", f"'{tag}' departure"
        )
        return rows.select("flight", "day", "departure")

    def write(gate: CommitGate, writer: str) -> None:
        try:
            body = gate.foreach_batch(sink, writer=writer, admission="optimistic", max_attempts=20)
            for number in range(BATCHES):
                body(batch(f"{writer}{number}"), number)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's thread
            raised.append(error)

    with (
        running_agent(kafka, topic_prefix, tmp_path),
        CommitGate(
            kafka.bootstrap_servers,
            topic_prefix=topic_prefix,
            admission_timeout_seconds=120.0,
            grant_timeout_seconds=120.0,
            observer=events.append,
        ) as gate,
    ):
        gate.foreach_batch(sink, writer="seed")(batch("seed"), 0)
        threads = [InheritableThread(target=write, args=(gate, writer)) for writer in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert [str(error) for error in raised] == []
    commits = committed(table)
    assert sorted(commits[1:]) == sorted(f"{writer}{number}" for writer in "ab" for number in range(BATCHES))
    rows = spark.read.format("hudi").load(sink.table).collect()
    assert sorted(row["flight"] for row in rows) == list(range(ROWS))
    assert {row["departure"] for row in rows} == {commits[-1]}
    lost = {event.transaction for event in events if event.what == "abort"}
    pending = [
        each.time for each in HudiFiles(sink.table).instants() if each.writes and each.state != "completed"
    ]
    assert lost, "the first batches of both were open at the same time"
    assert pending == [], "what they lost is rolled back"


def committed(table: Path) -> list[str]:
    """Writer and number of every batch, in the order of their completion."""
    found: list[tuple[str, str]] = []
    for instant in HudiFiles(f"file://{table}").instants():
        file = instant.file("completed")
        if file is not None and instant.writes:
            path = timeline_of(table) / file.name
            entry = json.loads(read_metadata(path.read_bytes()).extra["_lakewarden"])
            completion = instant.completion or f"{path.stat().st_mtime_ns}"
            found.append((completion, f"{entry['writer']}{entry['batch']}"))
    return [name for _, name in sorted(found)]
