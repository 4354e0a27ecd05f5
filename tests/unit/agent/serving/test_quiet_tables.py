"""A table without events is forgotten; what the ledger has of it is found again when it is used."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.agent import clock
from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.partition.tables import QUIET_SECONDS
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    BatchCommitted,
    CommitIntent,
    ConflictsLost,
    Marker,
    TransactionAbandoned,
    encode,
)
from lakewarden.handlers.table.ledger import CommittedBatch
from lakewarden.handlers.table.replay import Position
from tests.unit.agent.serving.set_clock import SetClock

TABLE, OTHER = "s3://lake/orders", "s3://lake/trips"
SETTINGS = Settings(allow=("s3://*",), lock_places=("s3://*=>usual",), max_tables=1)
PLACES = (Marker(partition="p", file_group="*", operation="merge"),)
AT = datetime.now(UTC)


class Scene:
    """A live owner whose ledger has a batch and two lost conflicts of writer `w`."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.records: list[Outgoing] = []
        publisher: Any = self
        no_tasks: Any = None
        self.owner = PartitionOwner(0, SETTINGS, publisher, Stores(SETTINGS, AsyncExitStack()), no_tasks)
        for name in ("start_acquire", "start_release"):
            setattr(self.owner.locks, name, lambda *_, **__: None)
        common: dict[str, Any] = {"event_id": "e", "table": TABLE, "writer": "w", "at": AT}
        entries = (
            BatchCommitted(transaction="T7", batch_id=7, **common),
            ConflictsLost(transaction="T8", losses=2, lost_on=PLACES, **common),
        )
        ledger = [_consumed(number, encode(entry)) for number, entry in enumerate(entries)]
        self.owner.load(0, 0, Position(0, None), [], ledger)

    def put(self, record: Outgoing) -> None:
        self.records.append(record)

    def send(self, kind: Any, transaction: str, table: str = TABLE, **fields: Any) -> None:
        offset = self.owner.position
        event = kind(event_id=f"e{offset}", table=table, transaction=transaction, writer="w", at=AT, **fields)
        self.owner.consume([_consumed(offset, encode(event), table)], self.now)

    def use_once(self) -> None:
        self.send(CommitIntent, f"T{self.owner.position}", batch_id=8)
        self.send(TransactionAbandoned, f"T{self.owner.position - 1}", reason="done")

    def published(self, kind: str) -> list[str]:
        return [each.topic for each in self.records if f'"type":"{kind}"'.encode() in each.value]

    async def check(self, after: float) -> None:
        self.now += after
        await self.owner.tick(self.now, self.now, self.owner.position, stalled=False)


def _consumed(offset: int, value: bytes, key: str = TABLE) -> ConsumerRecord:
    record: Any = ConsumerRecord("t", 0, offset, 0, 0, key.encode(), value, None, 0, len(value), ())
    return record


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(clock, "time", SetClock(lambda: made.now))
    return made


async def test_a_quiet_table_is_forgotten_and_its_ledger_is_not(scene: Scene) -> None:
    """A partition serves thousands of tables, each for some minutes a day."""
    scene.use_once()
    scene.owner.committed = scene.owner.position

    await scene.check(after=QUIET_SECONDS)

    assert scene.owner.tables == {}

    scene.send(CommitIntent, "again", batch_id=7)

    assert scene.published("already-committed") == [SETTINGS.topics.decisions]
    state = scene.owner.tables[TABLE]
    assert state.ledger == {"w": CommittedBatch(7, "T7", None)}
    assert (state.losses, state.lost_on) == ({"w": 2}, {"w": PLACES})


async def test_a_table_that_only_the_ledger_has_needs_no_state(scene: Scene) -> None:
    """A take-over with a million entries must not cost a state per table."""
    assert scene.owner.tables == {}


async def test_a_table_is_kept_while_late_events_may_arrive(scene: Scene) -> None:
    """An ended transaction's late event gets its own answer, not `unknown-transaction`."""
    scene.use_once()
    scene.owner.committed = scene.owner.position

    await scene.check(after=QUIET_SECONDS - 1)

    assert list(scene.owner.tables) == [TABLE]


async def test_a_table_is_kept_until_the_checkpoint_is_beyond_its_last_event(scene: Scene) -> None:
    """A replay from that checkpoint would have the table's transactions, and answer differently."""
    scene.use_once()
    scene.owner.committed = scene.owner.position - 1

    await scene.check(after=QUIET_SECONDS)

    assert list(scene.owner.tables) == [TABLE]


async def test_a_table_with_an_open_transaction_is_kept(scene: Scene) -> None:
    """Its writer is busy, however long it takes."""
    scene.send(CommitIntent, "T", heartbeat_seconds=300)
    scene.owner.committed = scene.owner.position

    await scene.check(after=QUIET_SECONDS)

    assert list(scene.owner.tables) == [TABLE]


async def test_forgotten_tables_do_not_count_for_max_tables(scene: Scene) -> None:
    """An allowed glob may match any number of tables over the years."""
    scene.use_once()
    scene.send(CommitIntent, "refused", OTHER)
    assert list(scene.owner.tables) == [TABLE]
    scene.owner.committed = scene.owner.position
    await scene.check(after=QUIET_SECONDS)

    scene.send(CommitIntent, "accepted", OTHER)

    assert list(scene.owner.tables) == [OTHER]


async def test_a_replaced_agents_entry_of_a_forgotten_table_is_recorded_over(scene: Scene) -> None:
    """Compaction would keep the replaced agent's entry."""
    entry = BatchCommitted(event_id="e", table=TABLE, writer="w", at=AT, transaction="T6", batch_id=6)

    scene.owner.on_others_entry(entry, 100)

    [record] = [each for each in scene.records if each.topic == SETTINGS.topics.ledger]
    assert b'"batch_id":7' in record.value
