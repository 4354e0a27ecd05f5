"""The periodic check of a partition's owner: which writers and grants it may judge, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import pytest_asyncio
from aiokafka.structs import ConsumerRecord

from lakewarden.agent import clock
from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    Abort,
    CommitIntent,
    CommitRequested,
    Undecodable,
    WriterEventUnion,
    decode,
    encode,
)
from lakewarden.handlers.table.machine import LockConfirmed
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.state import LockView
from tests.own_task import in_own_task
from tests.unit.agent.serving.set_clock import SetClock

TABLE = "s3://lake/orders"
OTHER_TABLE = "s3://lake/trips"
TOPICS = Settings(allow=(TABLE,)).topics
CONSUMED = -1
"""An end of the log up to which the owner has consumed."""


class RecordingPublisher:
    """In place of the publisher: keeps the records."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    def put(self, record: Outgoing) -> None:
        self.records.append(record)

    def aborts(self) -> dict[str, str]:
        """The reasons of the aborts, by transaction."""
        decided: dict[str, str] = {}
        for each in [each for each in self.records if each.topic == TOPICS.decisions]:
            decision = decode(DECISION_RECORD, each.value)
            assert not isinstance(decision, Undecodable)
            if isinstance(decision, Abort):
                decided[decision.transaction] = decision.reason
        return decided


class Scene:
    """An owner and its simulated clock."""

    def __init__(self, settings: Settings, tasks: anyio.abc.TaskGroup) -> None:
        self.now = 1_000.0
        self.published = RecordingPublisher()
        publisher: Any = self.published
        self.owner = PartitionOwner(0, settings, publisher, Stores(settings, AsyncExitStack()), tasks)
        self.owner.load(0, 0, Position(0, None), [], [])

    def consume(self, kind: type[WriterEventUnion], **fields: Any) -> None:
        offset = self.owner.position
        common: dict[str, Any] = {"table": TABLE, "transaction": "T", "writer": "w", "at": datetime.now(UTC)}
        event = kind(**{"event_id": f"e{offset}", **common, **fields})
        value, key = encode(event), event.table.encode()
        record: Any = ConsumerRecord("writers", 0, offset, 0, 0, key, value, None, len(key), len(value), ())
        self.owner.consume([record], self.now)

    async def check(
        self, *, after: float, asked: float = 0.0, end: int | None = CONSUMED, stalled: bool = False
    ) -> None:
        """Let `after` seconds pass, then check. The end offset (default: the owner's position) is `asked` seconds old."""
        self.now += after
        end = self.owner.position if end == CONSUMED else end
        await self.owner.tick(self.now, self.now - asked, end, stalled=stalled)


@pytest_asyncio.fixture
async def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Scene]:
    settings = Settings(allow=(TABLE, OTHER_TABLE), lock_root=f"file://{tmp_path}")
    async with in_own_task(anyio.create_task_group()) as tasks:
        made = Scene(settings, tasks)
        monkeypatch.setattr(clock, "time", SetClock(lambda: made.now))
        yield made
        tasks.cancel_scope.cancel()


async def test_a_check_that_was_suspended_does_not_end_a_grant(scene: Scene) -> None:
    """A suspension between the request of the end offset and the decision: the completion may be in the log since."""
    scene.consume(CommitIntent)
    scene.consume(CommitRequested, seq=0)
    scene.owner._tables.step(TABLE, LockConfirmed(scene.now, 1, LockView("owner", scene.now + 29.0, 0.0)))
    await scene.check(after=1.0)

    await scene.check(after=25.0, asked=24.0, stalled=True)

    assert scene.published.aborts() == {}

    await scene.check(after=1.0)

    assert scene.published.aborts() == {"T": "outcome-unknown"}


@pytest.mark.parametrize("behind", [0.5, 3.0, 14.0])
async def test_silence_counts_up_to_the_request_of_the_end_offset_however_late_the_check_is(
    scene: Scene, behind: float
) -> None:
    """The process was not suspended: Kafka, the consumption or the other tables took that long."""
    await scene.check(after=1.0)
    scene.consume(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=10.0)

    await scene.check(after=5.0 + behind, asked=behind)

    assert scene.published.aborts() == {}, (
        "exactly three intervals had passed at the request of the end offset"
    )

    await scene.check(after=0.1, asked=behind)

    assert scene.published.aborts() == {"T": "writer-lost"}


async def test_a_writer_is_not_lost_because_the_agent_was_suspended(scene: Scene) -> None:
    """The writer's machine may have been suspended, too. Its silence counts from the agent's next check."""
    scene.consume(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=25.0, stalled=True)
    await scene.check(after=1.0)
    await scene.check(after=14.0)

    assert scene.published.aborts() == {}

    await scene.check(after=2.0)

    assert scene.published.aborts() == {"T": "writer-lost"}


async def test_silence_counts_from_zero_after_kafka_did_not_answer(scene: Scene) -> None:
    """The writers could not reach Kafka either."""
    scene.consume(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=60.0, end=None)
    await scene.check(after=1.0)
    await scene.check(after=15.0)

    assert scene.published.aborts() == {}

    await scene.check(after=0.1)

    assert scene.published.aborts() == {"T": "writer-lost"}


async def test_a_check_before_the_end_of_the_log_ends_no_transaction(scene: Scene) -> None:
    """An unread event may be the missing heartbeat."""
    scene.consume(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=60.0, end=scene.owner.position + 1)

    assert scene.published.aborts() == {}


async def test_between_two_tables_the_check_yields_to_the_consumption(scene: Scene) -> None:
    """Otherwise a check of many tables would delay every event that arrives meanwhile by the sum of their checks."""
    scene.consume(CommitIntent, heartbeat_seconds=5.0)
    scene.consume(CommitIntent, heartbeat_seconds=5.0, table=OTHER_TABLE, transaction="U")
    await scene.check(after=1.0)
    seen: list[set[str]] = []

    async def watch() -> None:
        while len(seen) < 10:
            seen.append(set(scene.published.aborts()))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await scene.check(after=60.0)

    assert {"T"} in seen
    assert seen[-1] == {"T", "U"}
