"""A Hudi table on a real S3 server, with Hudi's own lock in it, which the agent holds while the sink commits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kafka_fixture import KafkaServer
from tests.processes import ask, running_agent, start_program
from tests.servers.hudi import lock_client_jars
from tests.servers.s3 import S3Server
from tests.spark import hudi_cut_driver, hudi_s3_driver
from tests.spark.hudi_cut_driver import CUTS
from tests.spark.hudi_s3_driver import BATCHES

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(1500)]

DRIVER_SECONDS = 1200
"""It only ends a hang. The first run downloads 280 MB: Hadoop's S3 client."""


def run_driver(module: ModuleType, folder: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the program to its end; return what it has written."""
    result = folder / "result.json"
    program = [sys.executable, str(module.__file__), *arguments, "--result", str(result)]
    program += ["--jars", ",".join(lock_client_jars(folder))]
    log = folder / "driver.log"
    driver = start_program(program, log)
    try:
        assert driver.wait(DRIVER_SECONDS) == 0, log.read_text()[-5000:]
    finally:
        driver.kill()
    found: dict[str, Any] = json.loads(result.read_text())
    return found


Run = Callable[[ModuleType], tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def run(
    kafka: KafkaServer,
    topic_prefix: str,
    tmp_path: Path,
    s3_credentials: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """A function that runs a driver and an agent. Returns what the driver has written, and the audit of the table's lock."""

    def run(module: ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
        server, bucket = s3_credentials, s3_credentials.bucket()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
        arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix]
        with running_agent(kafka, topic_prefix, tmp_path, S3_ENDPOINT=server.endpoint):
            found = run_driver(module, tmp_path, [*arguments, "--bucket", bucket])
            locks = ask(kafka, topic_prefix, "lock", "audit")["locks"]
        lock = f"s3://{bucket}/trips/.hoodie/.locks/table_lock.json"
        (audit,) = [each for each in locks if each["lock"] == lock]
        return found, audit

    return run


def test_batches_and_an_unmodified_writer_share_hudis_own_lock(run: Run) -> None:
    found, lock = run(hudi_s3_driver)

    flights = [[1, flight] for flight in range(BATCHES + 1)] + [[2, flight] for flight in found["written"]]
    assert found["rows"] == flights
    assert len(found["written"]) == BATCHES
    assert None not in found["versions"][:BATCHES]
    assert found["versions"][BATCHES] is None
    assert found["lock"] == lock["lock"]
    assert lock["violations"] == 0
    assert lock["acquisitions"] >= BATCHES


def test_a_driver_that_is_cut_off_from_s3_in_its_commits_leaves_each_batch_once(run: Run) -> None:
    """Cut before Hudi looks for conflicts, and before and after the store has the completed instant; also beyond the lease."""
    found, lock = run(hudi_cut_driver)

    print(f"errors of the query: {found['died']}")
    transactions = dict(found["commits"])
    assert found["cuts"] == len(CUTS), "the network was cut in a commit of each batch"
    assert found["flights"] == list(range(len(CUTS) + 1))
    assert sorted(batch for batch, _ in found["commits"]) == list(range(len(CUTS)))
    for batch, cut in enumerate(CUTS):
        if cut.answered:
            assert transactions[batch] == found["cut"][batch], (
                "what the store had is found, not written again"
            )
    assert found["pending"] == []
    assert lock["violations"] == 0
