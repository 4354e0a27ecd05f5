"""Several processes that commit to one Paimon table on a real S3 server by pypaimon: lost and failed commits, time, requests.

Every commit adds one row. A commit is lost if it returned without an error, and its row isn't in the table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.spark_jobs.jobs.demo_formats import catalog_options
from tests.bench.agent_process import AgentProcess
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

POLL_SECONDS = 0.05

FOOTNOTE = (
    "Lost: reported as committed, and not in the table. Failed: the commit raised an error. A commit: from its first byte until\n"
    "its process knows that it is in the table. Stopped: one process is suspended right before it writes its snapshot."
)


@dataclass(frozen=True, slots=True)
class Commits:
    """The sizes."""

    writers: int
    commits: int
    """Of each writer."""
    stopped_seconds: float


def measure(sizes: Commits, server: S3Server, servers: str, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of each run. The server's credentials are in the environment."""
    runs = [(way, False) for way in ("shipped", "lock", "put-if-absent", "gate")]
    runs += [(way, True) for way in ("lock", "gate")]
    report = []
    for number, (way, stopped) in enumerate(runs):
        print(f"… paimon: {way}{', one stopped' if stopped else ''}", file=sys.stderr, flush=True)
        bucket, prefix, place = server.bucket(), f"peers-{uuid.uuid4().hex[:8]}", folder / f"paimon{number}"
        table = _create(server, bucket)
        allowed = f"s3://{bucket}/*"
        agent = AgentProcess(
            servers,
            prefix,
            place,
            tables=allowed,
            lock_places="",
            lock_root=f"s3://{bucket}/locks",
            s3_endpoint=server.endpoint,
        )
        with agent, Proxy(server.endpoint) as proxy:
            run = _Run(way, table, sizes, place, proxy.endpoint, servers, prefix)
            figures = run.measure(sizes.stopped_seconds if stopped else None)
            requests = proxy.requests.total()
        rows = _rows_in(server, bucket)
        done = len(figures["seconds"])
        report.append(
            {
                "way": way,
                "stopped": stopped,
                **figures,
                "lost": done - rows,
                "requests_per_commit": requests / max(done, 1),
            }
        )
    return report


@dataclass(frozen=True, slots=True)
class _Run:
    way: str
    table: str
    sizes: Commits
    folder: Path
    endpoint: str
    servers: str
    prefix: str

    def measure(self, stopped_seconds: float | None) -> dict[str, Any]:
        """Run all writers. The first one is suspended for so long, in the middle of its commits."""
        environment = os.environ | {"AWS_ENDPOINT_URL": self.endpoint}
        processes = [
            self._start(number, environment, stopped_seconds) for number in range(self.sizes.writers)
        ]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError((self.folder / "writers.log").read_text()[-3000:])
        began = time.monotonic()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        if stopped_seconds is not None:
            _wake(processes[0], stopped_seconds)
        outputs = [process.communicate()[0] for process in processes]
        wall = time.monotonic() - began
        if any(process.returncode for process in processes):
            raise RuntimeError((self.folder / "writers.log").read_text()[-3000:])
        each = [json.loads(output.splitlines()[-1]) for output in outputs]
        others = each[1:] if stopped_seconds is not None else each
        return {
            "wall_seconds": wall,
            "seconds": [seconds for one in each for seconds in one["seconds"]],
            "longest_seconds": max(seconds for one in others for seconds in one["seconds"]),
            "failed": sum(one["failed"] for one in each),
        }

    def _start(
        self, number: int, environment: dict[str, str], stopped_seconds: float | None
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.bench.peers.paimon_writer", self.way, self.table, str(number)]
        command += ["--commits", str(self.sizes.commits), "--lock-file", str(self.folder / "lock")]
        command += ["--bootstrap-servers", self.servers, "--topic-prefix", self.prefix]
        if number == 0 and stopped_seconds is not None:
            command += ["--pause-at", str(self.sizes.commits // 2)]
        with (self.folder / "writers.log").open("ab") as log:
            return subprocess.Popen(
                bound(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )


def _wake(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait until the process has suspended itself, and let it go on after so long."""
    watched = psutil.Process(process.pid)
    while watched.status() != psutil.STATUS_STOPPED:
        if process.poll() is not None:
            raise RuntimeError("the writer ended before it was suspended")
        time.sleep(POLL_SECONDS)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


def _catalog(server: S3Server, bucket: str) -> Any:
    return CatalogFactory.create(
        {"warehouse": f"s3://{bucket}/warehouse", **catalog_options(server.endpoint)}
    )


def _create(server: S3Server, bucket: str) -> str:
    catalog = _catalog(server, bucket)
    catalog.create_database("bench", ignore_if_exists=False)
    schema = pa.schema([("writer", pa.int32()), ("number", pa.int32())])
    catalog.create_table("bench.t", Schema.from_pyarrow_schema(schema), ignore_if_exists=False)
    return f"s3://{bucket}/warehouse/bench.db/t"


def _rows_in(server: S3Server, bucket: str) -> int:
    builder = _catalog(server, bucket).get_table("bench.t").new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
    return len({(row["writer"], row["number"]) for row in found})


def rows(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table that is printed."""
    titles = {
        "shipped": "pypaimon as it is",
        "lock": "a perfect lock",
        "put-if-absent": "put if absent, no lock",
        "gate": "the gate",
    }
    yield ("Paimon on S3", "lost", "failed", "wall", "a commit p50", "longest", "requests a commit")
    for run in runs:
        yield (
            titles[run["way"]] + (", one writer stopped; longest of the others" if run["stopped"] else ""),
            f"{run['lost']}",
            f"{run['failed']}",
            f"{run['wall_seconds']:.1f} s",
            f"{median(run['seconds']):.2f} s",
            f"{run['longest_seconds']:.2f} s",
            f"{run['requests_per_commit']:.0f}",
        )
