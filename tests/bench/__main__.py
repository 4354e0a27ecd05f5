"""`make bench`: measures the performance targets, prints tables, and writes the figures as JSON with the machine's load.

`--quick` is a smoke run: the same code with small sizes, whose figures mean nothing. No duration is asserted: the targets are
printed beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import pydantic

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.agent.settings import RENEWALS_PER_VALIDITY, Settings
from tests.bench import (
    detection,
    failover,
    in_memory,
    latency,
    ledger,
    load,
    lock_runs,
    lock_table,
    page,
    renewals,
    rolling,
    steps,
    stopping,
    stores,
    upserts,
    volume,
    waste,
    watching,
)
from tests.bench.agent_process import AgentProcess
from tests.bench.lock_runs import LockSizes
from tests.bench.peers import compare, paimon_commits
from tests.bench.peers.paimon_commits import Commits
from tests.bench.peers.workload import Workload
from tests.bench.upserts import Upserts
from tests.servers.s3 import running_s3_server

DEFAULT_JSON = Path("build/bench.json")
PARTS = (
    "check",
    "steps",
    "detection",
    "waste",
    "latency",
    "load",
    "volume",
    "ledger",
    "restore",
    "failover",
    "rolling",
    "stop",
    "upserts",
    "stores",
    "watching",
    "web",
    "locks",
)
ROUNDS = ("repeated", "failed")
"""What a part is called that fails in its first round, and in the second one, which follows then."""
IN_MEMORY = {"check", "steps", "detection", "waste"}
"""The parts that need no broker."""
PEERS = (*compare.WAYS, "paimon")
LOCK = "lock"
"""Selects the comparison of the locks, like a workload."""


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of all parts."""

    trials: int
    warm_up: int
    markers: int
    ledger_entries: int
    restored_entries: int
    repetitions: int
    checks: int
    sizes: Sequence[detection.Cell]
    sweeps: int
    step_markers: int
    step_transactions: int
    waste_seeds: int
    waste_hours: float
    load_seconds: float
    load_warm_up_seconds: float
    lock: LockSizes
    store_requests: int
    locks: int
    locks_seconds: float
    renew_seconds: float
    failovers: int
    rolling_tables: int
    """0: the part is left out."""
    watched_tables: int
    watched_seconds: float
    watched_trials: int
    web: page.Sizes
    aborts: int
    """Of each kind of batch. 0: the part is left out."""
    upserts: Upserts
    peers: Sequence[Workload]
    """Of Delta and Iceberg."""
    hudi_peers: Sequence[Workload]
    """A batch of Hudi takes longer, so batches and files are half as large, and four writers have half as many batches."""
    paimon: Commits


FULL = Size(
    trials=300,
    warm_up=30,
    markers=1_000_000,
    ledger_entries=1_000_000,
    restored_entries=100_000,
    repetitions=3,
    checks=101,
    sizes=(*detection.HUDI, *detection.GRID),
    sweeps=5,
    step_markers=2_000_000,
    step_transactions=1_000,
    waste_seeds=10,
    waste_hours=4.0,
    load_seconds=30.0,
    load_warm_up_seconds=20.0,
    lock=LockSizes(rounds=300, repetitions=3, contention_runs=2, contention_seconds=20.0, lost_answers=3),
    store_requests=300,
    locks=1_000,
    locks_seconds=30.0,
    renew_seconds=3.0,
    failovers=3,
    rolling_tables=200,
    watched_tables=100,
    watched_seconds=20.0,
    watched_trials=30,
    web=page.Sizes(tables=1_000, transactions=3_600, updates=30, fed_updates=3_600),
    aborts=20,
    upserts=Upserts(files=30, rows=40_000, runs=3),
    peers=(
        *(
            Workload(writers, overlap, batches, rows_per_day=60_000, rows_per_batch=10_000, days_per_batch=5)
            for writers, overlap, batches in ((2, True, 8), (2, False, 8), (4, True, 4))
        ),
        *(
            Workload(2, overlap, 4, rows_per_day=400_000, rows_per_batch=50_000, days_per_batch=5, large=True)
            for overlap in (True, False)
        ),
        *(
            Workload(2, overlap, 8, rows_per_day=60_000, rows_per_batch=10_000, days_per_batch=5, rest=True)
            for overlap in (True, False)
        ),
    ),
    hudi_peers=tuple(
        Workload(writers, overlap, batches, rows_per_day=30_000, rows_per_batch=5_000, days_per_batch=5)
        for writers, overlap, batches in ((2, True, 4), (2, False, 4), (4, True, 2))
    ),
    paimon=Commits(writers=4, commits=25, stopped_seconds=60.0),
)
SMALL = Workload(2, overlap=True, batches=2, rows_per_day=50, rows_per_batch=20, days_per_batch=2)
QUICK = Size(
    trials=10,
    warm_up=3,
    markers=3_000,
    ledger_entries=3_000,
    restored_entries=300,
    repetitions=1,
    checks=5,
    sizes=detection.QUICK,
    sweeps=1,
    step_markers=20_000,
    step_transactions=10,
    waste_seeds=1,
    waste_hours=0.5,
    load_seconds=1.0,
    load_warm_up_seconds=1.0,
    lock=LockSizes(rounds=5, repetitions=1, contention_runs=1, contention_seconds=1.0, lost_answers=1),
    store_requests=5,
    locks=10,
    locks_seconds=3.0,
    renew_seconds=2.5,
    failovers=0,
    rolling_tables=0,
    watched_tables=3,
    watched_seconds=1.0,
    watched_trials=2,
    web=page.Sizes(tables=5, transactions=40, updates=1, fed_updates=40),
    aborts=0,
    upserts=Upserts(files=2, rows=10, runs=1),
    peers=(SMALL,),
    hudi_peers=(SMALL,),
    paimon=Commits(writers=2, commits=2, stopped_seconds=1.0),
)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_JSON, metavar="PATH", help=f"default: {DEFAULT_JSON}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of some seconds, whose figures mean nothing"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to measure; default: all"
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=PEERS,
        default=(),
        metavar="FORMAT",
        help=f"measure only these formats' own ways and the gate, side by side: {', '.join(PEERS)}",
    )
    selectable = [*(each.name for each in FULL.peers), LOCK]
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=selectable,
        default=selectable,
        metavar="NAME",
        help=f"with --peers, for formats other than Paimon: only these of {', '.join(selectable)}; "
        f"{LOCK} is the lock beside Hudi's",
    )
    ways = sorted({way for each in compare.WAYS.values() for way in each})
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=ways,
        default=(),
        metavar="WAY",
        help=f"with --peers, likewise: {', '.join(ways)}",
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="with --peers, likewise: run each way so often"
    )
    parser.add_argument("--bootstrap-servers", help="a broker to use; default: an embedded one for this run")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    report: dict[str, Any] = {"quick": options.quick, "machine": _machine()}
    size = QUICK if options.quick else FULL
    if options.peers:
        report |= _measure_peers(size, options)
    else:
        report |= _measure(size, options.only, options.bootstrap_servers)
    if "waste" in report:
        waste.draw(report["waste"], options.json.with_name("waste.png"))
    report["machine"]["load_after"] = _load()
    report["took_seconds"] = round(time.monotonic() - began, 1)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    for part, error in report.get("repeated", {}).items():
        print(f"\n{part} was measured twice, the first round failed: {error}")
    print(f"\nwritten to {options.json}")
    if failed := report.get("failed"):
        sys.exit(f"not measured, the error is above: {', '.join(failed)}")


def _measure(
    size: Size,
    parts: Sequence[str],
    bootstrap_servers: str | None,
    measure_part: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Measure these parts. One that fails, as on a machine with a slow moment, is measured once more; `repeated` has its error.

    What the others have measured is kept if it fails again; then `failed` has the error.
    """
    measure_part = measure_part or _measure_part
    report: dict[str, Any] = {}
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    with (
        tempfile.TemporaryDirectory(prefix="lakewarden-bench-") as name,
        contextlib.ExitStack() as stack,
    ):
        servers = "" if set(parts) <= IN_MEMORY else stack.enter_context(_kafka(name, bootstrap_servers))
        for part, outcome in ((part, each) for part in PARTS if part in parts for each in ROUNDS):
            if outcome == "failed" and part not in report.get("repeated", {}):
                continue
            folder = Path(name) / f"{part}-{outcome}"
            folder.mkdir()
            try:
                measure_part(
                    report, part, size, servers=servers, prefix=f"{prefix}-{folder.name}", folder=folder
                )
            except Exception as error:  # noqa: BLE001 - the figures of the other parts are kept
                report.setdefault(outcome, {})[part] = repr(error)
                traceback.print_exc()
                _progress(f"{part} is {outcome}")
    return report


def _measure_part(
    report: dict[str, Any], part: str, size: Size, *, servers: str, prefix: str, folder: Path
) -> None:
    match part:
        case "check" | "steps" | "detection" | "waste":
            _measure_in_memory(report, part, size)
        case "latency" | "load" | "volume" | "ledger" | "restore":
            _measure_agent(report, part, size, servers=servers, prefix=prefix, folder=folder)
        case "failover":
            report["failover"] = _measure_failover(size, servers, prefix, folder)
        case "rolling" if size.rolling_tables:
            report["rolling"] = _measure_rolling(size, servers, prefix, folder)
        case "stop" if size.aborts:
            _progress(f"stopping Spark batches, {size.aborts} aborts of each kind")
            report["stop"] = stopping.measure(servers, prefix, folder / "stop", aborts=size.aborts)
        case "upserts":
            _progress(f"upserts into a Paimon append table of {size.upserts.files} files")
            report["upserts"] = upserts.measure(servers, prefix, folder / "upserts", size=size.upserts)
        case "stores":
            report["stores"] = _measure_stores(size, folder)
        case "watching":
            report["watching"] = _measure_watching(size, servers, prefix, folder)
        case "web":
            _progress(f"the page of {size.web.tables:,} tables, and {size.web.transactions:,} transactions")
            report["web"] = page.measure(servers, prefix, folder / "web", size.web)
        case "locks":
            report["locks"] = _measure_locks(size, servers, prefix, folder)
        case _:
            pass


def _measure_in_memory(report: dict[str, Any], part: str, size: Size) -> None:
    match part:
        case "check":
            _progress("conflict check in memory")
            report["check"] = in_memory.measure(repetitions=size.checks)
            report["event_beside_open"] = in_memory.measure_open(repetitions=3)
        case "steps":
            _progress("the longest steps of one table, in memory")
            report["steps"] = steps.measure(markers=size.step_markers, transactions=size.step_transactions)
        case "detection":
            _progress("conflict check in memory, by size")
            report["detection"] = detection.measure(size.sizes, repetitions=size.sweeps)
        case "waste":
            _progress("wasted compute, simulated")
            report["waste"] = waste.measure(seeds=size.waste_seeds, hours=size.waste_hours)
        case _:
            raise AssertionError(part)


def _measure_agent(
    report: dict[str, Any], part: str, size: Size, *, servers: str, prefix: str, folder: Path
) -> None:
    match part:
        case "latency":
            _progress("latencies through Kafka")
            with AgentProcess(servers, prefix, folder / "latency"):
                report["latency_ms"] = asyncio.run(
                    latency.measure(servers, prefix, trials=size.trials, warm_up=size.warm_up)
                )
        case "load":
            report["load"] = _measure_load(size, servers, prefix, folder)
        case "volume":
            _progress(f"{size.markers:,} markers through the agent")
            filled = volume.backlog(size.markers)
            report["throughput"], topics = volume.measure_throughput(
                servers, prefix, folder, filled, repetitions=size.repetitions
            )
            _progress("restart of the agent on that log")
            report["restart"] = volume.measure_restart(
                servers, topics, folder, size.markers, repetitions=size.repetitions
            )
        case "ledger":
            _progress(f"start with a ledger of {size.ledger_entries:,} entries")
            report["ledger"] = ledger.measure(
                servers, prefix, folder / "ledger", entries=size.ledger_entries, repetitions=size.repetitions
            )
        case "restore":
            _progress(f"restore of a ledger of {size.restored_entries:,} entries")
            report["restore"] = ledger.measure_restore(
                servers, prefix, folder / "restore", entries=size.restored_entries
            )
        case _:
            raise AssertionError(part)


def _measure_peers(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    formats = options.peers
    with (
        tempfile.TemporaryDirectory(prefix="lakewarden-bench-") as name,
        _kafka(name, options.bootstrap_servers) as servers,
        running_s3_server() if {"hudi", "paimon"} & set(formats) else contextlib.nullcontext() as server,
        _environment({} if server is None else server.environment),
    ):
        folder = Path(name)
        workloads = {
            table_format: [
                each
                for each in (size.hudi_peers if table_format == "hudi" else size.peers)
                if each.name in options.workload and (table_format == "iceberg" or not each.rest)
            ]
            for table_format in formats
            if table_format != "paimon"
        }
        report["peers"] = compare.measure(
            workloads, servers, folder, ways=options.ways, repeat=options.repeat, server=server
        )
        if "hudi" in formats and LOCK in options.workload:
            assert server is not None, "Hudi's lock is on a store"
            prefix = f"bench-{uuid.uuid4().hex[:8]}"
            report["locks"] = lock_runs.measure(size.lock, server, servers, prefix, _progress)
            report["hudi_locks"] = lock_runs.measure_hudi(size.lock, server, _progress)
        if "paimon" in formats:
            assert server is not None, "the tables of Paimon are on a store"
            report["paimon"] = paimon_commits.measure(size.paimon, server, servers, folder)
    return report


def _measure_failover(size: Size, servers: str, prefix: str, folder: Path) -> dict[str, Any]:
    """The smoke run measures the shorter one, once."""
    report: dict[str, Any] = {}
    if size.failovers:
        _progress("fail-over, default settings")
        report["default"] = failover.measure(
            servers, prefix, folder, settings=failover.DEFAULTS, repetitions=size.failovers
        )
    _progress("fail-over, short timeouts")
    with EmbeddedKafka(folder / "kafka-tight", on_progress=_progress, properties=failover.BROKER) as broker:
        report["tight"] = failover.measure(
            broker.bootstrap_servers,
            f"{prefix}-tight",
            folder,
            settings=failover.TIGHT,
            repetitions=max(1, size.failovers),
        )
    return report


def _measure_rolling(size: Size, servers: str, prefix: str, folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name in ("dynamic", "static"):
        _progress(f"rolling restart, {name} membership")
        report[name] = rolling.measure(
            servers,
            f"{prefix}-{name}",
            folder / f"rolling-{name}",
            tables=size.rolling_tables,
            instances=name == "static",
        )
    return report


def _measure_load(size: Size, servers: str, prefix: str, folder: Path) -> dict[str, Any]:
    _progress(f"marker → abort at {load.EVENTS_PER_SECOND:,} events per second")
    seconds, warm_up = size.load_seconds, size.load_warm_up_seconds
    with AgentProcess(servers, prefix, folder / "load") as agent:
        return asyncio.run(load.measure(servers, prefix, agent, seconds=seconds, warm_up_seconds=warm_up))


def _measure_watching(size: Size, servers: str, prefix: str, folder: Path) -> dict[str, Any]:
    _progress(f"watching {size.watched_tables} tables")
    with running_s3_server() as server, _environment(server.environment):
        return watching.measure(
            server,
            servers,
            prefix,
            folder / "watching",
            tables=size.watched_tables,
            seconds=size.watched_seconds,
            trials=size.watched_trials,
        )


def _measure_stores(size: Size, folder: Path) -> dict[str, Any]:
    _progress("requests to each store")
    with running_s3_server() as server, _environment(server.environment):
        return asyncio.run(stores.measure(server, folder / "stores", requests=size.store_requests))


def _measure_locks(size: Size, servers: str, prefix: str, folder: Path) -> dict[str, Any]:
    with running_s3_server() as server, _environment(server.environment):
        report = lock_runs.measure(size.lock, server, servers, prefix, _progress)
        _progress(f"{size.locks:,} locks held by one agent")
        kept = Settings.load(
            bootstrap_servers=servers,
            topic_prefix=f"{prefix}-kept",
            validity_seconds=size.renew_seconds * RENEWALS_PER_VALIDITY,
        )
        report["renewals"] = renewals.measure(
            server, kept, folder / "kept", locks=size.locks, seconds=size.locks_seconds
        )
    return report


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set credentials where the standard chain looks for them, here and in the processes that are started."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _kafka(folder: str, bootstrap_servers: str | None) -> Iterator[str]:
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    with EmbeddedKafka(Path(folder) / "kafka", on_progress=_progress) as broker:
        yield broker.bootstrap_servers


def _machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "aiokafka": aiokafka.__version__,
        "pydantic": pydantic.VERSION,
        "load_before": _load(),
    }


def _load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    if "latency_ms" in report:
        yield from _latency_rows(report["latency_ms"])
    if "load" in report:
        yield from load.rows(report["load"])
    if "throughput" in report:
        yield from _volume_rows(report["throughput"], report["restart"])
    if "ledger" in report:
        yield from ledger.rows(report["ledger"])
    if "restore" in report:
        yield from ledger.restore_rows(report["restore"])
    if "failover" in report:
        yield from failover.rows(report["failover"])
    if "rolling" in report:
        yield from rolling.rows(report["rolling"])
    if "watching" in report:
        yield from watching.rows(report["watching"])
    if "web" in report:
        yield from page.rows(report["web"])
    if "check" in report:
        yield from _check_rows(report["check"])
        yield from in_memory.open_rows(report["event_beside_open"])
    if "steps" in report:
        yield from steps.rows(report["steps"])


def _latency_rows(latencies: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    names = {
        "once_through_kafka": ("one pass through Kafka, without the agent", ""),
        "marker_to_abort": ("marker → abort", "p50 < 15 ms"),
        "intent_to_admitted": ("intent → admitted", ""),
        "requested_to_granted": ("commit-requested → commit-granted", ""),
        "intent_to_granted": ("intent → grant, both", "p50 < 15 ms"),
        "intent_to_granted_acquiring_the_lock": (
            "intent → grant, idle table: includes acquiring the lock",
            "",
        ),
    }
    for name, (title, target) in names.items():
        figure = latencies[name]
        yield title, f"p50 {figure['p50']:.1f} ms, p99 {figure['p99']:.1f} ms", target


def _volume_rows(through: dict[str, Any], restart: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield (
        f"markers through one agent, in events of {through['batch']}",
        f"{through['markers_per_second']:,} per second ({through['agent_cpu_us_per_marker']:.2f} µs CPU each)",
        "≥ 250,000 per second",
    )
    yield (
        f"restart on a log with {restart['markers']:,} open markers",
        f"{restart['ready_seconds']:.1f} s, of which {restart['replay_seconds']:.1f} s replay",
        "< 8 s",
    )
    yield (
        "  resident memory after it",
        f"{restart['resident_mb']:.0f} MB, peak {restart['peak_mb']:.0f} MB, {restart['bytes_per_marker']} bytes per marker",
        "< 400 MB",
    )
    empty = restart["empty_log"]
    yield (
        "  start of an agent with an empty log",
        f"{empty['ready_seconds']:.1f} s, {empty['resident_mb']:.0f} MB",
        "",
    )


def _check_rows(check: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    titles = {
        "incremental": "check of 1,500 markers as they arrive",
        "incremental_all_conflicting": "  an event of 100 markers that all conflict",
        "sweep": "check of all 2 × 1,500 markers at once",
        "periodic": "periodic check with the invariants of these",
    }
    for name, title in titles.items():
        figure = check[name]
        target = "" if name == "incremental_all_conflicting" else "< 1 ms"
        yield title, f"{figure['ms']:.3f} ms, {figure['ns_per_marker']:.0f} ns per marker", target


def _print(report: dict[str, Any]) -> None:
    machine = report["machine"]
    print(
        f"\n{machine['cores']} cores, Python {machine['python']}, aiokafka {machine['aiokafka']}, "
        f"load {machine['load_before']} before and {machine['load_after']} after, took {report['took_seconds']} s"
        + (", --quick: the figures mean nothing" if report["quick"] else "")
    )
    if rows := list(_rows(report)):
        _print_table([("", "measured", "target"), *rows])
        if "failover" in report:
            print(failover.FOOTNOTE)
    if "detection" in report:
        _print_table(list(detection.rows(report["detection"])))
        print(detection.FOOTNOTE)
    if "waste" in report:
        _print_table(list(waste.rows(report["waste"])))
        _print_table(list(waste.admission_rows(report["waste"])))
    if "stop" in report:
        _print_table(list(stopping.rows(report["stop"])))
    if "upserts" in report:
        _print_table(list(upserts.rows(report["upserts"])))
    if report.get("peers"):
        _print_table(list(compare.rows(report["peers"])))
        if any(run["way"] == compare.NATIVE for run in report["peers"]):
            _print_table(list(compare.wall_rows(report["peers"])))
        print(compare.FOOTNOTE)
    if "paimon" in report:
        _print_table(list(paimon_commits.rows(report["paimon"])))
        print(paimon_commits.FOOTNOTE)
    if "stores" in report:
        _print_table(list(stores.rows(report["stores"])))
    if "locks" in report:
        _print_table(lock_table.table(report["locks"], report.get("hudi_locks")))
        print(lock_table.footnote(report.get("hudi_locks")))


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _progress(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
