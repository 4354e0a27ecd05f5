"""Several processes that commit to one Paimon table on a real S3 server by pypaimon: lost and failed commits, time, requests.

Every commit adds one row. A commit is lost if it returned without an error, and its row isn't in the table.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil
import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from tests.bench.child import Child
from tests.bench.peers.paimon_writer import catalog_options
from tests.bench.run import Figures, Run, progress
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

POLL_SECONDS = 0.05

FOOTNOTE = (
    "Lost: reported as committed, and not in the table. Failed: the commit raised an error. A commit: from its first byte until\n"
    "its process knows that it is in the table. Stopped: one process is suspended right before it writes its snapshot."
)


def measure(run: Run, server: S3Server) -> list[Figures]:
    """Return the figures of each run. The server's credentials are in the environment."""
    runs = [(way, False) for way in ("shipped", "lock", "put-if-absent", "gate")]
    runs += [(way, True) for way in ("lock", "gate")]
    report = []
    for number, (way, stopped) in enumerate(runs):
        progress(f"paimon: {way}{', one stopped' if stopped else ''}")
        bucket, place = server.bucket(), run.within(f"paimon{number}")
        table = _create(server, bucket)
        agent = place.agent(
            tables=f"s3://{bucket}/*",
            lock_places="",
            lock_root=f"s3://{bucket}/locks",
            s3_endpoint=server.endpoint,
        )
        with agent, Proxy(server.endpoint) as proxy:
            figures = _Commits(place, way, table, proxy.endpoint, stopped=stopped).measure()
            requests = proxy.requests.total()
        done = len(figures["seconds"])
        figures |= {"lost": done - _rows_in(server, bucket), "requests_per_commit": requests / max(done, 1)}
        report.append({"way": way, "stopped": stopped, **figures})
    return report


@dataclass(frozen=True, slots=True)
class _Commits:
    """The writers of one run. If it is `stopped`, the first one is suspended for a while, in the middle of its commits."""

    run: Run
    way: str
    table: str
    endpoint: str
    stopped: bool

    def measure(self) -> Figures:
        """Run all writers."""
        children = [self._start(number) for number in range(self.run.size.paimon_writers)]
        for child in children:
            child.wait_for("ready")
        began = time.monotonic()
        for child in children:
            child.go_on()
        if self.stopped:
            _wake(children[0].process, self.run.size.paimon_stopped_seconds)
        each = [child.figures() for child in children]
        wall = time.monotonic() - began
        others = each[1:] if self.stopped else each
        return {
            "wall_seconds": wall,
            "seconds": [seconds for one in each for seconds in one["seconds"]],
            "longest_seconds": max(seconds for one in others for seconds in one["seconds"]),
            "failed": sum(one["failed"] for one in each),
        }

    def _start(self, number: int) -> Child:
        run, commits = self.run, self.run.size.paimon_commits
        command = [sys.executable, "-m", "tests.bench.peers.paimon_writer", self.way, self.table, str(number)]
        command += ["--commits", str(commits), "--lock-file", str(run.folder / "lock")]
        command += ["--bootstrap-servers", run.servers, "--topic-prefix", run.prefix]
        if number == 0 and self.stopped:
            command += ["--pause-at", str(commits // 2)]
        return Child(command, run.folder / "writers.log", {"AWS_ENDPOINT_URL": self.endpoint})


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


def rows(runs: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
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
