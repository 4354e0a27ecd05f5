"""When the demo takes its compactor for ready, and how it ends it. Stand-ins print what the program prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakewarden.agent.demo.compactor import Compactor
from lakewarden.agent.demo.errors import DemoError
from lakewarden.agent.demo.processes import Child, wait_for

TABLE = "file:///lake/demo.db/flights"

READY = f"{TABLE} ready: a round every 3 s"

SCRIPT = """
import pathlib, sys, time
go = pathlib.Path(sys.argv[1])
print(":: loading settings", flush=True)
while not go.exists():
    time.sleep(0.02)
for line in sys.argv[3:]:
    print(line, flush=True)
if sys.argv[2] == "ends":
    sys.exit("no space left on device")
time.sleep(600)
"""


def compactor(folder: Path, then: str, *lines: str) -> tuple[Compactor, Child, Path]:
    go = folder / "go"
    child = Child("compactor", [sys.executable, "-c", SCRIPT, str(go), then, *lines], folder)
    return Compactor(child, TABLE), child, go


def test_a_contest_begins_when_the_compactor_says_that_it_is_ready(tmp_path: Path) -> None:
    running, child, go = compactor(tmp_path, "runs", READY)
    go.touch()

    running.wait_until_ready()

    assert READY in child.out.read_text()
    assert running.stop(commit_seconds=0.1) == "the compactor committed nothing: the log is empty"
    assert child.remaining() == []


def test_a_compactor_that_ends_before_it_is_ready_ends_the_demo(tmp_path: Path) -> None:
    failing, _, go = compactor(tmp_path, "ends")
    go.touch()

    with pytest.raises(DemoError, match="the compactor did not start: no space left on device"):
        failing.wait_until_ready()


def test_it_is_stopped_after_its_first_commit_even_if_the_queries_ended_before(tmp_path: Path) -> None:
    running, child, go = compactor(tmp_path, "runs", READY, f"{TABLE} snapshot 9: 4 files became 2")
    go.touch()

    assert running.stop() is None

    assert "snapshot 9" in child.out.read_text()
    assert child.remaining() == []


@pytest.mark.parametrize("commits", [(), (f"{TABLE} snapshot 9: 4 files became 2",)], ids=["none", "one"])
def test_a_compactor_that_has_ended_by_itself_is_noted(commits: tuple[str, ...], tmp_path: Path) -> None:
    ended, child, go = compactor(tmp_path, "ends", READY, *commits)
    go.touch()
    assert wait_for(child, child.exit_code, 60) == 1

    assert ended.stop() == "the compactor has ended: no space left on device"
