"""All runs of the named formats, one after the other, with one agent beside each driver.

The ways of a workload take turns in one driver. Only Hudi's have a driver for each run, because its requests are counted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from tests.bench.child import ROOT, Child
from tests.bench.peers.driver import CALLS, PHASES, STEPS
from tests.bench.peers.tables import Store
from tests.bench.peers.workload import Workload
from tests.bench.run import Figures, Run, progress
from tests.servers.hudi import lock_client_jars
from tests.servers.iceberg_catalogs import running_rest_catalog
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.spark.formats import ICEBERG_CATALOG

SPARK35_PYTHON = ROOT / "build/venv-spark35/bin/python"

NATIVE = "native"
WAYS = {
    "delta": (NATIVE, "optimistic", "auto"),
    "delta-connect": (NATIVE, "optimistic", "auto"),
    "iceberg": (NATIVE, "optimistic", "auto"),
    "hudi": (NATIVE, "native-direct", "native-asynchronous", "optimistic", "auto"),
}
FOOTNOTE = (
    "Wasted: seconds of attempts that committed nothing, and their share of all. Ran: how long such an attempt ran.\n"
    "Deaths: queries that ended with an exception, and were started again. CPU: of the driver, while the writers write. Grant\n"
    "held: from the grant until the writer published its commit. Requests: of driver and agent to the S3 server. Rows wrong:\n"
    "missing, doubled or of another batch.\n"
    "Abort → stopped: until the gate had stopped what the attempt let Spark do. On Spark Connect the attempts of the native way\n"
    "aren't recorded. Aim there: less than 0.5 s (p50).\n"
    "Aims on Hudi: auto wastes at most 2 %; wall time of auto at most Hudi's best."
)

PHASES_FOOTNOTE = (
    "One batch: the call of the batch function, by Spark's own report. Phases: means of the gate's own time; a look-up in the\n"
    "table is also part of the admission or the grant. The phases of several writers are added up. Aim: at most 1.15 by native."
)


def measure(
    run: Run,
    workloads: Mapping[str, Sequence[Workload]],
    *,
    ways: Sequence[str] = (),
    repeat: int = 1,
    server: S3Server | None = None,
) -> list[Figures]:
    """Return the figures of each run. `workloads`: by format. `ways`: only these. `server`: for the tables of Hudi.

    `repeat`: how often each way runs. The ways of a workload take turns.
    """
    drivers: list[tuple[str, Workload, Sequence[str], int]] = []
    for table_format, sizes in workloads.items():
        for workload in sizes:
            known = (NATIVE, "auto") if workload.small else WAYS[table_format]
            chosen: Sequence[str] = [way for way in known if not ways or way in ways]
            if table_format == "hudi":
                drivers += [(table_format, workload, [way], 1) for _ in range(repeat) for way in chosen]
            else:
                drivers.append((table_format, workload, chosen, repeat))
    report: list[Figures] = []
    for number, driver in enumerate(drivers):
        table_format, workload, chosen, times = driver
        progress(f"{table_format}, {_title(workload)}: {', '.join(chosen)}, {times} times")
        place = run.within(f"peers{number}")
        place.folder.mkdir()
        with ExitStack() as stack:
            on_disk = table_format != "hudi"
            around = _on_disk(stack, place, workload) if on_disk else _on_store(stack, place, server)
            for figures in _measure(place, driver, around):
                report.append({"format": table_format, "workload": asdict(workload), **figures})
                # All runs together take half an hour.
                names, values = rows(report[-1:])
                shown = zip(list(names)[1:], list(values)[1:], strict=True)
                progress(", ".join(f"{name} {value}" for name, value in shown))
    return report


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What is around a driver."""

    agent: Mapping[str, str]
    """Settings of the agent."""
    arguments: Sequence[str] = ()
    """Of the driver."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the driver, besides this process's own."""
    proxies: Mapping[str, Proxy] = field(default_factory=dict)

    def counted(self) -> dict[str, Counter[str]]:
        """The requests so far, by process and method."""
        return {name: proxy.requests.copy() for name, proxy in self.proxies.items()}


def _on_disk(stack: ExitStack, run: Run, workload: Workload) -> _Surroundings:
    """The tables are real ones, so the agent finds their locks itself."""
    catalog = {}
    if workload.rest:
        uri = stack.enter_context(
            running_rest_catalog(run.folder, {"warehouse": f"file://{run.folder}/rest"})
        )
        catalog = {ICEBERG_CATALOG: json.dumps({"type": "rest", "uri": uri})}
    return _Surroundings({"tables": "file:///*"}, environment=catalog)


def _on_store(stack: ExitStack, run: Run, server: S3Server | None) -> _Surroundings:
    """With a table in a bucket of its own. Driver and agent have a proxy each, which counts their requests."""
    assert server is not None, "Hudi's tables are on a store"
    bucket = server.bucket()
    driver, agent = (stack.enter_context(Proxy(server.endpoint)) for _ in range(2))
    store = Store(driver.endpoint, bucket, ",".join(lock_client_jars(run.folder)))
    return _Surroundings(
        {"tables": f"s3://{bucket}/*", "s3_endpoint": agent.endpoint},
        ["--store", json.dumps(asdict(store))],
        {"AWS_ENDPOINT_URL_S3": driver.endpoint},
        {"driver": driver, "agent": agent},
    )


def _measure(
    run: Run, driver: tuple[str, Workload, Sequence[str], int], around: _Surroundings
) -> list[Figures]:
    table_format, workload, ways, repeat = driver
    python = SPARK35_PYTHON if table_format == "hudi" else Path(sys.executable)
    command = [str(python), "-m", "tests.bench.peers.driver", table_format, ",".join(ways), str(run.folder)]
    command += ["--workload", json.dumps(asdict(workload)), "--repeat", str(repeat)]
    command += ["--bootstrap-servers", run.servers, "--topic-prefix", run.prefix, *around.arguments]
    counts: list[dict[str, Counter[str]]] = []
    with run.agent(lock_places="", **around.agent):
        child = Child(command, run.folder / "driver.log", around.environment)
        for _ in range(len(ways) * repeat):
            for step in STEPS:
                child.wait_for(step)
                counts.append(around.counted())
                child.go_on()
        measured: list[Figures] = child.figures()
    before, after = counts[:2]
    requests = {name: dict(after[name] - before[name]) for name in before} or None
    return [figures | {"requests": requests} for figures in measured]


def rows(runs: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """The table that is printed."""
    yield (
        "",
        "way",
        "wall",
        "CPU",
        "wasted",
        "ran p50 / max",
        "abort → stopped p50 / max",
        "deaths",
        "longest wait",
        "grant held p50 / max",
        "requests",
        "rows wrong",
    )
    for run in runs:
        vain, useful = run["vain_seconds"], run["useful_seconds"]
        held = run["grants_held_seconds"]
        stops = run["abort_to_stop_seconds"]
        share = sum(vain) / (sum(vain) + sum(useful)) if useful else 0.0
        yield (
            f"{run['format']}, {_title(Workload(**run['workload']))}",
            run["way"],
            f"{run['wall_seconds']:.0f} s",
            f"{run['cpu_seconds']:.0f} s",
            f"{sum(vain):.1f} s, {share:.0%}",
            f"{median(vain):.1f} / {max(vain):.1f} s" if vain else "–",
            f"{median(stops):.2f} / {max(stops):.2f} s" if stops else "–",
            f"{run['deaths']}",
            f"{run['longest_wait_seconds']:.0f} s",
            f"{median(held):.2f} / {max(held):.2f} s" if held else "–",
            _requests(run["requests"]),
            f"{run['rows_wrong']:,}",
        )


def wall_rows(runs: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """The table of wall and CPU times by the native ones, medians of all runs of each way."""
    yield "", "way", "runs", "wall, median", "by native", "CPU, median", "by native"
    for name, ways in _by_way(runs).items():
        if NATIVE not in ways:
            continue
        for way, mine in ways.items():
            figures = [f"{len(mine)}"]
            for measured in ("wall_seconds", "cpu_seconds"):
                middle, native = (median(each[measured] for each in of) for of in (mine, ways[NATIVE]))
                figures += [f"{middle:.1f} s", f"{middle / native:.2f}"]
            yield name, way, *figures


def batch_rows(runs: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """The table of one batch: medians of all batches of each way, and the means of the gate's phases."""
    yield "", "way", "batches", "one batch, median", "by native", "calls into the JVM", *PHASES
    for name, ways in _by_way(runs).items():
        for way, mine in ways.items():
            seconds = [each for run in mine for each in run["batch_seconds"]]
            if not seconds:  # a client of Spark Connect may have no progress of its queries
                continue
            native = [each for run in ways.get(NATIVE, ()) for each in run["batch_seconds"]]
            by_native = f"{median(seconds) / median(native):.2f}" if native else "–"
            phases = [sum(run["phases"][phase] for run in mine) / len(seconds) for phase in (CALLS, *PHASES)]
            calls, *spent = phases
            shown = [f"{1000 * each:.0f} ms" for each in spent]
            yield name, way, f"{len(seconds)}", f"{median(seconds):.2f} s", by_native, f"{calls:.0f}", *shown


def _by_way(runs: Sequence[Figures]) -> dict[str, dict[str, list[Figures]]]:
    by_way: dict[str, dict[str, list[Figures]]] = {}
    for run in runs:
        name = f"{run['format']}, {_title(Workload(**run['workload']))}"
        by_way.setdefault(name, {}).setdefault(run["way"], []).append(run)
    return by_way


def _requests(by_process: Mapping[str, Mapping[str, int]] | None) -> str:
    if by_process is None:
        return "–"
    driver, agent = (sum(by_process[name].values()) for name in ("driver", "agent"))
    return f"{driver + agent:,} (agent {agent:,})"


def _title(workload: Workload) -> str:
    return (
        f"{workload.writers} writers, {'the same' if workload.overlap else 'different'} partitions, "
        f"{workload.rows_per_batch:,} rows a batch{', in a REST catalog' if workload.rest else ''}"
        f"{', appended' if workload.append else ''}"
    )
