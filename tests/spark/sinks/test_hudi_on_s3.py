"""A Hudi table on a real S3 server, with Hudi's own lock in it, which the agent holds while the sink commits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_fixture import KafkaServer
from tests.servers.hudi import hudi_class_path, hudi_jars
from tests.servers.s3 import S3Server
from tests.spark import hudi_s3_driver
from tests.spark.agents import running_agent
from tests.spark.hudi_s3_driver import BATCHES

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(1500)]

DRIVER_SECONDS = 1200
"""It only ends a hang. The first run downloads 280 MB: Hadoop's S3 client."""


def client_jars(folder: Path) -> list[str]:
    """The jars of Hudi's lock client for S3."""
    classes = hudi_class_path().partition(":")[0]
    jar = folder / "client.jar"
    subprocess.run(["jar", "cf", str(jar), "-C", classes, "org"], check=True)
    sdk = (path for path in sorted(hudi_jars().glob("*.jar")) if not path.name.startswith("hudi-"))
    return [str(jar), *map(str, sdk)]


def test_batches_and_an_unmodified_writer_share_hudis_own_lock(
    kafka: KafkaServer,
    topic_prefix: str,
    tmp_path: Path,
    s3_credentials: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = s3_credentials
    bucket = server.bucket()
    result = tmp_path / "result.json"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    program = [sys.executable, str(hudi_s3_driver.__file__)]
    program += ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix]
    program += ["--bucket", bucket, "--jars", ",".join(client_jars(tmp_path)), "--events", str(result)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    with running_agent(kafka, topic_prefix, tmp_path, S3_ENDPOINT=server.endpoint, GRANT_SECONDS="20"):
        done = subprocess.run(
            program, capture_output=True, text=True, timeout=DRIVER_SECONDS, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr[-5000:]
        command = [str(Path(sys.executable).with_name("lakewarden")), "lock", "audit", "--output", "json"]
        command += ["--bootstrap-servers", kafka.bootstrap_servers]
        environment["LAKEWARDEN_TOPIC_PREFIX"] = topic_prefix
        audit = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=environment, check=False
        )

    found = json.loads(result.read_text())
    flights = [[1, flight] for flight in range(BATCHES + 1)] + [[2, flight] for flight in found["written"]]
    assert found["rows"] == flights
    assert len(found["written"]) == BATCHES
    assert None not in found["versions"][:BATCHES]
    assert found["versions"][BATCHES] is None
    assert found["lock"] == f"s3://{bucket}/trips/.hoodie/.locks/table_lock.json"
    assert audit.returncode == 0, audit.stderr
    (lock,) = [each for each in json.loads(audit.stdout)["locks"] if each["lock"] == found["lock"]]
    assert lock["violations"] == 0
    assert lock["acquisitions"] >= BATCHES
