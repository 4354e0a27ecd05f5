"""The back-off between sessions grows until a session was healthy for a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs
from trio.testing import MockClock

from lakewarden.agent.serving import agent as agent_module
from lakewarden.agent.serving import lasting
from lakewarden.agent.serving.agent import RETRY_SECONDS, Agent
from lakewarden.agent.serving.lasting import HEALTHY_SECONDS, Lasting
from lakewarden.agent.settings import Settings

pytestmark = pytest.mark.anyio


class ScriptedSession:
    """In place of a session: it becomes ready, serves for some seconds, and fails."""

    seconds: list[float]
    stop: Callable[[], None]

    def __init__(self, kept: Lasting, _: Any) -> None:
        self._kept = kept

    async def open(self, _: Any) -> None:
        """Connect at once."""

    async def serve(self) -> None:
        if not self.seconds:
            self.stop()
            await anyio.sleep_forever()
        self._kept.mark_ready()
        await anyio.sleep(self.seconds.pop(0))
        raise KafkaError("planted")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def anyio_backend() -> Any:
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


async def waits(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[float]:
    monkeypatch.setattr(ScriptedSession, "seconds", seconds, raising=False)
    monkeypatch.setattr(agent_module, "KafkaSession", ScriptedSession)
    monkeypatch.setattr(lasting, "monotonic", anyio.current_time)
    agent = Agent(Settings(allow=("s3://lake/*",)))
    monkeypatch.setattr(ScriptedSession, "stop", lambda _: agent.stop(), raising=False)
    with capture_logs() as logs:
        await agent.run()
    return [each["retry_seconds"] for each in logs if each["event"] == "kafka.waiting"]


async def test_sessions_that_are_ready_for_a_moment_end_ever_further_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each replays the record that ends it. Each of them publishes a take-over of every partition."""
    found = await waits(monkeypatch, [1.0] * 7)

    assert found == [*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1]]


async def test_a_healthy_minute_resets_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is restarted once a week."""
    found = await waits(monkeypatch, [1.0, 1.0, HEALTHY_SECONDS - 1.0, HEALTHY_SECONDS, 1.0])

    assert found == [*RETRY_SECONDS[:3], *RETRY_SECONDS[:2]]
