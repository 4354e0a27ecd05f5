"""Our agents: the production lock keepers, used as tables use them, and the log that tells who holds what.

A table wants its lock, holds it for a while when it is told that it has it, and gives it back; under `per-commit` for
moments and again and again, otherwise for leases on end. It may give up waiting, and it may not wait for the release before it
wants the lock again. When a lease is ended under it, it goes on waiting, or asks anew.

The log (`SharedLog`) is what Kafka would tell: which owner a running grant names, so that an agent which takes the table over may
adopt it; and the audit events, which reach the others late, twice, in another order, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import anyio

from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper
from lakewarden.agent.stores import StoreUnreachableError
from lakewarden.agent.wire_events import lock_event
from lakewarden.events import AuditEventUnion, LockReleased
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockPlace
from tests.simulation.environment import Environment
from tests.simulation.node import Node
from tests.simulation.store import StoreClient, short_name
from tests.simulation.timeline import Timeline

CANCELLED_ACQUISITIONS = (0, 0, 0, 2, 5)
"""How often, at a time, a table gives its wish up within a few round trips to the store, and has it again."""


@dataclass(frozen=True, slots=True)
class LockUsage:
    """How a table uses its lock. Times in seconds; each is the mean of what is drawn."""

    hold: float
    think: float
    stops_waiting: float
    """Chance that it stops waiting after a while."""
    waits_for_release: float
    """Chance that it lets a release end before it wants the lock again."""


@dataclass(slots=True)
class SharedLog:
    """What is told to everybody. `hint_delay` None: no audit events are deliver in this run."""

    timeline: Timeline
    random: Random
    hint_delay: float | None
    granted: dict[str, str] = field(default_factory=dict)
    """Each lock, and the owner under which a grant runs."""
    adoptable: dict[str, str] = field(default_factory=dict)
    """Each lock, and the owner that whoever takes its table over may adopt."""
    listeners: list[Agent] = field(default_factory=list)

    def publish(self, event: AuditEventUnion) -> None:
        """Bring an audit event to everybody who runs, each in its own time."""
        if self.hint_delay is None:
            return
        for agent in self.listeners:
            while self.random.random() < 0.9:
                self.timeline.after(self.random.expovariate(1 / self.hint_delay), agent.delivery(event))
                if self.random.random() < 0.95:
                    break

    def node_fails(self, node: Node) -> None:
        """The tables of this node, which is dead or only silent, go to others: who takes one over may adopt its owner."""
        for user in [user for agent in self.listeners if agent.node is node for user in agent.users]:
            if user.owner is None or self.granted.get(user.uri) != user.owner:
                continue
            self.adoptable[user.uri] = user.owner
            others = [agent for agent in self.listeners if agent.node.state == "running"]
            if others and self.random.random() < 0.5:
                successor = self.random.choice(others)
                for other in successor.users:
                    if other.uri == user.uri:
                        successor.node.deliver(other.take_over)


class Agent:
    """One agent process: a keeper and a table for each lock."""

    def __init__(
        self,
        environment: Environment,
        log: SharedLog,
        settings: lease.LeaseSettings,
        locks: dict[str, LockUsage],
    ) -> None:
        self.node = environment.node
        self.users: list[LockUser] = []
        self._environment = environment
        self._log = log
        self._settings = settings
        self._locks = locks
        self._ids = 0
        self._unreachable = environment.random.choice((0, 0, 0, 1, 3))
        """How often the store can't even be opened and probed, at first."""

    def start(self) -> None:
        """Bring the process up."""
        self._environment.oracles.add_node(self.node)
        self._log.listeners.append(self)
        self.node.start(self._run())

    def delivery(self, event: AuditEventUnion) -> Callable[[], None]:
        """What happens when this event reaches this agent."""

        def deliver() -> None:
            for user in self.users:
                if user.uri == event.lock:
                    if isinstance(event, LockReleased):
                        self._environment.oracles.on_release_observed(self.node, user.uri)
                    user.keeper.observe(event)

        return lambda: self.node.deliver(deliver)

    def moment(self) -> lease.Moment:
        """Time and chance of this process, as agent/clock.py gives them."""
        self._ids += 1
        return lease.Moment(
            self.node.now(),
            self.node.wall_ms(),
            f"{self.node.name}-{self._ids}",
            self._environment.random.random(),
        )

    async def _run(self) -> None:
        client = StoreClient(self._environment.wire)

        async def opened() -> StoreClient:
            if self._unreachable and not self._environment.fault_free:
                self._unreachable -= 1
                raise StoreUnreachableError("the store could not be reached")
            return client

        async with anyio.create_task_group() as keepers:
            async with anyio.create_task_group() as tables:
                for uri, habits in self._locks.items():
                    user = LockUser(uri, self._environment, self._log, habits)
                    user.keeper = LockKeeper(
                        LockPlace(uri, shared=False),
                        self._settings,
                        opened,
                        user.on_keeper_event,
                        name=Contender(self.node.name, user.table),
                        clock=self.moment,
                    )
                    self.users.append(user)
                    keepers.start_soon(user.keeper.run)
                    tables.start_soon(user.run)
            keepers.cancel_scope.cancel()


class LockUser:
    """A table, as far as its lock is concerned."""

    keeper: LockKeeper

    def __init__(self, uri: str, environment: Environment, log: SharedLog, habits: LockUsage) -> None:
        self.uri = uri
        self.table = f"s3://warehouse/{short_name(uri)}"
        self.owner: str | None = None
        """Held under this owner."""
        self.done = False
        self._waiting = False
        self._environment = environment
        self._node = environment.node
        self._log = log
        self._oracles = environment.oracles
        self._habits = habits
        self._random = environment.random
        self._changed = anyio.Event()

    def on_keeper_event(self, what: KeeperEvent, relied_on: bool) -> None:
        """As agent/locks/table_locks.py: note it, and tell the audit."""
        self._node.log(_describe(self.uri, what, relied_on=relied_on))
        self._oracles.on_keeper_event(self._node, self.uri, what, relied_on=relied_on)
        match what:
            case lease.Confirmed(lease=held):
                self.owner = held.record.owner if relied_on else None
            case lease.Released() | lease.LeaseEnded():
                self.owner = None
            case lease.LockDenied():
                pass
        if not isinstance(what, lease.Confirmed) or what.what == "acquired":
            self._log.publish(lock_event(self._node.name, self.table, self.uri, what))
        self._changed.set()

    async def run(self) -> None:
        """Use the lock until the run is fault_free, then once more, to the end."""
        while not self._environment.fault_free:
            await anyio.sleep(self._draw(self._habits.think))
            for _ in range(self._random.choice(CANCELLED_ACQUISITIONS)):
                await self._use(
                    patience=self._random.uniform(0, 8) * self._environment.wire.faults.profile.latency
                )
                await self.keeper.wait_released()
            await self._use(patience=self._draw_patience())
        await self._use(patience=math.inf)
        await self.keeper.wait_released()
        self.done = True

    def take_over(self) -> None:
        """The table was another agent's until now; here it waits for its lock already."""
        if self._waiting and self.owner is None:
            self._acquire()

    async def _use(self, patience: float) -> None:
        self._waiting = True
        self._acquire()
        with anyio.move_on_after(patience):
            while True:
                await self._until(held=True)
                if await self._hold() or self._random.random() < 0.5:
                    break
        self._release()
        if self._random.random() < self._habits.waits_for_release:
            await self.keeper.wait_released()

    async def _hold(self) -> bool:
        """Hold it for a while, with a grant under it; false if it was lost meanwhile."""
        owner = self.owner
        assert owner is not None
        self._log.granted[self.uri] = owner
        with anyio.move_on_after(self._draw(self._habits.hold)) as for_a_while:
            await self._until(held=False)
        if self._log.granted.get(self.uri) == owner:
            del self._log.granted[self.uri]
        return for_a_while.cancelled_caught

    def _acquire(self) -> None:
        adopt = self._log.adoptable.pop(self.uri, None)
        self._node.log(f"wants {short_name(self.uri)}{f', may adopt {adopt}' if adopt else ''}")
        self._oracles.on_acquire(self._node, self.uri, adopt)
        self.keeper.acquire(adopt)

    def _release(self) -> None:
        self._node.log(f"drops {short_name(self.uri)}")
        self._oracles.on_release(self._node, self.uri)
        self._waiting = False
        self.owner = None
        self.keeper.release()

    async def _until(self, *, held: bool) -> None:
        while (self.owner is not None) != held:
            self._changed = anyio.Event()
            await self._changed.wait()

    def _draw_patience(self) -> float:
        if self._random.random() >= self._habits.stops_waiting:
            return math.inf
        return self._draw(self._habits.think + self._habits.hold)

    def _draw(self, mean: float) -> float:
        return min(self._random.expovariate(1 / mean), 5 * mean)


def _describe(uri: str, what: KeeperEvent, *, relied_on: bool) -> str:
    name = short_name(uri)
    match what:
        case lease.Confirmed(what=how, lease=held):
            quiet = f" quiet until {held.quiet_until:.3f}" if held.quiet_until else ""
            unused = "" if relied_on else ", which is being given back"
            return f"{how} {name} as {held.record.owner} until {held.expires_at:.3f}{quiet}{unused}"
        case lease.Released(owner=owner, why=why):
            return f"released {name} as {owner}{f': {why}' if why else ''}"
        case lease.LeaseEnded(owner=owner, why=why, holder=holder):
            return f"lost {name} as {owner} to {holder}: {why}"
        case lease.LockDenied(why=why, holder=holder, held_until=held_until):
            return f"denied {name} by {holder} until {held_until}: {why}"
