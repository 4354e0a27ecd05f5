"""All runs of the named formats, one after the other, with one agent beside each driver.

The ways of a workload take turns in one driver. Only Hudi's have a driver for each run, because its requests are counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from lakewarden.agent.embedded.bound_child import bound
from tests.bench.agent_process import AgentProcess
from tests.bench.peers.driver import STEPS
from tests.bench.peers.tables import Store
from tests.bench.peers.workload import Workload
from tests.servers.hudi import lock_client_jars
from tests.servers.iceberg_catalogs import running_rest_catalog
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.spark.formats import ICEBERG_CATALOG

ROOT = Path(__file__).parents[3]
SPARK35_PYTHON = ROOT / "build/venv-spark35/bin/python"

NATIVE = "native"
WAYS = {
    "delta": (NATIVE, "optimistic", "auto"),
    "iceberg": (NATIVE, "optimistic", "auto"),
    "hudi": (NATIVE, "native-direct", "native-asynchronous", "optimistic", "auto"),
}
FOOTNOTE = (
    "In vain: seconds of attempts that committed nothing, and their share of all. Ran: how long such an attempt ran.\n"
    "Conflict → stopped: of each such attempt, from when the files of two writes showed a common file group until save()\n"
    "raised, or until the gate had stopped the Spark jobs; looked for every 20 ms. Deaths: queries that ended with an\n"
    "exception, and were started again. CPU: of the driver, while the writers write. Grant held: from the grant until the\n"
    "writer published its commit. Requests: of driver and agent to the S3 server. Rows wrong: missing, doubled or of\n"
    "another batch.\n"
    "Aims on Hudi: stopped in less than 0.3 s (p50); auto in vain at most 2 %; wall time of auto at most Hudi's best."
)


@dataclass(frozen=True, slots=True)
class _Run:
    table_format: str
    workload: Workload
    ways: Sequence[str]
    repeat: int


def measure(
    workloads: Mapping[str, Sequence[Workload]],
    servers: str,
    folder: Path,
    *,
    ways: Sequence[str] = (),
    repeat: int = 1,
    server: S3Server | None = None,
) -> list[dict[str, Any]]:
    """Return the figures of each run. `workloads`: by format. `ways`: only these. `server`: for the tables of Hudi.

    `repeat`: how often each way runs. The ways of a workload take turns.
    """
    runs: list[_Run] = []
    for table_format, sizes in workloads.items():
        chosen = [way for way in WAYS[table_format] if not ways or way in ways]
        for workload in sizes:
            if table_format == "hudi":
                runs += [_Run(table_format, workload, [way], 1) for _ in range(repeat) for way in chosen]
            else:
                runs.append(_Run(table_format, workload, chosen, repeat))
    report: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        times = f", {run.repeat} times" if run.repeat > 1 else ""
        title = f"{run.table_format}, {_title(run.workload)}: {', '.join(run.ways)}{times}"
        print(f"… {title}", file=sys.stderr, flush=True)
        place = folder / f"run{number}"
        place.mkdir()
        if run.table_format == "hudi":
            assert server is not None, "Hudi's tables are on a store"
            measured = _on_store(run, servers, place, server)
        else:
            measured = _on_disk(run, servers, place)
        for figures in measured:
            report.append({"format": run.table_format, "workload": asdict(run.workload), **figures})
            _print_last(report)
    return report


def _print_last(report: Sequence[dict[str, Any]]) -> None:
    """Print the figures of the last run: all runs together take half an hour."""
    names, values = rows(report[-1:])
    printed = ", ".join(f"{name} {value}" for name, value in list(zip(names, values, strict=True))[1:])
    print(f"  {printed}", file=sys.stderr, flush=True)


def _on_disk(run: _Run, servers: str, folder: Path) -> list[dict[str, Any]]:
    """The tables are real ones, so the agent finds their locks itself."""
    agent = {"tables": "file:///*"}
    if not run.workload.rest:
        return _measure(run, servers, folder, _Surroundings(agent))
    with running_rest_catalog(folder, {"warehouse": f"file://{folder}/rest"}) as uri:
        catalog = {ICEBERG_CATALOG: json.dumps({"type": "rest", "uri": uri})}
        return _measure(run, servers, folder, _Surroundings(agent, environment=catalog))


def _on_store(run: _Run, servers: str, folder: Path, server: S3Server) -> list[dict[str, Any]]:
    """Run with a table in a bucket of its own. Driver and agent have a proxy each, which counts their requests."""
    bucket = server.bucket()
    with Proxy(server.endpoint) as driver, Proxy(server.endpoint) as agent:
        objects = None if server.objects is None else str(server.objects)
        store = Store(driver.endpoint, bucket, ",".join(lock_client_jars(folder)), objects)
        settings = {"tables": f"s3://{bucket}/*", "s3_endpoint": agent.endpoint}
        surroundings = _Surroundings(
            settings,
            ["--store", json.dumps(asdict(store))],
            {"AWS_ENDPOINT_URL_S3": driver.endpoint},
            {"driver": driver, "agent": agent},
        )
        return _measure(run, servers, folder, surroundings)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What is around a run."""

    agent: Mapping[str, str]
    """Settings of the agent."""
    arguments: Sequence[str] = ()
    """Of the driver."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the driver, besides this process's own."""
    proxies: Mapping[str, Proxy] = field(default_factory=dict)


@dataclass(slots=True)
class _Counted:
    """The proxies, and what they have counted when the measured run began and when it had ended."""

    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    counts: list[dict[str, Counter[str]]] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def note(self) -> None:
        """Note the numbers of now."""
        self.counts.append({name: proxy.requests.copy() for name, proxy in self.proxies.items()})
        self.cpu_seconds.append(sum(proxy.cpu_seconds() for proxy in self.proxies.values()))

    def figures(self) -> dict[str, Any]:
        """Return the requests of the measured run, by method, and the CPU time that counting them took."""
        if not self.proxies:
            return {"requests": None, "proxies_cpu_seconds": None}
        before, after = self.counts
        return {
            "requests": {name: dict(after[name] - before[name]) for name in self.proxies},
            "proxies_cpu_seconds": round(self.cpu_seconds[1] - self.cpu_seconds[0], 1),
        }


def _measure(run: _Run, servers: str, folder: Path, surroundings: _Surroundings) -> list[dict[str, Any]]:
    prefix = f"peers-{uuid.uuid4().hex[:8]}"
    connection = ["--bootstrap-servers", servers, "--topic-prefix", prefix]
    python = SPARK35_PYTHON if run.table_format == "hudi" else Path(sys.executable)
    command = [
        str(python),
        "-m",
        "tests.bench.peers.driver",
        run.table_format,
        ",".join(run.ways),
        str(folder),
    ]
    command += ["--workload", json.dumps(asdict(run.workload)), "--repeat", str(run.repeat)]
    command += [*connection, *surroundings.arguments]
    log = folder / "driver.log"
    counted = _Counted(surroundings.proxies)
    with (
        AgentProcess(servers, prefix, folder / "agent", lock_places="", **surroundings.agent),
        log.open("wb") as errors,
    ):
        process = subprocess.Popen(
            bound(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env=os.environ | dict(surroundings.environment),
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if line.strip() in STEPS:
                counted.note()
                process.stdin.write("\n")
                process.stdin.flush()
        if process.wait():
            raise RuntimeError(f"{run} failed: {log.read_text()[-5000:]}")
    measured: list[dict[str, Any]] = json.loads(last)
    return [figures | counted.figures() for figures in measured]


def rows(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table that is printed."""
    yield (
        "",
        "way",
        "wall",
        "CPU",
        "in vain",
        "ran p50 / max",
        "conflict → stopped p50 / max",
        "deaths",
        "longest wait",
        "grant held p50 / max",
        "requests",
        "rows wrong",
    )
    for run in runs:
        vain, useful = run["vain_seconds"], run["useful_seconds"]
        held = run["grants_held_seconds"]
        share = sum(vain) / (sum(vain) + sum(useful))
        yield (
            f"{run['format']}, {_title(Workload(**run['workload']))}",
            run["way"],
            f"{run['wall_seconds']:.0f} s",
            f"{run['cpu_seconds']:.0f} s",
            f"{sum(vain):.1f} s, {share:.0%}",
            f"{median(vain):.1f} / {max(vain):.1f} s" if vain else "–",
            _stopped(run["conflict_to_stop_seconds"]),
            f"{run['deaths']}",
            f"{run['longest_wait_seconds']:.0f} s",
            f"{median(held):.2f} / {max(held):.2f} s" if held else "–",
            _requests(run["requests"]),
            f"{run['rows_wrong']:,}",
        )


def wall_rows(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table of wall and CPU times by the native ones, medians of all runs of each way."""
    by_way: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        name = f"{run['format']}, {_title(Workload(**run['workload']))}"
        by_way.setdefault(name, {}).setdefault(run["way"], []).append(run)
    yield "", "way", "runs", "wall, median", "by native", "CPU, median", "by native"
    for name, ways in by_way.items():
        if NATIVE not in ways:
            continue
        for way, mine in ways.items():
            figures = [f"{len(mine)}"]
            for measured in ("wall_seconds", "cpu_seconds"):
                middle, native = (median(each[measured] for each in of) for of in (mine, ways[NATIVE]))
                figures += [f"{middle:.1f} s", f"{middle / native:.2f}"]
            yield name, way, *figures


def _stopped(seconds: Sequence[float | None] | None) -> str:
    """Attempts whose conflict was not seen are counted behind the figures."""
    if not seconds:
        return "–"
    seen = [each for each in seconds if each is not None]
    unseen = f" ({len(seconds) - len(seen)} not seen)" if len(seen) < len(seconds) else ""
    return (f"{median(seen):.2f} / {max(seen):.2f} s" if seen else "–") + unseen


def _requests(by_process: Mapping[str, Mapping[str, int]] | None) -> str:
    if by_process is None:
        return "–"
    driver, agent = (sum(by_process[name].values()) for name in ("driver", "agent"))
    return f"{driver + agent:,} (agent {agent:,})"


def _title(workload: Workload) -> str:
    return (
        f"{workload.writers} writers, {'the same' if workload.overlap else 'different'} partitions, "
        f"{workload.rows_per_batch:,} rows a batch{', in a REST catalog' if workload.rest else ''}"
    )
