"""The compaction program on a real S3 server, with Java Paimon's S3 jar. Java reads the results back from there, too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory, Schema

from lakewarden.agent.bound_child import bound
from lakewarden.handlers.paimon.s3_options import java_options
from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER
from lakewarden.spark_jobs.sinks.paimon.java_table import S3_JAR
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, address
from tests.servers.s3 import S3Server
from tests.spark.conftest import commit_alone, paimon_options
from tests.spark.fake_agent import grant_everything
from tests.spark.harness import Harness
from tests.spark.java_paimon import JavaPaimon, java_paimon

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(1800)]

FLIGHTS = pa.schema([pa.field("flight", pa.int64(), nullable=False), pa.field("delay", pa.int64())])

KEYED = {
    "bucket": "2",
    "merge-engine": "aggregation",
    "fields.delay.aggregate-function": "sum",
    "num-sorted-run.compaction-trigger": "2",
}

HANG_SECONDS = 1500
"""Only ends a hang. Ivy downloads 150 MB the first time."""


@pytest.fixture(scope="module")
def options(s3_server: S3Server) -> dict[str, str]:
    return paimon_options(s3_server)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, options: dict[str, str]) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java"), S3_JAR, options=java_options(options, {})) as paimon:
        yield paimon


def rows_and_files(table: TableAddress) -> tuple[list[tuple[Any, ...]], int]:
    builder = table.open().new_read_builder()
    splits = builder.new_scan().plan().splits()
    rows = builder.new_read().to_arrow(splits).to_pylist()
    return sorted(tuple(row.values()) for row in rows), sum(len(split.files) for split in splits)


@pytest.mark.parametrize(
    ("keys", "files", "keys_from_environment"),
    [((), 1, False), (("flight",), 2, True)],
    ids=["append table", "primary key"],
)
def test_a_table_on_s3_is_compacted_and_both_readers_agree(
    *,
    keys: tuple[str, ...],
    files: int,
    keys_from_environment: bool,
    harness: Harness,
    s3_server: S3Server,
    options: dict[str, str],
    java: JavaPaimon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = harness.agent(grant_everything)
    warehouse = f"s3://{s3_server.bucket()}/lake"
    catalog = CatalogFactory.create({"warehouse": warehouse, **options})
    catalog.create_database("air", ignore_if_exists=True)
    schema = Schema.from_pyarrow_schema(
        FLIGHTS, primary_keys=list(keys), options={"write-only": "true", **(KEYED if keys else {})}
    )
    catalog.create_table("air.flights", schema, ignore_if_exists=False)
    table = address(f"{warehouse}/air.db/flights", options)
    for number in range(6):
        commit_alone(table.uri, [{"flight": flight, "delay": number} for flight in range(4)], options=options)
    expected, _ = rows_and_files(table)
    given = dict(options)
    if keys_from_environment:
        for name, value in s3_server.environment.items():
            monkeypatch.setenv(name, value)
        del given["s3.access-key"], given["s3.secret-key"]

    command = [sys.executable, "-m", "lakewarden.spark_jobs.jobs.compact", "--once", "--master", LOCAL_MASTER]
    command += ["--bootstrap-servers", harness.kafka.bootstrap_servers, "--topic-prefix", harness.prefix]
    command += ["--table", table.uri]
    command += [word for name, value in given.items() for word in ("--catalog-option", f"{name}={value}")]
    done = subprocess.run(bound(command), capture_output=True, text=True, check=False, timeout=HANG_SECONDS)

    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert f"{table.uri} snapshot 7: " in done.stdout
    assert rows_and_files(table) == (expected, files)
    assert java.rows(table.uri) == expected
    (completed,) = agent.wait_for("commit-completed")
    assert completed.version == "7"
    assert "not-fenced" not in done.stderr
