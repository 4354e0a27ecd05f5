"""Where an agent writes the lock of a table, whatever the intents name, and how it finds out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.locks import table_locks
from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import MemoryStore
from lakewarden.agent.stores.memory import Fault, Request
from lakewarden.events import (
    Abort,
    Admitted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    LockAcquired,
    LockReleased,
    TransactionAbandoned,
)
from lakewarden.handlers.lease.conditional import IfAbsent, ReadOutcome, Refused, Unknown, Won, WriteOutcome
from lakewarden.handlers.lease.placement import HUDI_LOCK, HUDI_PROPERTIES
from lakewarden.handlers.table.replay import Position
from tests.own_task import in_own_task
from tests.unit.agent.serving.live_owner import LiveOwner

TABLE = "s3://lake/warehouse/air.db/flights"
OTHER = "s3://lake/warehouse/air.db/other"
USUAL = "s3://lake/locks/warehouse-air.db-flights-"
HOSTILE = [
    f"{TABLE}/snapshot/snapshot-43",
    "s3://lake/warehouse/air.db/OTHER/snapshot/LATEST",
    "s3://lake/warehouse/h/.hoodie/timeline/20261121120000000.commit.requested",
    "s3://lake/any/object/in/the/bucket",
    "s3://lake/locks/warehouse-air.db-victim-12345678.json",
    f"{OTHER}{HUDI_LOCK}",
    f"{TABLE}{HUDI_LOCK}",
    f"{TABLE}/..%2f",
    f"{TABLE}/%2e%2e/x",
    "file:///data/t/../../etc/cron.d/x",
]


@dataclass
class LookUps:
    """The fault of each read of a table's properties, and the writes that reached the store."""

    fault: Fault | None = None
    hangs: bool = False
    lookups: int = 0
    written: set[str] = field(default_factory=set)

    async def before(self, request: Request) -> Fault | None:
        if request.operation == "write":
            self.written.add(request.uri)
        if not request.uri.endswith(HUDI_PROPERTIES):
            return None
        self.lookups += 1
        if self.hangs:
            await anyio.sleep_forever()
        return self.fault

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        return None


class OneStore:
    """In place of `Stores`: all objects are in one store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def for_lock(self, _: str) -> MemoryStore:
        return self._store

    async def read(self, uri: str) -> ReadOutcome:
        return await self._store.read(uri)


@dataclass
class Scene(LiveOwner):
    """An owner and the objects of its store."""

    faults: LookUps
    objects: dict[str, bytes]

    def begin(self, transaction: str, table: str = TABLE, lock: str | None = None) -> None:
        self.send(CommitIntent, transaction, table, heartbeat_seconds=100, lock=lock)

    async def commit(self, transaction: str, table: str = TABLE, lock: str | None = None) -> None:
        """Begin, obtain a grant, and give it back."""
        self.begin(transaction, table, lock)
        self.send(CommitRequested, transaction, table, seq=1)
        await self.until(lambda: transaction in self.transactions(CommitGranted))
        self.abandon(transaction, table)

    def abandon(self, transaction: str, table: str = TABLE) -> None:
        self.send(TransactionAbandoned, transaction, table, reason="the test")

    def transactions(self, kind: type[Abort | Admitted | CommitGranted]) -> list[str]:
        return [each.transaction for each in self.published(kind)]

    def locks_written(self) -> set[str]:
        """The objects that were written; the usual place of a lock without its hash."""
        return {
            uri.rpartition("-")[0] + "-" if uri.startswith("s3://lake/locks/") else uri
            for uri in self.faults.written
        }


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    faults, objects, records = LookUps(), dict[str, bytes](), list[Outgoing]()
    store = MemoryStore(request_timeout_seconds=60, objects=objects, faults=faults)

    class Log:
        def put(self, record: Outgoing) -> None:
            records.append(record)

    values = {"allow": ("s3://lake/warehouse/*",), "lock_root": "s3://lake", **settings}
    async with store, in_own_task(anyio.create_task_group()) as tasks:
        owner = PartitionOwner(
            0, Settings(**values), cast("Publisher", Log()), cast("Stores", OneStore(store)), tasks
        )
        owner.load(0, 0, Position(0, None), [], [])
        yield Scene(owner, records, faults, objects)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("hudi", [False, True])
async def test_whatever_intents_name_only_the_tables_own_lock_is_written(hudi: bool) -> None:
    """The settings of the README: the lock root is the whole bucket."""
    async with scene() as s:
        if hudi:
            s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        for number, lock in enumerate(HOSTILE):
            s.begin(f"T{number}", lock=lock)
        await s.commit("good")
        expected = {HOSTILE.index(TABLE + HUDI_LOCK)} if hudi else set()
        refused = {f"T{number}" for number in range(len(HOSTILE)) if number not in expected}
        await s.until(lambda: refused <= set(s.transactions(Abort)))

    assert s.locks_written() == {TABLE + HUDI_LOCK if hudi else USUAL}
    assert set(s.transactions(Abort)) == refused
    assert {each.reason for each in s.published(Abort)} == {"not-allowed"}


async def test_a_table_with_hudis_properties_shares_hudis_lock_whether_or_not_it_is_named() -> None:
    """A writer that forgets to name the lock was served under another object, and Hudi's own writers were not excluded."""
    async with scene() as s:
        s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        await s.commit("silent")
        await s.commit("named", lock=TABLE + HUDI_LOCK)
        await s.until(lambda: len(s.published(LockReleased)) == 2)

    assert {each.lock for each in s.published(LockAcquired)} == {TABLE + HUDI_LOCK}
    assert s.published(Abort) == []
    assert s.faults.lookups == 1


async def test_the_place_of_a_lock_can_be_configured() -> None:
    """For an agent that can't read the tables, and for users who named a lock of their own."""
    places = ("s3://lake/warehouse/air.db/flights=>s3://lake/special/f.json", "s3://lake/*=>hudi")
    async with scene(lock_places=places) as s:
        await s.commit("A", lock="s3://lake/special/f.json")
        await s.commit("B", OTHER)

    assert {each.lock for each in s.published(LockAcquired)} == {
        "s3://lake/special/f.json",
        OTHER + HUDI_LOCK,
    }
    assert s.faults.lookups == 0


async def test_while_the_store_does_not_answer_intents_are_admitted_and_wait_for_the_lock() -> None:
    """As with a lock that can't be reached. Another table is not delayed."""
    async with scene() as s:
        s.faults.fault = Unknown("timeout")
        with capture_logs() as logs:
            s.begin("A")
            s.send(CommitRequested, "A", TABLE, seq=1)
            await s.until(lambda: s.faults.lookups >= 4)
        assert s.transactions(Admitted) == ["A"]
        assert s.faults.written == set()
        s.faults.fault = None

        await s.until(lambda: s.transactions(CommitGranted) == ["A"])

    assert s.published(Abort) == []
    [line] = [each for each in logs if each["event"] == "lock.place-unknown"]
    assert "lock_places" in line["why"]


async def test_a_table_whose_look_up_hangs_delays_no_other_table() -> None:
    async with scene() as s:
        s.faults.hangs = True
        s.begin("A")
        await s.until(lambda: s.faults.lookups == 1)
        s.faults.hangs = False

        await s.commit("B", OTHER)

    assert s.transactions(CommitGranted) == ["B"]


async def test_a_store_that_refuses_the_look_up_for_long_is_told_to_the_transactions() -> None:
    """The agent may not read the table. The detail names the file and the setting."""
    async with scene(refusal_seconds=0.5) as s:
        s.faults.fault = Refused("the store refused the request: status=403 code=AccessDenied")
        s.begin("A")
        await s.until(lambda: s.transactions(Abort) == ["A"])

    [abort] = s.published(Abort)
    assert (abort.reason, abort.retriable) == ("lock-refused", True)
    for expected in (TABLE + HUDI_PROPERTIES, "AccessDenied", "lock_places"):
        assert expected in str(abort.detail)


async def test_a_local_table_without_a_lock_root_that_is_no_hudi_table_is_refused() -> None:
    table = "file:///data/t"
    async with scene(allow=("file:///data/*",), lock_root=None) as s:
        s.begin("A", table)
        await s.until(lambda: s.transactions(Abort) == ["A"])
        s.objects[table + HUDI_PROPERTIES] = b"hoodie.table.name=t"
        await s.commit("B", table)

    [abort] = s.published(Abort)
    assert (abort.reason, abort.retriable) == ("not-allowed", False)
    assert "--lock-root" in str(abort.detail)
    assert [each.lock for each in s.published(LockAcquired)] == [table + HUDI_LOCK]


async def test_a_table_that_became_a_hudi_table_is_found_when_it_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first commit created it."""
    monkeypatch.setattr(table_locks, "LOOK_AGAIN_SECONDS", 0.0)
    async with scene() as s:
        await s.commit("first")
        await s.until(lambda: len(s.published(LockReleased)) == 1)
        s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        await s.until(s.owner.tables[TABLE].idle)

        await s.commit("second", lock=TABLE + HUDI_LOCK)

    assert [each.lock.rsplit("-", 1)[0] for each in s.published(LockAcquired)] == [
        USUAL.rstrip("-"),
        (TABLE + HUDI_LOCK),
    ]


async def test_a_tables_place_does_not_change_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places at once would not exclude each other."""
    monkeypatch.setattr(table_locks, "LOOK_AGAIN_SECONDS", 0.0)
    async with scene() as s:
        s.begin("A")
        await s.until(lambda: len(s.published(LockAcquired)) == 1)
        s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        s.begin("B", lock=TABLE + HUDI_LOCK)
        s.begin("C")
        await s.until(lambda: s.transactions(Abort) == ["B"])

    assert s.faults.lookups == 1
    assert len(s.published(LockAcquired)) == 1


async def test_a_table_is_read_without_writing_to_its_store(tmp_path: Path) -> None:
    """The agent may have no right to write where it keeps no lock: no probe, no folder."""
    (tmp_path / "t" / ".hoodie").mkdir(parents=True)
    (tmp_path / "t/.hoodie/hoodie.properties").write_text("hoodie.table.name=t")
    before = sorted(tmp_path.rglob("*"))
    settings = Settings.load(allow=(f"file://{tmp_path}/*", f"file://{tmp_path}/missing/*"))
    async with AsyncExitStack() as stack:
        stores = Stores(settings, stack)
        found = await stores.read(f"file://{tmp_path}/t{HUDI_PROPERTIES}")
        missing = await stores.read(f"file://{tmp_path}/missing/t{HUDI_PROPERTIES}")
        ambiguous = await stores.read(f"file://{tmp_path}/a%2fb{HUDI_PROPERTIES}")

    assert [type(each).__name__ for each in (found, missing, ambiguous)] == ["Found", "Absent", "Refused"]
    assert isinstance(ambiguous, Refused)
    assert ambiguous.unusable
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("glob", ["file:///*", "/*"])
async def test_a_glob_may_cover_the_whole_disk(tmp_path: Path, glob: str) -> None:
    (tmp_path / "t" / ".hoodie").mkdir(parents=True)
    (tmp_path / "t/.hoodie/hoodie.properties").write_text("hoodie.table.name=t")
    async with AsyncExitStack() as stack:
        stores = Stores(Settings.load(allow=(glob,)), stack)
        found = await stores.read(f"file://{tmp_path}/t{HUDI_PROPERTIES}")
        missing = await stores.read(f"file://{tmp_path}/u{HUDI_PROPERTIES}")

    assert [type(each).__name__ for each in (found, missing)] == ["Found", "Absent"]


@pytest.mark.parametrize("glob", ["file:///*", "/*"])
async def test_hudis_lock_has_a_store_where_a_glob_covers_the_whole_disk(tmp_path: Path, glob: str) -> None:
    """The probe writes into the lock's folder, not into the root of the disk."""
    lock = f"file://{tmp_path}/t{HUDI_LOCK}"
    async with AsyncExitStack() as stack:
        store = await Stores(Settings.load(allow=(glob,)), stack).for_lock(lock)
        written = await store.write(lock, b"{}", IfAbsent())

    assert isinstance(written, Won)
