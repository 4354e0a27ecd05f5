"""The process of a query's function on Spark Connect ends with its query and its server, in a step that allows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lakewarden.spark_jobs.engine import connect
from lakewarden.spark_jobs.engine.connect import (
    WORKER_VARIABLE,
    Connect,
    ProcessEnds,
    TaggedOperations,
    _Worker,
)
from tests.waiting import wait_until

WORKER = """
import sys
import time
from pathlib import Path

from lakewarden.spark_jobs.engine.connect import Connect, ProcessEnds

folder, step = Path(sys.argv[1]), sys.argv[2]
try:
    with Connect().running(lambda: step == "computing"):
        (folder / "begun").touch()
        while step == "computing" or not (folder / "go-on").exists():
            time.sleep(0.01)
        (folder / "ended").write_text("published")
except ProcessEnds as ends:
    (folder / "ended").write_text(str(ends))
"""

SERVER = """
import subprocess
import sys

worker = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(worker.pid, flush=True)
worker.wait()
"""


@pytest.mark.parametrize("step", ["computing", "publishing"])
@pytest.mark.parametrize("cause", ["the query", "Spark"])
def test_a_worker_ends_at_once_unless_it_publishes(cause: str, step: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, WORKER, str(tmp_path), step]
    environment = os.environ | {WORKER_VARIABLE: "sc://127.0.0.1:1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        worker = int(server.stdout.readline())
        wait_until((tmp_path / "begun").exists)

        if cause == "Spark":
            server.kill()
        else:
            os.kill(worker, signal.SIGTERM)

        if step == "publishing":
            with pytest.raises(psutil.TimeoutExpired):
                psutil.Process(worker).wait(1.0)
            (tmp_path / "go-on").touch()
        wait_until(lambda: not psutil.pid_exists(worker))
    expected = "published" if step == "publishing" else f"{cause} was stopped"
    assert (tmp_path / "ended").read_text() == expected


@pytest.mark.parametrize("step", ["computing", "publishing"])
def test_a_batch_of_another_thread_is_interrupted_unless_it_publishes(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread's batch is publishing, and isn't ended by what another thread begins and ends."""
    worker = _Worker()
    worker._server = os.getppid()
    monkeypatch.setattr(connect, "_WORKER", worker)
    interrupted = threading.Event()
    session = SimpleNamespace(
        addTag=lambda _: None, removeTag=lambda _: None, interruptTag=lambda _: interrupted.set()
    )
    begun, stopped = threading.Event(), threading.Event()

    def other() -> None:
        with Connect().running(lambda: step == "computing"), TaggedOperations(session, "tag"):
            begun.set()
            (interrupted if step == "computing" else stopped).wait()

    with Connect().running(lambda: False), Connect().running(lambda: False):
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        worker._end()
        stopped.set()
        thread.join()
        assert interrupted.is_set() == (step == "computing")
        assert worker.may_end.keys() == {threading.get_ident()}
    assert worker.may_end == {}


def test_what_ends_a_transaction_is_not_interrupted_by_a_second_signal() -> None:
    worker = _Worker()
    worker._server = os.getppid()
    worker.may_end[threading.get_ident()] = lambda: True

    with pytest.raises(ProcessEnds):
        worker._end()

    worker._end()
    assert worker.stopped == "the query"
