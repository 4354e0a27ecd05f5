"""A run of the demo with stand-ins for the Spark programs: no agent, no Kafka, no Spark."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lakewarden.agent.demo.choices import DemoError, FormatChoice
from lakewarden.agent.demo.programs import Arena, Commands, Programs, environment
from lakewarden.agent.demo.run import DemoSettings, run_demo
from lakewarden.agent.demo.table import TablePlace
from lakewarden.agent.locks.posix_session import posix_session_members

STAND_IN = Programs(writer=(sys.executable, str(Path(__file__).with_name("stand_in_writer.py"))))

RUN = f"""
import sys
from pathlib import Path
from rich.console import Console
from lakewarden.agent.demo.programs import Programs
from lakewarden.agent.demo.run import DemoSettings, run_demo
programs = Programs(writer={STAND_IN.writer!r})
run_demo(DemoSettings(1, (), data=Path(sys.argv[1]), programs=programs), Console())
"""


def settings(folder: Path) -> DemoSettings:
    return DemoSettings(1, (), data=folder / "data", picture=folder / "demo.svg", programs=STAND_IN)


def processes_with(word: str) -> list[str]:
    """The command lines of other processes that contain the word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if word in line:
                found.append(line)
    return found


def test_the_command_lines_of_a_run(tmp_path: Path) -> None:
    commands = Commands(Programs(dev=("dev",), writer=("writer",)), tmp_path, "s3://b", "http://s3", 3)
    arena = Arena("auto", TablePlace("s3://b", name="flights_auto"), tmp_path / "auto")

    line = " ".join(commands.writer("arrivals", Path("/feed"), Path("/e.jsonl"), arena, "127.0.0.1:9092"))

    assert line == (
        "writer --role arrivals --input /feed --table s3://b/demo.db/flights_auto --keys month,day,flight_id "
        f"--checkpoint {tmp_path}/auto/checkpoints/arrivals --events /e.jsonl --max-files-per-trigger 3 "
        "--bootstrap-servers 127.0.0.1:9092 --admission auto --s3-endpoint http://s3"
    )
    assert " ".join(commands.dev(["s3://b/t", "s3://b/u"])) == (
        f"dev --output json --data {tmp_path} --tables s3://b/t --tables s3://b/u --lock-root s3://b --s3-endpoint http://s3"
    )


def test_the_command_lines_of_a_run_on_tables_that_spark_creates(tmp_path: Path) -> None:
    programs = Programs(writer=("writer",), table=("table",))
    commands = Commands(programs, tmp_path, "file:///w", None, 3, FormatChoice.DELTA)
    places = [TablePlace("file:///w", name=name, form=FormatChoice.DELTA) for name in ("one", "two")]
    arena = Arena("auto", places[1], tmp_path / "auto")

    tables = "table --format delta --table file:///w/demo/one --table file:///w/demo/two"
    assert " ".join(commands.create_tables(places, Path("/rows"))).startswith(
        f"{tables} create --columns month int, day int, flight_id int, "
    )
    assert " ".join(commands.create_tables(places, Path("/rows"))).endswith(
        " --partition-by month,day --keys month,day,flight_id --rows /rows"
    )
    assert " ".join(commands.read_tables(places)) == f"{tables} read --output {tmp_path}/rows"
    writer = commands.writer("arrivals", Path("/feed"), Path("/e.jsonl"), arena, "127.0.0.1:9092")
    assert "--table file:///w/demo/two --keys month,day,flight_id --format delta " in " ".join(writer)


def test_the_command_line_of_the_compactor_of_a_table_with_a_primary_key(tmp_path: Path) -> None:
    commands = Commands(Programs(compactor=("compactor",)), tmp_path, "file:///w", None, 3)
    place = TablePlace("file:///w", primary_key=True)

    assert " ".join(commands.compactor(place, "127.0.0.1:9092")) == (
        "compactor --bootstrap-servers 127.0.0.1:9092 --table file:///w/demo.db/flights --every 3"
    )
    options = {"s3.endpoint": "http://s3", "s3.access-key": "k", "s3.secret-key": "s", "s3.region": "r"}
    on_s3 = commands.compactor(TablePlace("s3://b", options, primary_key=True), "127.0.0.1:9092")
    assert on_s3[-4:] == ["--catalog-option", "s3.endpoint=http://s3", "--catalog-option", "s3.region=r"]


def test_a_table_that_spark_cant_create_ends_the_demo_with_its_programs_last_line(tmp_path: Path) -> None:
    failing = (
        sys.executable,
        "-c",
        "import sys; sys.exit('the demo of Hudi needs PySpark 3.5, and this environment has 4.0.1')",
    )
    chosen = replace(settings(tmp_path), form=FormatChoice.HUDI, programs=Programs(table=failing))

    with pytest.raises(
        DemoError, match=r"create-tables failed: the demo of Hudi needs PySpark 3\.5, .*; logs: "
    ):
        run_demo(chosen, Console(file=io.StringIO()))

    assert processes_with(str(tmp_path)) == []


def test_the_environment_of_the_programs_has_no_settings_of_another_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKEWARDEN_TOPIC_PREFIX", "production")
    monkeypatch.setenv("LAKEWARDEN_CACHE_DIR", "/cache")

    variables = environment()

    assert "LAKEWARDEN_TOPIC_PREFIX" not in variables
    assert variables["LAKEWARDEN_CACHE_DIR"] == "/cache"
    assert variables["PATH"] == os.environ["PATH"]


def test_a_failed_writer_is_restarted_and_the_report_notes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "fail-once")
    shown = io.StringIO()

    report = run_demo(settings(tmp_path), Console(file=shown, width=200))

    (contest,) = report.contests
    assert contest.restarts == {"departures": 0, "arrivals": 1}
    assert "the arrivals query failed with code 1: File deletion conflicts" in report.notes[0]
    assert report.notes[0].endswith("; it was restarted")
    assert contest.check.missing == contest.check.expected == 842
    assert contest.batches == 3
    assert (tmp_path / "demo.svg").exists()
    assert "arrivals" in shown.getvalue()


def test_a_writer_that_always_fails_ends_the_demo_with_its_error_and_the_folder_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "fail")

    with pytest.raises(
        DemoError, match="failed 4 times; the last error: no space left on device; logs: "
    ) as caught:
        run_demo(settings(tmp_path), Console(file=io.StringIO()))

    assert "\n" not in str(caught.value)
    assert list(Path(str(caught.value).rpartition("logs: ")[2]).glob("arrivals-*.log"))
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env={**os.environ, "STAND_IN": "hang"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while len([out for out in tmp_path.glob("*/logs/*.out") if out.read_text() == "hangs\n"]) < 2:
        assert demo.poll() is None
        time.sleep(0.05)

    demo.send_signal(number)
    _, errors = demo.communicate(timeout=120)

    assert b"KeyboardInterrupt" in errors
    assert posix_session_members(demo.pid) == []
    assert processes_with(f"{tmp_path}/") == []
