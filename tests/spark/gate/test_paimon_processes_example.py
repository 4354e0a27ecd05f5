"""`docs/examples/paimon_processes.py` on an S3 server: four processes, and no addition is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.real, pytest.mark.wide]

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "paimon_processes.py"


def test_four_processes_add_to_the_same_rows_and_none_is_lost(
    kafka: KafkaServer, topic_prefix: str, s3_credentials: S3Server, tmp_path: Path
) -> None:
    names = {"AWS_ENDPOINT_URL": s3_credentials.endpoint, "LAKEWARDEN_TOPIC_PREFIX": topic_prefix}
    with running_agent(kafka, topic_prefix, tmp_path, S3_ENDPOINT=s3_credentials.endpoint):
        done = subprocess.run(
            [
                sys.executable,
                str(EXAMPLE),
                kafka.bootstrap_servers,
                f"s3://{s3_credentials.bucket()}/warehouse",
            ],
            env=os.environ | names,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stdout
    assert "trips by day: {0: 8, 1: 8, 2: 8}, expected: {0: 8, 1: 8, 2: 8}" in done.stdout
    batches = set(re.findall(r"^process-(\d) batch (\d): added", done.stdout, re.MULTILINE))
    assert batches == {(str(process), str(batch)) for process in range(4) for batch in range(3)}
