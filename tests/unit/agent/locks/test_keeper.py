"""The keeper over a store with faults, on asyncio in real time and on trio in virtual time."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from lakewarden.agent import wire_events
from lakewarden.agent.locks.keeper import SLEEP_CHECK_SECONDS, KeeperEvent, LockKeeper, SleepWatch
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore, StoreProbeError, Stores, StoreUnreachableError
from lakewarden.events import AuditEventUnion
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, Unknown, Won, WriteOutcome
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockLocation
from tests.servers.memory_store import Fault, Faults, MemoryStore, Request

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
    """The event loop's time, so that the keeper uses virtual time, too."""
    now = anyio.current_time()
    return lease.Moment(now, WALL_MS + round(now * 1000), str(uuid.uuid4()), 0.5)


@dataclass
class HangingFaults(Faults):
    """Lets requests hang while `hangs` is set, and records them."""

    hangs: bool = False
    requests: list[Request] = field(default_factory=list)

    async def before(self, request: Request) -> Fault | None:
        self.requests.append(request)
        if self.hangs:
            await anyio.sleep_forever()
        return None


@dataclass
class AtRequest:
    """Does something at the n-th request, before or after the store acted."""

    count: int
    acted: bool
    then: Callable[[], Awaitable[None]]
    requests: int = 0

    async def before(self, request: Request) -> Fault | None:
        self.requests += 1
        if not self.acted and self.requests == self.count:
            await self.then()
        return None

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        if self.acted and self.requests == self.count:
            await self.then()
        return None


@dataclass
class Keeper:
    """A keeper and its events."""

    lock: LockKeeper
    scope: anyio.CancelScope
    events: list[tuple[float, KeeperEvent]]
    relied_on: list[bool]
    changed: list[anyio.Event]

    async def wait_for(self, kind: type[KeeperEvent] | Any, count: int = 1) -> tuple[float, Any]:
        with anyio.fail_after(30):
            while len(found := [each for each in self.events if isinstance(each[1], kind)]) < count:
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


@asynccontextmanager
async def requesting(
    objects: dict[str, bytes] | None = None,
    faults: Any = None,
    seconds: float = REQUEST_SECONDS,
    **options: Any,
) -> AsyncIterator[Keeper]:
    """A keeper that has requested its lock, in a store with these objects and faults."""
    store = MemoryStore(request_timeout_seconds=seconds, objects=objects, faults=faults)
    async with store, keeping(store, **options) as keeper:
        keeper.lock.acquire(None)
        yield keeper


def _keeper(
    opened: Callable[[], Any],
    name: str,
    tasks: Any,
    *,
    settings: lease.LeaseSettings = LEASE,
    clock: Callable[[], lease.Moment] = clock,
    watch: SleepWatch | None = None,
) -> Keeper:
    events: list[tuple[float, KeeperEvent]] = []
    relied: list[bool] = []
    changed = [anyio.Event()]

    def record(event: KeeperEvent, relied_on: bool) -> None:
        events.append((anyio.current_time(), event))
        relied.append(relied_on)
        changed[0].set()

    place = LockLocation(f"memory://locks/{name}.json", shared=False)
    scope = anyio.CancelScope()
    lock = LockKeeper(place, settings, opened, record, clock=clock, watch=watch)

    async def run() -> None:
        with scope:
            await lock.run()

    tasks.start_soon(run)
    return Keeper(lock, scope, events, relied, changed)


@asynccontextmanager
async def stores_of(*tables: str) -> AsyncIterator[tuple[Stores, Any]]:
    """The stores of these tables' locks, and tasks that end with them."""
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        yield Stores(Settings.load(tables=tables), stack), tasks
        tasks.cancel_scope.cancel()


def _record(objects: dict[str, bytes], name: str = "t") -> LockRecord:
    record = parse(objects[f"memory://locks/{name}.json"])
    assert isinstance(record, LockRecord)
    return record


async def test_a_lock_is_acquired_renewed_and_released() -> None:
    objects: dict[str, bytes] = {}
    async with requesting(objects) as keeper:
        await keeper.wait_for(lease.Confirmed, 3)
        assert not _record(objects).expired
        keeper.lock.release()
        await keeper.lock.wait_released()

    assert [event.what for _, event in keeper.events if isinstance(event, lease.Confirmed)] == [
        "acquired",
        "renewed",
        "renewed",
    ]
    assert _record(objects).expired


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
async def test_a_hanging_store_does_not_delay_the_end_of_the_lease() -> None:
    """The assertion is about a moment, so it needs virtual time: a busy machine may delay a real task by more than `margin`."""
    faults = HangingFaults()
    async with requesting(faults=faults, seconds=1_000) as keeper:
        _, confirmed = await keeper.wait_for(lease.Confirmed)
        faults.hangs = True
        at, ended = await keeper.wait_for(lease.LeaseEnded)

    assert at >= confirmed.lease.expires_at - LEASE.margin
    assert at < confirmed.lease.expires_at
    assert "in time" in ended.why


async def test_a_store_that_answers_again_is_used_again() -> None:
    faults = HangingFaults()
    async with requesting(faults=faults) as keeper:
        await keeper.wait_for(lease.Confirmed)
        faults.hangs = True
        await keeper.wait_for(lease.LeaseEnded)
        faults.hangs = False
        _, again = await keeper.wait_for(lease.Confirmed, 2)

    assert again.what == "acquired"


async def test_a_confirmation_after_the_release_was_requested_may_not_be_relied_upon() -> None:
    """With `per-commit` the lock is released and requested again between two grants, while a renewal may be outstanding."""
    async with requesting() as keeper:
        await keeper.wait_for(lease.Confirmed)
        enqueue = keeper.lock._enqueue

        def enqueue_and_release(step_input: lease.Input) -> None:
            enqueue(step_input)
            if isinstance(step_input, lease.WriteDone):
                keeper.lock._enqueue = enqueue  # type: ignore[method-assign]
                keeper.lock.release()
                keeper.lock.acquire(None)

        keeper.lock._enqueue = enqueue_and_release  # type: ignore[method-assign]
        await keeper.wait_for(lease.Confirmed, 3)

    confirmations = [
        (event.what, relied_on)
        for (_, event), relied_on in zip(keeper.events, keeper.relied_on, strict=True)
        if isinstance(event, lease.Confirmed)
    ]
    assert confirmations[:3] == [("acquired", True), ("renewed", False), ("acquired", True)]


async def test_a_slow_store_of_one_table_delays_no_other() -> None:
    slow_faults, objects = HangingFaults(), dict[str, bytes]()
    slow_faults.hangs = True
    async with (
        requesting(faults=slow_faults, seconds=1_000, name="slow") as blocked,
        requesting(objects, name="quick") as other,
    ):
        await other.wait_for(lease.Confirmed, 3)
        other.lock.release()
        await other.lock.wait_released()

    assert blocked.events == []
    assert _record(objects, "quick").expired


class SuspendedClock:
    """A clock that includes suspensions of the machine, which the event loop's time does not."""

    def __init__(self) -> None:
        self.suspended = 0.0
        self.readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        return anyio.current_time() + self.suspended

    def moment(self) -> lease.Moment:
        return replace(clock(), now=self.monotonic())


LONG_LEASE = replace(LEASE, validity=3_000.0, renew_interval=1_000.0)


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
@pytest.mark.parametrize("shared", [True, False])
async def test_a_keeper_notices_a_suspension_of_the_machine_soon_after_its_end(shared: bool) -> None:
    """After a closed laptop is opened, timers are late by the length of the suspension."""
    suspended = SuspendedClock()
    watch = SleepWatch(suspended.monotonic) if shared else None
    async with anyio.create_task_group() as tasks:
        if watch is not None:
            tasks.start_soon(watch.run)
        async with requesting(settings=LONG_LEASE, clock=suspended.moment, watch=watch) as keeper:
            await keeper.wait_for(lease.Confirmed)
            suspended.suspended, woke = 3_600.0, anyio.current_time()
            at, _ = await keeper.wait_for(lease.LeaseEnded)
        tasks.cancel_scope.cancel()

    assert at - woke <= SLEEP_CHECK_SECONDS


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
async def test_one_sleep_watch_checks_the_clock_for_all_keepers() -> None:
    """A thousand keepers that each checked it every second used half as much processor time as their renewals."""
    shared, own = SuspendedClock(), SuspendedClock()
    watch = SleepWatch(shared.monotonic)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        async with requesting(settings=LONG_LEASE, clock=own.moment, watch=watch) as keeper:
            await keeper.wait_for(lease.Confirmed)
            await anyio.sleep(SLEEP_CHECK_SECONDS)
            own_before, shared_before = own.readings, shared.readings
            await anyio.sleep(100 * SLEEP_CHECK_SECONDS)
        tasks.cancel_scope.cancel()

    assert own.readings == own_before
    assert shared.readings - shared_before in range(99, 102)


async def test_a_keeper_that_has_ended_is_not_watched_any_more() -> None:
    """Otherwise an agent would keep every keeper that it ever had."""
    watch = SleepWatch()
    async with requesting(watch=watch) as keeper:
        await keeper.wait_for(lease.Confirmed)
        assert list(watch.keepers) == [keeper.lock]

    assert not watch.keepers


async def test_a_cancelled_keeper_leaves_a_lease_that_expires() -> None:
    objects: dict[str, bytes] = {}
    async with requesting(objects) as keeper:
        await keeper.wait_for(lease.Confirmed)
        keeper.scope.cancel()
        left = _record(objects)
        async with requesting(objects) as successor:
            _, refused = await successor.wait_for(lease.LockDenied)
            at, confirmed = await successor.wait_for(lease.Confirmed)

    assert not left.expired
    assert refused.holder == left.owner
    assert WALL_MS + at * 1000 >= left.valid_until + LEASE.drift * 1000
    assert confirmed.lease.record.owner != left.owner


async def test_the_end_of_a_lease_names_the_new_holder() -> None:
    objects: dict[str, bytes] = {}
    async with requesting(objects) as keeper:
        await keeper.wait_for(lease.Confirmed)
        objects["memory://locks/t.json"] = render(
            LockRecord(expired=False, valid_until=WALL_MS + 10**9, owner="x")
        )
        _, ended = await keeper.wait_for(lease.LeaseEnded)

    assert ended.holder == "x"


async def test_a_request_that_is_withdrawn_before_the_acquisition_leaves_no_live_lock() -> None:
    objects: dict[str, bytes] = {}
    async with requesting(objects) as keeper:
        keeper.lock.release()
        await keeper.lock.wait_released()

    assert not objects or _record(objects).expired


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_can_not_be_opened_denies_the_lock_and_the_keeper_continues(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("not a folder")
    async with stores_of(f"file://{tmp_path}/file/*") as (stores, tasks):
        keeper = _keeper(lambda: stores.for_lock(f"file://{tmp_path}/file/t/lock.json"), "t", tasks)
        keeper.lock.acquire(None)
        _, denied = await keeper.wait_for(lease.LockDenied)

    assert denied.kind == "refused"
    assert "can't be created" in denied.why


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_is_slow_to_open_delays_no_other_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = anyio.Event()

    async def probe(store: ConditionalStore, root: str) -> None:
        if root.endswith("/slow"):
            hanging.set()
            await anyio.sleep_forever()

    monkeypatch.setattr("lakewarden.agent.stores.open.probe", probe)
    async with stores_of(f"file://{tmp_path}/slow/*", f"file://{tmp_path}/quick/*") as (stores, tasks):
        tasks.start_soon(stores.for_lock, f"file://{tmp_path}/slow/t/lock.json")
        await hanging.wait()
        with anyio.fail_after(30):
            await stores.for_lock(f"file://{tmp_path}/quick/t/lock.json")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_all_callers_that_wait_for_a_probe_get_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one probe per lock, one after the other, a hanging bucket would be reported only after minutes."""
    probed, answers = 0, list[str]()
    all_wait = anyio.Event()

    async def probe(store: ConditionalStore, root: str) -> None:
        nonlocal probed
        probed += 1
        await all_wait.wait()
        raise StoreUnreachableError("no answer")

    async def open_for(stores: Stores, number: int) -> None:
        with pytest.raises(StoreUnreachableError, match="no answer") as raised:
            await stores.for_lock(f"file://{tmp_path}/{number}/lock.json")
        answers.append(str(raised.value))

    monkeypatch.setattr("lakewarden.agent.stores.open.probe", probe)
    async with stores_of(f"file://{tmp_path}/*") as (stores, _):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(open_for, stores, number)
            await anyio.wait_all_tasks_blocked()
            all_wait.set()
        assert (probed, len(answers)) == (1, 10)

        await open_for(stores, 11)
        assert probed == 2, "a later call probes the store again"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_was_unreachable_is_probed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket is used for the first time during a network failure: its writers wait and are not refused."""
    probed: list[str] = []

    async def probe(store: ConditionalStore, root: str) -> None:
        probed.append(root)
        if len(probed) == 1:
            raise StoreUnreachableError("this store could not be reached")

    def open_store(root: str, settings: Settings) -> MemoryStore:
        return MemoryStore(request_timeout_seconds=1)

    monkeypatch.setattr("lakewarden.agent.stores.open.probe", probe)
    monkeypatch.setattr("lakewarden.agent.stores.open.open_store", open_store)
    async with stores_of(f"file://{tmp_path}/*") as (stores, tasks):
        keeper = _keeper(lambda: stores.for_lock(f"file://{tmp_path}/t/lock.json"), "t", tasks)
        keeper.lock.acquire(None)
        await keeper.wait_for(lease.Confirmed)

    assert len(probed) == 2
    assert not [event for _, event in keeper.events if isinstance(event, lease.LockDenied)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_ignores_conditions_fails_the_probe_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[MemoryStore] = []

    class UnconditionalStore(MemoryStore):
        async def _write(self, key: str, body: bytes, condition: Condition) -> WriteOutcome:
            return Won('"1"')

    def open_store(root: str, settings: Settings) -> MemoryStore:
        store = UnconditionalStore(request_timeout_seconds=1)
        opened.append(store)
        return store

    monkeypatch.setattr("lakewarden.agent.stores.open.open_store", open_store)
    async with stores_of("s3://b/*") as (stores, _):
        for _ in range(2):
            with pytest.raises(StoreProbeError, match="ignores the condition"):
                await stores.for_lock("s3://b/locks/t.json")
        assert [store._is_open for store in opened] == [False, False]


class AuditTopic:
    """Delivers each keeper's events to all keepers, its own included, after a delay and in one order."""

    def __init__(self, tasks: Any) -> None:
        self.keepers: list[LockKeeper] = []
        self._tasks = tasks

    def publish(self, agent: str, place: LockLocation, step: KeeperEvent) -> None:
        event = wire_events.lock_event(agent, TABLE, place.uri, step)
        self._tasks.start_soon(self._deliver, event)

    async def _deliver(self, event: AuditEventUnion) -> None:
        await anyio.sleep(0.003)
        for keeper in self.keepers:
            keeper.hint(event)


TABLE = "memory://lake/t"


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
async def test_eight_agents_that_observe_each_other_acquire_the_lock_in_turn() -> None:
    """Of eight Hudi writers, one waited for 40 s. Here no agent is ahead of another by more than one turn, and none polls."""
    faults, objects = HangingFaults(), dict[str, bytes]()
    cycles: list[str] = []
    place = LockLocation("memory://locks/t.json", shared=False)
    store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects, faults=faults)

    async def opened() -> ConditionalStore:
        return store

    async def contend(agent: str, audit: AuditTopic) -> None:
        acquired = anyio.Event()

        def report(event: KeeperEvent, relied_on: bool) -> None:
            audit.publish(agent, place, event)
            if isinstance(event, lease.Confirmed) and event.what == "acquired":
                acquired.set()

        keeper = LockKeeper(place, LEASE, opened, report, name=Contender(agent, TABLE), clock=clock)
        audit.keepers.append(keeper)
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
        audit = AuditTopic(tasks)
        async with anyio.create_task_group() as contenders:
            for number in range(8):
                contenders.start_soon(contend, f"agent-{number}", audit)
        tasks.cancel_scope.cancel()

    settled = cycles[16:152]
    counts = [settled.count(f"agent-{number}") for number in range(8)]
    assert max(counts) - min(counts) <= 2, counts
    assert len(faults.requests) <= 4 * len(cycles), "an acquisition takes 2 requests, a release 1"


@pytest.mark.parametrize("anyio_backend", ["trio-virtual-time"], indirect=True)
async def test_a_keeper_that_is_cancelled_at_any_request_leaves_a_lease_that_expires() -> None:
    """Before or after the effect of the n-th request, for every n: an operator never has to repair the lock object."""
    cut_offs = 0

    async def cut_off() -> None:
        cut.set()
        keeper.scope.cancel()
        await anyio.sleep_forever()

    for acted in (False, True):
        for count in range(1, 12):
            objects: dict[str, bytes] = {}
            cut, faults = anyio.Event(), AtRequest(count, acted, cut_off)
            store = MemoryStore(request_timeout_seconds=REQUEST_SECONDS, objects=objects, faults=faults)
            async with store, keeping(store) as keeper:
                for _ in range(2):
                    keeper.lock.acquire(None)
                    with anyio.move_on_after(2 * LEASE.renew_interval + 0.1):
                        await cut.wait()
                    keeper.lock.release()
                    with anyio.move_on_after(0.1):
                        await keeper.lock.wait_released()
            cut_offs += cut.is_set()
            if objects:
                ends = _record(objects).valid_until
                assert ends <= clock().wall_ms + round(LEASE.validity * 1000) + 1
            async with requesting(objects, seconds=1) as successor:
                _, confirmed = await successor.wait_for(lease.Confirmed)
                assert confirmed.what == "acquired"
    assert cut_offs >= 12, "requests that were cancelled"


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("acted", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_request_that_its_client_cancelled_has_an_unknown_outcome(count: int, acted: bool) -> None:
    """Read, write, first renewal. Before, it ended the task of the lock, and stopped its table until a restart of the agent."""

    async def cancelled() -> None:
        """As the store's client may: nothing asked the task to end."""
        raise asyncio.CancelledError

    cancelling = AtRequest(count, acted, cancelled)
    async with requesting(faults=cancelling) as keeper:
        await keeper.wait_for(lease.Confirmed, 2)
        keeper.lock.release()
        await keeper.wait_for(lease.Released)

    assert cancelling.requests > count
    assert [each for _, each in keeper.events if isinstance(each, lease.LeaseEnded)] == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_store_whose_opening_was_cancelled_is_opened_again() -> None:
    attempts = 0

    async def opened() -> ConditionalStore:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise asyncio.CancelledError
        return store

    async with (
        MemoryStore(request_timeout_seconds=REQUEST_SECONDS) as store,
        anyio.create_task_group() as tasks,
    ):
        keeper = _keeper(opened, "t", tasks)
        keeper.lock.acquire(None)
        await keeper.wait_for(lease.Confirmed)
        tasks.cancel_scope.cancel()
