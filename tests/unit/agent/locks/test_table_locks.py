"""The locks of a partition's tables: where they are, a store that refuses or hangs, and their release."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks import table_locks
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import Stores
from lakewarden.events import (
    Abort,
    Admitted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    LockAcquired,
    LockRefused,
    LockReleased,
    LockRenewed,
    PartitionTaken,
    TransactionAbandoned,
    encode,
    partition_name,
)
from lakewarden.handlers.lease import types as lease
from lakewarden.handlers.lease.conditional import IfAbsent, ReadOutcome, Refused, Unknown
from lakewarden.handlers.lease.lock_object import LockRecord, render
from lakewarden.handlers.lease.placement import HUDI_LOCK, HUDI_PROPERTIES
from lakewarden.handlers.table.log_gaps import Gap
from tests.own_task import in_own_task
from tests.servers.memory_store import Fault, Faults, MemoryStore, Request
from tests.tuned import tuned
from tests.unit.agent.serving import owner_in_memory
from tests.unit.agent.serving.owner_in_memory import BEGINNING, E, Log, consumed
from tests.unit.events.building import made
from tests.waiting import until

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


EXPIRED = Refused("the store refused the request: status=400 code=ExpiredToken")


@dataclass
class StoreFaults(Faults):
    """The fault of each request that `concerns`, or no answer to it."""

    concerns: Callable[[str], bool]
    fault: Fault | None = None
    hangs: bool = False
    requests: list[Request] = field(default_factory=list)

    async def before(self, request: Request) -> Fault | None:
        self.requests.append(request)
        if not self.concerns(request.uri):
            return None
        if self.hangs:
            await anyio.sleep_forever()
        return self.fault

    @property
    def lookups(self) -> int:
        """How often a table's properties were read."""
        return sum(each.uri.endswith(HUDI_PROPERTIES) for each in self.requests)

    @property
    def written(self) -> set[str]:
        """The objects that were written; the usual place of a lock without its hash."""
        uris = {each.uri for each in self.requests if each.operation == "write"}
        return {
            each.rpartition("-")[0] + "-" if each.startswith("s3://lake/locks/") else each for each in uris
        }


class OneStore:
    """In place of `Stores`: all objects are in one store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def for_lock(self, _: str) -> MemoryStore:
        return self._store

    async def read(self, uri: str) -> ReadOutcome:
        return await self._store.read(uri)


@dataclass
class Scene(owner_in_memory.Scene):
    """A live owner whose store is in memory."""

    faults: StoreFaults = field(kw_only=True)
    objects: dict[str, bytes] = field(kw_only=True)

    def begin(self, transaction: str, table: str = TABLE, lock: str | None = None) -> None:
        self.send(CommitIntent, transaction, table, heartbeat_seconds=100, lock=lock)

    def request(self, transaction: str, table: str = TABLE) -> None:
        self.send(CommitRequested, transaction, table, seq=1)

    async def commit(self, transaction: str, table: str = TABLE, lock: str | None = None) -> None:
        """Begin, obtain a grant, and give it back."""
        self.begin(transaction, table, lock)
        self.request(transaction, table)
        await until(lambda: transaction in self.transactions(CommitGranted))
        self.send(TransactionAbandoned, transaction, table, reason="the test")

    def transactions(self, kind: type[Abort | Admitted | CommitGranted]) -> list[str]:
        return [each.transaction for each in self.published(kind)]

    async def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        await until(lambda: len(self.published(kind)) >= count)
        return self.published(kind)


@asynccontextmanager
async def scene(
    concerns: Callable[[str], bool] = lambda uri: uri.endswith(HUDI_PROPERTIES), **settings: Any
) -> AsyncIterator[Scene]:
    faults, objects, log = StoreFaults(concerns), dict[str, bytes](), Log()
    store = MemoryStore(request_timeout_seconds=60, objects=objects, faults=faults)
    values = {"tables": ("s3://lake/warehouse/*",), "lock_root": "s3://lake", **settings}
    async with store, in_own_task(anyio.create_task_group()) as tasks:
        lasting, stores = Lasting(tuned(**values)), cast("Stores", OneStore(store))
        owner = owner_in_memory.made_owner(log, lasting, stores, tasks)
        owner.load(0, 0, BEGINNING)
        yield Scene(owner, log, None, faults=faults, objects=objects)
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
        await until(lambda: refused <= set(s.transactions(Abort)))

    assert s.faults.written == {TABLE + HUDI_LOCK if hudi else USUAL}
    assert set(s.transactions(Abort)) == refused
    assert {(each.reason, each.retriable) for each in s.published(Abort)} == {("not-allowed", False)}
    for each in s.published(Abort):
        named = HOSTILE[int(each.transaction.removeprefix("T"))]
        assert named in str(each.detail)
        assert (TABLE + HUDI_LOCK if hudi else USUAL) in str(each.detail)


async def test_a_table_with_hudis_properties_shares_hudis_lock_whether_or_not_it_is_named() -> None:
    """A writer that forgets to name the lock was served under another object, and Hudi's own writers were not excluded."""
    async with scene() as s:
        s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        await s.commit("silent")
        await s.commit("named", lock=TABLE + HUDI_LOCK)
        await until(lambda: len(s.published(LockReleased)) == 2)

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
            s.request("A")
            await until(lambda: s.faults.lookups >= 4)
        assert s.transactions(Admitted) == ["A"]
        assert s.faults.written == set()
        s.faults.fault = None

        await until(lambda: s.transactions(CommitGranted) == ["A"])

    assert s.published(Abort) == []
    [line] = [each for each in logs if each["event"] == "lock.location-unknown"]
    assert "lock_places" in line["why"]


async def test_a_table_whose_look_up_hangs_delays_no_other_table() -> None:
    async with scene() as s:
        s.faults.hangs = True
        s.begin("A")
        await until(lambda: s.faults.lookups == 1)
        s.faults.hangs = False

        await s.commit("B", OTHER)

    assert s.transactions(CommitGranted) == ["B"]


async def test_a_store_that_refuses_the_look_up_for_long_is_told_to_the_transactions() -> None:
    """The agent may not read the table. The detail names the file and the setting."""
    async with scene(refusal_seconds=0.5) as s:
        s.faults.fault = Refused("the store refused the request: status=403 code=AccessDenied")
        s.begin("A")
        await until(lambda: s.transactions(Abort) == ["A"])

    [abort] = s.published(Abort)
    assert (abort.reason, abort.retriable) == ("lock-refused", True)
    for expected in (TABLE + HUDI_PROPERTIES, "AccessDenied", "lock_places"):
        assert expected in str(abort.detail)


async def test_a_local_table_without_a_lock_root_that_is_no_hudi_table_is_refused() -> None:
    table = "file:///data/t"
    async with scene(tables=("file:///data/*",), lock_root=None) as s:
        s.begin("A", table)
        await until(lambda: s.transactions(Abort) == ["A"])
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
        await until(lambda: len(s.published(LockReleased)) == 1)
        s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        await until(s.owner.tables.states[TABLE].idle)

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
        await until(lambda: len(s.published(LockAcquired)) == 1)
        s.objects[TABLE + HUDI_PROPERTIES] = b"hoodie.table.name=flights"
        s.begin("B", lock=TABLE + HUDI_LOCK)
        s.begin("C")
        await until(lambda: s.transactions(Abort) == ["B"])

    assert s.faults.lookups == 1
    assert len(s.published(LockAcquired)) == 1


async def test_a_table_is_read_without_writing_to_its_store(tmp_path: Path) -> None:
    """The agent may have no right to write where it keeps no lock: no probe, no folder."""
    (tmp_path / "t" / ".hoodie").mkdir(parents=True)
    (tmp_path / "t/.hoodie/hoodie.properties").write_text("hoodie.table.name=t")
    before = sorted(tmp_path.rglob("*"))
    settings = Settings.load(tables=(f"file://{tmp_path}/*", f"file://{tmp_path}/missing/*"))
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
    """The probe of a lock's store writes into the lock's folder, not into the root of the disk."""
    (tmp_path / "t" / ".hoodie").mkdir(parents=True)
    (tmp_path / "t/.hoodie/hoodie.properties").write_text("hoodie.table.name=t")
    lock = f"file://{tmp_path}/t{HUDI_LOCK}"
    async with AsyncExitStack() as stack:
        stores = Stores(Settings.load(tables=(glob,)), stack)
        found = await stores.read(f"file://{tmp_path}/t{HUDI_PROPERTIES}")
        missing = await stores.read(f"file://{tmp_path}/u{HUDI_PROPERTIES}")
        written = await (await stores.for_lock(lock)).write(lock, b"{}", IfAbsent())

    assert [type(each).__name__ for each in (found, missing, written)] == ["Found", "Absent", "Won"]


# A store that refuses the lock of a table: the answers to the table's transactions, and when they come.


@pytest_asyncio.fixture
async def refusing() -> AsyncIterator[Scene]:
    async with scene(
        lambda _: True,
        lock_places=("s3://lake/*=>default",),
        refusal_seconds=1.0,
        renew_seconds=0.3,
        request_timeout_seconds=0.2,
    ) as made:
        yield made


async def test_refused_renewals_abort_no_transaction_while_the_lease_lasts(refusing: Scene) -> None:
    """A session token expires for some renewals. Before, one refused renewal ended every query of the table."""
    for number in range(5):
        refusing.begin(f"T{number}")
    refusing.request("T0")
    await refusing.wait_for(CommitGranted)

    refusing.faults.fault = EXPIRED
    await refusing.wait_for(LockRefused, count=2)
    refusing.faults.fault = None
    renewals = len(refusing.published(LockRenewed))
    await refusing.wait_for(LockRenewed, count=renewals + 1)

    assert refusing.published(Abort) == []
    assert len(refusing.published(LockAcquired)) == 1


async def test_a_refusal_that_lasts_is_told_to_the_transactions_that_wait(refusing: Scene) -> None:
    """They may retry. The detail names the lock and the answer, and the next transaction commits once the store answers."""
    refusing.faults.fault = EXPIRED
    for transaction in ("A", "B"):
        refusing.begin(transaction)
    refusing.request("A")

    aborts = await refusing.wait_for(Abort, count=2)

    assert {each.transaction for each in aborts} == {"A", "B"}
    for abort in aborts:
        assert (abort.reason, abort.retriable) == ("lock-refused", True)
        assert "s3://lake/locks/" in str(abort.detail)
        assert "ExpiredToken" in str(abort.detail)
    assert not any(each.waiting for each in refusing.published(LockRefused))

    refusing.faults.fault = None
    refusing.begin("C")
    refusing.request("C")
    [grant] = await refusing.wait_for(CommitGranted)
    assert grant.transaction == "C"


async def test_a_short_refusal_delays_the_grant_and_aborts_nothing(refusing: Scene) -> None:
    """The session is renewed before the transactions have waited for long."""
    refusing.faults.fault = EXPIRED
    refusing.begin("A")
    refusing.request("A")
    await until(lambda: len(refusing.faults.requests) >= 3)
    refusing.faults.fault = None

    [grant] = await refusing.wait_for(CommitGranted)

    assert grant.transaction == "A"
    assert refusing.published(Abort) == []


async def test_a_store_that_ignores_conditions_aborts_the_transactions_for_good(refusing: Scene) -> None:
    refusing.faults.fault = Refused("this store ignores the condition if-absent", unusable=True)
    refusing.begin("A")

    [abort] = await refusing.wait_for(Abort)

    assert (abort.reason, abort.retriable) == ("not-allowed", False)
    assert "ignores the condition" in str(abort.detail)


# The locks when the partition is released or a table is stopped.


@pytest_asyncio.fixture
async def both_held() -> AsyncIterator[Scene]:
    """The locks of both tables are held. What the tests plant concerns the first one."""
    async with scene(lambda uri: "flights" in uri, lock_places=("s3://lake/*=>default",)) as made:
        for table in (TABLE, OTHER):
            made.begin(f"T-{table}", table)
        await until(lambda: all(each.lock is not None for each in made.owner.tables.states.values()))
        yield made


async def test_tables_whose_locks_were_not_released_in_time_are_listed(both_held: Scene) -> None:
    """The store may be slow. The next owner of these tables waits until their leases have expired."""
    both_held.faults.hangs = True
    both_held.owner.stop_deciding()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(both_held.owner.release)
        await until(lambda: OTHER not in both_held.owner.unreleased())
        tasks.cancel_scope.cancel()

    assert both_held.owner.unreleased() == [TABLE]


async def test_a_release_that_the_store_refuses_is_logged(both_held: Scene) -> None:
    """No event shows it, but the next grant waits for the end of the lease."""
    both_held.faults.fault = Refused("403")
    both_held.owner.stop_deciding()

    with capture_logs() as logs:
        await both_held.owner.release()

    [warning] = [each for each in logs if each["log_level"] == "warning"]
    assert (warning["event"], warning["table"]) == ("lock.not-released", TABLE)
    assert "403" in warning["why"]
    assert both_held.owner.unreleased() == []


async def test_a_stopped_tables_keeper_gets_no_further_hints(both_held: Scene) -> None:
    """It does not run any more, so hints would accumulate until the process ends."""
    keeper, _ = both_held.owner.tables.locks._keepers[TABLE]
    both_held.owner.tables.stop(TABLE, AssertionError("two grants"))
    for number in range(3):
        both_held.owner.tables.locks.hint(
            made(LockReleased, event_id=f"r{number}", table=TABLE, lock=keeper.location.uri, valid_until=0)
        )

    assert not keeper._inbox


@pytest.mark.parametrize(
    ("cluster", "known", "gaps", "fenced"),
    [
        ("kafka", ("former", "own"), (), True),
        ("kafka", ("another", "own"), (), False),  # of another partition, prefix or group
        ("kafka", ("own", "former"), (), False),  # a later owner
        ("a copy of the log", ("former", "own"), (), False),
        (None, ("former", "own"), (), False),
        ("kafka", ("former", "own"), (Gap("lakewarden.decisions", "end-lost", 9, 3),), False),
    ],
)
async def test_only_locks_of_former_owners_are_taken_over_at_once(
    cluster: str | None, known: tuple[str, ...], gaps: tuple[Gap, ...], fenced: bool
) -> None:
    """The former owner was killed, or is paused. Without a proof that it was one, its leases must end first."""
    lasting = Lasting(Settings(tables=("s3://lake/warehouse/*",)))
    store = MemoryStore(request_timeout_seconds=60)

    def serve(cluster: str | None, *former: str, gaps: Sequence[Gap] = ()) -> Scene:
        stores, log = cast("Stores", OneStore(store)), Log()
        owner = owner_in_memory.made_owner(log, lasting, stores, tasks, cluster=cluster)
        taken = [
            made(PartitionTaken, event_id=each, table=partition_name(0), term=each)
            for each in (owner.records.term if each == "own" else each for each in former)
        ]
        owner.replay.read_decisions(
            BEGINNING, (consumed(encode(each), offset) for offset, each in enumerate(taken))
        )
        owner.load(0, 0, BEGINNING, gaps=gaps)
        scene = Scene(owner, log, None, faults=StoreFaults(lambda _: False), objects={})
        for table in (TABLE, OTHER):
            scene.begin(table, table)
        return scene

    async with store, in_own_task(anyio.create_task_group()) as tasks:
        one = serve("kafka")
        held = await one.wait_for(LockAcquired, 2)
        two = serve(
            cluster, *(one.owner.records.term if each == "former" else each for each in known), gaps=gaps
        )
        if fenced:
            acquired = await two.wait_for(LockAcquired, 2)
            assert {(each.table, each.adopted) for each in acquired} == {
                (each.table, each.owner) for each in held
            }
            assert all(each.fenced for each in acquired)
        else:
            refused = await two.wait_for(LockRefused, 2)
            assert {each.holder for each in refused} == {each.owner for each in held}
        tasks.cancel_scope.cancel()


async def test_a_lock_that_others_hold_for_more_than_a_lease_is_a_warning() -> None:
    """Agents of two prefixes served one table: one made a commit in 45 s, the other 66, without a line."""
    lock = "s3://lake/locks/one.json"
    by_another = render(
        LockRecord(expired=False, valid_until=round((time.time() + 3600) * 1000), owner="them")
    )
    async with scene(lock_places=(f"{TABLE}=>{lock}",)) as made:
        made.objects[lock] = by_another
        with capture_logs() as logs:
            made.begin("A")
            made.request("A")
            await made.wait_for(LockRefused)
        assert [each["event"] for each in logs if each["event"].startswith("lock.")] == ["lock.waiting"]

        locks = made.owner.tables.locks
        keeper, _ = locks._keepers[TABLE]
        assert keeper.denied_since is not None
        relied_on = True
        for seconds, holder, lines in ((29, "them", 0), (31, "them", 1), (31, None, 0)):
            keeper.denied_since = monotonic() - seconds
            denied = lease.LockDenied("held", "waiting", lease.Cost(1, 0.0), holder=holder, held_until=9)
            with capture_logs() as logs:
                keeper._report(denied, relied_on)
            long = [each for each in logs if each["event"] == "lock.waiting-long"]
            assert len(long) == lines
            for each in long:
                assert (each["log_level"], each["holder"], each["seconds"]) == ("warning", "them", 31)
                assert "topic_prefix" in each["advice"]

        keeper.release()
        assert keeper.denied_since is None
