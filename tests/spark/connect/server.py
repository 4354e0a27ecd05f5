"""A Spark Connect server, started from PySpark's own files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from lakewarden.agent.embedded.kafka import free_port
from tests.servers.program import spawn, stop
from tests.spark.formats import format_settings
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]

ON_CONNECT = os.environ.get("LAKEWARDEN_TEST_CONNECT") == "1"
"""Whether the tests' Spark session is that of a client of such a server, for the contract of the sinks (`make test-matrix`)."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}


@dataclass(frozen=True)
class ConnectServer:
    url: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def connect_server(folder: Path, port: int | None = None, **more: str) -> Iterator[ConnectServer]:
    """Run a server with the tests' table formats until the block ends."""
    home = Path(pyspark.__file__).parent
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests/spark/connect/worker.py"} "$@"\n')
    python.chmod(0o755)
    port, log = port or free_port(), folder / "log"
    settings = SETTINGS | format_settings() | more | {"spark.connect.grpc.binding.port": f"{port}"}
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    process = spawn(
        [
            *(str(home / "bin" / "spark-submit"), "--master", "local[2]", *options),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        ],
        os.environ
        | {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        },
        log,
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _listens(port):
            running = process.poll() is None and time.monotonic() < deadline
            assert running, log.read_text()[-3000:]
            time.sleep(0.1)
        yield ConnectServer(f"sc://127.0.0.1:{port}", process, log)
    finally:
        stop(process)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
