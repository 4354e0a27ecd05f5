"""The locks of a partition's tables when the partition is released or a table is stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import pytest_asyncio
from aiokafka.structs import ConsumerRecord
from structlog.testing import capture_logs

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import MemoryStore
from lakewarden.agent.stores.memory import Fault, Request
from lakewarden.events import CommitIntent, LockReleased, encode
from lakewarden.handlers.lease.conditional import ReadOutcome, Refused, Unknown, WriteOutcome
from lakewarden.handlers.table.replay import Position
from tests.own_task import in_own_task

TABLES = ("s3://lake/orders", "s3://lake/trips")
ORDERS, TRIPS = TABLES


@dataclass
class Trouble:
    """The fault of each request for the lock of `table`."""

    table: str
    fault: Fault | None = None
    hangs: bool = False

    async def before(self, request: Request) -> Fault | None:
        if self.table.rsplit("/", 1)[1] not in request.uri:
            return None
        if self.hangs:
            await anyio.sleep_forever()
        return self.fault

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        return None


@dataclass
class Scene:
    """An owner that holds the locks of both tables. Its records are discarded."""

    owner: PartitionOwner
    trouble: Trouble


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    trouble = Trouble(ORDERS)
    store = MemoryStore(request_timeout_seconds=60, faults=trouble)

    class TheStore:
        async def for_lock(self, _: str) -> MemoryStore:
            return store

    class DiscardingPublisher:
        def put(self, _: Outgoing) -> None:
            return

    async with store, in_own_task(anyio.create_task_group()) as tasks:
        owner = PartitionOwner(
            0,
            Settings(allow=TABLES, lock_places=("s3://lake/*=>usual",)),
            cast("Publisher", DiscardingPublisher()),
            cast("Stores", TheStore()),
            tasks,
        )
        owner.load(0, 0, Position(0, None), [], [])
        owner.consume([_intent(offset, table) for offset, table in enumerate(TABLES)], 0.0)
        with anyio.fail_after(30):
            while any(owner.tables[table].lock is None for table in TABLES):
                await anyio.sleep(0.001)
        yield Scene(owner, trouble)
        tasks.cancel_scope.cancel()


def _intent(offset: int, table: str) -> ConsumerRecord:
    event = CommitIntent(
        event_id=f"e{offset}", table=table, transaction=f"T{offset}", writer="w", at=datetime.now(UTC)
    )
    value, key = encode(event), table.encode()
    record: Any = ConsumerRecord("writers", 0, offset, 0, 0, key, value, None, len(key), len(value), ())
    return record


async def test_tables_whose_locks_were_not_released_in_time_are_listed(scene: Scene) -> None:
    """The store may be slow. The next owner of these tables waits until their leases have expired."""
    scene.trouble.hangs = True
    scene.owner.stop_deciding()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.owner.release)
        with anyio.fail_after(30):
            while TRIPS in scene.owner.unreleased():
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()

    assert scene.owner.unreleased() == [ORDERS]


async def test_a_release_that_the_store_refuses_is_logged(scene: Scene) -> None:
    """No event shows it, but the next grant waits for the end of the lease."""
    scene.trouble.fault = Refused("403")
    scene.owner.stop_deciding()

    with capture_logs() as logs:
        await scene.owner.release()

    [warning] = [each for each in logs if each["log_level"] == "warning"]
    assert (warning["event"], warning["table"]) == ("lock.not-released", ORDERS)
    assert "403" in warning["why"]
    assert scene.owner.unreleased() == []


async def test_a_stopped_tables_keeper_gets_no_further_hints(scene: Scene) -> None:
    """It does not run any more, so hints would accumulate until the process ends."""
    keeper, _ = scene.owner.locks._keepers[ORDERS]
    scene.owner._tables.stop(ORDERS, AssertionError("two grants"))
    for number in range(3):
        scene.owner.locks.observe(
            LockReleased(
                event_id=f"r{number}",
                table=ORDERS,
                at=datetime.now(UTC),
                agent="another",
                lock=keeper.place.uri,
                owner="o",
                valid_until=0,
                requests=1,
                duration_ms=1.0,
            )
        )

    assert not keeper._inbox
