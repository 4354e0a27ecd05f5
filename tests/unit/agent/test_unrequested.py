"""A session whose task ends without a request is an error: it is logged, and the next session starts.

Asyncio raises `CancelledError` in a task that awaits a future, or another task, which was cancelled. A task group takes it for an
end on request. The agent stayed in its group and decided nothing.
"""

import asyncio
from typing import Any

import anyio
import anyio.abc
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.errors import TaskEndedError
from lakewarden.agent.serving import agent as agent_module, session as session_module
from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.settings import Settings
from lakewarden.agent.unrequested import guarded
from tests.unit.agent.serving.test_session import a_session

PATIENCE_SECONDS = 60.0
SETTINGS = Settings(tables=("s3://lake/*",))


async def await_what_was_cancelled() -> None:
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def test_a_cancellation_that_was_not_requested_is_an_error_that_names_the_task() -> None:
    expected = pytest.raises(TaskEndedError, match="consuming events was cancelled, and nothing requested it")
    with expected, guarded("consuming events"):
        await await_what_was_cancelled()


async def test_a_cancellation_that_was_requested_is_passed_on() -> None:
    with anyio.move_on_after(0) as by_scope, guarded("consuming events"):
        await anyio.sleep_forever()

    async def consume() -> None:
        with guarded("consuming events"):
            await anyio.sleep_forever()

    task = asyncio.ensure_future(consume())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    assert by_scope.cancelled_caught
    assert task.cancelled()


class Idle:
    """In place of a part of the session: waits, unless it is the one that ends."""

    def __init__(self, *_: Any) -> None:
        """Takes what the part takes."""

    async def wait(self) -> None:
        """Wait until cancelled."""
        await anyio.sleep_forever()

    run = watch = listen = wait


@pytest.mark.parametrize(
    ("part", "method", "named"),
    [
        ("_publisher", "watch", "watching the publisher"),
        ("_check", "run", "the periodic check"),
        ("_peers", "listen", "consuming what other agents publish"),
        ("self", "_commit_periodically", "committing checkpoints"),
        ("self", "_consume", "consuming events"),
    ],
)
async def test_a_session_ends_with_an_error_if_one_of_its_tasks_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, part: str, method: str, named: str
) -> None:
    session = a_session()
    check = Idle()
    monkeypatch.setattr(session_module, "PeriodicCheck", lambda *_: check)
    session._publisher, session._peers = Idle(), Idle()
    session._consumer = session._partitions = None
    session._commit_periodically = session._consume = Idle().wait
    parts = {"self": session, "_check": check, "_publisher": session._publisher, "_peers": session._peers}
    setattr(parts[part], method, await_what_was_cancelled)

    with (
        anyio.fail_after(PATIENCE_SECONDS),
        pytest.RaisesGroup(pytest.RaisesExc(TaskEndedError, match=named)),
    ):
        await session.serve()


async def test_a_session_ends_with_an_error_if_a_task_of_a_kafka_client_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer whose fetching has ended returns no records, and raises nothing."""
    session = a_session()
    monkeypatch.setattr(session_module, "PeriodicCheck", Idle)
    monkeypatch.setattr(session_module, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(session_module, "ended_tasks", lambda _: {"fetching": "cancelled"})
    session._publisher, session._peers = Idle(), Idle()
    session._consumer = session._partitions = None
    session._consume = Idle().wait
    session._clients = [Idle()]

    expected = pytest.RaisesExc(
        TaskEndedError, match=r"the task fetching of an? Idle has ended \(cancelled\)"
    )
    with anyio.fail_after(PATIENCE_SECONDS), pytest.RaisesGroup(expected):
        await session.serve()


class ScriptedSession:
    """In place of a session: one of its steps is cancelled in the first session, and the second one serves."""

    sessions: list[Any]
    broken: str
    serving: anyio.Event

    def __init__(self, *_: Any) -> None:
        self.sessions.append(self)
        self._broken = self.broken if len(self.sessions) == 1 else ""

    async def open(self, background: anyio.abc.TaskGroup) -> None:
        """Start a background task, as the publisher and the locks are."""
        if self._broken == "background":
            background.start_soon(await_what_was_cancelled)
        await self._step("open")

    async def serve(self) -> None:
        """Serve until cancelled."""
        await self._step("serve")
        if not self._broken:
            self.serving.set()
        if self._broken != "close":
            await anyio.sleep_forever()

    async def close(self) -> None:
        await self._step("close")

    async def _step(self, name: str) -> None:
        if self._broken == name:
            await await_what_was_cancelled()


@pytest.mark.parametrize("broken", ["open", "serve", "background", "close"])
async def test_a_session_that_was_cancelled_is_logged_and_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(agent_module, "KafkaSession", ScriptedSession)
    monkeypatch.setattr(agent_module, "RETRY_SECONDS", (0.0,))
    sessions: list[Any] = []
    for name, value in (("sessions", sessions), ("broken", broken), ("serving", anyio.Event())):
        monkeypatch.setattr(ScriptedSession, name, value, raising=False)
    agent = Agent(SETTINGS)
    with capture_logs() as logs, anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            await ScriptedSession.serving.wait()
            agent.stop()

    assert len(sessions) == 2
    [problem] = [each["problem"] for each in logs if each["event"] == "kafka.waiting"]
    assert "was cancelled, and nothing requested it" in problem
