"""The agent's watcher as a child process: its start, its instructions, its failures and its end."""

import math
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from anyio.streams.memory import MemoryObjectSendStream
from pydantic import SecretStr
from structlog.testing import capture_logs

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import child, supervisor
from lakewarden.agent.watching.supervisor import Assignment, decode, keep_watching
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import CommitCompleted, CommitIntent
from lakewarden.events.access import partition_of
from tests.recorded_hudi import recorded
from tests.tuned import tuned
from tests.unit.agent.serving.test_session import a_session
from tests.unit.agent.watching.lake import QUICK, Lake, Published, logged, looked_at
from tests.waiting import until

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
    settings: Settings = field(
        default_factory=lambda: Settings(watch=("s3://lake/*",), kafka_sasl_password=SecretStr("open-sesame"))
    )
    before_start: Callable[[], object] = lambda: None
    started: list[anyio.abc.Process] = field(default_factory=list)

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
    made, opened = Agent(tmp_path / "out"), anyio.open_process

    async def open_process(*arguments: Any, **more: Any) -> Any:
        made.before_start()
        made.started.append(await opened(*arguments, **more))
        return made.started[-1]

    monkeypatch.setattr(anyio, "open_process", open_process)
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", (0.01,))
    monkeypatch.setattr(supervisor, "ASSIGNMENT_SECONDS", 0.01)
    return made


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
    assert decode(settings) == agent.settings
    assert decode(settings).access() == agent.settings.access(), "it has the password"
    assert [decode(each) for each in assignments] == [ONE, TWO]


async def test_no_watcher_starts_before_the_first_assignment(agent: Agent) -> None:
    """An agent that waits for Kafka, or for the store of its lock root."""
    assigned: list[Assignment | None] = []
    agent.assignment, agent.before_start = None, lambda: assigned.append(agent.assignment)
    async with agent.watching(COPY):
        await anyio.wait_all_tasks_blocked()
        agent.assignment = ONE
        await until(agent.lines)

    assert assigned == [ONE]


async def test_a_watcher_that_is_killed_is_started_again(agent: Agent) -> None:
    """As the kernel does when memory runs out."""
    with capture_logs() as logs:
        async with agent.watching(NAME):
            await until(agent.lines)
            first = int(agent.lines()[0])
            psutil.Process(first).kill()
            await until(lambda: agent.lines() and int(agent.lines()[0]) != first)

    assert [each["why"] for each in logs] == ["signal 9"]


async def test_a_watcher_that_is_being_started_when_the_agent_ends_is_killed_and_reaped(agent: Agent) -> None:
    with anyio.CancelScope() as ending:
        agent.before_start = ending.cancel
        async with agent.watching(NAME):
            await anyio.sleep_forever()

    assert [each.returncode for each in agent.started] == [-9]


async def test_a_watcher_that_can_not_be_started_is_tried_again(agent: Agent) -> None:
    """The limit of processes is reached."""
    refusals = [BlockingIOError(11, "no more processes")]

    def refuse_once() -> None:
        if refusals:
            raise refusals.pop()

    agent.before_start = refuse_once
    with capture_logs() as logs:
        async with agent.watching(COPY):
            await until(agent.lines)

    assert ["no more processes" in each["why"] for each in logs] == [True]


async def test_a_watcher_that_fails_is_started_again_after_a_wait_that_grows_until_a_long_run(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", (0.01, 0.02, 0.03))
    now = 0.0
    monkeypatch.setattr(supervisor, "monotonic", lambda: now)
    with capture_logs() as logs:
        async with agent.watching(FAIL):
            await until(lambda: len(logs) >= 4)
    waits = [each["retry_seconds"] for each in logs]
    assert {(each["event"], each["log_level"], each["why"]) for each in logs} == {
        ("watch.ended", "warning", "exit status 3")
    }

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

    await until(lambda: not psutil.pid_exists(pid))


# Which of several agents watches which table, and what happens when a partition moves from one to another (decision 54).

PARTITIONS = 2
ALL = frozenset(range(PARTITIONS))
NONE: frozenset[int] = frozenset()
TIME = "20261122135643314"
DONE = "20261122135643314_20261122135847753.commit"


class RecordedWatcher(Watcher):
    """Can be found by a test."""

    made: list[Watcher]

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.made.append(self)


@dataclass
class WatchingAgent:
    """The watcher of one agent, and what it has published."""

    watcher: Watcher
    assignments: MemoryObjectSendStream[Assignment]
    published: Published

    def assign(self, own: Iterable[int]) -> None:
        self.assignments.send_nowait(Assignment(PARTITIONS, frozenset(own)))

    async def has_looked_at(self, table: str) -> None:
        await looked_at(self.watcher, table)


class Tables(Lake):
    """Tables, and the settings of their agents."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.set(watch=(self.at("*"),))

    def set(self, **settings: Any) -> None:
        """Replace the settings of agents that start later."""
        self.settings = tuned(**{"tables": (self.at("*"),), **QUICK, **settings})

    @asynccontextmanager
    async def agent(self, own: Iterable[int]) -> AsyncIterator[WatchingAgent]:
        send, receive = anyio.create_memory_object_stream[Assignment](math.inf)
        published = Published()
        async with send, receive, anyio.create_task_group() as tasks:
            before = len(RecordedWatcher.made)
            tasks.start_soon(child.watch_assigned, self.settings, receive, published.publish)
            await until(lambda: len(RecordedWatcher.made) > before)
            made = WatchingAgent(RecordedWatcher.made[before], send, published)
            made.assign(own)
            yield made
            send.close()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    monkeypatch.setattr(RecordedWatcher, "made", [], raising=False)
    monkeypatch.setattr(child, "Watcher", RecordedWatcher)
    return Tables(tmp_path.resolve())


async def test_each_table_is_watched_by_the_agent_that_has_its_partition(lake: Tables) -> None:
    """One of the tables is also named. A third agent has no partition."""
    tables = [f"t{number}" for number in range(8)]
    for table in tables:
        lake.commit(0, table=table)
    lake.set(watch=(lake.at("t3"), lake.at("*")))
    async with lake.agent({0}) as first, lake.agent({1}) as second, lake.agent(NONE) as spare:
        watchers = [each.watcher for each in (first, second, spare)]
        await until(lambda: sum(len(each.tables) for each in watchers) >= len(tables))
        watched = [{*each.tables} for each in watchers]

    expected = [{lake.at(each) for each in tables if partition_of(lake.at(each), PARTITIONS) == number}
                for number in (0, 1)]  # fmt: skip
    assert watched == [*expected, set()]
    assert all(expected)


async def test_after_a_hand_over_only_the_new_agent_watches_and_nothing_is_repeated(lake: Tables) -> None:
    """Version 3 is committed while no agent watches: the format's own check finds its conflicts."""
    lake.commit(0, 1)
    with capture_logs() as logs:
        async with lake.agent(ALL) as first, lake.agent(NONE) as second:
            await first.has_looked_at(lake.at("days"))
            lake.commit(2)
            await until(first.published.versions)
            first.assign(NONE)
            await logged(logs, "watch.table-left")
            lake.commit(3)
            second.assign(ALL)
            await second.has_looked_at(lake.at("days"))
            lake.commit(4)
            await until(second.published.versions)

    assert (first.published.versions(), second.published.versions()) == (["2"], ["4"])
    assert first.watcher.tables == {}


async def test_the_next_watcher_reports_the_end_of_what_the_former_one_has_opened(lake: Tables) -> None:
    """An instant of Hudi that completes after a hand-over, before the next watcher's first look."""
    lake.put("trips", ".hoodie/hoodie.properties", recorded("cow-v9", "hoodie.properties"))
    async with lake.agent(ALL) as first, lake.agent(NONE) as second:
        await first.has_looked_at(lake.at("trips"))
        lake.put("trips", f".hoodie/timeline/{TIME}.commit.requested")
        await until(lambda: first.published)
        first.assign(NONE)
        await until(lambda: not first.watcher.tables)
        lake.put("trips", f".hoodie/timeline/{DONE}", recorded("cow-v9", DONE))
        second.assign(ALL)
        await until(lambda: second.published)

    (intent,), (completion,) = first.published, second.published
    assert isinstance(intent, CommitIntent)
    assert isinstance(completion, CommitCompleted)
    assert intent.transaction == completion.transaction == f"hudi:{TIME}"


async def test_a_table_that_stays_is_not_begun_again(lake: Tables) -> None:
    """A rebalance that moves other partitions."""
    lake.commit(0)
    uri = lake.at("days")
    own = partition_of(uri, PARTITIONS)
    async with lake.agent(ALL) as agent:
        await agent.has_looked_at(uri)
        table = agent.watcher.tables[uri]
        follower = table.watched
        agent.assign({own})
        lake.commit(1)
        await until(agent.published.versions)

        assert agent.watcher.tables[uri] is table
        assert table.watched is follower


async def test_a_table_that_allow_does_not_cover_is_not_watched(lake: Tables) -> None:
    """Its events would become dead letters."""
    for table in ("days", "other"):
        lake.commit(0, table=table)
    named = lake.at("not-allowed")
    lake.set(watch=(named, lake.at("*")), tables=(lake.at("days"),))
    with capture_logs() as logs:
        async with lake.agent(ALL) as agent:
            await agent.has_looked_at(lake.at("days"))

            assert {*agent.watcher.tables} == {lake.at("days")}

    assert [each["table"] for each in logs if each["event"] == "watch.not-allowed"] == [named]


def test_a_session_has_an_assignment_only_while_it_is_assigned() -> None:
    """Between two, the watcher goes on with the former one."""
    session = a_session()
    session._partitions, session._owners = 12, {4: None, 7: None}
    found = [session.assignment()]
    session._check = object()
    found.append(session.assignment())
    session._assigned = True
    found.append(session.assignment())
    session._check = None
    found.append(session.assignment())

    assert found == [None, None, Assignment(12, frozenset({4, 7})), None]


@pytest.mark.parametrize(
    ("given", "code"), [(subprocess.DEVNULL, 1), (subprocess.PIPE, 0)], ids=["no pipe", "ended"]
)
def test_a_watcher_without_an_agent_ends(given: int, code: int) -> None:
    process = subprocess.Popen(supervisor.COMMAND, stdin=given, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate("" if code == 0 else None)
    assert process.returncode == code
    assert ("stdin is no pipe of an agent" in output) == bool(code)
    assert "Traceback" not in output
