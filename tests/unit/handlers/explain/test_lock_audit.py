"""The checker of the audit log: honest holders are never accused, and two owners at once are always found."""

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
    Drifts,
    Interval,
    LockAudit,
    LockReport,
    Overlap,
    Position,
    Report,
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
Log = list[tuple[Position, AuditEventUnion]]


def event(kind: type[SomeEvent], at: float, owner: str, agent: str = "a", **fields: Any) -> SomeEvent:
    """Such an event at this time; times are milliseconds since `EPOCH`."""
    valid_until = fields.pop("valid_until", at + VALIDITY)
    given: dict[str, Any] = {
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
    return kind.model_validate(given | fields)


def log(*events: AuditEventUnion, partition: int = 0) -> Log:
    """In one partition, in this order."""
    return [(Position(partition, offset), each) for offset, each in enumerate(events)]


def judged(*events: AuditEventUnion) -> LockReport:
    return only(check(log(*events), Drifts()))


def only(report: Report) -> LockReport:
    [lock] = report.locks
    return lock


def span(interval: Interval) -> tuple[float, float]:
    return interval.since - EPOCH_MS, interval.until - EPOCH_MS


def overlapping(overlap: Overlap) -> tuple[str, str, float, float]:
    return (
        overlap.earlier.owner,
        overlap.later.owner,
        overlap.since - EPOCH_MS,
        overlap.until - EPOCH_MS,
    )


# -- an owner's interval -----------------------------------------------------------------------------------------------


def test_a_hold_runs_from_its_confirmation_to_where_its_release_was_asked_for() -> None:
    lock = judged(
        event(LockAcquired, 1_000, "x"),
        event(LockRenewed, 4_000, "x"),
        event(LockReleased, 9_000, "x", duration_ms=2_500.0),
    )

    assert lock.longest is not None
    assert span(lock.longest) == (1_000, 6_500)
    assert lock.longest.ended_by == "released"
    assert (lock.longest.first, lock.longest.last) == (Position(0, 0), Position(0, 2))


def test_a_release_that_took_long_does_not_undo_a_confirmation() -> None:
    """A release that was asked for during a renewal counts its time from the renewal's beginning."""
    lock = judged(
        event(LockAcquired, 1_000, "x"),
        event(LockRenewed, 8_000, "x"),
        event(LockReleased, 9_000, "x", duration_ms=5_000.0),
    )

    assert lock.longest is not None
    assert span(lock.longest) == (1_000, 8_000)


def test_a_crash_ends_with_the_lease_of_the_last_confirmation_less_the_drift() -> None:
    lock = judged(event(LockAcquired, 0, "x"), event(LockRenewed, 3_000, "x"))

    assert lock.longest is not None
    assert span(lock.longest) == (0, 3_000 + VALIDITY - DRIFT)
    assert (lock.longest.ended_by, lock.longest.last) == ("lease", Position(0, 1))


def test_what_a_paused_holder_says_after_its_lease_adds_nothing() -> None:
    """SIGSTOP for longer than a lease: it wakes and reports its loss long after somebody else took over."""
    lock = judged(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, VALIDITY + 2 * DRIFT, "y", agent="b"),
        event(
            LockLost, 3 * VALIDITY, "x", agent="a", holder="y", detail="another owner is in the lock object"
        ),
    )

    assert lock.violations == lock.within_drift == 0
    [loss] = lock.losses
    assert (loss.owner, loss.holder, loss.why) == ("x", "y", "another owner is in the lock object")


def test_a_loss_ends_the_hold_and_the_same_owner_may_begin_another() -> None:
    """A renewal that was confirmed too late: the object was ours all the time, and is relied upon again."""
    lock = judged(
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
    lock = judged(
        event(LockAcquired, 0, "x"),
        event(LockRenewed, 2 * VALIDITY, "x"),
        event(LockAcquired, VALIDITY + DRIFT, "y", agent="b"),
        event(LockReleased, VALIDITY + 9_000, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0


def test_a_hold_that_follows_a_loss_is_a_hold_of_its_own() -> None:
    lock = judged(
        event(LockAcquired, 0, "x"),
        event(LockLost, 10_000, "x"),
        event(LockAcquired, 12_000, "x"),
        event(LockAcquired, 13_000, "y", agent="b"),
        event(LockReleased, 15_000, "y", agent="b"),
    )

    assert [overlapping(each) for each in lock.overlaps] == [("x", "y", 13_000, 15_000)]


def test_a_renewal_after_a_loss_does_not_undo_it() -> None:
    lock = judged(
        event(LockAcquired, 0, "x"),
        event(LockLost, 10_000, "x"),
        event(LockRenewed, 12_000, "x"),
        event(LockAcquired, 10_100, "y", agent="b"),
        event(LockReleased, 11_900, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0


# -- overlaps ----------------------------------------------------------------------------------------------------------


def test_two_owners_at_once_are_shown_with_who_when_how_long_and_where() -> None:
    lock = judged(
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
    assert (overlap.earlier.last, overlap.later.first) == (Position(0, 2), Position(0, 1))


@pytest.mark.parametrize(("too_early", "violations"), [(DRIFT, 0), (DRIFT + 1, 1)])
def test_an_overlap_of_at_most_the_drift_is_within_the_clock_difference(
    too_early: int, violations: int
) -> None:
    lock = judged(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockReleased, 5_000, "x", agent="a"),
        event(LockAcquired, 5_000 - too_early, "y", agent="b"),
    )

    assert lock.violations == violations
    assert lock.within_drift == 1 - violations
    assert (lock.closest is None) == bool(violations)


def test_the_order_in_which_agents_tell_proves_nothing() -> None:
    """The released event of the first holder comes after the next one's acquisition: it was late, not wrong."""
    lock = judged(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 6_000, "y", agent="b"),
        event(LockReleased, 9_000, "x", agent="a", duration_ms=4_000.0),
    )

    assert lock.violations == lock.within_drift == 0


def test_locks_are_judged_one_by_one() -> None:
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


def test_tables_that_share_a_lock_share_its_judgement() -> None:
    lock = judged(event(LockAcquired, 0, "x"), event(LockAcquired, 0, "y", table="s3://lake/warehouse/trips"))

    assert lock.tables == (TABLE, "s3://lake/warehouse/trips")
    assert lock.violations == 1


def test_locks_shared_with_hudi_have_their_own_drift() -> None:
    lock = TABLE + HUDI_LOCK
    events = (
        event(LockAcquired, 0, "x", lock=lock),
        event(LockReleased, 5_000, "x", lock=lock),
        event(LockAcquired, 4_200, "y", agent="b", lock=lock),
    )

    assert judged(*events).violations == 0
    assert only(check(log(*events), Drifts(500, 700))).violations == 1


def test_no_more_overlaps_are_kept_than_anybody_reads_and_all_are_counted() -> None:
    count = 20
    lock = judged(*(event(LockAcquired, n, f"owner-{n}") for n in range(count)))

    assert lock.violations == count * (count - 1) / 2
    assert len(lock.overlaps) == MOST_SHOWN


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_an_adopter_counts_from_the_end_of_the_lease_that_it_took_over() -> None:
    """An agent restarts while a grant runs: the former owner's lease goes on, under the new owner's name."""
    lock = judged(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x", valid_until=40_000),
        event(LockReleased, 35_000, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (0, VALIDITY - DRIFT)


def test_an_adopter_counts_from_the_former_owners_loss_if_that_comes_first() -> None:
    lock = judged(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x"),
        event(LockLost, 8_000, "x", agent="a", holder="y"),
        event(LockReleased, 34_000, "y", agent="b"),
    )

    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (8_000, 34_000)


def test_an_adoption_excuses_nobody_but_the_two() -> None:
    lock = judged(
        event(LockAcquired, 0, "x", agent="a"),
        event(LockAcquired, 5_000, "y", agent="b", adopted="x"),
        event(LockAcquired, 6_000, "z", agent="c"),
        event(LockReleased, 9_000, "z", agent="c"),
    )

    assert [overlapping(each) for each in lock.overlaps] == [("x", "z", 6_000, 9_000)]


def test_an_adopted_owner_that_the_log_has_lost_hides_nothing() -> None:
    lock = judged(
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


def test_of_a_hold_whose_beginning_was_removed_only_the_rest_is_judged_and_that_is_said() -> None:
    """Kafka keeps the audit for 30 days; a lock may be held for longer."""
    lock = judged(
        event(LockReleased, 50_000, "y", agent="b", valid_until=60_000),
        event(LockRenewed, 53_000, "x"),
        event(LockRenewed, 56_000, "x"),
        event(LockReleased, 57_000, "x"),
    )

    assert lock.cut == ("x",)
    assert lock.violations == lock.within_drift == 0
    assert lock.longest is not None
    assert span(lock.longest) == (53_000, 57_000)


def test_the_rest_of_a_hold_whose_beginning_was_removed_is_judged_like_any_other() -> None:
    lock = judged(event(LockRenewed, 53_000, "x"), event(LockAcquired, 55_000, "y", agent="b"))

    assert lock.violations == 1
    assert lock.cut == ("x",)


def test_a_loss_alone_says_that_the_beginning_was_removed_and_a_release_alone_does_not() -> None:
    """A lock that was asked for and no more wanted when the store answered is released without having been relied upon."""
    lock = judged(event(LockLost, 1_000, "x"), event(LockReleased, 2_000, "y"))

    assert lock.cut == ("x",)
    assert lock.longest is None


def test_an_owner_that_moved_to_another_partition_is_still_one_owner() -> None:
    """Partitions were added to the topic: the hold's end is in another one than its beginning, which may be read later."""
    acquired, renewed = event(LockAcquired, 0, "x"), event(LockRenewed, 3_000, "x")
    released, next_one = event(LockReleased, 4_000, "x"), event(LockAcquired, 4_100, "y", agent="b")
    old, new = log(acquired), log(renewed, released, next_one, partition=7)

    for order in (old + new, new + old):
        lock = only(check(order, Drifts()))
        assert lock.violations == lock.within_drift == 0
        assert lock.cut == ()


def test_a_hold_of_two_partitions_is_judged_from_its_older_part_whichever_is_read_first() -> None:
    newer = log(event(LockRenewed, 6_000, "x"), partition=7)
    older = log(event(LockRenewed, 3_000, "x"))
    second = event(LockAcquired, 3_100, "y", agent="b"), event(LockReleased, 5_900, "y", agent="b")

    lock = only(check([*newer, *older, *log(*second, partition=1)], Drifts()))

    assert [overlapping(each) for each in lock.overlaps] == [("x", "y", 3_100, 5_900)]


# -- the account -------------------------------------------------------------------------------------------------------


def test_the_account_of_a_lock_is_complete() -> None:
    lock = judged(
        event(LockAcquired, 0, "x", requests=2),
        event(LockRenewed, 3_000, "x"),
        event(LockRefused, 4_000, "", agent="b", holder="x", detail="held by another"),
        event(LockReleased, 5_000, "x"),
        event(LockAcquired, 6_000, "y", agent="b", requests=2),
        event(LockLost, 7_000, "y", agent="b", detail="the lock object was deleted"),
    )

    assert (lock.acquisitions, lock.renewals, lock.releases, lock.lost, lock.refused) == (2, 1, 1, 1, 1)
    assert lock.requests == 8
    assert [(each.owner, each.agent, each.why) for each in lock.losses] == [
        ("y", "b", "the lock object was deleted")
    ]
    assert lock.hindrances == ()


def test_what_only_a_person_can_mend_is_listed_once_a_reason_with_its_count() -> None:
    why = "the object is no lock record and is left alone: the object is empty"
    lock = judged(
        event(LockRefused, 0, "", detail=why, valid_until=-EPOCH_MS),
        event(LockRefused, 30_000, "", detail="forbidden", valid_until=-EPOCH_MS),
        event(LockRefused, 60_000, "", detail=why, valid_until=-EPOCH_MS, agent="b"),
    )

    assert [(each.why, each.times, each.agent) for each in lock.hindrances] == [
        (why, 2, "b"),
        ("forbidden", 1, "a"),
    ]
    assert lock.hindrances[0].position == Position(0, 2)


def test_a_log_that_grows_is_judged_as_far_as_it_was_read() -> None:
    audit = LockAudit(Drifts())
    assert audit.report() == Report(0, 0, ())
    audit.add(Position(0, 0), event(LockAcquired, 0, "x"))
    assert audit.report().violations == 0

    audit.add(Position(0, 1), event(LockAcquired, 1_000, "y", agent="b"))

    assert audit.report().violations == 1


# -- any history -------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """Holds of one lock as they really were, and what their agents told, each by its own clock."""

    offsets: dict[str, int]
    told: list[tuple[float, AuditEventUnion]] = field(default_factory=list)
    relied_on: list[tuple[str, str, float, float]] = field(default_factory=list)
    """Owner, agent, and true times."""

    def tell(
        self, kind: type[LockEvent], true: float, owner: str, agent: str, *, sent: float, **fields: Any
    ) -> None:
        clock = self.offsets[agent]
        made = event(kind, true + clock, owner, agent, valid_until=sent + clock + VALIDITY, **fields)
        self.told.append((true, made))  # type: ignore[arg-type]  # the parameter says that it is one of the union

    def log(self, data: st.DataObject) -> Log:
        """As Kafka has it: each agent's in its order, those of different agents however late; some twice, the oldest gone.

        Only an adopted owner has told what it has to tell: what is adopted is a grant that is in the log.
        """
        lines: dict[str, list[AuditEventUnion]] = {}
        for _, each in sorted(self.told, key=lambda told: told[0]):
            lines.setdefault(each.agent, []).append(each)
        mixed: list[AuditEventUnion] = []
        while lines:
            untold = {each.owner for line in lines.values() for each in line}
            ready = [name for name, line in lines.items() if getattr(line[0], "adopted", None) not in untold]
            agent = data.draw(st.sampled_from(sorted(ready)))
            mixed.append(lines[agent].pop(0))
            if not lines[agent]:
                del lines[agent]
        kept = mixed[data.draw(st.integers(0, len(mixed) // 2)) :]
        repeated = data.draw(st.lists(st.sampled_from(kept), max_size=3))
        return log(*kept, *repeated)


@st.composite
def honest(draw: st.DrawFn, skew: int = DRIFT // 2) -> History:
    """Agents that follow the rules, over a store that may take its time, crashing, pausing and adopting as they like."""
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
            # The former owner crashed and left a live lease behind; this one takes it over before its end.
            adopted, _, covered_until = former
            sent = covered_until - draw(st.integers(1, VALIDITY // 2))
        confirmed = sent + draw(latency) + draw(latency)
        begun = confirmed
        history.tell(LockAcquired, confirmed, owner, agent, sent=sent, requests=2, adopted=adopted)
        for _ in range(draw(st.integers(0, 4))):
            sent += RENEW
            confirmed = sent + draw(latency) + draw(latency)
            history.tell(LockRenewed, confirmed, owner, agent, sent=sent)
        ends = sent + VALIDITY - DRIFT
        how = draw(st.sampled_from(["release", "crash", "doubt", "pause"]))
        former = None
        # Another's clock may be ahead or behind by the skew; it waits for the drift on top.
        free_from = sent + VALIDITY + DRIFT + 2 * skew
        if how == "release":
            asked = max(confirmed, covered_until) + draw(st.integers(0, 2_000))
            landed = asked + draw(latency)
            answered = landed + draw(st.integers(0, 20_000))
            history.tell(LockReleased, answered, owner, agent, sent=sent, duration_ms=float(answered - asked))
            ends, free_from = asked, landed
        elif how == "doubt":
            ends -= MARGIN
            history.tell(LockLost, ends, owner, agent, sent=sent)
        elif how == "pause":
            history.tell(LockLost, ends + draw(st.integers(0, 5 * VALIDITY)), owner, agent, sent=sent)
        else:
            former = (owner, agent, ends)
        history.relied_on.append((owner, agent, max(begun, covered_until), ends))
    return history


@given(st.data())
def test_honest_holders_are_never_accused(data: st.DataObject) -> None:
    """Whatever the latencies, crashes, pauses, adoptions; whatever Kafka repeated or removed."""
    history = data.draw(honest())

    report = check(history.log(data), Drifts(DRIFT, DRIFT))

    assert report.violations == 0, [each.overlaps for each in report.locks]


@given(st.data())
def test_with_clocks_that_agree_no_overlap_needs_an_excuse(data: st.DataObject) -> None:
    history = data.draw(honest(skew=0))

    report = check(history.log(data), Drifts(DRIFT, DRIFT))

    assert [each.closest for each in report.locks if each.closest] == []
    assert report.violations == 0


@given(st.data())
def test_a_second_owner_is_always_found(data: st.DataObject) -> None:
    """Somewhere in an honest history somebody is let in while another relies on the lock."""
    history = data.draw(honest())
    least = 2 * DRIFT + 2
    victims = [each for each in history.relied_on if each[3] - each[2] > least]
    for owner, agent, since, until in victims[:1]:
        intruder = next(each for each in history.offsets if each != agent)
        begins = data.draw(st.floats(since, until - least))
        history.tell(LockAcquired, begins, "intruder", intruder, sent=begins)
        if data.draw(st.booleans()):
            stays = data.draw(st.floats(begins + least, until))
            history.tell(LockReleased, stays, "intruder", intruder, sent=begins)
        told = [each for _, each in sorted(history.told, key=lambda each: each[0])]

        report = check(log(*told), Drifts(DRIFT, DRIFT))

        pairs = {frozenset((each.earlier.owner, each.later.owner)) for each in only(report).overlaps}
        assert frozenset((owner, "intruder")) in pairs
    assert victims or all(until - since <= least for _, _, since, until in history.relied_on)


def test_a_hold_of_ten_thousand_renewals_leaves_one_interval_and_takes_no_more_memory_for_them() -> None:
    """A month of one lock is almost a million of them."""
    audit = LockAudit(Drifts())
    audit.add(Position(0, 0), event(LockAcquired, 0, "x"))
    audit.add(Position(0, 1), event(LockRenewed, RENEW, "x"))
    size = len(pickle.dumps(audit))
    for number in range(2, 10_001):
        audit.add(Position(0, number), event(LockRenewed, number * RENEW, "x"))

    [lock] = audit.report().locks

    assert lock.renewals == 10_000
    assert lock.longest is not None
    assert span(lock.longest) == (0, 10_000 * RENEW + VALIDITY - DRIFT)
    assert len(pickle.dumps(audit)) < size + 100


def test_an_owner_of_ten_thousand_holds_is_judged_in_the_time_of_ten_thousand() -> None:
    """`per-commit`, one agent: its owner id stays. Each hold against each end would take longer than a test may."""
    told = [
        each
        for number in range(10_000)
        for each in (
            event(LockAcquired, number * RENEW, "x"),
            event(LockReleased, number * RENEW + 1_000, "x"),
        )
    ]

    lock = judged(*told)

    assert (lock.acquisitions, lock.releases, lock.violations) == (10_000, 10_000, 0)
    assert lock.longest is not None
    assert span(lock.longest) == (0, 1_000)


def test_a_renewal_that_is_delivered_twice_counts_once() -> None:
    """Whether at once or after the hold has ended."""
    acquired, renewed = event(LockAcquired, 0, "x"), event(LockRenewed, RENEW, "x")
    released, another = event(LockReleased, 5_000, "x"), event(LockAcquired, 6_000, "y", agent="b")
    report = check(log(acquired, renewed, renewed, released, another, renewed), Drifts())

    assert (report.events, report.duplicates) == (4, 2)
    assert only(report).renewals == 1
    assert only(report).violations == 0
