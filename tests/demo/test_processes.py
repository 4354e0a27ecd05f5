from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from lakewarden.agent.demo.processes import Child, stop_all
from lakewarden.agent.locks.posix_session import posix_session_members
from tests.waiting import wait_until

FAMILY = """
import os, signal, subprocess, sys, time
{stubborn}
WORKER = "import os, time; os.setpgid(0, 0); print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", WORKER])
time.sleep(600)
"""
"""A parent with a child in its own process group, as Spark's Python workers are."""

PARENT = """
import pathlib, sys, time
from lakewarden.agent.demo.processes import Child
child = Child("child", [sys.executable, "-c", "import time; time.sleep(600)"], pathlib.Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("stubborn", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_all_processes_of_a_session_are_ended_even_if_the_parent_ignores_sigterm(
    tmp_path: Path, stubborn: str
) -> None:
    child = Child("family", [sys.executable, "-c", FAMILY.format(stubborn=stubborn)], tmp_path)
    wait_until(lambda: child.out.read_text() == "1\n")
    assert len(child.remaining()) == 2

    stop_all([child], orderly_seconds=0.5)

    assert posix_session_members(child.pid) == []


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The parent executes no more code after SIGKILL, so the kernel ends the child."""
    parent = Child("parent", [sys.executable, "-c", PARENT, str(tmp_path)], tmp_path)
    wait_until(lambda: parent.out.read_text().endswith("\n"))
    child = int(parent.out.read_text())
    wait_until(lambda: posix_session_members(child) == [child])

    os.kill(parent.pid, signal.SIGKILL)

    wait_until(lambda: posix_session_members(child) == [])
    stop_all([parent])


def test_the_last_log_line_is_the_last_one_that_is_not_blank(tmp_path: Path) -> None:
    child = Child(
        "child", [sys.executable, "-c", "import sys; print('first\\n\\nlast\\n', file=sys.stderr)"], tmp_path
    )
    wait_until(lambda: child.exit_code() is not None)

    assert child.last_log_line() == "last"
