"""What `lakewarden lock` prints: lines for people, objects for programs (`docs/lock.md` describes the fields)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakewarden.agent.locks.commands import AuditResult, LockView, ReleaseResult
from lakewarden.agent.time_text import span, timestamp, when
from lakewarden.handlers.explain.lock_audit import Interval, LockReport, Overlap, Position

MOST_LINES = 20
"""Of each kind for one lock; `--output json` has more."""


# -- show, release -----------------------------------------------------------------------------------------------------


def view_fields(view: LockView) -> dict[str, Any]:
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


def view_lines(view: LockView) -> Iterator[str]:
    """The lock for a person."""
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
                "since when it is held is not in the object"
            )
    for name, value in view.extra.items():
        yield f"also     {name}: {value!r}"


def _state(view: LockView) -> str:
    drift = f"{view.drift_seconds:g} s"
    match view.state:
        case "absent":
            return "absent: there is no lock object yet; whoever takes the lock makes it"
        case "malformed":
            return (
                f"malformed: {view.why}. Nobody overwrites it, so nobody gets the lock: find out who wrote it, make sure "
                "that nobody relies on it, and put a lock record in its place"
            )
        case "released":
            return "released: free for anybody"
        case "lapsed":
            return f"lapsed: its lease has ended by more than the drift of {drift}; free for anybody"
        case "held" if view.seconds_left is not None and view.seconds_left <= 0:
            return f"held: its lease has just ended, but clocks may differ by {drift}"
        case "held":
            return "held"


def given_lines(given: ReleaseResult, lock: str) -> Iterator[str]:
    """A release by hand, with what may follow from it."""
    yield f"released {lock}, which owner {given.owner} held"
    if given.current_owner is not None:
        yield f"owner {given.current_owner} has it already"
    if given.seconds_left > 0:
        yield (
            f"warning: if that owner is alive, it may rely on its lease until it next renews it, at the latest until "
            f"{when(given.valid_until_ms)}"
        )


# -- audit -------------------------------------------------------------------------------------------------------------


def audit_fields(audited: AuditResult) -> dict[str, Any]:
    """The judgement as one JSON object."""
    report = audited.report
    return {
        "proven": proven(audited),
        "events": report.events,
        "duplicates": report.duplicates,
        "unreadable": audited.unreadable,
        "unreadable_records": [{**_at(where), "why": why} for where, why in audited.reasons],
        "violations": report.violations,
        "locks": [_lock_fields(each) for each in report.locks],
    }


def proven(audited: AuditResult) -> bool:
    """No two owners at once, and nothing in the log that could hide them."""
    return not audited.report.violations and not audited.unreadable


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
            for each in lock.hindrances
        ],
        "cut": list(lock.cut),
    }


def _overlap_fields(overlap: Overlap) -> dict[str, Any]:
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


def _at(position: Position) -> dict[str, int]:
    return {"partition": position.partition, "offset": position.offset}


def audit_lines(audited: AuditResult) -> Iterator[str]:
    """The judgement for a person: one paragraph a lock, the verdict last."""
    report = audited.report
    for lock in report.locks:
        yield from _lock_lines(lock)
        yield ""
    for where, why in audited.reasons:
        yield f"unreadable: record {_offset(where)}: {why}"
    yield _verdict(audited)


def _verdict(audited: AuditResult) -> str:
    report = audited.report
    read = f"{_count(report.events, 'event')} of {_count(len(report.locks), 'lock')}"
    if report.duplicates:
        read += f", {_count(report.duplicates, 'duplicate')} left out"
    if report.violations:
        return f"VIOLATED: two owners at once, {_count(report.violations, 'time')}; {read}"
    if audited.unreadable:
        return f"not proven: {_count(audited.unreadable, 'record')} could not be read; no two owners at once in the rest: {read}"
    return f"proven: no two owners at once; {read}"


def _lock_lines(lock: LockReport) -> Iterator[str]:
    yield f"{lock.lock}"
    for table in lock.tables:
        yield f"  table {table}"
    longest = "" if lock.longest is None else f"; longest hold {_length(lock.longest)} ({_who(lock.longest)})"
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
            f"  within the clock difference of {lock.drift / 1000:g} s: {_count(lock.within_drift, 'overlap')}, "
            f"the longest {lock.closest.length / 1000:.3f} s ({_who(lock.closest.earlier)}, then {_who(lock.closest.later)})"
        )
    for loss in lock.losses[:MOST_LINES]:
        holder = f"; owner {loss.holder} has it" if loss.holder else ""
        yield (
            f"  lost {timestamp(loss.at)} by owner {loss.owner} (agent {loss.agent}): "
            f"{loss.why or 'no reason given'}{holder}; at {_offset(loss.position)}"
        )
    if lock.lost > MOST_LINES:
        yield f"  … and {lock.lost - MOST_LINES} more"
    for each in lock.hindrances[:MOST_LINES]:
        yield (
            f"  to be mended: {each.why} ({_count(each.times, 'time')}, last {timestamp(each.at)} by agent {each.agent}, "
            f"at {_offset(each.position)})"
        )
    if lock.cut:
        names = ", ".join(lock.cut[:MOST_LINES])
        yield f"  judged from what the log still has of them, their acquisition is not in it: {names}"


def _overlap(overlap: Overlap) -> str:
    earlier, later = overlap.earlier, overlap.later
    return (
        f"{_who(earlier)} and {_who(later)} both held it from {timestamp(overlap.since)} to {timestamp(overlap.until)}, "
        f"{overlap.length / 1000:.3f} s; events {_offsets(earlier)} and {_offsets(later)}"
    )


def _who(interval: Interval) -> str:
    return f"owner {interval.owner} of agent {interval.agent}"


def _length(interval: Interval) -> str:
    return span((interval.until - interval.since) / 1000)


def _offsets(interval: Interval) -> str:
    return f"{_offset(interval.first)} to {_offset(interval.last)}"


def _offset(position: Position) -> str:
    return f"{position.partition}:{position.offset}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
