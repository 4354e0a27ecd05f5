"""The oracle of the audit log finds two owners at once, and reports no violation for holders that follow the rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakewarden.events import LockAcquired, LockEvent, LockLost, LockReleased, LockRenewed
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.lock_audit import Drifts, LockAudit
from tests.unit.events.building import TABLE, made

LOCK = "s3://lake/locks/orders-0a1b2c3d.json"
VALIDITY = 30_000
DRIFT = 500
EPOCH = datetime(2026, 11, 21, tzinfo=UTC)
EPOCH_MS = EPOCH.timestamp() * 1000

KINDS: dict[str, type[LockEvent]] = {
    "acquired": LockAcquired,
    "renewed": LockRenewed,
    "released": LockReleased,
    "lost": LockLost,
}


def history(text: str, lock: str = LOCK) -> list[Any]:
    """The events of a history: owner, what happened to its lock, when, and further fields; `x released 9000 duration_ms=2500`.

    Times are milliseconds since `EPOCH`.
    """
    events = []
    for each in filter(None, map(str.strip, text.split(";"))):
        owner, what, at, *more = each.split()
        pairs = dict(one.split("=", 1) for one in more)
        fields: dict[str, Any] = {"duration_ms": 0.0, **pairs}
        valid_until = float(fields.pop("valid_until", float(at) + VALIDITY))
        events.append(
            made(
                KINDS[what],
                event_id=f"{what}-{owner}-{at}",
                at=EPOCH + timedelta(milliseconds=float(at)),
                agent=owner,
                owner=owner,
                lock=lock,
                valid_until=round(EPOCH_MS + valid_until),
                **fields,
            )
        )
    return events


def checked(*events: Any, drifts: Drifts | None = None) -> LockAudit:
    audit = LockAudit(drifts or Drifts())
    for event in events:
        audit.add(event)
    return audit


def overlaps(audit: LockAudit, lock: str = LOCK) -> list[tuple[str, str, float, float]]:
    return [
        (found.earlier.owner, found.later.owner, found.since - EPOCH_MS, found.until - EPOCH_MS)
        for found in audit.overlaps(lock)
    ]


ALONE: dict[str, tuple[str, tuple[float, float] | None]] = {
    # An owner's interval.
    "it runs from its confirmation to the request for its release": (
        "x acquired 1000; x renewed 4000; x released 9000 duration_ms=2500",
        (1_000, 6_500),
    ),
    # If a release is requested during a renewal, its `duration_ms` counts from the beginning of the renewal.
    "a release that took long undoes no confirmation": (
        "x acquired 1000; x renewed 8000; x released 9000 duration_ms=5000",
        (1_000, 8_000),
    ),
    "a crash ends it with the lease of the last confirmation less the drift": (
        "x acquired 0; x renewed 3000",
        (0, 3_000 + VALIDITY - DRIFT),
    ),
    # An agent is stopped (SIGSTOP) for longer than its lease. It publishes its loss long after another one acquired the lock.
    "what a suspended holder publishes after its lease extends nothing": (
        "x acquired 0; y acquired 31000; x lost 90000 holder=y",
        None,
    ),
    # A renewal was confirmed too late: the object named the same owner all the time, and the agent relies on it again.
    "after a loss the same owner can begin another hold": (
        "x acquired 0; x lost 10000; x acquired 12000; x released 13000; y acquired 10100; y released 11900",
        (0, 10_000),
    ),
    "a renewal after the end of the lease does not cover the gap": (
        "x acquired 0; x renewed 60000; y acquired 30500; y released 39000",
        None,
    ),
    "a renewal after a loss does not undo it": (
        "x acquired 0; x lost 10000; x renewed 12000; y acquired 10100; y released 11900",
        None,
    ),
    # `lock-released` of the first holder arrives after `lock-acquired` of the next one: it was delayed.
    "the order of different agents' events is not used": (
        "x acquired 0; y acquired 6000; x released 9000 duration_ms=4000",
        None,
    ),
    # An agent restarts while a grant runs: the lease of the former owner continues under the name of the new one.
    "an adopter's begins at the end of the adopted lease": (
        "x acquired 0; y acquired 5000 adopted=x valid_until=40000; y released 35000",
        (0, VALIDITY - DRIFT),
    ),
    "an adopter's begins at the former owner's loss if that comes first": (
        "x acquired 0; y acquired 5000 adopted=x; x lost 8000 holder=y; y released 34000",
        (8_000, 34_000),
    ),
    # Its former owner relied on nothing any more, so a third owner overlaps with no one.
    "a lock that was handed over may be acquired again before the former lease ends": (
        "x acquired 0; y acquired 5000 adopted=x handed_over=true duration_ms=20; y released 7000; z acquired 7100",
        None,
    ),
    "a fenced owner's ends when its lock is taken over: it was killed": (
        "x acquired 0; y acquired 5000 adopted=x fenced=true duration_ms=20; y released 7000; z acquired 7100",
        None,
    ),
    # It was suspended before the answer to a renewal, reads it later, and loses the lock only then.
    "a fenced owner's ends when its lock is taken over: it wakes up": (
        """
        x acquired 0; y acquired 5000 adopted=x fenced=true duration_ms=20; y released 7000; z acquired 7100;
        x renewed 9000; x lost 12000
        """,
        None,
    ),
}
"""Histories in which no two owners overlap. Where the rule is about the longest interval: that."""


@pytest.mark.parametrize("rule", ALONE)
def test_an_owners_interval(rule: str) -> None:
    text, longest = ALONE[rule]
    audit = checked(*history(text))

    assert overlaps(audit) == []
    if longest is not None:
        found = max(audit.intervals(LOCK), key=lambda interval: interval.until - interval.since)
        assert (found.since - EPOCH_MS, found.until - EPOCH_MS) == longest


TOGETHER: dict[str, tuple[str, list[tuple[str, str, float, float]]]] = {
    "a hold that follows a loss is a hold of its own": (
        "x acquired 0; x lost 10000; x acquired 12000; y acquired 13000; y released 15000",
        [("x", "y", 13_000, 15_000)],
    ),
    "an overlap has both owners and its time": (
        "x acquired 0; y acquired 5000; x released 7000; y released 9000",
        [("x", "y", 5_000, 7_000)],
    ),
    "an adoption excuses only the overlap of the two owners": (
        "x acquired 0; y acquired 5000 adopted=x; z acquired 6000; z released 9000",
        [("x", "z", 6_000, 9_000)],
    ),
    "the adoption of an owner that is not in the log hides nothing": (
        "y acquired 5000 adopted=long-ago; z acquired 6000",
        [("y", "z", 6_000, 34_500)],
    ),
    "an adopted lock that was not handed over may not be acquired before the former lease ends": (
        "x acquired 0; y acquired 5000 adopted=x duration_ms=20; y released 7000; z acquired 7100",
        [("x", "z", 7_100, 29_500)],
    ),
    # A former owner that was confirmed after its hand-over: it must rely on nothing from then on.
    "a former owner that was confirmed after its hand-over": (
        "x acquired 0; y acquired 5000 adopted=x handed_over=true; x renewed 9000; y released 20000; z acquired 21000",
        [("x", "z", 21_000, 38_500)],
    ),
    "a second owner beside one that took a lock over": (
        "x acquired 0; z acquired 3000; y acquired 5000 adopted=x fenced=true",
        [("x", "z", 3_000, 5_000), ("z", "y", 5_000, 32_500)],
    ),
}
"""Histories in which owners overlap, and the overlaps."""


@pytest.mark.parametrize("rule", TOGETHER)
def test_every_overlap_is_found(rule: str) -> None:
    text, expected = TOGETHER[rule]

    assert overlaps(checked(*history(text))) == expected


@pytest.mark.parametrize(("too_early", "violations"), [(DRIFT, 0), (DRIFT + 1, 1)])
def test_an_overlap_of_at_most_the_drift_is_no_violation(too_early: int, violations: int) -> None:
    audit = checked(*history(f"x acquired 0; x released 5000; y acquired {5_000 - too_early}"))

    assert len(overlaps(audit)) == violations


def test_each_lock_is_checked_separately_and_those_of_hudi_have_their_own_drift() -> None:
    theirs = TABLE + HUDI_LOCK
    late = history("x acquired 0; x released 5000; y acquired 4200", lock=theirs)
    audit = checked(*history("z acquired 0"), *late)

    assert overlaps(audit) == overlaps(audit, theirs) == []
    assert len(overlaps(checked(*late, drifts=Drifts(500, 700)), theirs)) == 1
    assert dict(audit.acquisitions) == {LOCK: 1, theirs: 2}


def test_an_event_that_was_delivered_twice_counts_once() -> None:
    events = history("x acquired 0; x renewed 3000; x released 5000; y acquired 6000")

    audit = checked(*events, *events)

    assert overlaps(audit) == []
    assert audit.acquisitions[LOCK] == 2
