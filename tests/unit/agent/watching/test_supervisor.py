"""The agent's watcher as a child process: its start, its instructions, its failures and its end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import supervisor
from lakewarden.agent.watching.instructions import Assignment, decode_assignment, decode_settings
from lakewarden.agent.watching.supervisor import keep_watching

pytestmark = [pytest.mark.unit]

PATIENCE_SECONDS = 120.0
COPY = "import os, sys; out = open(sys.argv[1], 'ab', 0); [out.write(line) for line in sys.stdin.buffer]"
FAIL = "import sys; sys.exit(3)"
NAME = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); time.sleep(1000)"
ONE = Assignment(12, frozenset({1}))
TWO = Assignment(12, frozenset({1, 2}))


@dataclass
class Agent:
    """Stands in for the agent, with a program in place of the watcher."""

    out: Path
    assignment: Assignment | None = ONE
    settings: Settings = field(default_factory=lambda: Settings(watch=("s3://lake/*",)))

    @asynccontextmanager
    async def watching(self, program: str) -> AsyncIterator[None]:
        command = (sys.executable, "-I", "-S", "-c", program, str(self.out))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(keep_watching, self.settings, lambda: self.assignment, command=command))
            yield
            tasks.cancel_scope.cancel()

    def lines(self) -> list[bytes]:
        """What the program has written."""
        return self.out.read_bytes().splitlines(keepends=True) if self.out.exists() else []


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", (0.01,))
    monkeypatch.setattr(supervisor, "ASSIGNMENT_SECONDS", 0.01)
    return Agent(tmp_path / "out")


async def until(holds: Callable[[], Any]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not holds():
            await anyio.sleep(0.005)


async def test_the_watcher_gets_the_settings_and_each_new_assignment(agent: Agent) -> None:
    """Between two assignments it gets none, so that it goes on with the former one."""
    async with agent.watching(COPY):
        await until(lambda: len(agent.lines()) == 2)
        agent.assignment = None
        await anyio.wait_all_tasks_blocked()
        agent.assignment = ONE
        await anyio.wait_all_tasks_blocked()
        agent.assignment = TWO
        await until(lambda: len(agent.lines()) == 3)

    settings, *assignments = agent.lines()
    assert decode_settings(settings) == agent.settings
    assert [decode_assignment(each) for each in assignments] == [ONE, TWO]


async def test_no_watcher_starts_before_the_first_assignment(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that waits for Kafka, or for the store of its lock root."""
    started: list[object] = []
    opened = anyio.open_process

    async def open_process(*arguments: Any, **more: Any) -> Any:
        started.append(agent.assignment)
        return await opened(*arguments, **more)

    monkeypatch.setattr(anyio, "open_process", open_process)
    agent.assignment = None
    async with agent.watching(COPY):
        await anyio.wait_all_tasks_blocked()
        agent.assignment = ONE
        await until(agent.lines)

    assert started == [ONE]


async def test_a_watcher_that_fails_is_logged_and_started_again(agent: Agent) -> None:
    with capture_logs() as logs:
        async with agent.watching(FAIL):
            await until(lambda: len(logs) >= 3)

    assert {(each["event"], each["log_level"], each["why"]) for each in logs} == {
        ("watch.ended", "warning", "exit status 3")
    }


async def test_a_watcher_that_is_killed_is_started_again(agent: Agent) -> None:
    """As the kernel does when memory runs out."""
    with capture_logs() as logs:
        async with agent.watching(NAME):
            await until(agent.lines)
            first = int(agent.lines()[0])
            psutil.Process(first).kill()
            await until(lambda: agent.lines() and int(agent.lines()[0]) != first)

    assert [each["why"] for each in logs] == ["signal 9"]


async def test_a_watcher_that_can_not_be_started_is_tried_again(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of processes is reached."""
    opened, refusals = anyio.open_process, iter([BlockingIOError(11, "no more processes")])

    async def open_process(*arguments: Any, **more: Any) -> Any:
        for error in refusals:
            raise error
        return await opened(*arguments, **more)

    monkeypatch.setattr(anyio, "open_process", open_process)
    with capture_logs() as logs:
        async with agent.watching(COPY):
            await until(agent.lines)

    assert ["no more processes" in each["why"] for each in logs] == [True]


async def test_the_wait_before_a_start_grows_and_is_short_again_after_a_long_run(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", (0.01, 0.02, 0.03))
    now = 0.0
    monkeypatch.setattr(supervisor, "monotonic", lambda: now)
    with capture_logs() as logs:
        async with agent.watching(FAIL):
            await until(lambda: len(logs) >= 4)
    waits = [each["retry_seconds"] for each in logs]

    ticks = iter(range(0, 10**9, round(supervisor.HEALTHY_SECONDS)))
    monkeypatch.setattr(supervisor, "monotonic", lambda: float(next(ticks)))
    with capture_logs() as logs:
        async with agent.watching(FAIL):
            await until(lambda: len(logs) >= 3)

    assert waits[:4] == [0.01, 0.02, 0.03, 0.03]
    assert {each["retry_seconds"] for each in logs} == {0.01}


async def test_the_watcher_ends_with_its_agent(agent: Agent) -> None:
    async with agent.watching(NAME):
        await until(agent.lines)
        pid = int(agent.lines()[0])

    assert not psutil.pid_exists(pid)
