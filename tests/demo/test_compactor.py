"""When the demo takes its compactor for ready, and how it ends it. Stand-ins print what the program prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from lakewarden.agent.demo.choices import DemoError
from lakewarden.agent.demo.processes import Child, wait_for
from lakewarden.agent.demo.programs import Arena
from lakewarden.agent.demo.run import Demo, DemoSettings
from lakewarden.agent.demo.table import TablePlace

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


class Scene:
    """A demo whose compactor is a stand-in."""

    def __init__(self, folder: Path, then: str, *lines: str) -> None:
        self.go = folder / "go"
        argv = [sys.executable, "-c", SCRIPT, str(self.go), then, *lines]
        self.child = Child("compactor", argv, folder)
        self.arena = Arena("auto", TablePlace("file:///lake"), folder)
        self.demo = Demo(DemoSettings(1), folder, Console())

    def wait_until_ready(self) -> None:
        self.demo.wait_for_compactor(self.child, self.arena)

    def stop(self, seconds: float = 60.0) -> list[str]:
        self.demo.end_compactor(self.child, self.arena, seconds)
        return self.demo.notes


def test_a_contest_begins_when_the_compactor_says_that_it_is_ready(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "runs", READY)
    scene.go.touch()

    scene.wait_until_ready()

    assert READY in scene.child.out.read_text()
    assert scene.stop(0.1) == ["the compactor committed nothing: the log is empty"]
    assert scene.child.remaining() == []


def test_a_compactor_that_ends_before_it_is_ready_ends_the_demo(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "ends")
    scene.go.touch()

    with pytest.raises(DemoError, match="the compactor did not start: no space left on device"):
        scene.wait_until_ready()


def test_it_is_stopped_after_its_first_commit_even_if_the_queries_ended_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "runs", READY, f"{TABLE} snapshot 9: 4 files became 2")
    scene.go.touch()

    assert scene.stop() == []

    assert "snapshot 9" in scene.child.out.read_text()
    assert scene.child.remaining() == []


@pytest.mark.parametrize("commits", [(), (f"{TABLE} snapshot 9: 4 files became 2",)], ids=["none", "one"])
def test_a_compactor_that_has_ended_by_itself_is_noted(commits: tuple[str, ...], tmp_path: Path) -> None:
    scene = Scene(tmp_path, "ends", READY, *commits)
    scene.go.touch()
    assert wait_for(scene.child, scene.child.exit_code, 60) == 1

    assert scene.stop() == ["the compactor has ended: no space left on device"]
