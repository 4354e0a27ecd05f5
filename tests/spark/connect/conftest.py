"""One Connect server for all tests here, and clients of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_fixture import KafkaServer
from tests.spark.connect.server import ROOT, ConnectServer, connect_server
from tests.spark.fake_agent import FakeAgent, aborted, grant_everything
from tests.spark.harness import Harness

PYTHON = os.environ.get("LAKEWARDEN_TEST_CLIENT") or sys.executable
"""Of the clients. `make test-matrix` has an environment with `pyspark-client`, which has neither a JVM nor py4j."""


class Client:
    """A running `client.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> dict[str, Any]:
        """Return what the next line says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.wait()
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()


class Clients(ExitStack):
    """Starts clients of one test."""

    def __init__(self, server: ConnectServer, kafka: KafkaServer, prefix: str) -> None:
        super().__init__()
        self.server = server
        self._given = {"kafka": kafka.bootstrap_servers, "prefix": prefix}

    def start(self, *queries: dict[str, Any], in_turn: bool = False, **gate: Any) -> Client:
        given: dict[str, Any] = {
            **self._given,
            "url": queries[0].get("url", self.server.url),
            "queries": queries,
            "in_turn": in_turn,
            "gate": {"heartbeat_seconds": 0.2} | gate,
        }
        process = subprocess.Popen(
            [PYTHON, "-m", "tests.spark.connect.client", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.enter_context(process)  # closes its pipes
        self.callback(process.kill)
        return Client(process)

    def restart_after_a_kill(self, query: dict[str, Any], flag: Path) -> None:
        """Run a query whose process kills itself and leaves the flag, then run it again, to its end."""
        killed = self.start(query)
        started = killed.line()
        assert killed.line()["error"] is not None
        assert flag.exists()

        again = self.start(query)

        assert again.line() == started
        assert again.line()["error"] is None


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture
def clients(connect: ConnectServer, kafka: KafkaServer, topic_prefix: str) -> Iterator[Clients]:
    with Clients(connect, kafka, topic_prefix) as clients:
        yield clients


@pytest.fixture
def aborting(harness: Harness, tmp_path: Path) -> FakeAgent:
    """An agent that aborts the first batch whose statement computes, which would run for minutes, and grants the others."""
    computing, fast = tmp_path / "computing", tmp_path / "fast"

    def script(event: Any, offset: int) -> list[Any]:
        if event.type == "writer-heartbeat" and computing.exists() and not fast.exists():
            fast.touch()
            return [aborted(event)]
        return list(grant_everything(event, offset))

    return harness.agent(script)


@pytest.fixture
def query(tmp_path: Path) -> Any:
    """A function that describes a query over batches of rows, and writes their files."""

    def described(
        writer: str, body: str, batches: list[list[dict[str, Any]]], schema: str, **more: Any
    ) -> dict[str, Any]:
        source = tmp_path / f"{writer}-source"
        source.mkdir(exist_ok=True)
        for number, rows in enumerate(batches):
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            file = source / f"{number:03}.json"
            file.write_text(text)
            os.utime(file, (number, number))  # Spark reads them in this order
        checkpoint = str(tmp_path / f"{writer}-checkpoint")
        return {
            "writer": writer,
            "body": body,
            "schema": schema,
            "source": str(source),
            "checkpoint": checkpoint,
            **more,
        }

    return described
