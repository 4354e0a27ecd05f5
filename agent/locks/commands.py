"""The commands `lakewarden lock show`, `release` and `probe`; `hold` is in `hold.py`.

Where a table's lock is; the first rule that applies wins:

1. `--lock URI`, or with `--hudi` the lock object of Hudi's writers inside the table.
2. The location that an agent with the same settings uses (`handlers/lease/placement.py`).

This takes one read, or none with rule 1 or a place in `lock_places`. These commands don't check `tables`. `show` only reads. A
command that writes opens the store as the agent does, and probes it first.
"""

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio

from lakewarden import events
from lakewarden.agent.clock import moment, monotonic
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import (
    ConditionalStore,
    LocationError,
    StoreProbeError,
    Stores,
    folder_of,
    open_store,
    probe,
)
from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.lease import conditional
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from lakewarden.handlers.lease.placement import (
    HUDI_LOCK,
    HUDI_PROPERTIES,
    LockLocation,
    NotAllowed,
    hudi_location,
)

READ_TRIES = 3
RELEASE_TRIES = 5
PAUSE_SECONDS = 0.2
"""Before the second try; doubles with each further one."""

LockState = Literal["held", "lapsed", "released", "absent", "malformed"]


class NotReleased(AgentError):
    """The given owner does not hold the lock. Nothing was written; check with `lakewarden lock show`."""


class StoreUnavailableError(AgentError):
    """The store did not answer, or throttled. Retry; if it persists, check endpoint and network."""


@dataclass(frozen=True, slots=True)
class TableLock:
    """A table and the location of its lock."""

    table: str
    location: LockLocation


@dataclass(frozen=True, slots=True)
class LockContents:
    """The contents of a lock object, as `show` reads them. The field names are JSON (`docs/lock.md`); they never change."""

    table: str
    lock: str
    shared_with_hudi: bool
    state: LockState
    owner: str | None
    valid_until_ms: int | None
    seconds_left: float | None
    """By this machine's clock; negative if the lease has ended."""
    written_ms: int | None
    """When the holder wrote the object, assuming that its leases are as long as those configured here."""
    validity_seconds: float
    drift_seconds: float
    extra: dict[str, Any]
    """The object's other fields."""
    why: str | None
    """Why the object is not a lock record."""
    version: str | None
    valid_until: str | None
    written_about: str | None
    """As `valid_until_ms` and `written_ms`."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The requests and the time that a successful probe took."""

    requests: int
    seconds: float
    keeps_versions: bool | None


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """A lock that was released manually."""

    owner: str
    valid_until_ms: int
    seconds_left: float
    current_owner: str | None
    """The owner that acquired the lock first, if any."""


async def _read_retrying(
    store: ConditionalStore | Stores, uri: str
) -> conditional.Found | conditional.Absent:
    """Read an object. Raises `AgentError` if the store refuses or does not answer."""
    outcome: conditional.ReadOutcome = conditional.Absent()
    for tried in range(READ_TRIES):
        await _pause_before(tried)
        outcome = await store.read(uri)
        match outcome:
            case conditional.Found() | conditional.Absent():
                return outcome
            case conditional.Refused(why=why):
                raise AgentError(
                    f"{uri} can't be read: {why}; if the lock is elsewhere, use --lock or --hudi"
                )
            case conditional.Throttled() | conditional.Unknown():
                pass
    assert isinstance(outcome, conditional.Throttled | conditional.Unknown)
    raise StoreUnavailableError(
        f"{uri} could not be read in {READ_TRIES} tries: {outcome.why}; check endpoint and network, then try again"
    )


async def _pause_before(tried: int) -> None:
    if tried:
        await anyio.sleep(PAUSE_SECONDS * 2 ** (tried - 1))


# -- locate -----------------------------------------------------------------------------------------------------------


async def locate(settings: Settings, table: str, lock: str | None, *, hudi: bool) -> TableLock:
    """Find the table's lock by the rules above. Raises `ValueError` for an invalid URI."""
    table = events.canonical_table(table)
    if lock is not None:
        lock = events.canonical_location(lock)
        return TableLock(table, LockLocation(lock, shared=lock.endswith(HUDI_LOCK)))
    if hudi:
        return TableLock(table, hudi_location(table))
    placement = settings.placement()
    location = placement.configured(table)
    if location is None:
        async with AsyncExitStack() as stack:
            stores = Stores(settings, stack)
            properties = await _read_retrying(stores, events.object_uri(table, HUDI_PROPERTIES))
        location = placement.location(table, hudi=isinstance(properties, conditional.Found))
    if isinstance(location, NotAllowed):
        raise AgentError(
            f"local table {table} has no bucket for its lock; set the folder of the locks with --lock-root, "
            "or the lock object with --lock"
        )
    return TableLock(table, location)


# -- show --------------------------------------------------------------------------------------------------------------


async def show(settings: Settings, lock: TableLock) -> LockContents:
    """Read the lock object."""
    async with AsyncExitStack() as stack:
        found = await _read_retrying(Stores(settings, stack), lock.location.uri)
    lease = settings.lease(shared=lock.location.shared)
    now_ms = moment().wall_ms
    record = parse(found.body) if isinstance(found, conditional.Found) else None
    held = isinstance(record, LockRecord)
    valid_until, written = None, None
    if isinstance(record, LockRecord):
        valid_until = record.valid_until
        written = valid_until - round(lease.validity * 1000)
    return LockContents(
        table=lock.table,
        lock=lock.location.uri,
        shared_with_hudi=lock.location.shared,
        state=_state(record, now_ms, lease.drift_ms),
        owner=record.owner if isinstance(record, LockRecord) else None,
        valid_until_ms=valid_until,
        seconds_left=None if valid_until is None else (valid_until - now_ms) / 1000,
        written_ms=written,
        validity_seconds=lease.validity,
        drift_seconds=lease.drift,
        extra=_extra(found.body) if held and isinstance(found, conditional.Found) else {},
        why=record.why if isinstance(record, Malformed) else None,
        version=found.version if isinstance(found, conditional.Found) else None,
        valid_until=None if valid_until is None else timestamp(valid_until),
        written_about=None if written is None else timestamp(written),
    )


def _state(record: LockRecord | Malformed | None, now_ms: int, drift_ms: int) -> LockState:
    match record:
        case None:
            return "absent"
        case Malformed():
            return "malformed"
        case LockRecord(expired=True):
            return "released"
        case _:
            return "held" if record.held_at(now_ms, drift_ms) else "lapsed"


def _extra(body: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body)
    return {name: value for name, value in fields.items() if name not in ("expired", "validUntil", "owner")}


# -- release -----------------------------------------------------------------------------------------------------------


async def release(settings: Settings, lock: TableLock, owner: str) -> ReleaseResult:
    """Release the lock on behalf of `owner`. Raises `NotReleased` if another owner holds it, or none.

    The write is conditional on the version that was read. If its answer is lost, the object is read back: a released object or
    another owner proves that `owner` does not hold the lock any more.
    """
    uri = lock.location.uri
    async with AsyncExitStack() as stack:
        # Fail before the probe if a read shows that `owner` does not hold the lock.
        stores = Stores(settings, stack)
        first = await _read_retrying(stores, uri)
        _require_owner(uri, parse(first.body) if isinstance(first, conditional.Found) else None, owner)
        return await release_in(await stores.for_lock(uri), uri, owner)


async def release_in(store: ConditionalStore, uri: str, owner: str) -> ReleaseResult:
    """As `release`, in a store that has passed the probe."""
    sent: LockRecord | None = None
    why = ""
    for tried in range(RELEASE_TRIES):
        await _pause_before(tried)
        try:
            found = await _read_retrying(store, uri)
        except StoreUnavailableError as error:
            if sent is None:
                raise
            raise StoreUnavailableError(
                f"whether {uri} was released is not known: {why}; then {error}"
            ) from error
        record = parse(found.body) if isinstance(found, conditional.Found) else None
        if sent is not None and (done := _took_effect(sent, record)) is not None:
            return done
        live = _require_owner(uri, record, owner)
        assert isinstance(found, conditional.Found)
        written = await store.write(
            uri, render(replace(live, expired=True)), conditional.IfMatch(found.version)
        )
        match written:
            case conditional.Won():
                return _release_result(live, None)
            case conditional.Refused(why=why):
                raise AgentError(f"{uri} can't be written: {why}")
            case conditional.Lost() | conditional.Throttled():
                pass  # The object changed since it was read (a renewal), or nothing was written: read it again.
            case conditional.Unknown():
                sent = live
        why = written.why
    raise AgentError(
        f"whether {uri} was released is not known after {RELEASE_TRIES} tries: {why}; check with lakewarden lock show"
    )


def _took_effect(sent: LockRecord, found: LockRecord | Malformed | None) -> ReleaseResult | None:
    """The outcome of a release whose answer was lost, or None if the object does not show it."""
    if not isinstance(found, LockRecord):
        return None
    if found.owner != sent.owner:
        return _release_result(sent, None if found.expired else found.owner)
    return _release_result(found, None) if found.expired else None


def _release_result(record: LockRecord, current_owner: str | None) -> ReleaseResult:
    left = (record.valid_until - moment().wall_ms) / 1000
    return ReleaseResult(record.owner, record.valid_until, left, current_owner)


def _require_owner(uri: str, record: LockRecord | Malformed | None, owner: str) -> LockRecord:
    match record:
        case None:
            raise NotReleased(f"nothing to release: there is no lock object at {uri}")
        case Malformed(why=why):
            raise NotReleased(f"{uri} is not a lock record, and was not changed: {why}")
        case LockRecord() if record.owner != owner:
            how = "was released by" if record.expired else "is held by"
            raise NotReleased(f"nothing released: {uri} {how} another owner, {record.owner}")
        case LockRecord(expired=True):
            raise NotReleased(f"nothing to release: {uri} was already released by {owner}")
        case _:
            return record


# -- probe -------------------------------------------------------------------------------------------------------------


async def probe_location(settings: Settings, root: str) -> ProbeResult:
    """Probe the store at `root`, as the agent does at its start. Raises `StoreProbeError` if it is unfit for locks."""
    try:
        if root.startswith("file://") and not await folder_of(root).is_dir():
            raise StoreProbeError(f"there is no folder {folder_of(root)}; create it, or use another")
        async with open_store(root, settings) as store:
            begun = monotonic()
            try:
                await probe(store, root)
            except StoreProbeError as error:
                raise StoreProbeError(f"{error}; {spent(store.requests, monotonic() - begun)}") from error
            return ProbeResult(store.requests, monotonic() - begun, store.keeps_versions)
    except LocationError:
        raise
    except (OSError, ValueError) as error:
        raise StoreProbeError(f"the store can't be opened: {error}; store={root}") from error


def spent(requests: int, seconds: float) -> str:
    """The requests and the time of a probe, as text."""
    return f"{requests} request{'' if requests == 1 else 's'} in {seconds * 1000:.0f} ms"
