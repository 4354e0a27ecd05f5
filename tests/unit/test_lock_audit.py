"""The check of the audit log: it finds two owners at once, and reports no violation for holders that follow the rules."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import (
    AuditEventUnion,
    LockAcquired,
    LockEvent,
    LockLost,
    LockRefused,
    LockReleased,
    LockRenewed,
)
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.lock_audit import AuditPosition, Drifts, Interval, LeaseOverlap, LockAudit, LockReport
from tests.unit.events.building import TABLE, made

LOCK = "s3://lake/locks/orders-0a1b2c3d.json"
VALIDITY = 30_000
RENEW = 3_000
DRIFT = 500
MARGIN = 2_000
EPOCH = datetime(2026, 11, 21, tzinfo=UTC)
EPOCH_MS = EPOCH.timestamp() * 1000

SomeEvent = TypeVar("SomeEvent", bound=LockEvent)
Log = list[tuple[AuditPosition, AuditEventUnion]]


def event(kind: type[SomeEvent], at: float, owner: str, agent: str = "a", **fields: Any) -> SomeEvent:
    """An event of this kind. Times are milliseconds since `EPOCH`."""
    valid_until = fields.pop("valid_until", at + VALIDITY)
    return made(
        kind,
        event_id=f"{kind.__name__}-{owner}-{agent}-{at}",
        at=EPOCH + timedelta(milliseconds=at),
        agent=agent,
        owner=owner,
        valid_until=round(EPOCH_MS + valid_until),
        **{"lock": LOCK, "duration_ms": 0.0, **fields},
    )


def log(*events: AuditEventUnion, partition: int = 0) -> Log:
    """A log of one partition with these events."""
    return [(AuditPosition(partition, offset), each) for offset, each in enumerate(events)]


KINDS: dict[str, type[LockEvent]] = {
    "acquired": LockAcquired,
    "renewed": LockRenewed,
    "released": LockReleased,
    "lost": LockLost,
    "refused": LockRefused,
}
AGENTS = {"x": "a", "y": "b", "z": "c"}
"""Each owner has an agent of its own."""


def history(text: str, **fields: Any) -> list[Any]:
    """The events of a history: owner, what happened to its lock, when, and further fields; `x released 9000 duration_ms=2500`."""
    events = []
    for each in filter(None, map(str.strip, text.split(";"))):
        owner, what, at, *more = each.split()
        pairs = dict(one.split("=", 1) for one in more)
        values = {name: float(value) if value[0].isdigit() else value for name, value in pairs.items()}
        agent = AGENTS.get(owner, owner)
        events.append(event(KINDS[what], float(at), owner, **{"agent": agent, **values, **fields}))
    return events


def check(events: Log, drifts: Drifts) -> tuple[LockReport, ...]:
    audit = LockAudit(drifts)
    for position, each in events:
        audit.add(position, each)
    return audit.report()


def checked(*events: AuditEventUnion) -> LockReport:
    return only(check(log(*events), Drifts()))


def only(report: tuple[LockReport, ...]) -> LockReport:
    [lock] = report
    return lock


def span(interval: Interval) -> tuple[float, float]:
    return interval.since - EPOCH_MS, interval.until - EPOCH_MS


def overlapping(overlap: LeaseOverlap) -> tuple[str, str, float, float]:
    return (overlap.earlier.owner, overlap.later.owner, overlap.since - EPOCH_MS, overlap.until - EPOCH_MS)


ALONE: dict[str, tuple[str, tuple[float, float, str, int, int] | None]] = {
    # An owner's interval.
    "it runs from its confirmation to the request for its release": (
        "x acquired 1000; x renewed 4000; x released 9000 duration_ms=2500",
        (1_000, 6_500, "released", 0, 2),
    ),
    # If a release is requested during a renewal, its `duration_ms` counts from the beginning of the renewal.
    "a release that took long undoes no confirmation": (
        "x acquired 1000; x renewed 8000; x released 9000 duration_ms=5000",
        (1_000, 8_000, "released", 0, 2),
    ),
    "a crash ends it with the lease of the last confirmation less the drift": (
        "x acquired 0; x renewed 3000",
        (0, 3_000 + VALIDITY - DRIFT, "lease", 0, 1),
    ),
    # An agent is stopped (SIGSTOP) for longer than its lease. It publishes its loss long after another one acquired the lock.
    "what a suspended holder publishes after its lease extends nothing": (
        "x acquired 0; y acquired 31000; x lost 90000 holder=y",
        None,
    ),
    # A renewal was confirmed too late: the object named the same owner all the time, and the agent relies on it again.
    "after a loss the same owner can begin another hold": (
        "x acquired 0; x lost 10000; x acquired 12000; x released 13000; y acquired 10100; y released 11900",
        (0, 10_000, "lost", 0, 1),
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
        (0, VALIDITY - DRIFT, "lease", 0, 0),
    ),
    "an adopter's begins at the former owner's loss if that comes first": (
        "x acquired 0; y acquired 5000 adopted=x; x lost 8000 holder=y; y released 34000",
        (8_000, 34_000, "released", 1, 3),
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
"""Histories in which no two owners overlap. Where the rule is about the longest interval: that, its end, and its events."""


@pytest.mark.parametrize("rule", ALONE)
def test_an_owners_interval(rule: str) -> None:
    text, longest = ALONE[rule]
    lock = checked(*history(text))

    assert (lock.overlaps, lock.within_drift) == ((), ())
    if longest is not None:
        found = lock.longest
        assert found is not None
        assert (*span(found), found.ended_by, found.first.offset, found.last.offset) == longest


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
    text, overlaps = TOGETHER[rule]
    lock = checked(*history(text))

    assert [overlapping(each) for each in lock.overlaps] == overlaps


def test_an_overlap_names_its_agents_and_events() -> None:
    [overlap] = checked(*history("x acquired 0; y acquired 5000; x released 7000; y released 9000")).overlaps

    assert overlap.length == 2_000
    assert (overlap.earlier.agent, overlap.later.agent) == ("a", "b")
    assert (overlap.earlier.last, overlap.later.first) == (AuditPosition(0, 2), AuditPosition(0, 1))


@pytest.mark.parametrize(("too_early", "violations"), [(DRIFT, 0), (DRIFT + 1, 1)])
def test_an_overlap_of_at_most_the_drift_is_within_the_clock_difference(
    too_early: int, violations: int
) -> None:
    lock = checked(*history(f"x acquired 0; x released 5000; y acquired {5_000 - too_early}"))

    assert (len(lock.overlaps), len(lock.within_drift)) == (violations, 1 - violations)


def test_each_lock_is_checked_separately() -> None:
    other = "s3://lake/locks/trips-99999999.json"
    trips = history("y acquired 0", lock=other, table="s3://lake/warehouse/trips")
    report = check(log(*history("x acquired 0"), *trips), Drifts())

    assert [(each.lock, each.overlaps) for each in report] == [(LOCK, ()), (other, ())]


def test_tables_that_share_a_lock_are_checked_together() -> None:
    lock = checked(*history("x acquired 0"), *history("y acquired 0", table="s3://lake/warehouse/trips"))

    assert len(lock.overlaps) == 1


def test_locks_shared_with_hudi_have_their_own_drift() -> None:
    events = history("x acquired 0; x released 5000; y acquired 4200", lock=TABLE + HUDI_LOCK)

    assert checked(*events).overlaps == ()
    assert len(only(check(log(*events), Drifts(500, 700))).overlaps) == 1


# -- a log that is not whole -------------------------------------------------------------------------------------------


def test_an_event_that_was_delivered_twice_counts_once() -> None:
    events = history("x acquired 0; x released 1000")
    lock = checked(*events, *events)

    assert lock.acquisitions == 1
    assert lock.longest is not None
    assert span(lock.longest) == (0, 1_000)


@pytest.mark.parametrize(
    ("text", "violations", "longest"),
    [
        # Kafka keeps the audit topic for 30 days, and a lock may be held for longer.
        (
            "y released 50000 valid_until=60000; x renewed 53000; x renewed 56000; x released 57000",
            0,
            (53_000, 57_000),
        ),
        ("x renewed 53000; y acquired 55000", 1, (53_000, 53_000 + VALIDITY - DRIFT)),
        # If the agent no longer needs the lock when the store answers, it releases the lock without having relied on it.
        ("x lost 1000; y released 2000", 0, None),
    ],
)
def test_a_hold_whose_acquisition_was_removed_is_checked_from_its_first_event_and_listed(
    text: str, violations: int, longest: tuple[float, float] | None
) -> None:
    lock = checked(*history(text))

    assert lock.truncated_owners == ("x",)
    assert (len(lock.overlaps), lock.within_drift) == (violations, ())
    assert (lock.longest and span(lock.longest)) == longest


def test_events_of_one_owner_in_two_partitions_belong_together() -> None:
    """Partitions were added to the topic: a hold may begin in one partition and end in another one that is read first."""
    old = log(*history("x acquired 0"))
    new = log(*history("x renewed 3000; x released 4000; y acquired 4100"), partition=7)

    for order in (old + new, new + old):
        lock = only(check(order, Drifts()))
        assert lock.overlaps == lock.within_drift == ()
        assert lock.truncated_owners == ()


def test_a_hold_in_two_partitions_begins_with_its_older_part_in_any_reading_order() -> None:
    newer = log(*history("x renewed 6000"), partition=7)
    older = log(*history("x renewed 3000"))
    second = log(*history("y acquired 3100; y released 5900"), partition=1)

    lock = only(check([*newer, *older, *second], Drifts()))

    assert [overlapping(each) for each in lock.overlaps] == [("x", "y", 3_100, 5_900)]


# -- any history -------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """The true holds of one lock, and the events that the agents published, each with the agent's own clock."""

    offsets: dict[str, int]
    published: list[tuple[float, AuditEventUnion]] = field(default_factory=list)
    relied_on: list[tuple[str, str, float, float]] = field(default_factory=list)
    """Owner, agent, and true times."""

    def publish(
        self, kind: type[LockEvent], true: float, owner: str, agent: str, *, sent: float, **fields: Any
    ) -> None:
        clock = self.offsets[agent]
        published = event(kind, true + clock, owner, agent, valid_until=sent + clock + VALIDITY, **fields)
        self.published.append((true, published))  # type: ignore[arg-type]  # the type of `kind` is one of the union

    def log(self, data: st.DataObject) -> Log:
        """A log as Kafka may have it: agents are interleaved in any order, some events are repeated, the oldest are gone.

        The events of an adopted owner come before its adoption, because the adopter read its grant in the log.
        """
        lines: dict[str, list[AuditEventUnion]] = {}
        for _, each in sorted(self.published, key=lambda each: each[0]):
            lines.setdefault(each.agent, []).append(each)
        mixed: list[AuditEventUnion] = []
        while lines:
            unpublished = {each.owner for line in lines.values() for each in line}
            ready = [
                name for name, line in lines.items() if getattr(line[0], "adopted", None) not in unpublished
            ]
            agent = data.draw(st.sampled_from(sorted(ready)))
            mixed.append(lines[agent].pop(0))
            if not lines[agent]:
                del lines[agent]
        kept = mixed[data.draw(st.integers(0, len(mixed) // 2)) :]
        repeated = data.draw(st.lists(st.sampled_from(kept), max_size=3))
        return log(*kept, *repeated)


@st.composite
def by_the_rules(draw: st.DrawFn, skew: int = DRIFT // 2) -> History:
    """Agents that follow the rules: they crash, pause and adopt, on a store with latency."""
    agents = ["a", "b", "c"]
    history = History({agent: draw(st.integers(-skew, skew)) for agent in agents})
    latency = st.integers(0, 900)
    free_from = 0.0
    former: tuple[str, str, float] | None = None
    for number in range(draw(st.integers(1, 6))):
        agent, owner = draw(st.sampled_from(agents)), f"owner-{number}"
        sent = free_from + draw(latency)
        adopted, covered_until = None, 0.0
        if former is not None and former[1] != agent and draw(st.booleans()):
            # The former owner crashed and left a live lease; this one adopts it before its end.
            adopted, _, covered_until = former
            sent = covered_until - draw(st.integers(1, VALIDITY // 2))
        confirmed = sent + draw(latency) + draw(latency)
        begun = confirmed
        history.publish(LockAcquired, confirmed, owner, agent, sent=sent, requests=2, adopted=adopted)
        for _ in range(draw(st.integers(0, 4))):
            sent += RENEW
            confirmed = sent + draw(latency) + draw(latency)
            history.publish(LockRenewed, confirmed, owner, agent, sent=sent)
        ends = sent + VALIDITY - DRIFT
        how = draw(st.sampled_from(["release", "crash", "unconfirmed", "suspended"]))
        former = None
        # The next owner waits for the drift, by a clock that may be ahead or behind by the skew.
        free_from = sent + VALIDITY + DRIFT + 2 * skew
        if how == "release":
            requested = max(confirmed, covered_until) + draw(st.integers(0, 2_000))
            landed = requested + draw(latency)
            answered = landed + draw(st.integers(0, 20_000))
            history.publish(
                LockReleased, answered, owner, agent, sent=sent, duration_ms=float(answered - requested)
            )
            ends, free_from = requested, landed
        elif how == "unconfirmed":
            ends -= MARGIN
            history.publish(LockLost, ends, owner, agent, sent=sent)
        elif how == "suspended":
            history.publish(LockLost, ends + draw(st.integers(0, 5 * VALIDITY)), owner, agent, sent=sent)
        else:
            former = (owner, agent, ends)
        history.relied_on.append((owner, agent, max(begun, covered_until), ends))
    return history


@given(st.data())
def test_holders_that_follow_the_rules_never_violate(data: st.DataObject) -> None:
    """With any latencies, crashes, pauses and adoptions, and with events that Kafka repeated or removed."""
    history = data.draw(by_the_rules())

    report = check(history.log(data), Drifts(DRIFT, DRIFT))

    assert [each.overlaps for each in report if each.overlaps] == []


@given(st.data())
def test_with_equal_clocks_there_is_no_overlap_at_all(data: st.DataObject) -> None:
    history = data.draw(by_the_rules(skew=0))

    report = check(history.log(data), Drifts(DRIFT, DRIFT))

    assert [each for each in report if each.overlaps or each.within_drift] == []


@given(st.data())
def test_a_second_owner_is_always_found(data: st.DataObject) -> None:
    """In a history by the rules, another owner acquires the lock while one relies on it."""
    history = data.draw(by_the_rules())
    least = 2 * DRIFT + 2
    victims = [each for each in history.relied_on if each[3] - each[2] > least]
    for owner, agent, since, until in victims[:1]:
        intruder = next(each for each in history.offsets if each != agent)
        begins = data.draw(st.floats(since, until - least))
        history.publish(LockAcquired, begins, "intruder", intruder, sent=begins)
        if data.draw(st.booleans()):
            stays = data.draw(st.floats(begins + least, until))
            history.publish(LockReleased, stays, "intruder", intruder, sent=begins)
        events = [each for _, each in sorted(history.published, key=lambda each: each[0])]

        report = check(log(*events), Drifts(DRIFT, DRIFT))

        pairs = {frozenset((each.earlier.owner, each.later.owner)) for each in only(report).overlaps}
        assert frozenset((owner, "intruder")) in pairs
    assert victims or all(until - since <= least for _, _, since, until in history.relied_on)


def test_ten_thousand_renewals_are_one_interval_and_need_no_memory() -> None:
    """A month of one lock has almost a million renewals."""
    audit = LockAudit(Drifts())
    audit.add(AuditPosition(0, 0), event(LockAcquired, 0, "x"))
    audit.add(AuditPosition(0, 1), event(LockRenewed, RENEW, "x"))
    size = len(pickle.dumps(audit))
    for number in range(2, 10_001):
        audit.add(AuditPosition(0, number), event(LockRenewed, number * RENEW, "x"))

    [lock] = audit.report()

    assert lock.longest is not None
    assert span(lock.longest) == (0, 10_000 * RENEW + VALIDITY - DRIFT)
    assert len(pickle.dumps(audit)) < size + 100


def test_the_check_of_ten_thousand_holds_of_one_owner_is_not_quadratic() -> None:
    """`per-commit` with one agent keeps one owner id. Comparing each hold with each end would exceed the test's timeout."""
    events = [
        each
        for number in range(10_000)
        for each in (
            event(LockAcquired, number * RENEW, "x"),
            event(LockReleased, number * RENEW + 1_000, "x"),
        )
    ]

    lock = checked(*events)

    assert (lock.acquisitions, lock.overlaps) == (10_000, ())
    assert lock.longest is not None
    assert span(lock.longest) == (0, 1_000)


def test_a_renewal_that_is_delivered_twice_counts_once() -> None:
    """Immediately, or after the hold has ended."""
    acquired, renewed, released, another = history(
        "x acquired 0; x renewed 3000; x released 5000; y acquired 6000"
    )
    lock = checked(acquired, renewed, renewed, released, another, renewed)

    assert (lock.overlaps, lock.within_drift) == ((), ())
