"""The periodic check, on a clock of its own: what it asks, when, and what it makes of no answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from structlog.testing import capture_logs

from lakewarden.agent.errors import KafkaUnreachableError, PartitionsChangedError
from lakewarden.agent.serving import periodic_check
from lakewarden.agent.serving.periodic_check import PeriodicCheck
from lakewarden.agent.settings import Settings

PARTITIONS = 3
SETTINGS = Settings(allow=("s3://lake/orders",), check_seconds=1.0, session_timeout_seconds=10.0)


@dataclass
class Owner:
    """In place of a partition's owner: notes how it is asked to judge."""

    number: int
    phase: Literal["live", "loading"] = "live"
    position: int = 7
    judged: list[tuple[float, float, int | None, bool]] = field(default_factory=list)

    async def tick(self, now: float, asked_at: float, end: int | None, *, stalled: bool) -> None:
        self.judged.append((now, asked_at, end, stalled))

    def advance_to(self, position: int) -> None:
        self.position = position


@dataclass
class Scene:
    """Kafka, as the check sees it, and time: both go only as far as they are told to."""

    now: float = 1_000.0
    end: int | None = 7
    """Of every partition; None: Kafka does not answer."""
    takes: float = 0.0
    """Seconds, to answer or not to."""
    reading_takes: float = 0.0
    partitions: int = PARTITIONS
    owners: dict[int, Any] = field(default_factory=lambda: {0: Owner(0), 2: Owner(2)})

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self.now += self.takes
        if self.end is None:
            raise KafkaConnectionError
        return dict.fromkeys(partitions, self.end)

    async def position(self, _: TopicPartition) -> int:
        self.now += self.reading_takes
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


async def test_owners_judge_as_of_when_the_end_was_asked(scene: Scene) -> None:
    """Whatever was appended between the request and the judging is not in the answer."""
    checking = scene.check()
    scene.now, scene.takes, scene.end, scene.reading_takes = 1_001.0, 0.75, 9, 0.25
    del scene.owners[2]

    await checking._check()

    assert scene.owners[0].judged == [(1_002.0, 1_001.0, 9, False)]
    assert scene.owners[0].position == 9, "it waited for the reading"


async def test_a_partition_that_is_not_loaded_yet_is_not_waited_for(scene: Scene) -> None:
    scene.owners[0].phase, scene.end, scene.reading_takes = "loading", 9, 0.5

    await scene.check()._check()

    assert scene.now == 1_000.5
    assert (scene.owners[0].position, scene.owners[2].position) == (7, 9)


async def test_a_check_that_is_late_by_some_intervals_says_that_the_process_stood_still(scene: Scene) -> None:
    """Nobody asked Kafka meanwhile: if it answers now, the session lives on."""
    checking = scene.check()
    scene.now, scene.end = 1_030.0, None

    await checking._check()
    scene.now, scene.end = 1_031.0, 7
    await checking._check()

    assert [stalled for *_, stalled in scene.owners[0].judged] == [True, False]


async def test_kafkas_silence_is_told_and_ends_the_session_after_its_timeout(scene: Scene) -> None:
    """Others may own the partitions by then, and need their locks."""
    checking = scene.check()
    scene.end, scene.takes = None, 1.0

    with capture_logs() as logs:
        for _ in range(10):
            await checking._check()
        with pytest.raises(KafkaUnreachableError, match="has not answered for 11 s"):
            await checking._check()

    assert [each["event"] for each in logs if each["log_level"] != "debug"] == ["kafka.silent"]
    assert [end for _, _, end, _ in scene.owners[0].judged] == [None] * 10, (
        "and nobody was judged by an old end"
    )


async def test_kafkas_return_is_told(scene: Scene) -> None:
    checking = scene.check()
    scene.end, scene.takes = None, 2.5

    with capture_logs() as logs:
        await checking._check()
        scene.end, scene.takes = 7, 0.0
        await checking._check()

    events = [each["event"] for each in logs if each["log_level"] != "debug"]
    assert events == ["kafka.silent", "kafka.answers-again"]


async def test_without_partitions_nobody_is_asked_and_nobody_is_silent(scene: Scene) -> None:
    checking = scene.check()
    scene.owners.clear()
    scene.end = None

    for _ in range(20):
        scene.now += 1.0
        await checking._check()


async def test_another_number_of_partitions_ends_the_agent(scene: Scene) -> None:
    """Tables have moved between them."""
    scene.partitions = PARTITIONS + 2

    with pytest.raises(PartitionsChangedError, match="has 5 partitions and had 3"):
        await scene.check()._check()
