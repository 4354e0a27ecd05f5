"""The demo's writer as a program: options, events file, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.events import CommitIntent, DecisionEventUnion, WriterEventUnion
from lakewarden.spark_jobs.jobs.demo_formats import catalog_options
from tests.spark.conftest import MakeTable, rows_of
from tests.spark.fake_agent import aborted, grant_everything
from tests.spark.harness import Harness
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]


RUN_SECONDS = 300
"""For a program to end. It only ends a hang."""


def feed(folder: Path, files: int = 2) -> Path:
    """Write small files with two rows of one day each."""
    folder.mkdir()
    for number in range(files):
        rows = [{"month": 1, "day": number + 1, "flight": flight, "departure": "05:17"} for flight in (1, 2)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
    return folder


def command(tmp_path: Path, table: str, *more: str) -> list[str]:
    program = [sys.executable, "-m", "lakewarden.spark_jobs.jobs.demo_writer", "--role", "departures"]
    program += ["--input", str(tmp_path / "feed"), "--table", table, "--keys", "month,day,flight"]
    return [
        *program,
        *("--checkpoint", str(tmp_path / "checkpoint"), "--events", str(tmp_path / "events.jsonl")),
        *more,
    ]


def events(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def agent_flags(harness: Harness) -> tuple[str, ...]:
    return ("--bootstrap-servers", harness.kafka.bootstrap_servers, "--topic-prefix", harness.prefix)


def test_it_writes_its_feed_and_records_every_step(
    harness: Harness, make_table: MakeTable, tmp_path: Path
) -> None:
    harness.agent(grant_everything)
    table = make_table()
    feed(tmp_path / "feed")

    flags = (*agent_flags(harness), "--max-files-per-trigger", "1", "--available-now")
    done = subprocess.run(
        command(tmp_path, table, *flags), capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""
    assert len(rows_of(table)) == 4
    recorded = events(tmp_path)
    assert [step["what"] for step in recorded] == [
        *("intent", "admitted", "markers", "requested", "granted", "completed") * 2
    ]
    assert {step["writer"].partition(":")[0] for step in recorded} == {"departures"}
    assert [step["batch_id"] for step in recorded[::6]] == [0, 1]


@pytest.mark.wide
def test_a_query_that_fails_prints_one_line_and_exits_with_1(
    harness: Harness, make_table: MakeTable, tmp_path: Path
) -> None:
    def refusing(event: WriterEventUnion, _offset: int) -> list[DecisionEventUnion]:
        return (
            [aborted(event, reason="not-allowed", retriable=False)] if isinstance(event, CommitIntent) else []
        )

    harness.agent(refusing)
    feed(tmp_path / "feed", files=1)

    done = subprocess.run(
        command(tmp_path, make_table(), *agent_flags(harness)),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "the departures query failed: lakewarden.spark_jobs.gate.errors.CommitAborted: commit refused:"
    )


@pytest.mark.wide
def test_sigterm_ends_the_program(make_table: MakeTable, tmp_path: Path) -> None:
    table = make_table()
    feed(tmp_path / "feed", files=20)
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(command(tmp_path, table, "--without-agent"), stdout=out, stderr=out)
    wait_until(lambda: events(tmp_path), RUN_SECONDS)

    process.send_signal(signal.SIGTERM)

    assert process.wait(RUN_SECONDS) == 128 + signal.SIGTERM
    assert events(tmp_path)[0]["what"] == "intent"


@pytest.mark.wide
def test_a_missing_option_is_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "/t"), capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 2
    assert "--bootstrap-servers is required, unless --without-agent is given" in done.stderr


def test_s3_options_come_from_the_usual_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert catalog_options(None) == {}
    assert catalog_options("http://127.0.0.1:9000") == {
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.path-style-access": "true",
        "s3.region": "us-east-1",
        "s3.access-key": "key",
        "s3.secret-key": "secret",
    }
