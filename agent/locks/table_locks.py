"""The locks of one partition's tables: their locations, their keepers, and what a keeper's events mean for its table.

- `handlers/lease/placement.py` determines where a table's lock is. Unless it is configured, one task per table looks the table
  up, so that a slow store delays no other table. A request for the lock waits for the result.
- Each keeper event is published to the topic `audit`. It also becomes an input of the table's state machine, unless the lease may
  not be relied upon or the table has changed to another lock.
- The owner ids in the lock objects are those of this ownership of the partition, and locks of former ownerships are acquired at
  once (docs/decisions/0058-a-former-owners-lock.md), if the cluster has an id.
- A lock is released when the table does not need it any more, and when its partition is released. A lock under which a grant runs
  and the lock of a stopped table are not released but left to expire.

A keeper is one task per table (`keeper.py`). `handlers/table/grants.py` decides when a table needs its lock.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
import anyio.abc
import structlog

from lakewarden.agent import wire_events
from lakewarden.agent.clock import fresh_id, moment, monotonic
from lakewarden.agent.errors import TaskEndedError
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper, SleepWatch
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import LocationError, Stores
from lakewarden.agent.unrequested import guarded
from lakewarden.events import AuditEventUnion, encode, object_uri
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import ReadOutcome, Refused, Unknown
from lakewarden.handlers.lease.lock_object import owner_prefix
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import (
    HUDI_PROPERTIES,
    LockLocation,
    LookAgain,
    LookUp,
    NotAllowed,
    judge_look_up,
)
from lakewarden.handlers.table.machine import LockConfirmed, LockFailed, LockInput, LockLocated
from lakewarden.handlers.table.state import LockView, TableState

log = structlog.get_logger()

LOOK_AGAIN_SECONDS = 60.0
"""After this time, a table that was no Hudi table is looked up again when it is used after a pause."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the owners of a session's partitions share."""

    settings: Settings
    publisher: Publisher
    stores: Stores
    tasks: anyio.abc.TaskGroup
    watch: SleepWatch | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """One ownership of a partition."""

    number: int
    shared: Shared
    partitions: int = 1
    """Those that `writers` has, in one of which each table is."""
    cluster: str | None = None
    """The id of the Kafka cluster."""
    term: str = field(default_factory=fresh_id)
    """Identifies it: after its `partition-taken`, decisions of other terms don't count."""


class LockedTables(Protocol):
    """The tables of a partition, as their locks see them."""

    @property
    def last_offset(self) -> int:
        """That of the last consumed event."""

    def step(self, uri: str, given: LockInput) -> object:
        """Pass an input to a table."""

    def stop(self, uri: str, error: Exception) -> object:
        """Stop a table of which a task has failed."""

    def on_lock_event(self, event: AuditEventUnion, renew_interval: float) -> object:
        """Note an audit event, and the interval of the lock's renewals."""


class TableLocks:
    """The locks of one partition."""

    def __init__(self, ownership: Ownership, tables: LockedTables) -> None:
        shared = ownership.shared
        self.former_terms: tuple[str, ...] = ()
        """Those of former owners of the partition, as far as the log is complete."""
        self._cluster, self._term = ownership.cluster, ownership.term
        self._settings = shared.settings
        self._placement = shared.settings.placement()
        self._publisher = shared.publisher
        self._stores = shared.stores
        self._tasks = shared.tasks
        self._watch = shared.watch
        self._tables = tables
        self._locations: dict[str, LockLocation] = {}
        self._absent_at: dict[str, float] = {}
        """When a table was found to be no Hudi table, in monotonic seconds."""
        self._searches: dict[str, anyio.CancelScope] = {}
        self._requested: dict[str, str | None] = {}
        """Tables whose lock is requested and whose location is being looked up, with the owner to adopt."""
        self._keepers: dict[str, tuple[LockKeeper, anyio.CancelScope]] = {}

    def new_table(self, uri: str) -> TableState:
        """The state of a table that is used for the first time, with the location of its lock if that is configured."""
        location = self._locations.get(uri) or self._placement.configured(uri)
        if not isinstance(location, LockLocation):
            return TableState(uri, self._settings.table(shared=False), self._term)
        self._locations[uri] = location
        settings = self._settings.table(shared=location.shared)
        return TableState(uri, settings, self._term, lock_location=location.uri)

    def locate(self, state: TableState) -> None:
        """Start to look up where the table's lock is, unless it is known. Call it for each intent, before it is applied."""
        uri = state.uri
        if uri in self._searches or (uri in self._locations and not self._may_have_become_hudi(state)):
            return
        if state.lock_location is not None:
            self._tables.step(uri, LockLocated(monotonic(), self._tables.last_offset, None, state.settings))
        scope = self._searches[uri] = anyio.CancelScope()
        self._tasks.start_soon(
            self._run_within, scope, lambda: self._look_up(state), uri, name=f"lock location of {uri}"
        )

    def _may_have_become_hudi(self, state: TableState) -> bool:
        absent_at = self._absent_at.get(state.uri)
        keeper = self._keepers.get(state.uri)
        return (
            absent_at is not None
            and state.idle()
            and (keeper is None or keeper[0].idle)
            and monotonic() - absent_at >= LOOK_AGAIN_SECONDS
        )

    async def _look_up(self, state: TableState) -> None:
        uri, look_up = state.uri, LookUp()
        settings = self._settings.lease(shared=False)
        found: LockLocation | NotAllowed | None = self._placement.configured(uri)
        outcome: ReadOutcome
        while found is None:
            try:
                with guarded(f"a request for {uri}{HUDI_PROPERTIES}"):
                    outcome = await self._stores.read(object_uri(uri, HUDI_PROPERTIES))
            except TaskEndedError as error:
                outcome = Unknown(str(error))
            except LocationError as error:
                outcome = Refused(str(error), unusable=True)
            at = moment()
            judged = judge_look_up(
                self._placement, uri, look_up, outcome, settings, now=at.now, jitter=at.jitter
            )
            if not isinstance(judged, LookAgain):
                found = judged
                break
            look_up = judged.look_up
            self._report_look_up(uri, judged)
            await anyio.sleep(judged.seconds)
        self._on_located(state, found)

    def _report_look_up(self, uri: str, failed: LookAgain) -> None:
        why = (
            f"whether table {uri} is a Hudi table, and so where its lock is, can't be read from {uri}{HUDI_PROPERTIES}: "
            f"{failed.why}; permit the agent to read it, or set lock_places"
        )
        if failed.too_long:
            log.error("lock.location-unknown", table=uri, why=why)
            self._tables.step(uri, LockFailed(monotonic(), self._tables.last_offset, "refused-too-long", why))
        elif failed.reported:
            log.warning("lock.location-unknown", table=uri, why=why)

    def _on_located(self, state: TableState, found: LockLocation | NotAllowed) -> None:
        """Enter the location, then request the lock if it is still needed."""
        uri, now, offset = state.uri, monotonic(), self._tables.last_offset
        del self._searches[uri]
        if isinstance(found, NotAllowed):
            self._requested.pop(uri, None)
            self._tables.step(uri, LockFailed(now, offset, "unusable", found.why))
            return
        if self._locations.get(uri) != found:
            if uri in self._keepers:
                self._keepers.pop(uri)[1].cancel()  # It is idle: see `_may_have_become_hudi`.
            self._locations[uri] = found
        self._absent_at.pop(uri, None)
        if not found.shared:
            self._absent_at[uri] = now
        self._tables.step(uri, LockLocated(now, offset, found.uri, self._settings.table(shared=found.shared)))
        if uri in self._requested:
            self._keeper(uri).acquire(self._requested.pop(uri))

    def start_acquire(self, state: TableState, adopt: str | None) -> None:
        """Request the table's lock. `adopt` as in `LockKeeper.acquire`."""
        self.locate(state)
        if state.uri in self._searches:
            self._requested[state.uri] = adopt
        else:
            self._keeper(state.uri).acquire(adopt)

    def start_release(self, uri: str) -> None:
        self._requested.pop(uri, None)
        if uri in self._keepers:
            self._keepers[uri][0].release()

    def hint(self, event: AuditEventUnion) -> None:
        """Pass an agent's audit event to the keepers of the same lock object."""
        for keeper, _ in self._keepers.values():
            if keeper.location.uri == event.lock:
                keeper.hint(event)

    def leave_to_expire(self, uri: str) -> None:
        """Stop renewing the table's lock without releasing it, because a grant may run under it."""
        self._stop_search(uri)
        if uri in self._keepers:
            self._keepers.pop(uri)[1].cancel()

    def forget(self, uri: str) -> bool:
        """Forget where the table's lock is, and end its keeper. False if the lock is not released, or not located yet."""
        if uri in self._searches:
            return False
        if uri in self._keepers:
            if not self._keepers[uri][0].idle:
                return False
            self._keepers.pop(uri)[1].cancel()
        self._locations.pop(uri, None)
        self._absent_at.pop(uri, None)
        return True

    async def release(self, uris: Collection[str]) -> None:
        for uri in list(self._searches):
            self._stop_search(uri)
        async with anyio.create_task_group() as releases:
            for uri, (keeper, scope) in self._keepers.items():
                if uri in uris:
                    releases.start_soon(_release, keeper, scope)
                else:
                    scope.cancel()

    def unreleased(self, uris: Collection[str]) -> list[str]:
        return [uri for uri, (keeper, _) in self._keepers.items() if uri in uris and not keeper.idle]

    def _stop_search(self, uri: str) -> None:
        self._requested.pop(uri, None)
        if uri in self._searches:
            self._searches.pop(uri).cancel()

    def _keeper(self, uri: str) -> LockKeeper:
        if uri not in self._keepers:
            location = self._locations[uri]
            keeper = LockKeeper(
                location,
                self._lease(uri, location),
                lambda: self._stores.for_lock(location.uri),
                lambda event, relied_on: self._on_keeper_event(uri, location, event, relied_on=relied_on),
                name=Contender(self._settings.agent_id, uri),
                watch=self._watch,
            )
            scope = anyio.CancelScope()
            self._keepers[uri] = (keeper, scope)
            self._tasks.start_soon(self._run_within, scope, keeper.run, uri, name=f"lock of {uri}")
        return self._keepers[uri][0]

    def _lease(self, uri: str, location: LockLocation) -> lease.LeaseSettings:
        settings = self._settings.lease(shared=location.shared)
        if self._cluster is None:
            return settings
        log_id = f"{self._cluster}/{self._settings.topics.decisions}"
        own, *former = (owner_prefix(log_id, term, uri) for term in (self._term, *self.former_terms))
        return replace(settings, owner_prefix=own, fenced=tuple(former))

    def _on_keeper_event(
        self, uri: str, location: LockLocation, step: KeeperEvent, *, relied_on: bool
    ) -> None:
        event = wire_events.lock_event(self._settings.agent_id, uri, location.uri, step)
        self._publisher.put(Outgoing(self._settings.topics.audit, uri.encode(), encode(event)))
        self._tables.on_lock_event(event, self._settings.lease(shared=location.shared).renew_interval)
        if self._locations.get(uri) is not location or not relied_on:
            return  # The lock is being released: the table does not need it any more, or has changed to another lock.
        now, offset = monotonic(), self._tables.last_offset
        match step:
            case lease.Confirmed(what=what, lease=held):
                done = "lock.acquired" if what == "acquired" else "lock.renewed"
                log.debug(done, table=uri, valid_until=held.record.valid_until)
                view = LockView(held.record.owner, held.expires_at, held.quiet_until)
                self._tables.step(uri, LockConfirmed(now, offset, view))
            case lease.Released(why=None):
                log.debug("lock.released", table=uri)
            case lease.Released(why=why, valid_until=valid_until):
                log.warning("lock.not-released", table=uri, why=why, until=valid_until, lock=location.uri)
            case lease.LeaseEnded(why=why, holder=holder):
                log.warning("lock.lost", table=uri, why=why, holder=holder, lock=location.uri)
                self._tables.step(uri, LockFailed(now, offset, "lost", f"lock {location.uri}: {why}"))
            case lease.LockDenied(kind="unusable" | "refused-too-long" as kind, why=why):
                denied = "lock.unusable" if kind == "unusable" else "lock.refused-too-long"
                log.error(denied, table=uri, why=why, lock=location.uri)
                self._tables.step(uri, LockFailed(now, offset, kind, f"lock {location.uri}: {why}"))
            case lease.LockDenied(kind="refused", why=why):
                log.warning("lock.refused", table=uri, why=why, lock=location.uri)
            case lease.LockDenied(why=why, holder=holder, held_until=held_until):
                log.info(
                    "lock.waiting", table=uri, why=why, holder=holder, until=held_until, lock=location.uri
                )
                since = self._keepers[uri][0].denied_since
                waited = 0.0 if since is None else now - since
                if holder is not None and waited > self._settings.lease(shared=location.shared).validity:
                    log.warning(
                        "lock.waiting-long",
                        table=uri,
                        seconds=round(waited),
                        holder=holder,
                        lock=location.uri,
                        advice="the lock was held by others for more than a lease; agents of different topic_prefix take no "
                        "turns: let one prefix serve the table",
                    )

    async def _run_within(
        self, scope: anyio.CancelScope, task: Callable[[], Awaitable[None]], uri: str
    ) -> None:
        """Run a task of one table. An unexpected error in it stops that table, not the agent."""
        with scope:
            try:
                with guarded("a task of its lock"):
                    await task()
            except Exception as error:  # noqa: BLE001 - the callback logs it, and stops the table
                self._tables.stop(uri, error)


async def _release(keeper: LockKeeper, scope: anyio.CancelScope) -> None:
    try:
        keeper.release()
        await keeper.wait_released()
    finally:
        scope.cancel()
