"""Our agents: the production lock keepers, used as tables use them, and the log that they share.

A table acquires its lock, holds it for a while and releases it: with `per-commit` briefly and often, otherwise for several
leases. It may stop waiting, and it may acquire the lock again before its release has finished. If its lease ends early, it
continues to wait, or starts again.

`SharedLog` stands for Kafka. It records which owner a running grant names, so that the agent that takes the table over may
adopt the lock. That agent also *fences* the former one, whose later grants don't count: its owner ids begin with its name,
unless it is one of an older release. A fenced agent may go on as any contender, but takes no table over.

`SharedLog` delivers audit events to the other agents: late, repeated, reordered, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

import anyio

from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper
from lakewarden.agent.stores import StoreUnreachableError
from lakewarden.agent.wire_events import lock_event
from lakewarden.events import AuditEventUnion, LockAcquired, LockRefused, LockReleased
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockLocation
from tests.simulation.clocks import EPOCH_MS
from tests.simulation.environment import Environment
from tests.simulation.node import Node
from tests.simulation.store import StoreClient, short_name
from tests.simulation.timeline import Timeline

FORGED_AT = datetime(2027, 1, 1, tzinfo=UTC)
FORGED_CONTENDERS = 200
"""Invented contenders: with a slot for each, a contender behind them would wait for five poll intervals."""
CANCELLED_ACQUISITIONS = (0, 0, 0, 2, 5)
"""How often in a row a table cancels its acquisition within a few round trips to the store, and starts it again."""


@dataclass(frozen=True, slots=True)
class LockUsage:
    """How a table uses its lock. Each duration is the mean of what is drawn, in seconds."""

    hold: float
    think: float
    stops_waiting: float
    """Probability that it stops waiting after a while."""
    waits_for_release: float
    """Probability that it waits for the end of a release before it acquires the lock again."""


@dataclass(slots=True)
class SharedLog:
    """What all agents share. `hint_delay` is None if no audit events are delivered in this run."""

    timeline: Timeline
    random: Random
    hint_delay: float | None
    granted: dict[str, str] = field(default_factory=dict)
    """The owner under which a grant runs, by lock."""
    adoptable: dict[str, str] = field(default_factory=dict)
    """The owner that the next agent of the table may adopt, by lock."""
    listeners: list[Agent] = field(default_factory=list)
    fenced: set[str] = field(default_factory=set)
    """The prefixes of all fenced owner ids, which show the agent and the lock."""

    def publish(self, event: AuditEventUnion) -> None:
        """Deliver an audit event to all running agents, each with its own delay."""
        if self.hint_delay is None:
            return
        for agent in self.listeners:
            while self.random.random() < 0.9:
                self.timeline.after(self.random.expovariate(1 / self.hint_delay), agent.delivery(event))
                if self.random.random() < 0.95:
                    break

    def forge_hints(self, uri: str, seconds: float, every: float) -> None:
        """Have a stranger publish, for a while, that contenders wait for the lock and that another agent holds it."""

        def event(number: int, agent: str, kind: type[LockAcquired | LockRefused], **fields: Any) -> None:
            forged = kind(
                event_id=f"forged-{number}",
                table="s3://warehouse/forged",
                at=FORGED_AT,
                agent=agent,
                lock=uri,
                owner="forged",
                valid_until=EPOCH_MS * 2,
                requests=1,
                duration_ms=0.0,
                **fields,
            )
            for listener in self.listeners:
                self.timeline.after(0.0, listener.delivery(forged))

        for contender in range(FORGED_CONTENDERS):
            event(contender, f"forged-{contender}", LockRefused, waiting=True)
        for number in range(int(seconds / every)):
            self.timeline.after(number * every, partial(event, number, "forged", LockAcquired))

    def node_fails(self, node: Node) -> None:
        """Assign the tables of a dead or silent node to others. Their new agents may adopt its locks, and fence it."""
        for user in [user for agent in self.listeners if agent.node is node for user in agent.users]:
            granted = user.owner is not None and self.granted.get(user.uri) == user.owner
            if granted and user.owner is not None:
                self.adoptable[user.uri] = user.owner
            others = [
                other
                for agent in self.listeners
                for other in agent.users
                if agent.node.state == "running"
                and other.uri == user.uri
                and other is not user
                and other.prefix not in self.fenced
            ]
            if others and self.random.random() < 0.5:
                successor = self.random.choice(others)
                self.fenced.add(user.prefix)
                successor.node.deliver(partial(successor.take_over, user.prefix, adopt=granted))


class Agent:
    """One agent process, with a keeper and a table for each lock."""

    def __init__(
        self,
        environment: Environment,
        log: SharedLog,
        settings: lease.LeaseSettings,
        locks: dict[str, LockUsage],
        *,
        old: bool,
    ) -> None:
        """`old`: its release is an older one, whose owner ids show nothing."""
        self.node = environment.node
        self._old = old
        self.users: list[LockUser] = []
        self._environment = environment
        self._log = log
        self._settings = settings
        self._locks = locks
        self._ids = 0
        self._unreachable = environment.random.choice((0, 0, 0, 1, 3))
        """How many of the first attempts to open and probe the store fail."""

    def start(self) -> None:
        self._environment.oracles.add_node(self.node)
        self._log.listeners.append(self)
        self.node.start(self._run())

    def delivery(self, event: AuditEventUnion) -> Callable[[], None]:
        """Return the action that delivers this event to this agent."""

        def observe() -> None:
            for user in self.users:
                if user.uri == event.lock:
                    if isinstance(event, LockReleased):
                        self._environment.oracles.on_release_observed(self.node, user.uri)
                    user.keeper.hint(event)

        return lambda: self.node.deliver(observe)

    def moment(self) -> lease.Moment:
        """The time and randomness of this process, as `agent/clock.py` provides them."""
        self._ids += 1
        return lease.Moment(
            self.node.now(),
            self.node.wall_ms(),
            f"{self.node.name}-{self._ids:024}",  # longer than any prefix
            self._environment.random.random(),
        )

    async def _run(self) -> None:
        client = StoreClient(self._environment.wire)

        async def opened() -> StoreClient:
            if self._unreachable and not self._environment.fault_free:
                self._unreachable -= 1
                self._environment.oracles.on_unreachable(self.node)
                raise StoreUnreachableError("the store could not be reached")
            return client

        async with anyio.create_task_group() as keepers:
            async with anyio.create_task_group() as tables:
                for uri, usage in self._locks.items():
                    user = LockUser(uri, self._environment, self._log, usage)
                    user.prefix = f"{self.node.name}/{short_name(uri)}/"
                    user.keeper = LockKeeper(
                        LockLocation(uri, shared=False),
                        self._settings if self._old else replace(self._settings, owner_prefix=user.prefix),
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
    """One table's use of its lock."""

    keeper: LockKeeper
    prefix: str

    def __init__(self, uri: str, environment: Environment, log: SharedLog, usage: LockUsage) -> None:
        self.uri = uri
        self.table = f"s3://warehouse/{short_name(uri)}"
        self.owner: str | None = None
        """The owner id under which the lock is held."""
        self.done = False
        self._waiting = False
        self._environment = environment
        self.node = environment.node
        self._log = log
        self._oracles = environment.oracles
        self._usage = usage
        self._random = environment.random
        self._changed = anyio.Event()

    def on_keeper_event(self, event: KeeperEvent, relied_on: bool) -> None:
        """Handle what the keeper reports and publish the audit event, as `agent/locks/table_locks.py` does."""
        self.node.log(_describe(self.uri, event, relied_on=relied_on))
        self._oracles.on_keeper_event(self.node, self.uri, event, relied_on=relied_on)
        match event:
            case lease.Confirmed(lease=held):
                self.owner = held.record.owner if relied_on else None
            case lease.Released() | lease.LeaseEnded():
                self.owner = None
            case lease.LockDenied():
                pass
        if not isinstance(event, lease.Confirmed) or event.what == "acquired":
            self._log.publish(lock_event(self.node.name, self.table, self.uri, event))
        self._changed.set()

    async def run(self) -> None:
        """Use the lock until the faults end, and once more after that."""
        while not self._environment.fault_free:
            await anyio.sleep(self._draw(self._usage.think))
            for _ in range(self._random.choice(CANCELLED_ACQUISITIONS)):
                await self._use(
                    patience=self._random.uniform(0, 8) * self._environment.wire.faults.profile.latency
                )
                await self.keeper.wait_released()
            await self._use(patience=self._draw_patience())
        await self._use(patience=math.inf)
        await self.keeper.wait_released()
        self.done = True

    def take_over(self, former: str, *, adopt: bool) -> None:
        """Take the table over from another agent, also while waiting for its lock. `former`: begins that agent's owner ids."""
        self._oracles.on_taken_over(self.node, self.uri, former)
        settings = self.keeper._settings
        if settings.owner_prefix:  # otherwise it is of an older release
            self.keeper._settings = replace(settings, fenced=(*settings.fenced, former))
        if adopt and self._waiting and self.owner is None:
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
        if self._random.random() < self._usage.waits_for_release:
            await self.keeper.wait_released()

    async def _hold(self) -> bool:
        """Hold the lock for a while, with a grant under it. Return False if it was lost meanwhile."""
        owner = self.owner
        assert owner is not None
        self._log.granted[self.uri] = owner
        with anyio.move_on_after(self._draw(self._usage.hold)) as for_a_while:
            await self._until(held=False)
        if self._log.granted.get(self.uri) == owner:
            del self._log.granted[self.uri]
        return for_a_while.cancelled_caught

    def _acquire(self) -> None:
        adopt = self._log.adoptable.pop(self.uri, None)
        self.node.log(f"acquires {short_name(self.uri)}{f', may adopt {adopt}' if adopt else ''}")
        self._oracles.on_acquire(self.node, self.uri, adopt)
        self.keeper.acquire(adopt)

    def _release(self) -> None:
        self.node.log(f"releases {short_name(self.uri)}")
        self._oracles.on_release(self.node, self.uri)
        self._waiting = False
        self.owner = None
        self.keeper.release()

    async def _until(self, *, held: bool) -> None:
        while (self.owner is not None) != held:
            self._changed = anyio.Event()
            await self._changed.wait()

    def _draw_patience(self) -> float:
        if self._random.random() >= self._usage.stops_waiting:
            return math.inf
        return self._draw(self._usage.think + self._usage.hold)

    def _draw(self, mean: float) -> float:
        return min(self._random.expovariate(1 / mean), 5 * mean)


def _describe(uri: str, event: KeeperEvent, *, relied_on: bool) -> str:
    name = short_name(uri)
    match event:
        case lease.Confirmed(what=how, lease=held):
            quiet = f" quiet until {held.quiet_until:.3f}" if held.quiet_until else ""
            unused = "" if relied_on else ", which is being released"
            return f"{how} {name} as {held.record.owner} until {held.expires_at:.3f}{quiet}{unused}"
        case lease.Released(owner=owner, why=why):
            return f"released {name} as {owner}{f': {why}' if why else ''}"
        case lease.LeaseEnded(owner=owner, why=why, holder=holder):
            return f"lost {name} as {owner} to {holder}: {why}"
        case lease.LockDenied(why=why, holder=holder, held_until=held_until):
            return f"denied {name} by {holder} until {held_until}: {why}"
