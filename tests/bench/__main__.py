"""`make bench`: measures what we promise to be fast, prints a table, and writes it as JSON with what the machine was doing.

`--quick` is a smoke run: the same path with little of everything; its figures mean nothing. Nothing is asserted about
durations: aims are printed beside the figures.
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
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import pydantic

from lakewarden.agent.embedded_kafka import EmbeddedKafka
from tests.bench import in_memory, latency, volume
from tests.bench.agent_process import AgentProcess

DEFAULT_JSON = Path("build/bench.json")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    trials: int
    warm_up: int
    markers: int
    repetitions: int
    checks: int


FULL = Size(trials=300, warm_up=30, markers=1_000_000, repetitions=3, checks=101)
QUICK = Size(trials=10, warm_up=3, markers=3_000, repetitions=1, checks=5)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_JSON, metavar="PATH", help=f"default: {DEFAULT_JSON}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of some seconds; its figures mean nothing"
    )
    parser.add_argument("--bootstrap-servers", help="a broker to use; default: an embedded one, for this run")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    report: dict[str, Any] = {"quick": chosen.quick, "machine": _machine()}
    report |= _measure(QUICK if chosen.quick else FULL, chosen.bootstrap_servers)
    report["machine"]["load_after"] = _load()
    report["took_seconds"] = round(time.monotonic() - began, 1)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    print(f"\nwritten to {chosen.json}")


def _measure(size: Size, bootstrap_servers: str | None) -> dict[str, Any]:
    report: dict[str, Any] = {}
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    _say("the check in memory")
    report["check"] = in_memory.measure(repetitions=size.checks)
    with (
        tempfile.TemporaryDirectory(prefix="lakewarden-bench-") as name,
        _kafka(name, bootstrap_servers) as servers,
    ):
        folder = Path(name)
        _say("latencies through Kafka")
        with AgentProcess(servers, f"{prefix}-latency", folder / "latency"):
            report["latency_ms"] = asyncio.run(
                latency.measure(servers, f"{prefix}-latency", trials=size.trials, warm_up=size.warm_up)
            )
        _say(f"{size.markers:,} markers through the agent")
        filled = volume.backlog(size.markers)
        report["throughput"], topics = volume.measure_throughput(
            servers, f"{prefix}-volume", folder, filled, repetitions=size.repetitions
        )
        _say("the agent's restart on that log")
        report["restart"] = volume.measure_restart(
            servers, topics, folder, size.markers, repetitions=size.repetitions
        )
    return report


@contextlib.contextmanager
def _kafka(folder: str, bootstrap_servers: str | None) -> Iterator[str]:
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    with EmbeddedKafka(Path(folder) / "kafka", on_progress=_say) as broker:
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
    """Load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What, how much, and the aim."""
    names = {
        "once_through_kafka": ("once through Kafka, no agent", ""),
        "marker_to_abort": ("marker → abort", "p50 < 15 ms"),
        "intent_to_admitted": ("intent → admitted", ""),
        "requested_to_granted": ("commit-requested → commit-granted", ""),
        "intent_to_granted": ("intent → grant, both together", "p50 < 15 ms"),
        "intent_to_granted_taking_the_lock": ("intent → grant, idle table: takes the lock", ""),
    }
    for name, (title, aim) in names.items():
        took = report["latency_ms"][name]
        yield title, f"p50 {took['p50']:.1f} ms, p99 {took['p99']:.1f} ms", aim
    through = report["throughput"]
    yield (
        f"markers through the agent, batches of {through['batch']}",
        f"{through['markers_a_second']:,} a second ({through['agent_cpu_us_a_marker']:.2f} µs CPU each)",
        "≥ 250,000 a second",
    )
    restart = report["restart"]
    yield (
        f"restart on {restart['markers']:,} markers",
        f"{restart['ready_seconds']:.1f} s, of it replay {restart['replay_seconds']:.1f} s",
        "< 8 s",
    )
    yield (
        "  resident memory then",
        f"{restart['resident_mb']:.0f} MB, highest {restart['peak_mb']:.0f} MB, {restart['bytes_a_marker']} bytes a marker",
        "< 400 MB",
    )
    empty = report["restart"]["empty_log"]
    yield "  an agent with an empty log", f"{empty['ready_seconds']:.1f} s, {empty['resident_mb']:.0f} MB", ""
    check = report["check"]
    titles = {
        "incremental": "check as 1,500 markers arrive",
        "incremental_all_meeting": "  a batch of 100 that all conflict",
        "sweep": "check of everything, 2 × 1,500 markers",
        "periodic": "periodic check and self-audit of these",
    }
    for name, title in titles.items():
        figure = check[name]
        aim = "" if name == "incremental_all_meeting" else "< 1 ms"
        yield title, f"{figure['ms']:.3f} ms, {figure['ns_a_marker']:.0f} ns a marker", aim


def _print(report: dict[str, Any]) -> None:
    rows = [("", "measured", "aim"), *_rows(report)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    machine = report["machine"]
    print(
        f"\n{machine['cores']} cores, Python {machine['python']}, aiokafka {machine['aiokafka']}, "
        f"load {machine['load_before']} before and {machine['load_after']} after, took {report['took_seconds']} s"
        + (", --quick: the figures mean nothing" if report["quick"] else "")
        + "\n"
    )
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
