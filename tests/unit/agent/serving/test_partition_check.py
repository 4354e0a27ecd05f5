"""The periodic check of a partition's owner: what it may judge, and when."""

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

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving import partition
from lakewarden.agent.serving.partition import PartitionOwner
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

TABLE = "s3://lake/orders"
OTHER_TABLE = "s3://lake/trips"
TOPICS = Settings(allow=(TABLE,)).topics
READ = -1
"""All that is in the log."""


class Told:
    """In place of the publisher: keeps what is said."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    def put(self, record: Outgoing) -> None:
        self.records.append(record)

    def aborts(self) -> dict[str, str]:
        """Whom, and why."""
        decided: dict[str, str] = {}
        for each in [each for each in self.records if each.topic == TOPICS.decisions]:
            said = decode(DECISION_RECORD, each.value)
            assert not isinstance(said, Undecodable)
            if isinstance(said, Abort):
                decided[said.transaction] = said.reason
        return decided


class Scene:
    """An owner, and the clock that it reads."""

    def __init__(self, settings: Settings, tasks: anyio.abc.TaskGroup) -> None:
        self.now = 1_000.0
        self.told = Told()
        publisher: Any = self.told
        self.owner = PartitionOwner(0, settings, publisher, Stores(settings, AsyncExitStack()), tasks)
        self.owner.load(0, 0, Position(0, None), [], [])

    def read(self, kind: type[WriterEventUnion], **fields: Any) -> None:
        offset = self.owner.position
        common: dict[str, Any] = {"table": TABLE, "transaction": "T", "writer": "w", "at": datetime.now(UTC)}
        event = kind(**{"event_id": f"e{offset}", **common, **fields})
        value, key = encode(event), event.table.encode()
        record: Any = ConsumerRecord("writers", 0, offset, 0, 0, key, value, None, len(key), len(value), ())
        self.owner.consume([record], self.now)

    async def check(
        self, *, after: float, asked: float = 0.0, end: int | None = READ, stalled: bool = False
    ) -> None:
        """Time passes, and the check comes, so many seconds after it asked for the log's end: what was read, or another."""
        self.now += after
        end = self.owner.position if end == READ else end
        await self.owner.tick(self.now, self.now - asked, end, stalled=stalled)


@pytest_asyncio.fixture
async def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Scene]:
    settings = Settings(allow=(TABLE, OTHER_TABLE), lock_root=f"file://{tmp_path}")
    async with in_own_task(anyio.create_task_group()) as tasks:
        made = Scene(settings, tasks)
        monkeypatch.setattr(partition, "monotonic", lambda: made.now)
        yield made
        tasks.cancel_scope.cancel()


async def test_a_grant_is_not_given_up_by_a_check_that_stood_still(scene: Scene) -> None:
    """Stopped between asking for the log's end and judging, it knows an old end: the completion may be in the log."""
    scene.read(CommitIntent)
    scene.read(CommitRequested, seq=0)
    scene.owner._step(TABLE, LockConfirmed(scene.now, 1, LockView("owner", scene.now + 29.0, 0.0)))
    await scene.check(after=1.0)

    await scene.check(after=25.0, asked=24.0, stalled=True)

    assert scene.told.aborts() == {}

    await scene.check(after=1.0)

    assert scene.told.aborts() == {"T": "outcome-unknown"}


@pytest.mark.parametrize("behind", [0.5, 3.0, 14.0])
async def test_silence_counts_until_the_logs_end_was_asked_however_late_the_check_is(
    scene: Scene, behind: float
) -> None:
    """Nothing says that the process stood still: Kafka, the reading or the other tables took their time."""
    await scene.check(after=1.0)
    scene.read(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=10.0)

    await scene.check(after=5.0 + behind, asked=behind)

    assert scene.told.aborts() == {}, "three intervals, and no more, had passed when the end was asked"

    await scene.check(after=0.1, asked=behind)

    assert scene.told.aborts() == {"T": "writer-lost"}


async def test_a_writer_is_not_lost_because_the_agent_stood_still(scene: Scene) -> None:
    """Perhaps its machine did, and the writer too: its silence counts from when the agent reads again."""
    scene.read(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=25.0, stalled=True)
    await scene.check(after=1.0)
    await scene.check(after=14.0)

    assert scene.told.aborts() == {}

    await scene.check(after=2.0)

    assert scene.told.aborts() == {"T": "writer-lost"}


async def test_silence_counts_anew_after_kafka_did_not_answer(scene: Scene) -> None:
    """Its writers could not reach it either."""
    scene.read(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=60.0, end=None)
    await scene.check(after=1.0)
    await scene.check(after=15.0)

    assert scene.told.aborts() == {}

    await scene.check(after=0.1)

    assert scene.told.aborts() == {"T": "writer-lost"}


async def test_a_check_that_has_not_read_to_the_end_judges_nobody(scene: Scene) -> None:
    """What lies unread may be the word that is waited for."""
    scene.read(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=60.0, end=scene.owner.position + 1)

    assert scene.told.aborts() == {}


async def test_between_two_tables_the_check_lets_the_reading_go_on(scene: Scene) -> None:
    """A check of many tables would else hold up every event that comes meanwhile, for the sum of their audits."""
    scene.read(CommitIntent, heartbeat_seconds=5.0)
    scene.read(CommitIntent, heartbeat_seconds=5.0, table=OTHER_TABLE, transaction="U")
    await scene.check(after=1.0)
    seen: list[set[str]] = []

    async def watch() -> None:
        while len(seen) < 10:
            seen.append(set(scene.told.aborts()))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await scene.check(after=60.0)

    assert {"T"} in seen
    assert seen[-1] == {"T", "U"}
