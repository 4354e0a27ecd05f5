"""All runs of the named formats, one after the other, each in a process of its own with one agent beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lakewarden.agent.embedded.bound_child import bound
from tests.bench.agent_process import AgentProcess
from tests.bench.peers.workload import Workload

ROOT = Path(__file__).parents[3]
SPARK35_PYTHON = ROOT / "build/venv-spark35/bin/python"

WAYS = {
    "delta": ("native", "optimistic", "auto"),
    "iceberg": ("native", "optimistic", "auto"),
    "hudi": ("native", "native, early detection", "native, asynchronous", "optimistic", "auto"),
}
FOOTNOTE = (
    "In vain: seconds of attempts that committed nothing, and their share of all. Stopped: how long such an attempt ran.\n"
    "Deaths: queries that ended with an exception, and were started again. Rows wrong: missing, doubled or of another batch."
)


@dataclass(frozen=True, slots=True)
class _Run:
    table_format: str
    workload: Workload
    way: str


def measure(
    formats: Sequence[str], workloads: Sequence[Workload], servers: str, folder: Path
) -> list[dict[str, Any]]:
    """Return the figures of each run."""
    runs = [_Run(each, workload, way) for each in formats for workload in workloads for way in WAYS[each]]
    report = []
    for number, run in enumerate(runs):
        print(f"… {run.table_format}, {_title(run.workload)}: {run.way}", file=sys.stderr, flush=True)
        prefix, place = f"peers-{uuid.uuid4().hex[:8]}", folder / f"run{number}"
        # The tables are real ones, so the agent finds their locks itself.
        with AgentProcess(servers, prefix, place / "agent", allow="file:///*", lock_places=""):
            figures = _figures(run, place, ["--bootstrap-servers", servers, "--topic-prefix", prefix])
        report.append({"format": run.table_format, "workload": asdict(run.workload), **figures})
        names, values = rows(report[-1:])
        printed = ", ".join(f"{name} {value}" for name, value in list(zip(names, values, strict=True))[2:])
        print(f"  {printed}", file=sys.stderr, flush=True)  # all runs together take half an hour
    return report


def _figures(run: _Run, folder: Path, connection: Sequence[str]) -> dict[str, Any]:
    python = SPARK35_PYTHON if run.table_format == "hudi" else Path(sys.executable)
    command = [str(python), "-m", "tests.bench.peers.driver", run.table_format, run.way, str(folder)]
    command += ["--workload", json.dumps(asdict(run.workload)), *connection]
    log = folder / "driver.log"
    with log.open("wb") as errors:
        done = subprocess.run(bound(command), stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{run} failed: {log.read_text()[-5000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def rows(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table that is printed."""
    yield ("", "way", "wall", "in vain", "stopped p50 / max", "deaths", "longest wait", "rows wrong")
    for run in runs:
        vain, useful = run["vain_seconds"], run["useful_seconds"]
        share = sum(vain) / (sum(vain) + sum(useful))
        yield (
            f"{run['format']}, {_title(Workload(**run['workload']))}",
            run["way"],
            f"{run['wall_seconds']:.0f} s",
            f"{sum(vain):.1f} s, {share:.0%}",
            f"{median(vain):.1f} / {max(vain):.1f} s" if vain else "–",
            f"{run['deaths']}",
            f"{run['longest_wait_seconds']:.0f} s",
            f"{run['rows_wrong']:,}",
        )


def _title(workload: Workload) -> str:
    return f"{workload.writers} writers, {'the same' if workload.overlap else 'different'} partitions"
