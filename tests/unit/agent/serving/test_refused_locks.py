"""A store that refuses the lock of a table: the answers to the table's transactions, and when they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest_asyncio

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import MemoryStore
from lakewarden.agent.stores.memory import Fault, Request
from lakewarden.events import (
    Abort,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    LockAcquired,
    LockRefused,
    LockRenewed,
)
from lakewarden.handlers.lease.conditional import ReadOutcome, Refused, Unknown, WriteOutcome
from lakewarden.handlers.table.replay import Position
from tests.own_task import in_own_task
from tests.unit.agent.serving.live_owner import E, LiveOwner

TABLE = "s3://lake/orders"
EXPIRED = Refused("the store refused the request: status=400 code=ExpiredToken")
REFUSAL_SECONDS = 1.0
QUICK: dict[str, Any] = {"renew_seconds": 0.3, "request_timeout_seconds": 0.2}


@dataclass
class Refusals:
    """Refuses every request while `fault` is set."""

    fault: Fault | None = None
    requests: list[Request] = field(default_factory=list)

    async def before(self, request: Request) -> Fault | None:
        self.requests.append(request)
        return self.fault

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        return None


@dataclass
class Scene(LiveOwner):
    """An owner with one table."""

    store: Refusals

    def begin(self, transaction: str) -> None:
        self.send(CommitIntent, transaction, TABLE, heartbeat_seconds=100)

    def request(self, transaction: str) -> None:
        self.send(CommitRequested, transaction, TABLE, seq=1)

    async def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        await self.until(lambda: len(self.published(kind)) >= count)
        return self.published(kind)


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    refusals = Refusals()
    store = MemoryStore(request_timeout_seconds=60, faults=refusals)
    records: list[Outgoing] = []

    class TheStore:
        async def for_lock(self, _: str) -> MemoryStore:
            return store

    class Log:
        def put(self, record: Outgoing) -> None:
            records.append(record)

    async with store, in_own_task(anyio.create_task_group()) as tasks:
        owner = PartitionOwner(
            0,
            Settings(
                allow=(TABLE,),
                lock_places=("s3://lake/*=>usual",),
                refusal_seconds=REFUSAL_SECONDS,
                **QUICK,
            ),
            cast("Publisher", Log()),
            cast("Stores", TheStore()),
            tasks,
        )
        owner.load(0, 0, Position(0, None), [], [])
        yield Scene(owner, records, refusals)
        tasks.cancel_scope.cancel()


async def test_refused_renewals_abort_no_transaction_while_the_lease_lasts(scene: Scene) -> None:
    """A session token expires for some renewals. Before, one refused renewal ended every query of the table."""
    for number in range(5):
        scene.begin(f"T{number}")
    scene.request("T0")
    await scene.wait_for(CommitGranted)

    scene.store.fault = EXPIRED
    await scene.wait_for(LockRefused, count=2)
    scene.store.fault = None
    renewals = len(scene.published(LockRenewed))
    await scene.wait_for(LockRenewed, count=renewals + 1)

    assert scene.published(Abort) == []
    assert len(scene.published(LockAcquired)) == 1


async def test_a_refusal_that_lasts_is_told_to_the_transactions_that_wait(scene: Scene) -> None:
    """They may retry. The detail names the lock and the answer, and the next transaction commits once the store answers."""
    scene.store.fault = EXPIRED
    for transaction in ("A", "B"):
        scene.begin(transaction)
    scene.request("A")

    aborts = await scene.wait_for(Abort, count=2)

    assert {each.transaction for each in aborts} == {"A", "B"}
    for abort in aborts:
        assert (abort.reason, abort.retriable) == ("lock-refused", True)
        assert "s3://lake/locks/" in str(abort.detail)
        assert "ExpiredToken" in str(abort.detail)
    assert not any(each.waiting for each in scene.published(LockRefused))

    scene.store.fault = None
    scene.begin("C")
    scene.request("C")
    [grant] = await scene.wait_for(CommitGranted)
    assert grant.transaction == "C"


async def test_a_short_refusal_delays_the_grant_and_aborts_nothing(scene: Scene) -> None:
    """The session is renewed before the transactions have waited for long."""
    scene.store.fault = EXPIRED
    scene.begin("A")
    scene.request("A")
    await scene.until(lambda: len(scene.store.requests) >= 3)
    scene.store.fault = None

    [grant] = await scene.wait_for(CommitGranted)

    assert grant.transaction == "A"
    assert scene.published(Abort) == []


async def test_a_store_that_ignores_conditions_aborts_the_transactions_for_good(scene: Scene) -> None:
    scene.store.fault = Refused("this store ignores the condition if-absent", unusable=True)
    scene.begin("A")

    [abort] = await scene.wait_for(Abort)

    assert (abort.reason, abort.retriable) == ("not-allowed", False)
    assert "ignores the condition" in str(abort.detail)
