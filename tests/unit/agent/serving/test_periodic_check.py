"""The periodic check with a simulated clock and a simulated Kafka."""

from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import AsyncMock, MagicMock, call

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from structlog.testing import capture_logs

from lakewarden.agent.errors import KafkaUnreachableError, LogCutError, PartitionsChangedError
from lakewarden.agent.serving import periodic_check
from lakewarden.agent.serving.partition.log_seen import LogSeen
from lakewarden.agent.serving.periodic_check import PeriodicCheck
from lakewarden.agent.settings import Settings
from lakewarden.handlers.group.readiness import Lag

PARTITIONS = 3
SETTINGS = Settings(tables=("s3://lake/orders",))


@dataclass
class Owner:
    """In place of a partition's owner: records the calls of `tick`."""

    number: int
    phase: Literal["live", "loading"] = "live"
    position: int = 7
    seen: LogSeen = field(default_factory=lambda: LogSeen(0, SETTINGS))
    lag: Lag = field(default_factory=Lag)
    ticks: list[tuple[float, float, int | None, bool]] = field(default_factory=list)

    async def tick(self, now: float, asked_at: float, end: int | None, *, stalled: bool) -> None:
        self.ticks.append((now, asked_at, end, stalled))

    def advance_to(self, position: int) -> None:
        self.position = position


@dataclass
class Scene:
    """Kafka as the check sees it, and the time, which moves only as the test sets it."""

    now: float = 1_000.0
    end: int | None = 7
    """The end offset of every partition; None: Kafka does not answer."""
    answer_seconds: float = 0.0
    """Until Kafka answers, or fails to."""
    position_seconds: float = 0.0
    partitions: int = PARTITIONS
    owners: dict[int, Any] = field(default_factory=lambda: {0: Owner(0), 2: Owner(2)})
    end_offsets_requests: int = 0
    beginning: int = 0
    """Where the ledger begins in every partition."""

    gone: frozenset[str] = frozenset()
    """Topics that were deleted."""

    async def topics(self) -> set[str]:
        topics = SETTINGS.topics
        return {topics.decisions, topics.audit, topics.conflicts, topics.dead_letters} - self.gone

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.beginning)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self.end_offsets_requests += 1
        self.now += self.answer_seconds
        if self.end is None:
            raise KafkaConnectionError
        return dict.fromkeys(partitions, self.end)

    async def position(self, _: TopicPartition) -> int:
        self.now += self.position_seconds
        return self.end or 0

    def partitions_for_topic(self, _: str) -> set[int]:
        return set(range(self.partitions))

    def check(self) -> PeriodicCheck:
        return PeriodicCheck(SETTINGS, self, PARTITIONS, self.owners)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(periodic_check, "monotonic", lambda: made.now)
    return made


async def test_owners_judge_as_of_the_request_of_the_end_offset(scene: Scene) -> None:
    """Events that were appended after the request are not in the answer."""
    checking = scene.check()
    scene.now, scene.answer_seconds, scene.end, scene.position_seconds = 1_001.0, 0.75, 9, 0.25
    del scene.owners[2]

    await checking._check()

    assert scene.owners[0].ticks == [(1_002.0, 1_001.0, 9, False)]
    assert scene.owners[0].position == 9, "the check waited until the owner had consumed up to the end"


async def test_the_check_does_not_wait_for_a_partition_that_is_still_loading(scene: Scene) -> None:
    scene.owners[0].phase, scene.end, scene.position_seconds = "loading", 9, 0.5

    await scene.check()._check()

    assert scene.now == 1_000.5
    assert (scene.owners[0].position, scene.owners[2].position) == (7, 9)


async def test_a_check_that_is_late_by_several_intervals_reports_a_suspension(scene: Scene) -> None:
    """Kafka was not requested meanwhile. If it answers now, the session continues."""
    checking = scene.check()
    scene.now, scene.end = 1_030.0, None

    await checking._check()
    scene.now, scene.end = 1_031.0, 7
    await checking._check()

    assert [stalled for *_, stalled in scene.owners[0].ticks] == [True, False]


async def test_kafkas_silence_is_logged_and_ends_the_session_after_the_session_timeout(scene: Scene) -> None:
    """Other agents may own the partitions by then, and need their locks."""
    checking = scene.check()
    scene.end, scene.answer_seconds = None, 1.0

    with capture_logs() as logs:
        for _ in range(10):
            await checking._check()
        with pytest.raises(KafkaUnreachableError, match="has not answered for 11 s"):
            await checking._check()

    assert [each["event"] for each in logs if each["log_level"] != "debug"] == ["kafka.silent"]
    assert [end for _, _, end, _ in scene.owners[0].ticks] == [None] * 10, (
        "no owner judged by an old end offset"
    )


async def test_kafkas_return_is_logged(scene: Scene) -> None:
    checking = scene.check()
    scene.end, scene.answer_seconds = None, 2.5

    with capture_logs() as logs:
        await checking._check()
        scene.end, scene.answer_seconds = 7, 0.0
        await checking._check()

    events = [each["event"] for each in logs if each["log_level"] != "debug"]
    assert events == ["kafka.silent", "kafka.answers-again"]


async def test_without_partitions_the_check_sends_no_request_and_the_session_continues(scene: Scene) -> None:
    """A group may have more agents than partitions. Such an agent waits, however long Kafka is silent."""
    checking = scene.check()
    scene.owners.clear()
    scene.end = None

    with capture_logs() as logs:
        for _ in range(2 * round(SETTINGS.session_timeout_seconds)):
            scene.now += SETTINGS.check_seconds
            await checking._check()

    assert scene.end_offsets_requests == 0
    assert logs == []


async def test_a_changed_number_of_partitions_ends_the_agent(scene: Scene) -> None:
    """Tables have moved between partitions."""
    scene.partitions = PARTITIONS + 2

    with pytest.raises(PartitionsChangedError, match="has 5 partitions and had 3"):
        await scene.check()._check()


async def test_a_deleted_topic_ends_the_session_though_nothing_is_published(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers send nothing without `decisions`, so the agent would wait for ever. Kafka is asked twice."""
    topic, checking = SETTINGS.topics.decisions, scene.check()
    exists = AsyncMock(return_value=True)
    opened = MagicMock(return_value=MagicMock(__aenter__=AsyncMock(return_value=MagicMock(exists=exists))))
    monkeypatch.setattr(periodic_check, "Log", opened)
    scene.gone = frozenset({topic})

    await checking._check()
    scene.now += periodic_check.TOPICS_SECONDS
    await checking._check()
    exists.return_value = False
    scene.now += periodic_check.TOPICS_SECONDS
    with pytest.raises(LogCutError, match=f"topic {topic} no longer exists"):
        await checking._check()

    assert exists.await_args_list == [call(topic), call(topic)]


async def test_a_log_that_ends_before_the_position_ends_the_session(scene: Scene) -> None:
    """An unclean leader election while the agent runs. Before, it ignored all events up to its position."""
    scene.end = 6

    with pytest.raises(LogCutError, match="ends at offset 6 of partition 0, and this agent has read up to 7"):
        await scene.check()._check()


async def test_a_ledger_that_ends_before_the_last_entry_ends_the_session(scene: Scene) -> None:
    scene.owners[2].seen.ledger_end = 8

    with pytest.raises(
        LogCutError, match="ends at offset 7 of partition 2, and this agent's last entry is at 7"
    ):
        await scene.check()._check()
    assert [each.seen.ledger_lost for each in scene.owners.values()] == [False, True], (
        "its session records it again"
    )


async def test_a_ledger_whose_beginning_has_moved_ends_the_session(scene: Scene) -> None:
    """Compaction doesn't move it. The agent asks every ten seconds."""
    checking = scene.check()
    scene.owners[0].seen.ledger_end = scene.owners[2].seen.ledger_end = 7
    scene.beginning = 3

    await checking._check()
    scene.now += 10.0
    with pytest.raises(LogCutError, match="begins at offset 3 of partition 0 instead of 0"):
        await checking._check()
    assert scene.owners[0].seen.ledger_lost


async def test_an_owner_that_noticed_lost_decisions_ends_the_session(scene: Scene) -> None:
    scene.owners[2].seen.cut = "topic decisions has lost records"

    with pytest.raises(LogCutError, match="topic decisions has lost records"):
        await scene.check()._check()
