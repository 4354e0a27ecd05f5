"""What `lakewarden lock` prints, as text and as JSON. `docs/lock.md` describes the JSON fields; their names never change."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from lakewarden.agent.locks.commands import AuditResult, LockContents, ReleaseResult
from lakewarden.agent.time_text import counted, span, timestamp, when
from lakewarden.handlers.explain.lock_audit import (
    AuditPosition,
    Interval,
    LeaseOverlap,
    LockReport,
    Loss,
    PermanentRefusal,
)

MOST_LINES = 20
"""Lines of each kind for one lock; `--output json` has more."""


# -- show, release -----------------------------------------------------------------------------------------------------


def view_fields(view: LockContents) -> dict[str, Any]:
    """The lock as one JSON object."""
    return {
        "table": view.table,
        "lock": view.lock,
        "shared_with_hudi": view.shared_with_hudi,
        "state": view.state,
        "owner": view.owner,
        "valid_until": None if view.valid_until_ms is None else timestamp(view.valid_until_ms),
        "valid_until_ms": view.valid_until_ms,
        "seconds_left": view.seconds_left,
        "written_about": None if view.written_ms is None else timestamp(view.written_ms),
        "drift_seconds": view.drift_seconds,
        "extra": view.extra,
        "why": view.why,
        "version": view.version,
    }


def view_lines(view: LockContents) -> Iterator[str]:
    """The lock as text."""
    yield f"table    {view.table}"
    yield f"lock     {view.lock}" + ("  (shared with Hudi's writers)" if view.shared_with_hudi else "")
    yield f"state    {_state(view)}"
    if view.owner is not None:
        yield f"owner    {view.owner}"
    if view.valid_until_ms is not None and view.written_ms is not None:
        if view.state == "released":
            yield f"lease    would have run until {when(view.valid_until_ms)}"
        else:
            yield f"until    {when(view.valid_until_ms)}"
            yield (
                f"written  {when(view.written_ms)}, assuming leases of {view.validity_seconds:g} s; "
                "the object doesn't record how long the lock has been held"
            )
    for name, value in view.extra.items():
        yield f"also     {name}: {value!r}"


def _state(view: LockContents) -> str:
    drift = f"{view.drift_seconds:g} s"
    match view.state:
        case "absent":
            return "absent: there is no lock object yet; the first holder creates it"
        case "malformed":
            return (
                f"malformed: {view.why}. No contender overwrites it, so the table can't be locked. Find the program that "
                "wrote it, make sure that no program relies on it, and replace it with a lock record"
            )
        case "released":
            return "released: any contender may acquire it"
        case "lapsed":
            return f"lapsed: its lease ended more than the drift of {drift} ago; any contender may acquire it"
        case "held" if view.seconds_left is not None and view.seconds_left <= 0:
            return f"held: its lease has ended, but clocks may differ by up to {drift}"
        case "held":
            return "held"


def release_lines(result: ReleaseResult, lock: str) -> Iterator[str]:
    """A manual release, with a warning if its owner may be alive."""
    yield f"released {lock}, which owner {result.owner} held"
    if result.current_owner is not None:
        yield f"owner {result.current_owner} has already acquired it"
    if result.seconds_left > 0:
        yield (
            f"warning: if that owner is alive, it may rely on its lease until its next renewal, at the latest until "
            f"{when(result.valid_until_ms)}"
        )


# -- audit -------------------------------------------------------------------------------------------------------------


def audit_fields(result: AuditResult) -> dict[str, Any]:
    """The result as one JSON object."""
    report = result.report
    return {
        "proven": proven(result),
        "events": report.events,
        "duplicates": report.duplicates,
        "unreadable": result.unreadable,
        "unreadable_records": [{**_fields(position), "why": why} for position, why in result.reasons],
        "violations": report.violations,
        "locks": _fields(report.locks),
    }


def proven(result: AuditResult) -> bool:
    """Whether the log proves it: no violation, and no record that could not be read."""
    return not result.report.violations and not result.unreadable


def _fields(value: object) -> Any:
    """A part of the report as JSON: times as text, durations in seconds, a position beside the other fields."""
    if isinstance(value, tuple):
        return [_fields(each) for each in value]
    if not is_dataclass(value):
        return value
    found = {each.name: _fields(getattr(value, each.name)) for each in fields(value)}
    match value:
        case LockReport(drift=drift):
            found["drift_seconds"] = drift / 1000
            found["hindrances"], found["cut"] = found.pop("permanent_refusals"), found.pop("truncated_owners")
            del found["drift"]
        case Interval(since=since, until=until) | LeaseOverlap(since=since, until=until):
            times = {"since": timestamp(since), "until": timestamp(until)}
            found |= {**times, "seconds": (until - since) / 1000}
        case Loss(at=at):
            found |= {"at": timestamp(at), **found.pop("position")}
        case PermanentRefusal(at=at):
            found |= {"last_agent": found.pop("agent"), "last_at": timestamp(at), **found.pop("position")}
            del found["at"]
        case _:
            pass
    return found


def audit_lines(result: AuditResult) -> Iterator[str]:
    """The result as text: a paragraph for each lock, the conclusion last."""
    report = result.report
    for lock in report.locks:
        yield from _lock_lines(lock)
        yield ""
    for position, why in result.reasons:
        yield f"unreadable record {_offset(position)}: {why}"
    yield _conclusion(result)


def _conclusion(result: AuditResult) -> str:
    report = result.report
    read = f"{counted(report.events, 'event')} of {counted(len(report.locks), 'lock')}"
    if report.duplicates:
        read += f", {counted(report.duplicates, 'duplicate')} ignored"
    if report.violations:
        return f"VIOLATED: two owners at once, {counted(report.violations, 'time')}; {read}"
    if result.unreadable:
        unread = f"{counted(result.unreadable, 'record')} could not be read"
        return f"not proven: {unread}; no two owners at once in the other records; {read}"
    return f"proven: no two owners at once; {read}"


def _lock_lines(lock: LockReport) -> Iterator[str]:
    yield f"{lock.lock}"
    for table in lock.tables:
        yield f"  table {table}"
    longest = (
        "" if lock.longest is None else f"; longest hold {_length(lock.longest)} ({_owner(lock.longest)})"
    )
    yield (
        f"  acquired {lock.acquisitions}, renewed {lock.renewals}, released {lock.releases}, lost {lock.lost}, "
        f"refused {lock.refused}; {counted(lock.requests, 'request')}{longest}"
    )
    for overlap in lock.overlaps[:MOST_LINES]:
        yield f"  VIOLATION: {_overlap(overlap)}"
    if lock.violations > MOST_LINES:
        yield f"  … and {lock.violations - MOST_LINES} more"
    if lock.closest is not None:
        yield (
            f"  within the drift of {lock.drift / 1000:g} s: {counted(lock.within_drift, 'overlap')}, the longest "
            f"{lock.closest.length / 1000:.3f} s ({_owner(lock.closest.earlier)}, then {_owner(lock.closest.later)})"
        )
    for loss in lock.losses[:MOST_LINES]:
        holder = f"; owner {loss.holder} held it then" if loss.holder else ""
        yield (
            f"  lost {timestamp(loss.at)} by owner {loss.owner} (agent {loss.agent}): "
            f"{loss.why or 'no reason given'}{holder}; at {_offset(loss.position)}"
        )
    if lock.lost > MOST_LINES:
        yield f"  … and {lock.lost - MOST_LINES} more"
    for each in lock.permanent_refusals[:MOST_LINES]:
        yield (
            f"  may need an operator: {each.why} ({counted(each.times, 'time')}, last {timestamp(each.at)} "
            f"by agent {each.agent}, at {_offset(each.position)})"
        )
    if lock.truncated_owners:
        names = ", ".join(lock.truncated_owners[:MOST_LINES])
        yield f"  owners whose acquisition is no longer in the log, checked from their first step that is left: {names}"


def _overlap(overlap: LeaseOverlap) -> str:
    earlier, later = overlap.earlier, overlap.later
    return (
        f"{_owner(earlier)} and {_owner(later)} both held it from {timestamp(overlap.since)} to {timestamp(overlap.until)}, "
        f"{overlap.length / 1000:.3f} s; events {_offsets(earlier)} and {_offsets(later)}"
    )


def _owner(interval: Interval) -> str:
    return f"owner {interval.owner} of agent {interval.agent}"


def _length(interval: Interval) -> str:
    return span((interval.until - interval.since) / 1000)


def _offsets(interval: Interval) -> str:
    return f"{_offset(interval.first)} to {_offset(interval.last)}"


def _offset(position: AuditPosition) -> str:
    return f"{position.partition}:{position.offset}"
