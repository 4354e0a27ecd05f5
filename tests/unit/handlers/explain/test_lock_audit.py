"""The check of the audit log: it finds two owners at once, and reports no violation for holders that follow the rules."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.events import (
    AuditEventUnion,
    LockAcquired,
    LockEvent,
    LockLost,
    LockRefused,
    LockReleased,
    LockRenewed,
)
from lakewarden.handlers.explain.lock_audit import (
    MOST_SHOWN,
    AuditPosition,
    AuditReport,
    Drifts,
    Interval,
    LeaseOverlap,
    LockAudit,
    LockReport,
    check,
)
from lakewarden.handlers.lease.placement import HUDI_LOCK

LOCK = "s3://lake/locks/orders-0a1b2c3d.json"
TABLE = "s3://lake/warehouse/orders"
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
    common: dict[str, Any] = {
        "event_id": f"{kind.__name__}-{owner}-{agent}-{at}",
        "table": TABLE,
        "at": EPOCH + timedelta(milliseconds=at),
        "agent": agent,
        "lock": LOCK,
        "owner": owner,
        "valid_until": round(EPOCH_MS + valid_until),
        "requests": 1,
        "duration_ms": 0.0,
    }
    return kind.model_validate(common | fields)


def log(*events: AuditEventUnion, partition: int = 0) -> Log:
    """A log of one partition with these events."""
    return [(AuditPosition(partition, offset), each) for offset, each in enumerate(events)]


def checked(*events: AuditEventUnion) -> LockReport:
    return only(check(log(*events), Drifts()))


def only(report: AuditReport) -> LockReport:
    [lock] = report.locks
    return lock


def span(interval: Interval) -> tuple[float, float]:
    return interval.since - EPOCH_MS, interval.until - EPOCH_MS


def overlapping(overlap: LeaseOverlap) -> tuple[str, str, float, float]:
    return (
        overlap.earlier.owner,
        overlap.later.owner,
        overlap.since - EPOCH_MS,
        overlap.until - EPOCH_MS,
    )


# -- an owner's interval -----------------------------------------------------------------------------------------------


def test_a_hold_runs_from_its_confirmation_to_the_request_for_its_release() -> None:
    lock = checked(
        event(LockAcquired, 1_000, "x"),
        event(LockRenewed, 4_000, "x"),
        event(LockReleased, 9_000, "x", duration_ms=2_500.0),
    )

    assert lock.longest is not None
    assert span(lock.longest) == (1_000, 6_500)
    assert lock.longest.ended_by == "released"
    assert (lock.longest.first, lock.longest.last) == (AuditPosition(0, 0), AuditPosition(0, 2))


def test_a_release_that_took_long_does_not_undo_a_confirmation() -> None:
    """If a release is requested during a renewal, its `duration_ms` counts from the beginning of the renewal."""
    lock = checked(
        event(LockAcquired, 1_000, "x"),
        event(LockRenewed, 8_000, "x"),
        event(LockReleased, 9_000, "x", duration_ms=5_000.0),
    )

    assert lock.longest is not None
    assert span(lock.longest) == (1_000, 8_000)


def test_a_crash_ends_with_the_lease_of_the_last_confirmation_less_the_drift() -> None:
    lock = checked(event(LockAcquired, 0, "x"), event(LockRenewed, 3_000, "x"))

    assert lock.longest is not None
    assert span(lock.longest) == (0, 3_000 + VALIDITY - DRIFT)
    assert (lock.longest.ended_by, lock.longest.last) == ("lease", AuditPosition(0, 1))


def test_events_that_a_suspended_holder_publishes_after_its_lease_extend_nothing() -> None:
    """An agent is stopped (SIGSTOP) for longer than its lease. It publishes its loss long after another one acquired the lock."""
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, VALIDITY + 2 * DRIFT, "y", agent="b"),
        event(
            LockLost, 3 * VALIDITY, "x", agent="a", holder="y", detail="another owner is in the lock object"
        ),
    )

    assert lock.violations == lock.within_drift == 0
    [loss] = lock.losses
    assert (loss.owner, loss.holder, loss.why) == ("x", "y", "another owner is in the lock object")


def test_after_a_loss_the_same_owner_can_begin_another_hold() -> None:
    """A renewal was confirmed too late: the object named the same owner all the time, and the agent relies on it again."""
    lock = checked(
        event(LockAcquired, 0, "x"),
        event(LockLost, 10_000, "x"),
        event(LockAcquired, 12_000, "x"),
        event(LockReleased, 13_000, "x"),
        event(LockAcquired, 10_100, "y", agent="b"),
        event(LockReleased, 11_900, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (0, 10_000)


def test_a_renewal_after_the_end_of_the_lease_does_not_cover_the_gap() -> None:
    lock = checked(
        event(LockAcquired, 0, "x"),
        event(LockRenewed, 2 * VALIDITY, "x"),
        event(LockAcquired, VALIDITY + DRIFT, "y", agent="b"),
        event(LockReleased, VALIDITY + 9_000, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0


def test_a_hold_that_follows_a_loss_is_a_hold_of_its_own() -> None:
    lock = checked(
        event(LockAcquired, 0, "x"),
        event(LockLost, 10_000, "x"),
        event(LockAcquired, 12_000, "x"),
        event(LockAcquired, 13_000, "y", agent="b"),
        event(LockReleased, 15_000, "y", agent="b"),
    )

    assert [overlapping(each) for each in lock.overlaps] == [("x", "y", 13_000, 15_000)]


def test_a_renewal_after_a_loss_does_not_undo_it() -> None:
    lock = checked(
        event(LockAcquired, 0, "x"),
        event(LockLost, 10_000, "x"),
        event(LockRenewed, 12_000, "x"),
        event(LockAcquired, 10_100, "y", agent="b"),
        event(LockReleased, 11_900, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0


# -- overlaps ----------------------------------------------------------------------------------------------------------


def test_an_overlap_has_both_owners_its_time_and_its_events() -> None:
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b"),
        event(LockReleased, 7_000, "x", agent="a"),
        event(LockReleased, 9_000, "y", agent="b"),
    )

    [overlap] = lock.overlaps
    assert lock.violations == 1
    assert overlapping(overlap) == ("x", "y", 5_000, 7_000)
    assert overlap.length == 2_000
    assert (overlap.earlier.agent, overlap.later.agent) == ("a", "b")
    assert (overlap.earlier.last, overlap.later.first) == (AuditPosition(0, 2), AuditPosition(0, 1))


@pytest.mark.parametrize(("too_early", "violations"), [(DRIFT, 0), (DRIFT + 1, 1)])
def test_an_overlap_of_at_most_the_drift_is_within_the_clock_difference(
    too_early: int, violations: int
) -> None:
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockReleased, 5_000, "x", agent="a"),
        event(LockAcquired, 5_000 - too_early, "y", agent="b"),
    )

    assert lock.violations == violations
    assert lock.within_drift == 1 - violations
    assert (lock.closest is None) == bool(violations)


def test_the_order_of_different_agents_events_is_not_used() -> None:
    """`lock-released` of the first holder arrives after `lock-acquired` of the next one: it was delayed."""
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 6_000, "y", agent="b"),
        event(LockReleased, 9_000, "x", agent="a", duration_ms=4_000.0),
    )

    assert lock.violations == lock.within_drift == 0


def test_each_lock_is_checked_separately() -> None:
    other = "s3://lake/locks/trips-99999999.json"
    report = check(
        log(
            event(LockAcquired, 0, "x"),
            event(LockAcquired, 0, "y", agent="b", lock=other, table="s3://lake/warehouse/trips"),
        ),
        Drifts(),
    )

    assert [each.lock for each in report.locks] == [LOCK, other]
    assert report.violations == 0


def test_tables_that_share_a_lock_are_checked_together() -> None:
    lock = checked(
        event(LockAcquired, 0, "x"), event(LockAcquired, 0, "y", table="s3://lake/warehouse/trips")
    )

    assert lock.tables == (TABLE, "s3://lake/warehouse/trips")
    assert lock.violations == 1


def test_locks_shared_with_hudi_have_their_own_drift() -> None:
    lock = TABLE + HUDI_LOCK
    events = (
        event(LockAcquired, 0, "x", lock=lock),
        event(LockReleased, 5_000, "x", lock=lock),
        event(LockAcquired, 4_200, "y", agent="b", lock=lock),
    )

    assert checked(*events).violations == 0
    assert only(check(log(*events), Drifts(500, 700))).violations == 1


def test_all_overlaps_are_counted_and_the_first_ones_listed() -> None:
    count = 20
    lock = checked(*(event(LockAcquired, n, f"owner-{n}") for n in range(count)))

    assert lock.violations == count * (count - 1) / 2
    assert len(lock.overlaps) == MOST_SHOWN


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_an_adopters_interval_begins_at_the_end_of_the_adopted_lease() -> None:
    """An agent restarts while a grant runs: the lease of the former owner continues under the name of the new one."""
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x", valid_until=40_000),
        event(LockReleased, 35_000, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (0, VALIDITY - DRIFT)


def test_an_adopters_interval_begins_at_the_former_owners_loss_if_that_comes_first() -> None:
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x"),
        event(LockLost, 8_000, "x", agent="a", holder="y"),
        event(LockReleased, 34_000, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (8_000, 34_000)


def test_an_adoption_excuses_only_the_overlap_of_the_two_owners() -> None:
    lock = checked(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x"),
        event(LockAcquired, 6_000, "z", agent="c"),
        event(LockReleased, 9_000, "z", agent="c"),
    )

    assert [overlapping(each) for each in lock.overlaps] == [("x", "z", 6_000, 9_000)]


def test_the_adoption_of_an_owner_that_is_not_in_the_log_hides_nothing() -> None:
    lock = checked(
        event(LockAcquired, 5_000, "y", agent="b", adopted="long ago"),
        event(LockAcquired, 6_000, "z", agent="c"),
    )

    assert lock.violations == 1


# -- a log that is not whole -------------------------------------------------------------------------------------------


def test_an_event_that_was_delivered_twice_counts_once() -> None:
    acquired, released = event(LockAcquired, 0, "x"), event(LockReleased, 1_000, "x")
    report = check(log(acquired, released, acquired, released), Drifts())

    lock = only(report)
    assert (report.events, report.duplicates) == (2, 2)
    assert (lock.acquisitions, lock.releases, lock.requests) == (1, 1, 2)
    assert lock.longest is not None
    assert span(lock.longest) == (0, 1_000)


def test_a_hold_whose_acquisition_was_removed_is_checked_from_its_first_event_and_listed() -> None:
    """Kafka keeps the audit topic for 30 days, and a lock may be held for longer."""
    lock = checked(
        event(LockReleased, 50_000, "y", agent="b", valid_until=60_000),
        event(LockRenewed, 53_000, "x"),
        event(LockRenewed, 56_000, "x"),
        event(LockReleased, 57_000, "x"),
    )

    assert lock.truncated_owners == ("x",)
    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (53_000, 57_000)


def test_a_hold_whose_acquisition_was_removed_can_be_a_violation() -> None:
    lock = checked(event(LockRenewed, 53_000, "x"), event(LockAcquired, 55_000, "y", agent="b"))

    assert lock.violations == 1
    assert lock.truncated_owners == ("x",)


def test_a_loss_without_an_acquisition_is_listed_as_truncated_and_a_release_is_not() -> None:
    """If the agent no longer needs the lock when the store answers, it releases the lock without having relied on it."""
    lock = checked(event(LockLost, 1_000, "x"), event(LockReleased, 2_000, "y"))

    assert lock.truncated_owners == ("x",)
    assert lock.longest is None


def test_events_of_one_owner_in_two_partitions_belong_together() -> None:
    """Partitions were added to the topic: a hold may begin in one partition and end in another one that is read first."""
    acquired, renewed = event(LockAcquired, 0, "x"), event(LockRenewed, 3_000, "x")
    released, next_one = event(LockReleased, 4_000, "x"), event(LockAcquired, 4_100, "y", agent="b")
    old, new = log(acquired), log(renewed, released, next_one, partition=7)

    for order in (old + new, new + old):
        lock = only(check(order, Drifts()))
        assert lock.violations == lock.within_drift == 0
        assert lock.truncated_owners == ()


def test_a_hold_in_two_partitions_begins_with_its_older_part_in_any_reading_order() -> None:
    newer = log(event(LockRenewed, 6_000, "x"), partition=7)
    older = log(event(LockRenewed, 3_000, "x"))
    second = event(LockAcquired, 3_100, "y", agent="b"), event(LockReleased, 5_900, "y", agent="b")

    lock = only(check([*newer, *older, *log(*second, partition=1)], Drifts()))

    assert [overlapping(each) for each in lock.overlaps] == [("x", "y", 3_100, 5_900)]


# -- counters and lists ------------------------------------------------------------------------------------------------


def test_all_steps_of_a_lock_are_counted() -> None:
    lock = checked(
        event(LockAcquired, 0, "x", requests=2),
        event(LockRenewed, 3_000, "x"),
        event(LockRefused, 4_000, "", agent="b", holder="x", detail="held by another owner"),
        event(LockReleased, 5_000, "x"),
        event(LockAcquired, 6_000, "y", agent="b", requests=2),
        event(LockLost, 7_000, "y", agent="b", detail="the lock object was deleted"),
    )

    assert (lock.acquisitions, lock.renewals, lock.releases, lock.lost, lock.refused) == (2, 1, 1, 1, 1)
    assert lock.requests == 8
    assert [(each.owner, each.agent, each.why) for each in lock.losses] == [
        ("y", "b", "the lock object was deleted")
    ]
    assert lock.permanent_refusals == ()


def test_permanent_refusals_are_listed_once_for_each_reason_with_their_number() -> None:
    why = "the object is no lock record and is left unchanged: the object is empty"
    lock = checked(
        event(LockRefused, 0, "", detail=why, valid_until=-EPOCH_MS),
        event(LockRefused, 30_000, "", detail="forbidden", valid_until=-EPOCH_MS),
        event(LockRefused, 60_000, "", detail=why, valid_until=-EPOCH_MS, agent="b"),
    )

    assert [(each.why, each.times, each.agent) for each in lock.permanent_refusals] == [
        (why, 2, "b"),
        ("forbidden", 1, "a"),
    ]
    assert lock.permanent_refusals[0].position == AuditPosition(0, 2)


def test_a_report_covers_the_events_so_far() -> None:
    audit = LockAudit(Drifts())
    assert audit.report() == AuditReport(0, 0, ())
    audit.add(AuditPosition(0, 0), event(LockAcquired, 0, "x"))
    assert audit.report().violations == 0

    audit.add(AuditPosition(0, 1), event(LockAcquired, 1_000, "y", agent="b"))

    assert audit.report().violations == 1


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
        made = event(kind, true + clock, owner, agent, valid_until=sent + clock + VALIDITY, **fields)
        self.published.append((true, made))  # type: ignore[arg-type]  # the type of `kind` is one of the union

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

    assert report.violations == 0, [each.overlaps for each in report.locks]


@given(st.data())
def test_with_equal_clocks_there_is_no_overlap_at_all(data: st.DataObject) -> None:
    history = data.draw(by_the_rules(skew=0))

    report = check(history.log(data), Drifts(DRIFT, DRIFT))

    assert [each.closest for each in report.locks if each.closest] == []
    assert report.violations == 0


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

    [lock] = audit.report().locks

    assert lock.renewals == 10_000
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

    assert (lock.acquisitions, lock.releases, lock.violations) == (10_000, 10_000, 0)
    assert lock.longest is not None
    assert span(lock.longest) == (0, 1_000)


def test_a_renewal_that_is_delivered_twice_counts_once() -> None:
    """Immediately, or after the hold has ended."""
    acquired, renewed = event(LockAcquired, 0, "x"), event(LockRenewed, RENEW, "x")
    released, another = event(LockReleased, 5_000, "x"), event(LockAcquired, 6_000, "y", agent="b")
    report = check(log(acquired, renewed, renewed, released, another, renewed), Drifts())

    assert (report.events, report.duplicates) == (4, 2)
    assert only(report).renewals == 1
    assert only(report).violations == 0


def test_a_lock_that_was_handed_over_may_be_acquired_again_before_the_former_lease_ends() -> None:
    """Its former owner relied on nothing any more, so a third owner overlaps with no one."""
    handed_over = (
        event(LockAcquired, 0, "x"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x", handed_over=True, duration_ms=20.0),
        event(LockReleased, 7_000, "y", agent="b"),
        event(LockAcquired, 7_100, "z", agent="c"),
    )

    assert checked(*handed_over).violations == 0
    adopted = (handed_over[0], handed_over[1].model_copy(update={"handed_over": False}), *handed_over[2:])
    assert checked(*adopted).violations == 1


def test_a_former_owner_that_was_confirmed_after_its_hand_over_is_a_violation() -> None:
    """It must rely on nothing from then on."""
    report = checked(
        event(LockAcquired, 0, "x"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x", handed_over=True),
        event(LockRenewed, 9_000, "x"),
        event(LockReleased, 20_000, "y", agent="b"),
        event(LockAcquired, 21_000, "z", agent="c"),
    )

    assert report.violations > 0


@pytest.mark.parametrize("wakes_up", [False, True])
def test_a_fenced_owners_interval_ends_when_its_lock_is_taken_over(wakes_up: bool) -> None:
    """It was killed. Or it was suspended before the answer to a renewal, reads it later, and loses the lock only then."""
    late = (event(LockRenewed, 9_000, "x"), event(LockLost, 12_000, "x")) if wakes_up else ()
    report = checked(
        event(LockAcquired, 0, "x"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x", fenced=True, duration_ms=20.0),
        event(LockReleased, 7_000, "y", agent="b"),
        event(LockAcquired, 7_100, "z", agent="c"),
        *late,
    )

    assert (report.violations, report.within_drift) == (0, 0)


def test_a_second_owner_beside_one_that_took_a_lock_over_is_found() -> None:
    report = checked(
        event(LockAcquired, 0, "x"),
        event(LockAcquired, 3_000, "c", agent="c"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x", fenced=True),
    )

    assert {(each.earlier.owner, each.later.owner) for each in report.overlaps} == {("x", "c"), ("c", "y")}
