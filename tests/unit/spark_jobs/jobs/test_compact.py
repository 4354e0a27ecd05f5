"""The program around the rounds of a compactor: options, and what it does when a round fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakewarden.spark_jobs.jobs.compact import main, run
from lakewarden.spark_jobs.sinks.paimon.compaction import CompactionCommit, Stopped


class ScriptedCompactor:
    """Its rounds are functions, which may raise."""

    table = "file:///lake/flights"

    def __init__(self, *rounds: Callable[[], list[CompactionCommit]], lost: int = 0) -> None:
        self._rounds = list(rounds)
        self.lost = lost

    def run_round(self) -> Iterator[CompactionCommit]:
        yield from self._rounds.pop(0)()


def failing(error: Exception) -> Callable[[], list[CompactionCommit]]:
    def fail() -> list[CompactionCommit]:
        raise error

    return fail


def commits(*found: CompactionCommit) -> Callable[[], list[CompactionCommit]]:
    return lambda: list(found)


def run_scripted(compactor: Any, stop: threading.Event, *, once: bool) -> int:
    return run(compactor, stop, once=once, every=0.001)


def test_a_round_that_fails_is_one_line_and_the_next_one_follows(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()

    def last() -> list[CompactionCommit]:
        stop.set()
        return [CompactionCommit(7, 60, 1), CompactionCommit(8, 0, 0)]

    code = run_scripted(
        ScriptedCompactor(failing(ValueError("no schema\nin the folder")), commits(), last), stop, once=False
    )

    assert code == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "file:///lake/flights ready: a round every 0.001 s",
        "file:///lake/flights snapshot 7: 60 files became 1",
        "file:///lake/flights snapshot 8: manifests merged",
    ]
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("compaction of file:///lake/flights failed: ")


@pytest.mark.parametrize(
    ("compactor", "code"),
    [
        (ScriptedCompactor(commits()), 0),
        (ScriptedCompactor(commits(), lost=1), 1),
        (ScriptedCompactor(failing(OSError("away"))), 1),
    ],
    ids=["done", "lost", "failed"],
)
def test_once(compactor: ScriptedCompactor, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_scripted(compactor, threading.Event(), once=True) == code
    assert capsys.readouterr().out == ""


def test_a_stopped_round_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()

    def stopped() -> list[CompactionCommit]:
        stop.set()
        raise Stopped

    assert run_scripted(ScriptedCompactor(stopped), stop, once=True) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "options",
    [[], ["--once", "--every", "5"], ["--every", "0"], ["--catalog-option", "s3.endpoint"]],
    ids=" ".join,
)
def test_options_that_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    required = ["--bootstrap-servers", "kafka:9092", "--table", "/lake/flights"] if options else []

    with pytest.raises(SystemExit) as ended:
        main([*required, *options])

    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
