"""The product's own agent, as a process, for one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kafka_fixture import KafkaServer
from tests.waiting import PATIENCE_SECONDS, wait_until


def start_agent(
    kafka: KafkaServer, topic_prefix: str, folder: Path, *, name: str = "agent", **settings: str
) -> subprocess.Popen[bytes]:
    """Start an agent that writes its log to `folder`. `settings` are its environment variables without `LAKEWARDEN_`."""
    command = [str(Path(sys.executable).with_name("lakewarden")), "agent"]
    command += ["--bootstrap-servers", kafka.bootstrap_servers]
    command += ["--tables", "file:///*", "--tables", "s3://*", "--lock-root", (folder / "locks").as_uri()]
    variables = {"TOPIC_PREFIX": topic_prefix, "REPLICATION": "1"} | settings
    environment = os.environ | {f"LAKEWARDEN_{key}": value for key, value in variables.items()}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@contextmanager
def running_agent(
    kafka: KafkaServer, topic_prefix: str, folder: Path, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent that answers, as `start_agent` does. It must exit with 0."""
    log_file = folder / "agent.log"
    earlier = len(log_file.read_text()) if log_file.exists() else 0
    agent = start_agent(kafka, topic_prefix, folder, **settings)

    def is_ready() -> bool:
        log = log_file.read_text()[earlier:]
        assert agent.poll() is None, log[-3000:]
        return "agent.ready" in log

    try:
        wait_until(is_ready)
        yield agent
    finally:
        agent.terminate()
        assert agent.wait(PATIENCE_SECONDS) == 0, log_file.read_text()[-3000:]


def ask(kafka: KafkaServer, topic_prefix: str, *command: str) -> Any:
    """What a command of `lakewarden` prints as JSON."""
    program = [str(Path(sys.executable).with_name("lakewarden")), *command, "--output", "json"]
    program += ["--bootstrap-servers", kafka.bootstrap_servers]
    environment = os.environ | {"LAKEWARDEN_TOPIC_PREFIX": topic_prefix}
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
