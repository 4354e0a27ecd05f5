"""Lost, repeated and throttled answers: the automaton reads back what a write did, and never guesses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lakewarden.agent.stores.classify import Answer, classify_read, classify_write
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    Refused,
    Throttled,
    Unknown,
    Won,
)
from lakewarden.handlers.lease.lock_object import LockRecord
from lakewarden.handlers.lease.machine import (
    Acquire,
    Confirmed,
    Get,
    Idle,
    LeaseEnded,
    LockDenied,
    Put,
    Reading,
    Released,
    Waiting,
    Writing,
    deadline,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, WALL, Keeper, foreign, held, renewing


def test_an_unknown_acquisition_that_took_effect_is_ours_after_three_requests() -> None:
    """The self-block of RFC-91: the answer was lost, and the writer waited 300 s for its own lease."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("timeout"))
    ours, lost_at = keeper.written, keeper.requests - 1

    keeper.reads(ours, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.owner == ours.owner
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.written.valid_until > ours.valid_until
    assert keeper.requests - lost_at <= 3


def test_a_write_that_is_read_back_is_not_relied_upon_before_a_second_write() -> None:
    """The read doesn't show when the lost write took effect."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("timeout"))
    keeper.reads(keeper.written, "v1")

    assert lease_of(keeper.state) is None
    assert keeper.of(Confirmed) == []


def test_an_unknown_acquisition_that_did_not_take_effect_is_sent_again() -> None:
    """The store never received the request."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("reset")).reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.writes(Won("v1")).of(Confirmed)


def test_a_409_on_a_create_is_read_back() -> None:
    """409: another conditional request was in progress. The object shows which one won."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("409"))

    assert keeper.of(Get) == [Get()]
    assert keeper.of(LockDenied) == []


def test_a_write_that_lost_to_our_own_first_attempt_is_ours() -> None:
    """The client library sent the request twice: the first attempt took effect, the second got the 412."""
    keeper = Keeper().acquire().reads(Absent()).writes(Lost("412"))

    keeper.reads(keeper.written, "v1").writes(Won("v2"))

    assert keeper.of(Confirmed)


def test_a_write_that_takes_effect_after_the_read_back_is_recognised_as_ours() -> None:
    """A proxy delayed it until after our read. With another owner id in the second write, we would wait for ourselves."""
    keeper = Keeper().acquire().reads(foreign(expired=True), "v0").writes(Unknown("timeout"))
    first = keeper.written

    keeper.reads(foreign(expired=True), "v0").writes(Lost("412")).reads(first, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.of(LockDenied) == []
    assert keeper.writes(Won("v2")).of(Confirmed)


@pytest.mark.parametrize("again", ["after the release", "before the release"])
def test_an_unknown_write_that_takes_effect_after_a_release_is_recognised_as_ours(again: str) -> None:
    """Found by the simulation: sent, unknown, released, needed again, and then it takes effect: no self-block."""
    keeper = Keeper().acquire().reads(foreign(expired=True), "v0")
    late = keeper.written
    keeper.writes(Unknown("timeout")).release()
    if again == "after the release":
        keeper.reads(foreign(expired=True), "v0")
        assert isinstance(keeper.state, Idle)
        keeper.acquire()
    else:
        keeper.acquire()
    keeper.reads(foreign(expired=True), "v0")
    assert keeper.written.owner == late.owner

    keeper.writes(Lost("412")).reads(late, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).lease.record.owner == late.owner


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
def test_throttling_backs_off_and_reads_again(state: str) -> None:
    """503 SlowDown: nothing was written."""
    keeper = STATES[state]().writes(Throttled("503"))

    assert isinstance(keeper.state, Waiting)
    assert keeper.timer().of(Get) == [Get()]


def test_continued_unknown_answers_back_off() -> None:
    """The store has trouble. The back-off grows up to one renewal interval, with jitter."""
    keeper = Keeper().acquire()
    waits = []
    for _ in range(12):
        keeper.reads(Unknown("500"))
        before = keeper.now
        keeper.timer()
        waits.append(keeper.now - before)

    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] <= SETTINGS.renew_interval


def test_continued_unknown_answers_are_reported() -> None:
    """A store is unreachable for an hour. The operator must see why nothing commits."""
    keeper = Keeper().acquire()
    reports = []
    for _ in range(2 * SETTINGS.failures_per_report):
        reports += keeper.reads(Unknown("no answer in time")).of(LockDenied)
        keeper.timer()

    assert [(each.kind, each.holder) for each in reports] == [("waiting", None), ("waiting", None)]
    assert "no answer in time" in reports[0].why


# A store that refuses requests: a doubt at first, reported when it lasts, final only where no retry can help.

ANSWERS = [
    (400, "ExpiredToken"),
    (403, "RequestTimeTooSkewed"),
    (403, "InvalidAccessKeyId"),
    (403, "AccessDenied"),
    (307, "TemporaryRedirect"),
    (401, "Unauthorized"),
    (403, ""),
]
REFUSED = Refused("the store refused the request: status=400 code=ExpiredToken")


def refuse_until(keeper: Keeper, until: float, *, reads: Found | None = None) -> list[LockDenied]:
    """Refuse each write until a time, and each read unless `reads` is given. Return what the automaton reported."""
    denials: list[LockDenied] = []
    while True:
        if isinstance(keeper.state, Reading):
            keeper.reads(REFUSED if reads is None else reads)
        elif isinstance(keeper.state, Writing):
            keeper.writes(REFUSED)
        else:
            keeper.timer()
        denials += keeper.of(LockDenied)
        if keeper.now >= until or keeper.of(LeaseEnded):
            return denials


@pytest.mark.parametrize("status, code", ANSWERS)
def test_one_refused_renewal_costs_one_more_request(status: int, code: str) -> None:
    """A session token expires for a second while 27 s of the lease are left. The next renewal is confirmed."""
    answer = Answer(status, code)
    keeper = renewing()
    before = keeper.written

    keeper.writes(classify_write(answer, IfMatch("v1")))
    assert lease_of(keeper.state) is not None
    assert keeper.one(LockDenied).kind == "refused"

    keeper.timer().reads(classify_read(answer)).timer().reads(replace(before), "v1").writes(Won("v2"))
    assert keeper.one(Confirmed).what == "renewed"


def test_a_lease_whose_renewals_are_refused_ends_margin_before_its_end() -> None:
    """The caller has relied on the lease for as long as it could be confirmed later. The reason names the answer."""
    keeper = renewing()
    lease = lease_of(keeper.state)
    assert lease is not None

    denials = refuse_until(keeper, keeper.now + 1_000)

    assert lease.expires_at - SETTINGS.margin == pytest.approx(keeper.now, abs=0.02)
    assert "ExpiredToken" in keeper.one(LeaseEnded).why
    assert {each.kind for each in denials} == {"refused"}


def test_a_refusal_without_a_lease_is_reported_and_retried_within_a_renewal_interval() -> None:
    keeper = Keeper(jitter=0.99).acquire().reads(REFUSED)
    assert keeper.one(LockDenied).kind == "refused"
    refuse_until(keeper, keeper.now + 60)

    refused_at = keeper.now
    while not keeper.of(Get):
        keeper.timer()

    assert keeper.now - refused_at <= SETTINGS.renew_interval
    assert keeper.reads(Absent()).writes(Won("v1")).of(Confirmed)


def test_a_refusal_lasts_when_every_request_was_refused_for_refusal_seconds() -> None:
    """A minute is not long enough: the caller waits. After two minutes it gets the error, once."""
    keeper = Keeper().acquire()
    began = keeper.now

    denials = refuse_until(keeper, began + SETTINGS.refusal_seconds - 5)
    assert {each.kind for each in denials} == {"refused"}

    denials = refuse_until(keeper, began + SETTINGS.refusal_seconds + 5)
    [lasting] = [each for each in denials if each.kind == "refused-too-long"]
    assert "ExpiredToken" in lasting.why
    assert "requests in 12" in lasting.why


def test_after_a_lasting_refusal_a_new_series_begins() -> None:
    """Transactions that opened since wait as long as those before them."""
    keeper = Keeper().acquire()
    began = keeper.now

    denials = refuse_until(keeper, began + 4 * SETTINGS.refusal_seconds)

    assert len([each for each in denials if each.kind == "refused-too-long"]) == 3


def test_two_refusals_far_apart_are_no_lasting_refusal() -> None:
    """The agent was suspended between them."""
    keeper = Keeper().acquire().reads(REFUSED)
    keeper.now += 10 * SETTINGS.refusal_seconds
    keeper.timer()

    assert [each.kind for each in keeper.reads(REFUSED).of(LockDenied)] != ["refused-too-long"]


def test_a_store_that_permits_reads_and_refuses_writes_refuses_the_lock() -> None:
    """The permission to write is missing. The reads don't interrupt the series."""
    keeper = Keeper().acquire()
    free = Found(b'{"expired":true,"validUntil":1700000000000,"owner":"java"}', "f1")

    denials = refuse_until(keeper, keeper.now + SETTINGS.refusal_seconds + 5, reads=free)

    assert [each.kind for each in denials].count("refused-too-long") == 1


def test_a_lock_that_is_found_held_ends_the_series() -> None:
    """The store answers again, and another owner holds the lock. A later refusal counts from its own beginning."""
    keeper = Keeper().acquire()
    refuse_until(keeper, keeper.now + SETTINGS.refusal_seconds - 5)
    while not keeper.of(Get):
        keeper.timer()

    keeper.reads(foreign(left=1_000.0, at=keeper), "f1")
    denials = refuse_until(keeper, keeper.now + SETTINGS.refusal_seconds / 2)

    assert "refused-too-long" not in {each.kind for each in denials}


def test_a_lease_that_ends_long_after_the_first_refusal_is_reported_as_lasting_at_once() -> None:
    """A lease of five minutes, shared with Hudi: the refusal had lasted for minutes when the lease ended."""
    keeper = Keeper(replace(SETTINGS, validity=300.0, renew_interval=30.0)).acquire()
    keeper.reads(Absent()).writes(Won("v1")).timer()
    denials = refuse_until(keeper, keeper.now + 1_000)
    assert keeper.of(LeaseEnded)
    assert "refused-too-long" not in {each.kind for each in denials}

    denials = refuse_until(keeper, keeper.now + 15)

    assert [each.kind for each in denials].count("refused-too-long") == 1


def test_a_refused_release_is_retried() -> None:
    """Otherwise the next contender would wait for the whole lease."""
    keeper = held().release().writes(REFUSED)
    assert keeper.of(Released) == []

    keeper.timer().reads(replace(keeper.written, expired=False), "v1").writes(Won("v2"))

    assert keeper.one(Released).why is None


def test_a_release_that_is_refused_again_and_again_is_left_to_lapse() -> None:
    keeper = held().release()
    while not keeper.of(Released):
        keeper.writes(REFUSED) if isinstance(keeper.state, Writing) else keeper.timer()
        if isinstance(keeper.state, Reading):
            keeper.reads(REFUSED)

    assert "left to lapse" in str(keeper.one(Released).why)


@pytest.mark.parametrize(
    "reads", [Refused("the store ignores conditions", unusable=True), Found(b"text", "x1")]
)
def test_what_no_retry_can_change_is_reported_at_once(reads: Refused | Found) -> None:
    keeper = Keeper().acquire().reads(reads)
    assert keeper.one(LockDenied).kind == "unusable"

    before = keeper.now
    keeper.timer()

    assert keeper.now - before == pytest.approx(SETTINGS.unusable_seconds)
    assert keeper.reads(Absent()).writes(Won("v1")).of(Confirmed)


def test_an_unusable_object_ends_a_lease_at_once() -> None:
    """Another program replaced the object by a file of 2 MiB: this owner is not in it any more."""
    keeper = renewing().writes(Refused("timeout")).timer()
    keeper.reads(Refused("longer than 1048576 bytes", unusable=True))

    assert "longer than" in keeper.one(LeaseEnded).why
    assert lease_of(keeper.state) is None


# Adopting the live lease of an owner under which a grant runs, and the quiet period after it.


def adopting(left: float = 20.0) -> Keeper:
    """According to the log, a grant runs under `old`, whose lease is still live."""
    keeper = Keeper().acquire(adopt="old")
    return keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall + round(left * 1000), owner="old"), "a1", after=0
    )


def test_the_lock_of_a_running_grant_is_adopted_under_its_version_with_a_new_owner_id() -> None:
    """An agent was killed while a grant ran. Waiting for the end of its lease would abort the writer."""
    keeper = adopting()

    assert keeper.put.condition == IfMatch("a1")
    assert keeper.written.owner not in ("old", None)
    lease = keeper.writes(Won("a2")).one(Confirmed).lease
    assert lease.quiet_until == pytest.approx(100.0 + 20.0 + 0.5)


def test_an_owner_that_the_log_does_not_name_is_not_adopted() -> None:
    """It may be a Java writer in the middle of its commit."""
    keeper = Keeper().acquire(adopt="old").reads(foreign(), "f1")

    assert isinstance(keeper.state, Waiting)


def test_an_unknown_write_during_the_adoption_does_not_shorten_the_quiet_period() -> None:
    """The adoption took effect and its answer was lost. The former owner may still rely on its lease."""
    keeper = adopting().writes(Unknown("timeout"), after=2.0)
    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_a_renewal_of_the_former_owner_during_the_adoption_extends_the_quiet_period() -> None:
    """The former owner was slow, not dead."""
    keeper = adopting().writes(Lost("412"))
    renewed = LockRecord(expired=False, valid_until=keeper.wall + 29_000, owner="old")

    keeper.reads(renewed, "a2", after=0).writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(100.01 + 29.0 + 0.5, abs=0.02)


def test_a_renewal_keeps_the_quiet_period() -> None:
    """It depends on the former owner's lease, not on ours."""
    keeper = adopting().writes(Won("a2")).timer().writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_an_adopted_lock_ends_no_earlier_than_the_former_owners_lease() -> None:
    """The former owner's leases are longer than ours. A contender must wait for the longer of the two."""
    keeper = adopting(left=200.0)

    assert keeper.written.valid_until > WALL + 300_000


def test_an_adopted_lock_is_not_released_before_the_former_owners_lease_has_ended() -> None:
    """The running grant has ended. A contender that acquired the lock now could overlap with a grant of the former owner."""
    keeper = adopting().writes(Won("a2")).release()
    assert len(keeper.puts) == 1
    assert lease_of(keeper.state) is None

    keeper.timer()
    assert keeper.now >= 120.5

    keeper.reads(keeper.written, "a2")
    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("a3")).state, Idle)


def test_an_adopted_lock_that_is_needed_again_is_kept_with_its_quiet_period() -> None:
    """The next transaction came before the former owner's lease had ended."""
    keeper = adopting().writes(Won("a2")).release().acquire()

    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)
    assert keeper.of(Released) == []


@pytest.mark.parametrize("way", ["unconfirmed", "released while unknown"])
def test_the_quiet_period_outlives_our_own_lease(way: str) -> None:
    """After an adoption our renewals failed. The former owner's lease is as long as before."""
    keeper = adopting(left=200.0)
    if way == "unconfirmed":
        keeper.writes(Won("a2")).timer()
        while not keeper.of(LeaseEnded):
            keeper.timer()
        keeper.writes(Unknown("500")).reads(keeper.written, "a3").writes(Won("a4"))
    else:
        keeper.writes(Unknown("500")).release()
        for _ in range(20):
            if isinstance(keeper.state, Idle):
                break
            if isinstance(keeper.state, Reading):
                keeper.reads(Unknown("500"))
            else:
                keeper.timer()
        keeper.acquire().reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(300.5)


def owner_of_the_partition(adopt: str | None = None) -> Keeper:
    """The owner with the term `b`; the term `a` is over."""
    return Keeper(replace(SETTINGS, owner_prefix="b-", fenced=("z-", "a-"))).acquire(adopt)


def finds(keeper: Keeper, owner: str, version: str) -> Keeper:
    return keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall + 20_000, owner=owner), version, after=0
    )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("adopt", [None, "a-17", "other"])
def test_a_former_owners_live_lock_is_taken_over_at_once(adopt: str | None, strict: bool) -> None:
    """It was killed, or is paused. None of its later grants counts, whether one runs now or not."""
    keeper = owner_of_the_partition(adopt)
    keeper.settings = replace(keeper.settings, strict=strict)
    finds(keeper, "a-17", "a1")
    assert keeper.put.condition == IfMatch("a1")
    assert keeper.written.owner.startswith("b-")

    lease = keeper.writes(Won("a2")).one(Confirmed).lease
    assert lease.quiet_until <= keeper.now
    assert lease.former is not None
    assert (lease.former.owner, lease.former.fenced) == ("a-17", True)

    keeper.release()
    assert keeper.written.expired


@pytest.mark.parametrize("owner", ["c-1", "b-9", "a", "java", "o1"])
def test_any_other_owner_is_waited_for(owner: str) -> None:
    """A later owner of the partition, a lost lease of our own, a Java writer, an agent of an older release."""
    assert isinstance(finds(owner_of_the_partition(), owner, "f1").state, Waiting)


def test_a_renewal_of_the_former_owner_that_comes_first_is_taken_over() -> None:
    """It is paused, and its request was still on its way."""
    keeper = finds(owner_of_the_partition(), "a-17", "a1").writes(Lost("412"))

    assert finds(keeper, "a-17", "a2").put.condition == IfMatch("a2")


def test_an_adopted_lock_has_an_owner_id_that_no_later_owner_fences() -> None:
    """The owner after this one must wait, too, for the adopted owner, which no term fences."""
    keeper = finds(owner_of_the_partition(adopt="old"), "old", "a1")
    assert not keeper.written.owner.startswith("b-")


def test_a_fenced_owner_shortens_no_quiet_period() -> None:
    """An adopted lock was lost to a former owner of the partition, which woke up."""
    keeper = finds(owner_of_the_partition(adopt="old"), "old", "a1").writes(Won("a2")).timer()
    keeper.writes(Lost("412"))
    finds(keeper, "a-18", "a3").timer()
    finds(keeper, "a-18", "a3").writes(Won("a4"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


# Events of other agents are hints: they shorten waits, and change nothing else.


def test_the_first_contender_reads_immediately_after_a_release() -> None:
    """Another agent published `lock-released`."""
    keeper = Keeper().acquire().reads(foreign(left=300.0), "f1").observe_release()

    assert keeper.of(Get) == [Get()]
    assert keeper.of(Put) == []


def test_a_contender_waits_a_slot_for_each_contender_ahead() -> None:
    """Eight agents that read at once would all write at once."""
    keeper = Keeper().acquire().reads(foreign(left=300.0), "f1").observe_release(ahead=3)
    observed = keeper.now
    assert keeper.of(Get) == []

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - observed == pytest.approx(3 * SETTINGS.queue_slot_seconds)


def test_after_another_agents_acquisition_the_contender_waits_for_the_next_poll() -> None:
    """The first contender acquired the lock, so the others need not read."""
    keeper = (
        Keeper()
        .acquire()
        .reads(foreign(left=300.0), "f1")
        .observe_release(ahead=1)
        .observe_acquisition(left=30.0)
    )
    observed = keeper.now

    keeper.timer()

    assert keeper.now - observed == pytest.approx(SETTINGS.poll_seconds)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_read_that_overlaps_a_release_is_repeated_in_our_turn(ahead: int) -> None:
    """The answer of the read took longer than the release and its audit event."""
    keeper = Keeper().acquire().observe_release(ahead=ahead).reads(foreign(left=300.0), "f1")
    denied = keeper.now
    assert keeper.of(LockDenied)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - denied == pytest.approx(ahead * SETTINGS.queue_slot_seconds)


def test_a_read_is_not_repeated_for_an_earlier_release() -> None:
    """Nor after another agent acquired the lock: then the end of the new holder's lease counts."""
    acquired = (
        Keeper().acquire().observe_release().observe_acquisition(left=300.0).reads(foreign(left=300.0), "f1")
    )
    repeated = Keeper().acquire().observe_release().reads(foreign(left=300.0), "f1").timer()
    repeated.reads(foreign(left=300.0), "f2")

    for keeper in (acquired, repeated):
        observed = keeper.now
        keeper.timer()
        assert keeper.now - observed == pytest.approx(SETTINGS.poll_seconds)


def test_a_forged_hint_costs_reads_and_nothing_else() -> None:
    """Hints come from the network. A lock that is held according to its object stays held."""
    keeper = Keeper().acquire().reads(foreign(left=300.0), "f1")
    for _ in range(5):
        keeper.observe_release().reads(foreign(left=300.0), "f1")

    assert keeper.puts == []


def test_a_hint_does_not_change_the_back_off_of_an_unknown_write() -> None:
    """The automaton reads it back after its back-off."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500")).reads(Unknown("500"))
    due = deadline(keeper.state, SETTINGS)

    assert deadline(keeper.observe_release().state, SETTINGS) == due
    assert deadline(keeper.observe_acquisition(left=30.0).state, SETTINGS) == due


def test_a_new_contender_joins_the_end_of_the_queue() -> None:
    """It may have held the lock a moment ago."""
    keeper = Keeper().step(Acquire(Keeper().at(), None, ahead=2))
    began = keeper.now
    assert keeper.of(Get) == []
    assert (keeper.one(LockDenied).kind, keeper.one(LockDenied).cost.requests) == ("waiting", 0)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - began == pytest.approx(2 * SETTINGS.queue_slot_seconds)


def test_a_holder_that_releases_and_needs_the_lock_again_joins_the_end_of_the_queue() -> None:
    """`per-commit`: the next commit was requested before the store answered the release."""
    keeper = held().release()
    keeper.step(Acquire(keeper.at(), None, ahead=1)).writes(Won("v2"))

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_it_also_joins_the_end_after_an_unknown_release() -> None:
    """As above, but the answer was lost, and the object is read back first."""
    keeper = held().release().writes(Unknown("500")).reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)
    keeper.step(Acquire(keeper.at(), None, ahead=1)).timer().reads(
        replace(keeper.written, expired=True), "v2"
    )

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_an_adoption_skips_the_queue() -> None:
    """A grant runs under this lock."""
    keeper = Keeper().step(Acquire(Keeper().at(), "former", ahead=5))

    assert keeper.of(Get) == [Get()]


def test_repeated_acquisitions_delay_the_next_read_by_one_poll_interval_at_most() -> None:
    """The review's script: an acquisition was published every four seconds, and the lock was not read for an hour."""
    keeper = Keeper().acquire().reads(record := foreign(left=4.0), "f1")
    due = deadline(keeper.state, SETTINGS)
    assert due is not None
    reads: list[float] = []

    while keeper.now < due + 3_600:
        keeper.now += 4.0
        keeper.observe_acquisition(left=1e7)
        until = deadline(keeper.state, SETTINGS)
        if until is not None and until <= keeper.now + 4.0:
            keeper.timer()
            reads.append(keeper.now)
            keeper.reads(replace(record, valid_until=keeper.wall + 4_000), "f2")

    assert reads[0] <= due + SETTINGS.poll_seconds
    longest = 4.5 + SETTINGS.poll_seconds + 4.0
    assert max(later - earlier for earlier, later in pairwise(reads)) <= longest


def test_invented_contenders_delay_the_first_read_by_one_poll_interval_at_most() -> None:
    """The review's script: a thousand contenders that don't exist delayed a free lock by 250 s."""
    keeper = Keeper().step(Acquire(Keeper().at(), None, ahead=1_000))
    began = keeper.now

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - began == pytest.approx(SETTINGS.poll_seconds)


def test_invented_contenders_don_t_delay_a_read_that_overlapped_a_release() -> None:
    """It is due when the lease ends, or after one poll interval, as without the release."""
    keeper = Keeper().acquire().observe_release(ahead=1_000).reads(foreign(left=300.0), "f1")
    denied = keeper.now

    keeper.timer()

    assert keeper.now - denied == pytest.approx(SETTINGS.poll_seconds)
