from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lakewarden.agent.demo.processes import Child, stop_all
from lakewarden.agent.locks.posix_session import posix_session_members

FAMILY = """
import os, signal, subprocess, sys, time
{stubborn}
WORKER = "import os, time; os.setpgid(0, 0); print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", WORKER])
time.sleep(60)
"""
"""A parent with a child in a process group of its own, as Spark's Python workers are."""

PARENT = """
import pathlib, sys, time
from lakewarden.agent.demo.processes import Child
child = Child("child", [sys.executable, "-c", "import time; time.sleep(60)"], pathlib.Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(60)
"""


def wait_for(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("stubborn", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_whole_family_is_ended_even_if_the_parent_ignores_the_request(
    tmp_path: Path, stubborn: str
) -> None:
    child = Child("family", [sys.executable, "-c", FAMILY.format(stubborn=stubborn)], tmp_path)
    wait_for(lambda: child.out.read_text() == "1\n")
    assert len(child.remaining()) == 2

    began = time.monotonic()
    stop_all([child], orderly_seconds=0.5)

    assert posix_session_members(child.pid) == []
    assert time.monotonic() - began < 15


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Nobody can run a finally block after SIGKILL; the kernel does it."""
    parent = Child("parent", [sys.executable, "-c", PARENT, str(tmp_path)], tmp_path)
    wait_for(lambda: parent.out.read_text().endswith("\n"))
    child = int(parent.out.read_text())
    wait_for(lambda: posix_session_members(child) == [child])

    os.kill(parent.pid, signal.SIGKILL)

    wait_for(lambda: posix_session_members(child) == [])
    stop_all([parent])


def test_the_last_words_of_a_child_are_one_line(tmp_path: Path) -> None:
    child = Child(
        "talker", [sys.executable, "-c", "import sys; print('first\\n\\nlast\\n', file=sys.stderr)"], tmp_path
    )
    wait_for(lambda: child.exit_code() is not None)

    assert child.last_log_line() == "last"
