"""Delta and Iceberg tables on a real S3 server that two drivers write, each in a JVM of its own, with the gate and without it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent, start_program
from tests.servers.iceberg_catalogs import (
    running_hive_metastore,
    running_nessie,
    running_postgresql,
    running_rest_catalog,
)
from tests.servers.s3 import S3Server
from tests.spark import s3_driver
from tests.spark.s3_driver import NUMBER, WRITERS, s3_file_io

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(1800)]

BATCHES = 3
"""Of each driver, in each mode."""

ALONE = 25
"""Commits of each driver without the gate. Both begin each of them together."""


@contextlib.contextmanager
def catalog_of(kind: str, bucket: str, folder: Path, server: S3Server) -> Iterator[str]:
    """Run the catalog that the kind needs, and yield its URI. Others than REST are files beside the tables."""
    running = {
        "iceberg-rest": lambda: running_rest_catalog(folder, s3_file_io(bucket)),
        "iceberg-nessie": lambda: running_nessie(folder, bucket, server),
        "iceberg-postgresql": running_postgresql,
        "iceberg-hive": lambda: running_hive_metastore(folder),
    }.get(kind, lambda: contextlib.nullcontext(""))
    with running() as uri:
        yield uri


@pytest.mark.parametrize(
    ("kind", "loses_alone"),
    [
        ("delta", True),
        ("iceberg-hadoop", True),
        *((f"iceberg-{catalog}", False) for catalog in ("rest", "nessie", "postgresql", "hive")),
    ],
)
def test_two_drivers_lose_no_row_through_the_gate(
    *,
    kafka: KafkaServer,
    topic_prefix: str,
    tmp_path: Path,
    s3_credentials: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    loses_alone: bool,
) -> None:
    """Without it they do, where the commit is a file on S3: Spark had reported each commit to its driver.

    Each table knows every batch at the end, also where its catalog lists the newest snapshot only.
    """
    server = s3_credentials
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    bucket = server.bucket()
    with (
        catalog_of(kind, bucket, tmp_path, server) as catalog,
        running_agent(kafka, topic_prefix, tmp_path, S3_ENDPOINT=server.endpoint),
    ):
        program = [sys.executable, str(s3_driver.__file__), "--kind", kind, "--bucket", bucket]
        program += ["--catalog", catalog, "--folder", str(tmp_path), "--topic-prefix", topic_prefix]
        program += ["--bootstrap-servers", kafka.bootstrap_servers]
        program += ["--alone", str(ALONE if loses_alone else 0), "--batches", str(BATCHES)]
        assert _run_both(program, tmp_path) == [0, 0], _errors(tmp_path)

    found = json.loads((tmp_path / "found.json").read_text())
    expected = [
        [1, 2 * number + NUMBER[writer], writer] for number in range(2 * BATCHES) for writer in WRITERS
    ]
    assert found["gated"] == sorted(expected)
    assert found["unknown"] == []
    assert len(found["overtaken"]) == (0 if kind == "delta" else 6)
    for table, rows in found["overtaken"].items():
        assert rows == [[1, 1, "batch"], [2, 1, "foreign"], [2, 2, "foreign"]], table
    counts = Counter(row[2] for row in found["alone"])
    lost = len(WRITERS) * ALONE - counts.total() if loses_alone else 0
    print(f"{kind}: {lost} of {len(WRITERS) * ALONE} commits were lost without the gate")
    assert (lost > 0) == loses_alone


def _run_both(program: list[str], folder: Path) -> list[int | None]:
    """Run both drivers until they have ended, or one has failed. Return their exit codes; None for one that was ended then."""
    with contextlib.ExitStack() as stack:
        drivers = []
        for writer in WRITERS:
            driver = start_program([*program, "--writer", writer], folder / f"driver-{writer}.log")
            stack.callback(driver.wait)
            stack.callback(driver.kill)
            drivers.append(driver)
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            time.sleep(0.1)
            codes = [driver.poll() for driver in drivers]
        return codes


def _errors(folder: Path) -> str:
    return "\n".join((folder / f"driver-{writer}.log").read_text()[-3000:] for writer in WRITERS)
