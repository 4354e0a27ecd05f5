"""The periodic check of a partition's owner: what it may judge, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.agent import partition
from lakewarden.agent.locks import Stores
from lakewarden.agent.partition import PartitionOwner
from lakewarden.agent.publisher import Outgoing
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
from lakewarden.handlers.replay import Position
from lakewarden.handlers.state import LockView
from lakewarden.handlers.table import LockConfirmed

TABLE = "s3://lake/orders"
TOPICS = Settings(allow=(TABLE,)).topics


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
        event = kind(event_id=f"e{offset}", **common, **fields)
        value, key = encode(event), TABLE.encode()
        record: Any = ConsumerRecord("writers", 0, offset, 0, 0, key, value, None, len(key), len(value), ())
        self.owner.take([record], self.now)

    def check(self, *, after: float, stalled: bool = False) -> None:
        """Time passes, and the check comes; all that was in the log when it asked has been read."""
        self.now += after
        self.owner.tick(self.now, self.owner.position, stalled=stalled)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Scene]:
    settings = Settings(allow=(TABLE,), lock_root=f"file://{tmp_path}")
    async with anyio.create_task_group() as tasks:
        made = Scene(settings, tasks)
        monkeypatch.setattr(partition, "monotonic", lambda: made.now)
        yield made
        tasks.cancel_scope.cancel()


async def test_a_grant_is_not_given_up_by_a_check_that_stood_still(scene: Scene) -> None:
    """Stopped between asking for the log's end and judging, it knows an old end: the completion may be in the log."""
    scene.read(CommitIntent)
    scene.read(CommitRequested, seq=0)
    scene.owner._step(TABLE, LockConfirmed(scene.now, 1, LockView("owner", scene.now + 29.0, 0.0)))
    scene.check(after=1.0)

    scene.check(after=25.0, stalled=True)

    assert scene.told.aborts() == {}

    scene.check(after=1.0)

    assert scene.told.aborts() == {"T": "outcome-unknown"}


async def test_a_writer_is_not_lost_because_the_agent_stood_still(scene: Scene) -> None:
    """Its silence counts from when the agent has caught up again."""
    scene.read(CommitIntent, heartbeat_seconds=5.0)
    scene.check(after=1.0)

    scene.check(after=25.0, stalled=True)
    scene.check(after=1.0)
    scene.check(after=14.0)

    assert scene.told.aborts() == {}

    scene.check(after=2.0)

    assert scene.told.aborts() == {"T": "writer-lost"}
