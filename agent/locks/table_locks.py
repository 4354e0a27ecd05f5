"""The locks of one partition's tables: their locations, their keepers, and what a keeper's events mean for its table.

- The intents of a table determine where its lock is. All open transactions of a table must name the same lock. A table without
  open transactions may change to another one.
- Each keeper event is published to the topic `audit`. It also becomes an input of the table's state machine, unless the lease may
  not be relied upon or the table has changed to another lock.
- A lock is released when the table does not need it any more, and when its partition is released. A lock under which a grant runs
  and the lock of a stopped table are not released but left to expire.

A keeper is one task per table (`keeper.py`). `handlers/table/grants.py` decides when a table needs its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import anyio
import anyio.abc
import structlog

from lakewarden.agent import wire_events
from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper, SleepWatch, Stores
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.settings import Settings
from lakewarden.events import AuditEventUnion, encode
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockPlace, NotAllowed
from lakewarden.handlers.table.machine import LockConfirmed, LockForbidden, LockGone, LockWithheld
from lakewarden.handlers.table.state import LockView, TableState

log = structlog.get_logger()


class TableLocks:
    """The locks of one partition. `step_table` passes an input to a table, `last_offset` returns the last consumed offset."""

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        stores: Stores,
        tasks: anyio.abc.TaskGroup,
        watch: SleepWatch | None,
        *,
        step_table: Callable[[str, LockConfirmed | LockGone | LockForbidden | LockWithheld], None],
        last_offset: Callable[[], int],
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._settings = settings
        self._placement = settings.placement()
        self._publisher = publisher
        self._stores = stores
        self._tasks = tasks
        self._watch = watch
        self._step_table = step_table
        self._last_offset = last_offset
        self._on_failure = on_failure
        self._places: dict[str, LockPlace] = {}
        self._keepers: dict[str, tuple[LockKeeper, anyio.CancelScope]] = {}

    def resolve_place(self, state: TableState, lock: str | None) -> str | None:
        """Determine where the table's lock is, from `lock` in an intent. Return None, or why the intent is refused."""
        settled = self._places.get(state.uri)
        if settled is not None and (lock is None or lock == settled.uri):
            return None
        place = self._placement.locate(state.uri, lock)
        if isinstance(place, NotAllowed):
            return place.why
        if settled is not None and not state.idle():
            return (
                f"lock {lock} is not the one in use for table {state.uri}, {settled.uri}; "
                "all its writers must name the same lock"
            )
        if state.uri in self._keepers:
            self._tasks.start_soon(_release, *self._keepers.pop(state.uri))
        self._places[state.uri] = place
        state.settings = self._settings.table(shared=place.shared)
        return None

    def start_acquire(self, uri: str, adopt: str | None) -> None:
        """Request the table's lock. `adopt` names the former owner whose lock covers a running grant."""
        self._keeper(uri).acquire(adopt)

    def start_release(self, uri: str) -> None:
        """Request the release of the table's lock."""
        self._keeper(uri).release()

    def observe(self, event: AuditEventUnion) -> None:
        """Pass an agent's audit event to the keepers of the same lock object."""
        for keeper, _ in self._keepers.values():
            if keeper.place.uri == event.lock:
                keeper.observe(event)

    def leave_to_expire(self, uri: str) -> None:
        """Stop renewing the table's lock without releasing it, because a grant may run under it."""
        if uri in self._keepers:
            self._keepers.pop(uri)[1].cancel()

    def forget(self, uri: str) -> bool:
        """Forget where the table's lock is, and end its keeper. False if the lock is not released yet."""
        if uri in self._keepers:
            if not self._keepers[uri][0].idle:
                return False
            self._keepers.pop(uri)[1].cancel()
        self._places.pop(uri, None)
        return True

    async def release(self, uris: Collection[str]) -> None:
        """Release the locks of these tables; leave all others to expire."""
        async with anyio.create_task_group() as releases:
            for uri, (keeper, scope) in self._keepers.items():
                if uri in uris:
                    releases.start_soon(_release, keeper, scope)
                else:
                    scope.cancel()

    def unreleased(self, uris: Collection[str]) -> list[str]:
        """The tables among these whose locks are not released yet."""
        return [uri for uri, (keeper, _) in self._keepers.items() if uri in uris and not keeper.idle]

    def _keeper(self, uri: str) -> LockKeeper:
        if uri not in self._keepers:
            place = self._places[uri]
            keeper = LockKeeper(
                place,
                self._settings.lease(shared=place.shared),
                lambda: self._stores.for_lock(place.uri),
                lambda event, relied_on: self._on_keeper_event(uri, place, event, relied_on=relied_on),
                name=Contender(self._settings.agent_id, uri),
                watch=self._watch,
            )
            scope = anyio.CancelScope()
            self._keepers[uri] = (keeper, scope)
            self._tasks.start_soon(self._run_within, scope, keeper, uri, name=f"lock of {uri}")
        return self._keepers[uri][0]

    def _on_keeper_event(self, uri: str, place: LockPlace, step: KeeperEvent, *, relied_on: bool) -> None:
        event = wire_events.lock_event(self._settings.agent_id, uri, place.uri, step)
        self._publisher.put(Outgoing(self._settings.topics.audit, uri.encode(), encode(event)))
        if self._places.get(uri) is not place or not relied_on:
            return  # The lock is being released: the table does not need it any more, or has changed to another lock.
        now, offset = monotonic(), self._last_offset()
        match step:
            case lease.Confirmed(what=what, lease=held):
                log.debug("lock.confirmed", table=uri, what=what, valid_until=held.record.valid_until)
                view = LockView(held.record.owner, held.expires_at, held.quiet_until)
                self._step_table(uri, LockConfirmed(now, offset, view))
            case lease.Released(why=None):
                log.debug("lock.released", table=uri)
            case lease.Released(why=why, valid_until=valid_until):
                log.warning("lock.not-released", table=uri, why=why, until=valid_until, lock=place.uri)
            case lease.LeaseEnded(why=why, holder=holder):
                log.warning("lock.lost", table=uri, why=why, holder=holder, lock=place.uri)
                self._step_table(uri, LockGone(now, offset, f"lock {place.uri}: {why}"))
            case lease.LockDenied(kind="unusable", why=why):
                log.error("lock.unusable", table=uri, why=why, lock=place.uri)
                self._step_table(uri, LockForbidden(now, offset, f"lock {place.uri}: {why}"))
            case lease.LockDenied(kind="lasting", why=why):
                log.error("lock.refused", table=uri, why=why, lock=place.uri)
                self._step_table(uri, LockWithheld(now, offset, f"lock {place.uri}: {why}"))
            case lease.LockDenied(kind="refused", why=why):
                log.warning("lock.refused", table=uri, why=why, lock=place.uri)
            case lease.LockDenied(why=why, holder=holder, held_until=held_until):
                log.info("lock.waiting", table=uri, why=why, holder=holder, until=held_until, lock=place.uri)

    async def _run_within(self, scope: anyio.CancelScope, keeper: LockKeeper, uri: str) -> None:
        """Run a keeper. An unexpected error in it stops its table, not the agent."""
        with scope:
            try:
                await keeper.run()
            except Exception as error:  # noqa: BLE001 - the callback logs it, and stops the table
                self._on_failure(uri, error)


async def _release(keeper: LockKeeper, scope: anyio.CancelScope) -> None:
    try:
        keeper.release()
        await keeper.wait_released()
    finally:
        scope.cancel()
