from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench import latency, steps
from tests.bench.__main__ import _measure
from tests.bench.run import QUICK, Part, Run
from tests.kafka_fixture import KafkaServer
from tests.servers.s3 import ENDPOINT_VARIABLE, S3Server

IN_EVERY_RUN = ("check", "steps", "latency")
"""One agent, and what is measured in memory. All parts start a dozen of agents, in some minutes of both cores: the matrix."""

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(1500)]


def bench(
    kafka: KafkaServer, folder: Path, *options: str, s3: S3Server | None = None
) -> tuple[str, dict[str, Any]]:
    """Return what a smoke run prints, and its report. It leaves no process behind."""
    store = {} if s3 is None else s3.environment | {ENDPOINT_VARIABLE: s3.endpoint}
    json_path = folder / "bench.json"
    places = ["--json", str(json_path), "--bootstrap-servers", kafka.bootstrap_servers]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", *places, *options],
        env=os.environ | store | {"TMPDIR": str(folder)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(json_path.read_text())
    assert isinstance(report, dict)
    assert _started_with(folder) == []
    return done.stdout, report


def test_some_parts_of_the_benchmark_run_and_report_their_figures(kafka: KafkaServer, tmp_path: Path) -> None:
    printed, report = bench(kafka, tmp_path, "--only", *IN_EVERY_RUN)

    assert "marker → abort" in printed
    assert report["quick"] is True
    assert {"cores", "python", "load_before", "load_after"} <= report["machine"].keys()
    _check_latencies(report["latency"])
    _check_memory(report)


def test_a_part_that_fails_is_measured_once_more_and_the_figures_of_the_others_are_kept() -> None:
    """A slow moment of the machine ended a benchmark of an hour."""
    failures = {"steps": 2, "volume": 1}
    rounds: list[tuple[str, str]] = []

    def measure(part: str, run: Run) -> dict[str, Any]:
        rounds.append((part, run.prefix))
        if failures.get(part, 0) >= [each for each, _ in rounds].count(part):
            raise TimeoutError("slow")
        return {"figure": part}

    parts = ["check", "steps", "volume"]
    report = _measure(
        QUICK, parts, None, {part: Part(partial(measure, part), lambda _: (), broker=False) for part in parts}
    )

    assert [part for part, _ in rounds] == ["check", "steps", "steps", "volume", "volume"]
    assert len(set(rounds)) == len(rounds), "no round sees the topics of another one"
    assert report == {
        "check": {"figure": "check"},
        "volume": {"figure": "volume"},
        "repeated": dict.fromkeys(("steps", "volume"), "TimeoutError('slow')"),
        "failed": {"steps": "TimeoutError('slow')"},
    }


@pytest.mark.matrix
def test_the_benchmark_runs_and_reports_every_figure(kafka: KafkaServer, tmp_path: Path) -> None:
    _, report = bench(kafka, tmp_path)

    _check_latencies(report["latency"])
    _check_memory(report)
    assert report["volume"]["per_second"] > 0
    for starts in (report["volume"]["restart"], report["ledger"]["full"]):
        assert starts.keys() >= {"ready_seconds", "replay_seconds", "resident_mb", "peak_mb", "cpu_seconds"}


@pytest.mark.matrix
def test_each_formats_own_way_is_measured_beside_the_gate(
    kafka: KafkaServer, s3_server: S3Server, tmp_path: Path
) -> None:
    selected = ["--workload", "2-same", "--ways", "native", "auto"]

    _, report = bench(kafka, tmp_path, "--peers", "delta", "iceberg", "hudi", *selected, s3=s3_server)

    assert {(run["format"], run["way"]) for run in report["peers"]} == {
        (form, way) for form in ("delta", "iceberg", "hudi") for way in ("native", "auto")
    }
    for run in report["peers"]:
        assert run["rows_wrong"] == 0
        assert len(run["useful_seconds"]) == run["workload"]["writers"] * run["workload"]["batches"]
        if run["way"] == "auto":
            assert run["deaths"] == 0


def _check_latencies(latencies: dict[str, Any]) -> None:
    for name in latency.TITLES:
        assert latencies[name].keys() == {"p50", "p99", "max", "count"}
        assert latencies[name]["count"] == latencies["trials"]


def _check_memory(report: dict[str, Any]) -> None:
    for name in ("incremental", "sweep"):
        assert report["check"][name].keys() == {"ms", "ns_per_marker"}
    large = report["check"]["large"]
    assert (large["shared"].keys(), large["conflicting"].keys()) == ({"1000"}, {"50", "1000"})
    assert report["steps"]["ms"].keys() == steps.TITLES.keys()


def _started_with(folder: Path) -> list[int]:
    """The processes that have the folder in their environment: those that the benchmark started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process.pid)
    return found
