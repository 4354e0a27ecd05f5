from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kafka_fixture import KafkaServer
from tests.servers.s3 import ENDPOINT_VARIABLE, S3Server

REQUESTS = {"acquire": 2, "renew": 1, "release": 1}
LATENCIES = {
    "once_through_kafka",
    "marker_to_abort",
    "intent_to_admitted",
    "requested_to_granted",
    "intent_to_granted",
    "intent_to_granted_taking_the_lock",
}


@pytest.mark.real
@pytest.mark.timeout(300)  # seconds alone; four agents start beside whatever else the machine does
def test_the_benchmark_runs_and_reports_every_figure(
    kafka: KafkaServer, s3_server: S3Server, tmp_path: Path
) -> None:
    written = tmp_path / "bench.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bench",
            "--quick",
            "--json",
            str(written),
            "--bootstrap-servers",
            kafka.bootstrap_servers,
        ],
        env=os.environ
        | s3_server.environment
        | {"TMPDIR": str(tmp_path), ENDPOINT_VARIABLE: s3_server.endpoint},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "marker → abort" in done.stdout
    report = json.loads(written.read_text())
    assert report["quick"] is True
    assert {"cores", "python", "load_before", "load_after"} <= report["machine"].keys()
    latencies = report["latency_ms"]
    for name in LATENCIES:
        assert latencies[name].keys() == {"p50", "p99", "max", "count"}
        assert latencies[name]["count"] == latencies["trials"]
    assert report["throughput"]["markers_a_second"] > 0
    assert report["restart"]["markers"] == report["throughput"]["markers"]
    for name in (
        "ready_seconds",
        "replay_seconds",
        "resident_mb",
        "peak_mb",
        "cpu_seconds",
        "bytes_a_marker",
    ):
        assert name in report["restart"]
    for name in ("incremental", "incremental_all_meeting", "sweep", "periodic"):
        assert report["check"][name].keys() == {"ms", "ns_a_marker"}
    _check_conflicts(report)
    assert (tmp_path / "waste.png").read_bytes().startswith(b"\x89PNG")
    _check_locks(report["locks"])
    assert "8 contenders" in done.stdout
    assert _started_with(tmp_path) == []


def _check_conflicts(report: dict[str, Any]) -> None:
    """Not how fast: that each figure is there, and what holds on any machine."""
    for cell in report["detection"]["cells"]:
        assert cell["sweep_ms"].keys() == {"apart", "shared", "conflicting"}
        assert cell["arrival_ns"]["apart"] > 0
    modes = {name: figures["an_hour"] for name, figures in report["waste"]["modes"].items()}
    assert modes["nobody coordinates"]["lost_updates"]["median"] > 0
    assert modes["queued"]["wasted_seconds"]["each"] == [0]
    assert modes["first intent"]["wasted_seconds"]["median"] > 0
    assert all(each["lost_updates"]["each"] == [0] for name, each in modes.items() if "nobody" not in name)
    assert report["load"]["marker_to_abort_ms"]["count"] > 0


def _check_locks(report: dict[str, Any]) -> None:
    """Not how fast, but how many: an idle machine and a busy one send the same requests, and lose no lease."""
    assert {name: report["operations"][name]["requests"] for name in REQUESTS} == REQUESTS
    assert report["hand_over"]["requests"] >= 2
    assert report["hand_over"]["ms"].keys() == {"whole", "release", "kafka", "read", "write"}
    for name in ("contention", "contention_later"):
        assert report[name]["cycles_a_second"]["median"] > 0
        assert 0 < report[name]["jain"]["median"] <= 1
        assert report[name]["requests_a_cycle"]["median"] > 2
    kept = report["renewals"]
    assert kept["late_ms"]["count"] == kept["took_ms"]["count"] == kept["renewals"] > 0
    assert kept["pause"]["renewed"] == kept["locks"]
    assert kept["lost"] == 0


def _started_with(folder: Path) -> list[int]:
    """Processes that have the folder in their environment, as all that the benchmark starts has."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process.pid)
    return found
