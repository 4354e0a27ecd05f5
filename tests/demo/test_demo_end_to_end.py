"""The demo as a user runs it, with Kafka, agent and Spark, on a few days of flights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.demo.test_run import processes_with
from tests.servers.s3 import S3Server

DAYS = 3
FLIGHTS = 2_699
"""On 1, 2 and 3 January 2013."""

FORMATS = ["hudi"] if pyspark.__version__.startswith("3.5.") else ["delta", "iceberg"]
"""Those that this PySpark can write; the others in `make test-spark35`'s environment."""

HANG_SECONDS = 2400
"""Only ends a hang."""

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(2500)]


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakewarden.agent", "demo", "--days", str(DAYS), "--output", "json"]
    places = ["--data", str(folder / "data"), "--picture", str(folder / "demo.svg")]
    done = subprocess.run(
        [*command, *places, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
        env={**os.environ, "COLUMNS": "140"},
    )
    print(done.stdout, done.stderr)
    return done


def the_report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert isinstance(report, dict)
    return report


def assert_every_row_is_right(contest: dict[str, Any]) -> None:
    assert contest["expected"] == contest["present"] == FLIGHTS
    assert contest["missing"] == contest["duplicated"] == contest["wrong"] == 0


def test_two_queries_collide_under_the_agent_and_wait_with_auto_and_nothing_is_lost(tmp_path: Path) -> None:
    done = demo(tmp_path)

    assert done.returncode == 0
    report = the_report(done)
    optimistic, auto = report["contests"]
    for contest in (optimistic, auto):
        assert_every_row_is_right(contest)
    assert optimistic["conflicts"] >= 1
    assert (auto["conflicts"], auto["wasted_seconds"]) == (0, 0)
    assert report["notes"] == [], "all sources agree, and no writer was restarted"
    assert "CONFLICT with" in done.stderr
    assert "starts, queued for admission" in done.stderr
    assert report["picture"] == str(tmp_path / "demo.svg")
    assert "computed in vain" in (tmp_path / "demo.svg").read_text()
    assert processes_with(str(tmp_path)) == []


@pytest.mark.matrix
@pytest.mark.parametrize("form", FORMATS)
def test_the_same_on_a_table_of_another_format(form: str, tmp_path: Path) -> None:
    done = demo(tmp_path, "--format", form)

    assert done.returncode == 0
    report = the_report(done)
    for contest in report["contests"]:
        assert_every_row_is_right(contest)
        assert sum(contest["restarts"].values()) == 0
    optimistic, auto = report["contests"]
    assert optimistic["conflicts"] >= 1
    assert (auto["conflicts"], auto["wasted_seconds"]) == (0, 0)
    assert report["notes"] == []
    assert (tmp_path / "demo.svg").exists()
    assert processes_with(str(tmp_path)) == []


@pytest.mark.matrix
@pytest.mark.parametrize("store", ["disk", "s3"])
def test_the_same_on_a_table_with_a_primary_key_beside_a_compactor(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    places: list[str] = []
    if store == "s3":
        server: S3Server = request.getfixturevalue("s3_credentials")
        places = ["--s3-endpoint", server.endpoint, "--s3-bucket", server.bucket()]

    done = demo(tmp_path, "--primary-key", *places)

    assert done.returncode == 0
    report = the_report(done)
    for contest in report["contests"]:
        assert_every_row_is_right(contest)
        assert sum(contest["restarts"].values()) == 0
        assert contest["conflicts"] == 0, "upserts wait for their turn"
        assert contest["compactions"] >= 1
    assert report["notes"] == []
    assert processes_with(str(tmp_path)) == []


@pytest.mark.matrix
def test_the_same_queries_without_an_agent_lose_rows_without_an_error(tmp_path: Path) -> None:
    done = demo(tmp_path, "--without-agent")

    assert done.returncode == 0
    (contest,) = the_report(done)["contests"]
    assert contest["expected"] == FLIGHTS
    assert contest["missing"] + contest["wrong"] > 0
    assert contest["conflicts"] == 0
    assert processes_with(str(tmp_path)) == []
