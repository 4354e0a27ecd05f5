"""A run of the demo with stand-ins for the programs: no agent, no Kafka, no Spark. How it starts, follows and ends them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lakewarden.agent.demo.run import Child, Demo, DemoSettings, run_demo, stop_all
from lakewarden.agent.errors import AgentError
from tests.posix_session import posix_session_members
from tests.waiting import wait_until

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))

RUN = f"""
import sys
from pathlib import Path
from lakewarden.agent.demo.run import DemoSettings, run_demo
run_demo(DemoSettings(days=1, without_agent=True, data=Path(sys.argv[1]), program={STAND_IN!r}), print)
"""


def settings(folder: Path) -> DemoSettings:
    return DemoSettings(
        days=1, without_agent=True, data=folder / "data", picture=folder / "demo.svg", program=STAND_IN
    )


def processes_with(word: str) -> list[str]:
    """The command lines of other processes that contain the word."""
    others = (each for each in psutil.process_iter(["cmdline"]) if each.pid != os.getpid())
    lines = (" ".join(each.info["cmdline"] or ()) for each in others)
    return [line for line in lines if word in line]


def test_a_failed_writer_is_restarted_and_the_result_notes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "fail-once")
    shown: list[str] = []

    result = run_demo(settings(tmp_path), shown.append)

    (contest,) = result.contests
    assert contest.restarts == {"departures": 0, "arrivals": 1}
    assert "the arrivals query failed with code 1: File deletion conflicts" in result.notes[0]
    assert result.notes[0].endswith("; it was restarted")
    assert contest.check.missing == contest.check.expected == 842
    assert contest.batches == 3
    assert (tmp_path / "demo.svg").exists()
    assert [line for line in shown if re.search(r"arrivals +batch 1 +committed", line)]
    assert not result.clean
    assert result.kept is not None


def test_a_writer_that_always_fails_ends_the_demo_with_its_error_and_the_folder_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "fail")

    with pytest.raises(
        AgentError, match="failed 4 times; the last error: no space left on device; logs: "
    ) as caught:
        run_demo(settings(tmp_path), lambda _: None)

    assert "\n" not in str(caught.value)
    assert list(Path(str(caught.value).rpartition("logs: ")[2]).glob("alone-arrivals-*.log"))
    assert processes_with(str(tmp_path)) == []


def test_tables_that_cant_be_created_end_the_demo_with_the_programs_last_line(tmp_path: Path) -> None:
    failing = (sys.executable, "-c", "import sys; sys.exit('the demo of Hudi needs PySpark 3.5')")

    with pytest.raises(AgentError, match=r"create failed: the demo of Hudi needs PySpark 3\.5; logs: "):
        run_demo(replace(settings(tmp_path), program=failing), lambda _: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env={**os.environ, "STAND_IN": "hang"},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while len([out for out in tmp_path.glob("*/logs/*.out") if "\nhangs\n" in out.read_text()]) < 2:
        assert demo.poll() is None
        time.sleep(0.05)

    demo.send_signal(number)
    _, errors = demo.communicate(timeout=120)

    assert b"KeyboardInterrupt" in errors
    assert posix_session_members(demo.pid) == []
    assert processes_with(f"{tmp_path}/") == []


FAMILY = """
import os, signal, subprocess, sys, time
{stubborn}
WORKER = "import time; print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", WORKER])
time.sleep(600)
"""
"""A parent with a child, as a driver has its JVM."""

PARENT = """
import pathlib, sys, time
from lakewarden.agent.demo.run import Child
child = Child("child", [sys.executable, "-c", "import time; time.sleep(600)"], pathlib.Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("stubborn", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_program_is_ended_with_what_it_has_started_even_if_it_ignores_sigterm(
    tmp_path: Path, stubborn: str
) -> None:
    child = Child("family", [sys.executable, "-c", FAMILY.format(stubborn=stubborn)], tmp_path)
    wait_until(lambda: child.lines() == ["1"])
    assert len(posix_session_members(child.pid)) == 2

    stop_all([child], seconds=0.5)

    assert posix_session_members(child.pid) == []


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The parent executes no more code after SIGKILL, so the kernel ends the child."""
    parent = Child("parent", [sys.executable, "-c", PARENT, str(tmp_path)], tmp_path)
    wait_until(lambda: len(parent.lines()) == 1)
    child = int(parent.lines()[0])
    wait_until(lambda: posix_session_members(child) == [child])

    os.kill(parent.pid, signal.SIGKILL)

    wait_until(lambda: posix_session_members(child) == [])
    stop_all([parent])


def test_a_program_gets_no_settings_of_another_agent_and_half_a_line_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEWARDEN_TOPIC_PREFIX", "production")
    monkeypatch.setenv("LAKEWARDEN_CACHE_DIR", "/cache")
    script = """
import os, sys
print([name for name in os.environ if name.startswith("LAKEWARDEN_")])
print("half", end="")
print("first\\n\\nlast\\n", file=sys.stderr)
"""
    child = Child("child", [sys.executable, "-c", script], tmp_path)
    wait_until(lambda: child.exit_code() is not None)

    assert child.lines() == ["['LAKEWARDEN_CACHE_DIR']"]
    assert child.last_log_line() == "last"


URI = "file:///lake/demo.db/flights"
READY, COMMIT = f"{URI} ready: a round every 3 s", f"{URI} snapshot 9: 4 files became 2"
COMPACTOR = """
import sys, time
print(":: loading settings", flush=True)
for line in sys.argv[2:]:
    print(line, flush=True)
if sys.argv[1] == "ends":
    sys.exit("no space left on device")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("then", "lines", "compactions", "notes"),
    [
        ("runs", (READY,), 0, ["compactor was not ready after 0 s: the log is empty"]),
        ("runs", (READY, COMMIT, COMMIT), 2, []),
        ("ends", (READY,), 0, ["compactor has ended: no space left on device"]),
        ("ends", (READY, COMMIT), 1, ["compactor has ended: no space left on device"]),
    ],
)
def test_a_compactor_ends_after_its_first_commit_and_its_failure_is_noted(
    then: str, lines: tuple[str, ...], compactions: int, notes: list[str], tmp_path: Path
) -> None:
    demo = Demo(settings(tmp_path), tmp_path, lambda _: None)
    child = Child("compactor", [sys.executable, "-c", COMPACTOR, then, *lines], tmp_path)
    child.wait_for(lines[0])
    if then == "ends":
        wait_until(lambda: child.exit_code() is not None)
    else:
        wait_until(lambda: child.lines()[1:] == list(lines))

    assert demo.end_compactor(child, URI, 0.1) == compactions

    assert demo.notes == notes
    assert child.is_gone()


def test_a_compactor_that_ends_before_it_is_ready_ends_the_demo(tmp_path: Path) -> None:
    child = Child("compactor", [sys.executable, "-c", COMPACTOR, "ends"], tmp_path)

    with pytest.raises(AgentError, match="compactor has ended: no space left on device"):
        child.wait_for(READY)
