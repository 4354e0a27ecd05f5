"""The back-off between sessions grows until a session was healthy for a minute."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs
from trio.testing import MockClock

from lakewarden.agent.errors import LogCutError
from lakewarden.agent.serving import agent as agent_module, lasting
from lakewarden.agent.serving.agent import RETRY_SECONDS, STORE_RETRY_SECONDS, Agent
from lakewarden.agent.serving.lasting import HEALTHY_SECONDS, Lasting
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import StoreProbeError, StoreUnreachableError

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
    agent = Agent(Settings(tables=("s3://lake/*",)))
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


async def test_readiness_names_the_problem_of_an_earlier_session_only_until_the_next_one_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent that was stopped a day after a topic was lost named the topic."""
    seen: list[str] = []
    problems = deque(
        [LogCutError("topic p.writers no longer exists"), None, KafkaError("no broker answers"), None]
    )

    class Session:
        def __init__(self, *_: Any) -> None: ...

        def facts(self) -> None:
            return None

        def note(self, step: str) -> None:
            text = served.conditions()[0].text.removeprefix("the agent has no session with Kafka: ")
            seen.append(f"{step}: {text}")

        async def open(self, _: Any) -> None:
            self.note("open")
            if len(problems) == 2:
                raise problems.popleft()

        async def serve(self) -> None:
            if (problem := problems.popleft()) is not None:
                raise problem
            if not problems:
                served.stop()
                await anyio.sleep_forever()
            raise KafkaError("a record was refused")

        async def close(self) -> None:
            self.note("close")

    monkeypatch.setattr(agent_module, "KafkaSession", Session)
    served = Agent(Settings(tables=("s3://lake/*",)))
    with capture_logs():
        await served.run()

    assert seen == [
        "open: it has just started",
        "close: its session is ending",
        "open: its last session ended: topic p.writers no longer exists",
        "close: its session is ending",
        "open: its last session ended: KafkaError: a record was refused",
        "close: its last session ended: KafkaError: a record was refused",
        "open: KafkaError: no broker answers",
        "close: it is stopping",
    ]


# The agent's start, when the store of `lock_root` does not answer, refuses access or ignores conditions.

LOCK_ROOT = "s3://lake/locks"
SILENT = StoreUnreachableError("no answer from s3://lake")


class ScriptedStores:
    """In place of `Stores`: each probe has the next outcome of the script; None is a success, an event is a hang."""

    def __init__(self, outcomes: list[Exception | anyio.Event | None]) -> None:
        self.outcomes = deque(outcomes)
        self.probed_at: list[float] = []

    async def for_lock(self, uri: str) -> None:
        assert uri.startswith(LOCK_ROOT + "/")
        self.probed_at.append(anyio.current_time())
        match self.outcomes.popleft():
            case Exception() as error:
                raise error
            case anyio.Event() as reached:
                reached.set()
                await anyio.sleep_forever()
            case None:
                return


class AgentWithoutKafka(Agent):
    """Records its sessions instead of running them; the first one ends with a stop."""

    def __init__(self) -> None:
        super().__init__(Settings(tables=("s3://lake/*",), lock_root=LOCK_ROOT))
        self.sessions = 0

    async def _run_session(self, stores: Any) -> Exception | None:
        self.sessions += 1
        self.stop()
        return None


@pytest.fixture
def agent() -> AgentWithoutKafka:
    return AgentWithoutKafka()


def script(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | anyio.Event | None) -> ScriptedStores:
    stores = ScriptedStores(list(outcomes))
    monkeypatch.setattr(agent_module, "Stores", lambda *_: stores)
    return stores


async def test_a_store_that_does_not_answer_is_probed_again_with_a_growing_bounded_back_off(
    agent: AgentWithoutKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, for example, the agent may be up before the store."""
    failures = len(STORE_RETRY_SECONDS) + 2
    stores = script(monkeypatch, *[SILENT] * failures, None)

    with capture_logs() as logs:
        await agent.run()

    waits = [later - earlier for earlier, later in pairwise(stores.probed_at)]
    assert waits == pytest.approx([*STORE_RETRY_SECONDS, *[STORE_RETRY_SECONDS[-1]] * 2])
    assert agent.sessions == 1
    waiting = [each for each in logs if each["event"] == "store.waiting"]
    assert [each["retry_seconds"] for each in waiting] == pytest.approx(waits)
    assert {(each["log_level"], each["store"], each["problem"]) for each in waiting} == {
        ("warning", LOCK_ROOT, str(SILENT))
    }


async def test_the_agent_can_be_stopped_while_it_waits_for_the_store(
    agent: AgentWithoutKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = script(monkeypatch, *[SILENT] * 100)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        await anyio.sleep(sum(STORE_RETRY_SECONDS) + 0.5)
        agent.stop()

    assert len(stores.probed_at) == len(STORE_RETRY_SECONDS) + 1
    assert agent.sessions == 0


async def test_the_agent_can_be_stopped_while_a_probe_hangs(
    agent: AgentWithoutKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = anyio.Event()
    script(monkeypatch, reached)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        await reached.wait()
        agent.stop()

    assert agent.sessions == 0


async def test_a_store_that_refuses_or_ignores_conditions_ends_the_agent(
    agent: AgentWithoutKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry would not change the answer, and an agent that waits silently would look healthy."""
    refusal = StoreProbeError("this store ignores the condition if-absent")
    script(monkeypatch, SILENT, refusal)

    with pytest.raises(StoreProbeError) as raised:
        await agent.run()

    assert raised.value is refusal
    assert agent.sessions == 0
