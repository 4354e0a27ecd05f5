"""The compaction program as a process: a table that comes late, a signal, and SIGKILL before its commit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakewarden.agent.bound_child import bound
from lakewarden.events import CommitRequested, DecisionEventUnion, WriterEventUnion
from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER
from tests.kafka_fixture import KafkaServer
from tests.spark.conftest import MakeTable, data_files_of, snapshots_of
from tests.spark.fake_agent import grant_everything
from tests.spark.harness import Harness
from tests.spark.sinks.test_paimon_compaction import FLIGHTS, commit_rows, files_of, values_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 300


@contextmanager
def compacting(
    kafka: KafkaServer, prefix: str, table: str, output: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "lakewarden.spark_jobs.jobs.compact", "--table", table, *options]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", prefix]
    command += ["--master", LOCAL_MASTER]
    with output.open("wb") as out, output.with_suffix(".errors").open("wb") as errors:
        program = subprocess.Popen(bound(command), stdout=out, stderr=errors)
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def commit_flights(table: str, count: int) -> None:
    for number in range(count):
        commit_rows(table, FLIGHTS, [(1, number)])


def test_it_survives_failing_rounds_compacts_and_ends_by_sigterm(
    harness: Harness, make_table: MakeTable, tmp_path: Path
) -> None:
    """The table doesn't exist at first."""
    harness.agent(grant_everything)
    output = tmp_path / "output"
    errors = output.with_suffix(".errors")
    path = tmp_path / "warehouse" / "test.db" / "flights"

    with compacting(harness.kafka, harness.prefix, str(path), output, "--every", "1") as program:
        wait_until(lambda: errors.read_text().count("failed: No schema found") > 1, PATIENCE_SECONDS)
        table = make_table(partition_keys=(), schema=FLIGHTS)
        commit_flights(table, 6)
        wait_until(lambda: "6 files became 1" in output.read_text(), PATIENCE_SECONDS)
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_SECONDS) == 0

    lines = [
        line for line in output.read_text().splitlines() if not line.startswith(":: ")
    ]  # Ivy's, in Spark 3.5
    assert lines == [
        f"file://{path} ready: a round every 1 s",
        f"file://{path} snapshot 7: 6 files became 1",
    ]
    assert "paimon.not-write-only" in errors.read_text()
    assert values_of(table) == [(1, number) for number in range(6)]


@pytest.mark.wide
def test_sigkill_between_compute_and_commit_leaves_the_table_as_it_is(
    harness: Harness, make_table: MakeTable, tmp_path: Path
) -> None:
    def never_granted(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        return [] if isinstance(event, CommitRequested) else grant_everything(event, offset)

    agent = harness.agent(never_granted)
    table = make_table(partition_keys=(), schema=FLIGHTS, **{"write-only": "true"})
    commit_flights(table, 6)
    before, files = len(snapshots_of(table)), files_of(table)

    with compacting(harness.kafka, harness.prefix, table, tmp_path / "output", "--once") as program:
        wait_until(lambda: "commit-requested" in agent.types(), PATIENCE_SECONDS)
        program.kill()
        program.wait()

    assert (len(snapshots_of(table)), files_of(table)) == (before, files)
    assert len(data_files_of(table) - files) == 1
    assert values_of(table) == [(1, number) for number in range(6)]
