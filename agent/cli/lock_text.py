"""What `lakewarden lock` prints, as text and as JSON. `docs/lock.md` describes the JSON fields; their names never change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakewarden.agent.locks.commands import AuditResult, LockContents, ReleaseResult
from lakewarden.agent.time_text import span, timestamp, when
from lakewarden.handlers.explain.lock_audit import AuditPosition, Interval, LeaseOverlap, LockReport

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
                f"written  {when(view.written_ms)}, if its leases are {view.validity_seconds:g} s long as configured here; "
                "the object doesn't contain since when the lock is held"
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
                f"malformed: {view.why}. No contender overwrites it, so the table can't be locked: find out which program "
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
        "unreadable_records": [{**_at(position), "why": why} for position, why in result.reasons],
        "violations": report.violations,
        "locks": [_lock_fields(each) for each in report.locks],
    }


def proven(result: AuditResult) -> bool:
    """Whether the log proves it: no violation, and no record that could not be read."""
    return not result.report.violations and not result.unreadable


def _lock_fields(lock: LockReport) -> dict[str, Any]:
    return {
        "lock": lock.lock,
        "tables": list(lock.tables),
        "drift_seconds": lock.drift / 1000,
        "acquisitions": lock.acquisitions,
        "renewals": lock.renewals,
        "releases": lock.releases,
        "lost": lock.lost,
        "refused": lock.refused,
        "requests": lock.requests,
        "longest": None if lock.longest is None else _interval_fields(lock.longest),
        "violations": lock.violations,
        "overlaps": [_overlap_fields(each) for each in lock.overlaps],
        "within_drift": lock.within_drift,
        "closest": None if lock.closest is None else _overlap_fields(lock.closest),
        "losses": [
            {
                "owner": each.owner,
                "agent": each.agent,
                "at": timestamp(each.at),
                "why": each.why,
                "holder": each.holder,
                **_at(each.position),
            }
            for each in lock.losses
        ],
        "hindrances": [
            {
                "why": each.why,
                "times": each.times,
                "last_agent": each.agent,
                "last_at": timestamp(each.at),
                **_at(each.position),
            }
            for each in lock.permanent_refusals
        ],
        "cut": list(lock.truncated_owners),
    }


def _overlap_fields(overlap: LeaseOverlap) -> dict[str, Any]:
    return {
        "since": timestamp(overlap.since),
        "until": timestamp(overlap.until),
        "seconds": overlap.length / 1000,
        "earlier": _interval_fields(overlap.earlier),
        "later": _interval_fields(overlap.later),
    }


def _interval_fields(interval: Interval) -> dict[str, Any]:
    return {
        "owner": interval.owner,
        "agent": interval.agent,
        "since": timestamp(interval.since),
        "until": timestamp(interval.until),
        "seconds": (interval.until - interval.since) / 1000,
        "ended_by": interval.ended_by,
        "first": _at(interval.first),
        "last": _at(interval.last),
    }


def _at(position: AuditPosition) -> dict[str, int]:
    return {"partition": position.partition, "offset": position.offset}


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
    read = f"{_count(report.events, 'event')} of {_count(len(report.locks), 'lock')}"
    if report.duplicates:
        read += f", {_count(report.duplicates, 'duplicate')} ignored"
    if report.violations:
        return f"VIOLATED: two owners at once, {_count(report.violations, 'time')}; {read}"
    if result.unreadable:
        unread = f"{_count(result.unreadable, 'record')} could not be read"
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
        f"refused {lock.refused}; {_count(lock.requests, 'request')}{longest}"
    )
    for overlap in lock.overlaps[:MOST_LINES]:
        yield f"  VIOLATION: {_overlap(overlap)}"
    if lock.violations > MOST_LINES:
        yield f"  … and {lock.violations - MOST_LINES} more"
    if lock.closest is not None:
        yield (
            f"  within the drift of {lock.drift / 1000:g} s: {_count(lock.within_drift, 'overlap')}, the longest "
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
            f"  may need an operator: {each.why} ({_count(each.times, 'time')}, last {timestamp(each.at)} by agent {each.agent}, "
            f"at {_offset(each.position)})"
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
