"""The lock's task over a store with faults, on a real loop and on virtual time."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from lakewarden.agent import wire_events
from lakewarden.agent.locks.keeper import SLEEP_CHECK_SECONDS, KeeperEvent, LockKeeper, SleepWatch, Stores
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore, MemoryStore, StoreProbeError, StoreUnreachableError
from lakewarden.agent.stores.memory import Fault, Request
from lakewarden.events import AuditEventUnion
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, Unknown, Won, WriteOutcome
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockPlace

pytestmark = pytest.mark.anyio

LEASE = lease.LeaseSettings(validity=3.0, renew_interval=0.3, drift=0.1, margin=0.4)
REQUEST_SECONDS = 0.25
WALL_MS = 1_800_000_000_000


@pytest.fixture(params=["asyncio", "trio-virtual-time"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    if request.param == "asyncio":
        return "asyncio"
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


def clock() -> lease.Moment:
    """The loop's own time, so that virtual time is the lock's time too."""
    now = anyio.current_time()
    return lease.Moment(now, WALL_MS + round(now * 1000), str(uuid.uuid4()), 0.5)


@dataclass
class Moody:
    """A store that hangs while it is told to, and counts what it was asked."""

    hangs: bool = False
    asked: list[Request] = field(default_factory=list)

    async def before(self, request: Request) -> Fault | None:
        self.asked.append(request)
        if self.hangs:
            await anyio.sleep_forever()
        return None

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        return None


@dataclass
class Keeper:
    """One lock, and what it told."""

    lock: LockKeeper
    scope: anyio.CancelScope
    told: list[tuple[float, KeeperEvent]]
    relied: list[bool]
    changed: list[anyio.Event]

    async def tells(self, kind: type[KeeperEvent] | Any, count: int = 1) -> tuple[float, Any]:
        with anyio.fail_after(30):
            while len(found := [each for each in self.told if isinstance(each[1], kind)]) < count:
                self.changed[0] = anyio.Event()
                await self.changed[0].wait()
        return found[-1]


@asynccontextmanager
async def keeping(store: ConditionalStore, name: str = "t", **options: Any) -> AsyncIterator[Keeper]:
    async def opened() -> ConditionalStore:
        return store

    async with anyio.create_task_group() as tasks:
        keeper = _keeper(opened, name, tasks, **options)
        yield keeper
        tasks.cancel_scope.cancel()


def _keeper(
    opened: Callable[[], Any],
    name: str,
    tasks: Any,
    *,
    settings: lease.LeaseSettings = LEASE,
    clock: Callable[[], lease.Moment] = clock,
    watch: SleepWatch | None = None,
) -> Keeper:
    told: list[tuple[float, KeeperEvent]] = []
    relied: list[bool] = []
    changed = [anyio.Event()]

    def tell(what: KeeperEvent, relied_on: bool) -> None:
        told.append((anyio.current_time(), what))
        relied.append(relied_on)
        changed[0].set()

    place = LockPlace(f"memory://locks/{name}.json", shared=False)
    scope = anyio.CancelScope()
    lock = LockKeeper(place, settings, opened, tell, clock=clock, watch=watch)

    async def run() -> None:
        with scope:
            await lock.run()

    tasks.start_soon(run)
    return Keeper(lock, scope, told, relied, changed)


def _record(objects: dict[str, bytes], name: str = "t") -> LockRecord:
    record = parse(objects[f"memory://locks/{name}.json"])
    assert isinstance(record, LockRecord)
    return record


async def test_a_lock_is_taken_renewed_and_given_back() -> None:
    objects: dict[str, bytes] = {}
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed, 3)
        assert not _record(objects).expired
        keeper.lock.release()
        await keeper.lock.wait_released()

    assert [told.what for _, told in keeper.told if isinstance(told, lease.Confirmed)] == [
        "acquired",
        "renewed",
        "renewed",
    ]
    assert _record(objects).expired


async def test_a_store_that_hangs_does_not_delay_giving_the_lease_up() -> None:
    mood = Moody()
    store = MemoryStore(request_timeout_seconds=1_000, faults=mood)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        _, confirmed = await keeper.tells(lease.Confirmed)
        mood.hangs = True
        at, ended = await keeper.tells(lease.LeaseEnded)

    assert at >= confirmed.lease.expires_at - LEASE.margin
    assert at < confirmed.lease.expires_at
    assert "in time" in ended.why


async def test_a_store_that_recovers_is_used_again() -> None:
    mood = Moody()
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, faults=mood)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed)
        mood.hangs = True
        await keeper.tells(lease.LeaseEnded)
        mood.hangs = False
        _, again = await keeper.tells(lease.Confirmed, 2)

    assert again.what == "acquired"


async def test_a_confirmation_that_comes_after_the_lock_was_given_back_is_not_relied_upon() -> None:
    """Under `per-commit` the lock is dropped and wanted again between two grants, while a renewal may be on its way."""
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed)
        put = keeper.lock._enqueue

        def put_and_wish(given: lease.Input) -> None:
            put(given)
            if isinstance(given, lease.WriteDone):
                keeper.lock._enqueue = put  # type: ignore[method-assign]
                keeper.lock.release()
                keeper.lock.acquire(None)

        keeper.lock._enqueue = put_and_wish  # type: ignore[method-assign]
        await keeper.tells(lease.Confirmed, 3)

    confirmations = [
        (told.what, relied_on)
        for (_, told), relied_on in zip(keeper.told, keeper.relied, strict=True)
        if isinstance(told, lease.Confirmed)
    ]
    assert confirmations[:3] == [("acquired", True), ("renewed", False), ("acquired", True)]


async def test_a_slow_store_of_one_table_delays_no_other() -> None:
    slow_mood, objects = Moody(), dict[str, bytes]()
    slow = MemoryStore(request_timeout_seconds=1_000, faults=slow_mood)
    quick = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects)
    async with slow, quick, keeping(slow, "slow") as held_up, keeping(quick, "quick") as other:
        slow_mood.hangs = True
        held_up.lock.acquire(None)
        other.lock.acquire(None)
        await other.tells(lease.Confirmed, 3)
        other.lock.release()
        await other.lock.wait_released()

    assert held_up.told == []
    assert _record(objects, "quick").expired


class SleepyClock:
    """The loop's time, which stands still while the machine sleeps, and how long it has slept."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.looked_at = 0

    def monotonic(self) -> float:
        self.looked_at += 1
        return anyio.current_time() + self.slept

    def moment(self) -> lease.Moment:
        return replace(clock(), now=self.monotonic())


SELDOM = replace(LEASE, validity=3_000.0, renew_interval=1_000.0)


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
@pytest.mark.parametrize("shared", [True, False])
async def test_a_keeper_learns_soon_after_waking_that_the_machine_slept(shared: bool) -> None:
    """A closed laptop: a timer comes as much too late as the sleep was long."""
    sleepy = SleepyClock()
    watch = SleepWatch(sleepy.monotonic) if shared else None
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS)
    async with store, anyio.create_task_group() as tasks:
        if watch is not None:
            tasks.start_soon(watch.run)
        async with keeping(store, settings=SELDOM, clock=sleepy.moment, watch=watch) as keeper:
            keeper.lock.acquire(None)
            await keeper.tells(lease.Confirmed)
            sleepy.slept, woke = 3_600.0, anyio.current_time()
            at, _ = await keeper.tells(lease.LeaseEnded)
        tasks.cancel_scope.cancel()

    assert at - woke <= SLEEP_CHECK_SECONDS


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
async def test_a_keeper_sleeps_until_its_time_has_come_while_one_look_is_had_for_all() -> None:
    """A thousand keepers that each looked once a second took half as much processor time as their renewals."""
    everybodys, own = SleepyClock(), SleepyClock()
    watch = SleepWatch(everybodys.monotonic)
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS)
    async with store, anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        async with keeping(store, settings=SELDOM, clock=own.moment, watch=watch) as keeper:
            keeper.lock.acquire(None)
            await keeper.tells(lease.Confirmed)
            await anyio.sleep(SLEEP_CHECK_SECONDS)
            before, looks = own.looked_at, everybodys.looked_at
            await anyio.sleep(100 * SLEEP_CHECK_SECONDS)
        tasks.cancel_scope.cancel()

    assert own.looked_at == before
    assert everybodys.looked_at - looks in range(99, 102)


async def test_whoever_has_ended_is_watched_no_more() -> None:
    """An agent keeps a lock for each table that it ever had, one after the other."""
    watch = SleepWatch()
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS)
    async with store, keeping(store, watch=watch) as keeper:
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed)
        assert list(watch.keepers) == [keeper.lock]

    assert not watch.keepers


async def test_who_is_cancelled_leaves_a_lease_that_lapses() -> None:
    objects: dict[str, bytes] = {}
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed)
        keeper.scope.cancel()
        left = _record(objects)
        async with keeping(store) as heir:
            heir.lock.acquire(None)
            _, refused = await heir.tells(lease.LockDenied)
            at, confirmed = await heir.tells(lease.Confirmed)

    assert not left.expired
    assert refused.holder == left.owner
    assert WALL_MS + at * 1000 >= left.valid_until + LEASE.drift * 1000
    assert confirmed.lease.record.owner != left.owner


async def test_who_holds_the_lock_instead_is_told_to_whoever_relied_on_it() -> None:
    objects: dict[str, bytes] = {}
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed)
        objects["memory://locks/t.json"] = render(
            LockRecord(expired=False, valid_until=WALL_MS + 10**9, owner="x")
        )
        _, ended = await keeper.tells(lease.LeaseEnded)

    assert ended.holder == "x"


async def test_a_wish_dropped_before_it_came_true_leaves_nothing_behind() -> None:
    objects: dict[str, bytes] = {}
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects)
    async with store, keeping(store) as keeper:
        keeper.lock.acquire(None)
        keeper.lock.release()
        await keeper.lock.wait_released()

    assert not objects or _record(objects).expired


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_can_not_be_opened_refuses_the_lock_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    settings = Settings.load(allow=(f"file://{tmp_path}/file/*",))
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        stores = Stores(settings, stack)
        keeper = _keeper(lambda: stores.for_lock(f"file://{tmp_path}/file/t/lock.json"), "t", tasks)
        keeper.lock.acquire(None)
        _, denied = await keeper.tells(lease.LockDenied)
        tasks.cancel_scope.cancel()

    assert denied.fatal
    assert "can't be created" in denied.why


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_is_being_opened_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = anyio.Event()

    async def probe(store: ConditionalStore, root: str) -> None:
        if "slow" in root:
            hanging.set()
            await anyio.sleep_forever()

    monkeypatch.setattr("lakewarden.agent.locks.keeper.probe", probe)
    allow = (f"file://{tmp_path}/slow/*", f"file://{tmp_path}/quick/*")
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        stores = Stores(Settings.load(allow=allow), stack)
        tasks.start_soon(stores.for_lock, f"file://{tmp_path}/slow/t/lock.json")
        await hanging.wait()
        with anyio.fail_after(30):
            await stores.for_lock(f"file://{tmp_path}/quick/t/lock.json")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_probe_that_fails_is_the_answer_to_all_who_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that hangs: were it probed once a lock, one after the other, nobody would be told for minutes."""
    probed, answers = 0, list[str]()
    all_wait = anyio.Event()

    async def probe(store: ConditionalStore, root: str) -> None:
        nonlocal probed
        probed += 1
        await all_wait.wait()
        raise StoreUnreachableError("no answer")

    async def ask(stores: Stores, number: int) -> None:
        with pytest.raises(StoreUnreachableError, match="no answer") as raised:
            await stores.for_lock(f"file://{tmp_path}/{number}/lock.json")
        answers.append(str(raised.value))

    monkeypatch.setattr("lakewarden.agent.locks.keeper.probe", probe)
    async with AsyncExitStack() as stack:
        stores = Stores(Settings.load(allow=(f"file://{tmp_path}/*",)), stack)
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(ask, stores, number)
            await anyio.wait_all_tasks_blocked()
            all_wait.set()
        assert (probed, len(answers)) == (1, 10)

        await ask(stores, 11)
        assert probed == 2, "who asks afterwards asks anew"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_is_out_of_reach_for_the_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket is used for the first time while the network is away: its writers wait, and are not refused."""
    probed: list[str] = []

    async def probe(store: ConditionalStore, root: str) -> None:
        probed.append(root)
        if len(probed) == 1:
            raise StoreUnreachableError("this store could not be reached")

    def open_store(uri: str, **options: Any) -> MemoryStore:
        return MemoryStore(request_timeout_seconds=1)

    monkeypatch.setattr("lakewarden.agent.locks.keeper.probe", probe)
    monkeypatch.setattr("lakewarden.agent.locks.keeper.open_store", open_store)
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        stores = Stores(Settings.load(allow=(f"file://{tmp_path}/*",)), stack)
        keeper = _keeper(lambda: stores.for_lock(f"file://{tmp_path}/t/lock.json"), "t", tasks)
        keeper.lock.acquire(None)
        await keeper.tells(lease.Confirmed)
        tasks.cancel_scope.cancel()

    assert len(probed) == 2
    assert not [told for _, told in keeper.told if isinstance(told, lease.LockDenied)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_ignores_conditions_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[MemoryStore] = []

    class Dishonest(MemoryStore):
        def _put(self, key: str, body: bytes, condition: Condition) -> WriteOutcome:
            return Won('"1"')

    def open_store(root: str, **options: Any) -> MemoryStore:
        store = Dishonest(request_timeout_seconds=1)
        opened.append(store)
        return store

    monkeypatch.setattr("lakewarden.agent.locks.keeper.open_store", open_store)
    async with AsyncExitStack() as stack:
        stores = Stores(Settings.load(allow=("s3://b/*",)), stack)
        for _ in range(2):
            with pytest.raises(StoreProbeError, match="ignores the condition"):
                await stores.for_lock("s3://b/locks/t.json")
        assert [store._is_open for store in opened] == [False, False]


class Log:
    """The audit topic: what each keeper tells is heard by all, this one too, a moment later and in one order."""

    def __init__(self, tasks: Any) -> None:
        self.keepers: list[LockKeeper] = []
        self._tasks = tasks

    def tell(self, agent: str, place: LockPlace, told: KeeperEvent) -> None:
        event = wire_events.lock_event(agent, TABLE, place.uri, told)
        self._tasks.start_soon(self._deliver, event)

    async def _deliver(self, event: AuditEventUnion) -> None:
        await anyio.sleep(0.003)
        for keeper in self.keepers:
            keeper.observe(event)


TABLE = "memory://lake/t"


async def test_eight_agents_that_hear_each_other_take_turns() -> None:
    """Hudi's eight: one got nothing for 40 s. Here nobody gets ahead by more than one turn, and nobody polls."""
    mood, objects = Moody(), dict[str, bytes]()
    cycles: list[str] = []
    place = LockPlace("memory://locks/t.json", shared=False)
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects, faults=mood)

    async def opened() -> ConditionalStore:
        return store

    async def contend(agent: str, log: Log) -> None:
        acquired = anyio.Event()

        def tell(told: KeeperEvent, relied_on: bool) -> None:
            log.tell(agent, place, told)
            if isinstance(told, lease.Confirmed) and told.what == "acquired":
                acquired.set()

        keeper = LockKeeper(place, LEASE, opened, tell, name=Contender(agent, TABLE), clock=clock)
        log.keepers.append(keeper)
        tasks.start_soon(keeper.run)
        while len(cycles) < 160:
            acquired = anyio.Event()
            keeper.acquire(None)
            await acquired.wait()
            cycles.append(agent)
            await anyio.sleep(0.005)
            keeper.release()
            await keeper.wait_released()

    async with store, anyio.create_task_group() as tasks:
        log = Log(tasks)
        async with anyio.create_task_group() as contenders:
            for number in range(8):
                contenders.start_soon(contend, f"agent-{number}", log)
        tasks.cancel_scope.cancel()

    settled = cycles[16:152]
    counts = [settled.count(f"agent-{number}") for number in range(8)]
    assert max(counts) - min(counts) <= 2, counts
    assert len(mood.asked) <= 4 * len(cycles), "acquiring takes 2 requests, releasing 1"


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
async def test_wherever_a_keeper_is_cancelled_a_lease_that_ends_by_itself_is_left() -> None:
    """Cut off before or after the n-th request acted, whichever n: nothing is left that only a person could mend."""
    cut_offs = 0
    for acted in (False, True):
        for count in range(1, 12):
            objects: dict[str, bytes] = {}
            cutter = CutOff(count, acted)
            store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects, faults=cutter)
            async with store, keeping(store) as keeper:
                cutter.scope = keeper.scope
                for _ in range(2):
                    keeper.lock.acquire(None)
                    with anyio.move_on_after(2 * LEASE.renew_interval + 0.1):
                        await cutter.cut.wait()
                    keeper.lock.release()
                    with anyio.move_on_after(0.1):
                        await keeper.lock.wait_released()
            cut_offs += cutter.cut.is_set()
            if objects:
                ends = _record(objects).valid_until
                assert ends <= clock().wall_ms + round(LEASE.validity * 1000) + 1
            async with (
                MemoryStore(request_timeout_seconds=1, objects=objects) as healthy,
                keeping(healthy) as heir,
            ):
                heir.lock.acquire(None)
                _, confirmed = await heir.tells(lease.Confirmed)
                assert confirmed.what == "acquired"
    assert cut_offs >= 12, "requests that were there to be cut off"


@dataclass
class CutOff:
    """Cancels the keeper in the middle of its n-th request."""

    count: int
    acted: bool
    scope: anyio.CancelScope | None = None
    cut: anyio.Event = field(default_factory=anyio.Event)

    async def before(self, request: Request) -> None:
        self.count -= 1
        if not self.acted:
            await self._cut_off()

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> None:
        if self.acted:
            await self._cut_off()

    async def _cut_off(self) -> None:
        if self.count == 0 and self.scope is not None:
            self.cut.set()
            self.scope.cancel()
            await anyio.sleep_forever()
