"""The writer's event loop: background work survives whatever a client, a token provider or a user's function raises."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import pytest

from lakewarden.spark_jobs.gate import kafka
from lakewarden.spark_jobs.gate.errors import AgentUnreachable, GateError, GrantTimeout
from lakewarden.spark_jobs.gate.kafka import LoopThread

NEVER_CLOSED = """
import anyio
from lakewarden.spark_jobs.gate.kafka import LoopThread

kept = LoopThread("127.0.0.1:1", name="kept")
kept.call(lambda: anyio.sleep(0), timeout=5, doing="nothing")
print("ended")
"""
PATIENCE = 60.0


class Beats:
    """Background work that counts, and lets the test wait for the next count."""

    def __init__(self) -> None:
        self._counted = threading.Semaphore(0)

    async def run(self) -> None:
        while True:
            self._counted.release()
            await anyio.sleep(0.01)

    def require(self, count: int) -> None:
        """Fail unless it counts so many times more."""
        while self._counted.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self._counted.acquire(timeout=PATIENCE)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    monkeypatch.setattr(kafka, "RESTART_SECONDS", 0.01)
    made = LoopThread("kafka-1:9092", name="test")
    yield made
    made.close()


async def raise_an_error() -> None:
    """As a token provider did."""
    raise ValueError("no token today")


async def await_what_was_cancelled() -> None:
    """As a task of aiokafka does that awaits another of its tasks. The loop's task group took it for the end of all tasks."""
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


ends = pytest.mark.parametrize(
    ("end", "named"),
    [(raise_an_error, "ValueError('no token today')"), (await_what_was_cancelled, "CancelledError()")],
    ids=["error", "cancellation"],
)


@ends
def test_a_background_loop_that_raises_ends_no_other_and_is_started_again(
    thread: LoopThread, caplog: pytest.LogCaptureFixture, end: Callable[[], Awaitable[None]], named: str
) -> None:
    """Before, the driver's heartbeats and readers ended silently, those of all queries."""
    caplog.set_level(logging.ERROR, "lakewarden")
    heartbeats, failing = Beats(), Beats()
    raised = threading.Semaphore(0)

    async def fail() -> None:
        if not raised.acquire(blocking=False):
            await end()
        await failing.run()

    thread.spawn(heartbeats.run, name="heartbeats")
    heartbeats.require(2)
    thread.spawn(fail, name="reading")
    heartbeats.require(5)
    raised.release()
    failing.require(2)
    heartbeats.require(2)

    later = Beats()
    thread.spawn(later.run, name="later")
    later.require(2)
    first = caplog.records[0]
    assert getattr(first, "event", "") == "background.restarted"
    assert getattr(first, "fields", {}) == {"task": "reading", "error": named}


@ends
def test_a_single_action_that_raises_ends_no_background_loop(
    thread: LoopThread, caplog: pytest.LogCaptureFixture, end: Callable[[], Awaitable[None]], named: str
) -> None:
    """A client that can't be closed."""
    caplog.set_level(logging.ERROR, "lakewarden")
    heartbeats = Beats()
    thread.spawn(heartbeats.run, name="heartbeats")

    async def start() -> None:
        thread.start_soon(end)

    thread.call(start, timeout=PATIENCE, doing="closing")
    heartbeats.require(5)

    [line] = caplog.records
    assert getattr(line, "event", "") == "background.failed"
    assert getattr(line, "fields", {}) == {"task": end.__name__, "error": named}


def test_background_work_that_returns_is_not_started_again(thread: LoopThread) -> None:
    ran = threading.Semaphore(0)

    async def once() -> None:
        ran.release()

    thread.spawn(once, name="once")
    assert ran.acquire(timeout=PATIENCE)
    heartbeats = Beats()
    thread.spawn(heartbeats.run, name="heartbeats")
    heartbeats.require(5)

    assert not ran.acquire(blocking=False)


@pytest.mark.parametrize(
    "error", [ValueError("no token today"), TypeError("an option twice"), AssertionError()]
)
def test_whatever_a_call_raises_its_caller_gets_one_error_that_names_the_cause(
    thread: LoopThread, error: Exception
) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(AgentUnreachable) as caught:
        thread.call(fail, timeout=PATIENCE, doing="publishing markers", facts="table=t")

    assert caught.value.__cause__ is error
    assert str(error) in str(caught.value)
    for expected in ("publishing markers failed", "brokers=kafka-1:9092", "table=t"):
        assert expected in str(caught.value)


def test_an_error_of_the_gate_is_passed_on(thread: LoopThread) -> None:
    async def fail() -> None:
        raise GrantTimeout("not admitted")

    with pytest.raises(GrantTimeout, match="not admitted"):
        thread.call(fail, timeout=PATIENCE, doing="publishing")


def test_a_loop_that_was_never_closed_does_not_block_the_exit() -> None:
    """This happened to a driver that published markers through an executor's channel: its process never ended."""
    run = subprocess.run(
        [sys.executable, "-c", NEVER_CLOSED], capture_output=True, text=True, timeout=120, check=False
    )

    assert (run.stdout, run.stderr) == ("ended\n", ""), "Python 3.12 starts no thread in an exit handler"
    assert run.returncode == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_loop_that_runs_in_the_parent_of_a_forked_process_is_refused_at_once(thread: LoopThread) -> None:
    """multiprocessing forks by default before Python 3.14. The thread isn't in the child, and every call waited for it."""
    thread.call(anyio.lowlevel.checkpoint, timeout=PATIENCE, doing="starting")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        try:
            thread.call(anyio.lowlevel.checkpoint, timeout=PATIENCE, doing="nothing")
        except GateError as error:
            answers.put(str(error))
        thread.close()
        answers.put("closed")

    process = context.Process(target=child)
    process.start()
    process.join(PATIENCE)

    assert process.exitcode == 0
    assert f"connected in process {os.getpid()}, and process {process.pid} was forked" in answers.get()
    assert answers.get() == "closed"


def test_a_function_of_kafka_options_does_not_stop_the_loop(thread: LoopThread) -> None:
    """It may wait for a vault. Meanwhile the heartbeats of all transactions are sent."""
    beats, answered = Beats(), threading.Event()

    def options() -> dict[str, str]:
        assert answered.wait(PATIENCE)
        return {"client_id": "mine"}

    thread.spawn(beats.run, name="beats")
    with pytest.raises(AgentUnreachable, match=r"no answer within 0\.1 s"):
        thread.call(lambda: kafka._options(options), timeout=0.1, doing="connecting")
    beats.require(3)
    answered.set()
    found = thread.call(lambda: kafka._options(options), timeout=PATIENCE, doing="connecting")

    assert found.passed_on == {"client_id": "mine"}


def hold_the_gil(seconds: float) -> None:
    """As a regular expression of a driver's program did for 25 s."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE)
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    finally:
        sys.setswitchinterval(usual)


@pytest.fixture
def short_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(kafka, "STALL_SECONDS", 1.0)


@pytest.mark.usefixtures("short_stalls")
@pytest.mark.parametrize("where", ["another thread", "the loop"])
def test_an_error_says_that_the_process_itself_stood_still(thread: LoopThread, where: str) -> None:
    """The error blamed Kafka, although nothing of this process ran."""

    async def answer() -> None:
        started.set()
        if where == "the loop":
            time.sleep(1.3)  # noqa: ASYNC251 - as code that blocks
        await anyio.sleep_forever()

    started = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(thread.call, answer, timeout=0.1, doing="publishing")
        assert started.wait(PATIENCE)
        if where == "another thread":
            hold_the_gil(1.5)
        with pytest.raises(AgentUnreachable, match=r"publishing failed: no answer within 0\.1 s; ") as raised:
            call.result(PATIENCE)

    assert re.search(r"this process itself did not run for \d+ s: code held Python", str(raised.value))
    assert thread.stood_still(PATIENCE) != ""


def test_an_error_names_no_time_before_its_call_and_no_short_one(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "STALL_SECONDS", PATIENCE)
    thread.call(anyio.lowlevel.checkpoint, timeout=PATIENCE, doing="starting")
    thread._stalls.append((time.monotonic(), 2 * PATIENCE))
    time.sleep(0.01)

    assert thread.stood_still(PATIENCE) != ""
    with pytest.raises(AgentUnreachable) as raised:
        thread.call(anyio.sleep_forever, timeout=0.1, doing="publishing")
    assert "did not run" not in str(raised.value)


def test_a_loop_that_has_not_started_or_is_closed_has_not_stood_still(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "STALL_SECONDS", PATIENCE)
    assert thread.stood_still(PATIENCE) == ""
    thread.call(anyio.lowlevel.checkpoint, timeout=PATIENCE, doing="starting")
    assert thread.stood_still(PATIENCE) == ""
    thread.close()
    assert thread.stood_still(PATIENCE) == ""
