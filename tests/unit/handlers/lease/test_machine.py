"""Which inputs each state accepts, and the state after each: the tables are the specification."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from lakewarden.handlers.lease.machine import (
    Acquire,
    AcquisitionHint,
    Confirmed,
    Get,
    Held,
    Idle,
    IllegalInputError,
    Input,
    LeaseEnded,
    LockDenied,
    Moment,
    Put,
    ReadDone,
    Reading,
    Release,
    Released,
    ReleaseHint,
    Timer,
    Waiting,
    WriteDone,
    Writing,
    deadline,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign, held, renewing

INPUTS: dict[str, Callable[[Keeper], Input]] = {
    "acquire": lambda k: Acquire(k.at()),
    "release": lambda k: Release(k.at()),
    "timer": lambda k: Timer(k.at()),
    "release hint": lambda k: ReleaseHint(k.at(), 0),
    "acquisition hint": lambda k: AcquisitionHint(k.at(), k.wall + 30_000),
    "read done": lambda k: ReadDone(k.at(), Unknown("timeout")),
    "write done": lambda k: WriteDone(k.at(), Unknown("timeout")),
}
LEGAL = """
state                 acquire  release  timer    release hint      acquisition hint      read done  write done
idle                  Reading  Idle     Idle     Idle              Idle                  illegal    illegal
reading               Reading  Reading  Reading  Reading           Reading               Waiting    illegal
writing               Writing  Writing  Writing  Writing           Writing               illegal    Reading
held                  Held     Writing  Held     Held              Held                  illegal    illegal
renewing              Writing  Writing  Writing  Writing           Writing               illegal    Reading
reading back          Reading  Reading  Reading  Reading           Reading               Waiting    illegal
waiting for a holder  Waiting  Idle     Waiting  Reading           Waiting               illegal    illegal
backing off           Waiting  Idle     Waiting  Reading           Waiting               illegal    illegal
releasing             Writing  Writing  Writing  Writing           Writing               illegal    Reading
"""
"""The state after each input. The answers are `Unknown`."""


def table(text: str) -> dict[tuple[str, str], str]:
    """Cells by row and column name. Columns are separated by at least two spaces."""
    head, *rows = [re.split(r"  +", line.strip()) for line in text.strip().splitlines()]
    return {(row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", INPUTS)
def test_exactly_the_legal_pairs_are_accepted(state: str, name: str) -> None:
    """An answer to a request that was not sent is a programming error."""
    keeper = STATES[state]()
    expected = table(LEGAL)[state, name]

    if expected == "illegal":
        before = keeper.state
        with pytest.raises(IllegalInputError, match="the lock automaton got"):
            keeper.step(INPUTS[name](keeper))
        assert keeper.state is before
    else:
        assert type(keeper.step(INPUTS[name](keeper)).state).__name__ == expected


def test_the_table_in_the_module_docstring_is_what_the_automaton_does() -> None:
    """A long random walk takes each transition of the table, and no other."""
    documented = table(next(each for each in (lease.__doc__ or "").split("\n\n") if "input  " in each))
    states = {"Idle", "Reading", "Writing", "Held", "Waiting"}
    cells = {"any": states, "any but Held": states - {"Held"}, "illegal": set[str]()}

    seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for name, before, after in walk(Random(1), steps=10_000):
        seen[name, before].add(after)

    assert {pair: seen[pair] for pair in documented} == {
        pair: cells.get(cell) or set(cell.split(", ")) - {"illegal"} for pair, cell in documented.items()
    }


def walk(random: Random, steps: int) -> Iterator[tuple[str, str, str]]:
    """Random inputs and answers, each with the state before and after it."""
    keeper = Keeper()
    for _ in range(steps):
        keeper.now += random.choice((0.0, 0.01, 0.01, 1.0, 3.0, 12.0))
        keeper.jitter = random.random()
        name = random.choice(
            [name for name in INPUTS if not name.endswith("done")]
            + ["read done"] * 5 * isinstance(keeper.state, Reading)
            + ["write done"] * 5 * isinstance(keeper.state, Writing)
        )
        before, ends = keeper.state, keeper.lease_ends_next()
        keeper.step(_any_input(random, keeper, name))
        if not ends:
            yield name, type(before).__name__, type(keeper.state).__name__


def _any_input(random: Random, keeper: Keeper, name: str) -> Input:
    at = keeper.at()
    match name:
        case "acquire":
            return Acquire(at, random.choice((None, "java")), random.choice((0, 0, 2)))
        case "release hint":
            return ReleaseHint(at, random.choice((0, 2)))
        case "read done":
            return ReadDone(at, _anything_found(random, keeper))
        case "write done":
            return WriteDone(at, random.choice((Won("w"), Won("w"), Won("w"), *OUTCOMES.values())))
        case _:
            return INPUTS[name](keeper)


def _anything_found(random: Random, keeper: Keeper) -> ReadOutcome:
    records = [foreign(left, expired=expired, at=keeper) for left in (-9, 20) for expired in (True, False)]
    if keeper.puts:
        records += 4 * [keeper.written, replace(keeper.written, expired=True)]
    found: list[ReadOutcome] = [Found(render(each), "r") for each in records]
    return random.choice(
        [*found, Absent(), Found(b"hello", "m"), Unknown("500"), Throttled("503"), Refused("403")]
    )


@pytest.mark.parametrize("state", STATES)
def test_one_request_is_outstanding_in_exactly_reading_and_writing(state: str) -> None:
    """The keeper runs one request at a time for each lock; a second one would race the first."""
    keeper = STATES[state]()

    outstanding = [each for each in keeper.effects if isinstance(each, Get | Put)]

    assert bool(outstanding) is isinstance(keeper.state, Reading | Writing)
    assert len(outstanding) <= 1


OUTCOMES: dict[str, WriteOutcome] = {
    "won": Won("v9"),
    "lost": Lost("412"),
    "throttled": Throttled("503"),
    "unknown": Unknown("500"),
    "refused": Refused("403"),
}
AFTER = """
state      won             lost         throttled  unknown      refused
writing    Held Confirmed  Reading Get  Waiting    Reading Get  Waiting LockDenied
renewing   Held Confirmed  Reading Get  Waiting    Reading Get  Waiting LockDenied
releasing  Idle Released   Reading Get  Waiting    Reading Get  Waiting
"""


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_of_every_write_has_its_transition(state: str, outcome: str) -> None:
    """Won, lost, throttled, unknown, refused."""
    keeper = STATES[state]().writes(OUTCOMES[outcome])

    happened = [type(keeper.state), *(type(each) for each in keeper.effects)]

    assert " ".join(each.__name__ for each in happened) == table(AFTER)[state, outcome]
    if state == "renewing":
        assert lease_of(keeper.state) is not None


# Acquiring the lock, and waiting for another holder: when the automaton writes, reads again, or leaves the object unchanged.


def test_a_lock_without_an_object_is_created_only_if_absent() -> None:
    """The first commit to a table."""
    keeper = Keeper().acquire().reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.written == LockRecord(
        expired=False, valid_until=keeper.wall + 30_000, owner=keeper.written.owner
    )
    confirmed = keeper.writes(Won("v1")).one(Confirmed)
    assert confirmed.what == "acquired"
    assert confirmed.cost.requests == 2


def test_a_released_lock_is_acquired_under_the_version_that_was_read() -> None:
    """Two agents read the same free lock: one write wins."""
    keeper = Keeper().acquire().reads(foreign(expired=True), "v7")

    assert keeper.put.condition == IfMatch("v7")
    assert keeper.written.owner != "java"


@pytest.mark.parametrize("past, acquired", [(-0.001, False), (0.0, False), (0.5, False), (0.501, True)])
def test_a_lapsed_lock_is_acquired_only_when_its_end_is_past_by_the_drift(
    past: float, acquired: bool
) -> None:
    """The holder's clock may be behind ours."""
    keeper = Keeper().acquire()
    keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall - round(past * 1000), owner="java"), "v7", after=0
    )

    assert isinstance(keeper.state, Writing) is acquired


def test_the_lease_counts_from_before_the_write_was_sent() -> None:
    """The answer took four seconds. They count, because contenders count from when the record was written."""
    keeper = Keeper().acquire().reads(Absent()).writes(Won("v1"), after=4.0)

    assert keeper.lease_seconds() == pytest.approx(30 - 0.5 - 4.0)


def test_an_answer_that_took_as_long_as_the_lease_confirms_nothing() -> None:
    """A stalled agent resumes: the write took effect, and must be repeated before the caller relies on the lease."""
    keeper = Keeper().acquire().reads(Absent()).writes(Won("v1"), after=28.0)

    assert keeper.of(Confirmed) == []
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.writes(Won("v2")).one(Confirmed).what == "acquired"


def test_a_lock_of_another_holder_is_read_at_most_once_per_poll_interval() -> None:
    """Ten agents that wait for a lease of five minutes must not send a request per second each."""
    keeper = Keeper().acquire().reads(record := foreign(left=300.0), "f1")
    began, reads = keeper.now, 0

    while keeper.now < began + 100:
        keeper.timer()
        reads += len(keeper.of(Get))
        keeper.reads(record, "f1", after=0)

    assert reads <= 100 / SETTINGS.poll_seconds + 1


def test_the_object_is_read_again_when_the_lease_of_the_holder_ends() -> None:
    """The holder died without a release: the lock is acquired a few milliseconds after its lease and the drift are over."""
    keeper = Keeper().acquire().reads(record := foreign(left=4.0), "f1")

    end = keeper.now
    keeper.timer()

    assert keeper.now - end == pytest.approx(4.0 + 0.5, abs=0.02)
    assert isinstance(keeper.reads(record, "f1", after=0).state, Writing)


def test_contenders_do_not_all_read_at_the_same_time() -> None:
    """Jitter spreads them."""
    due = set()
    for jitter in (0.0, 0.3, 0.9):
        keeper = Keeper(jitter=jitter).acquire().reads(foreign(left=300.0), "f1")
        due.add(deadline(keeper.state, SETTINGS))

    assert len(due) == 3


def test_a_denied_lock_is_reported_with_its_holder() -> None:
    """`lakewarden status` shows the holder."""
    keeper = Keeper().acquire()
    record = foreign(left=20.0, at=keeper)

    denied = keeper.reads(record, "f1").one(LockDenied)

    assert (denied.kind, denied.holder, denied.held_until) == ("waiting", "java", record.valid_until)


def test_a_lost_write_that_finds_another_holder_waits() -> None:
    """Two agents read the free lock, and the write of the other one came first."""
    keeper = Keeper().acquire().reads(Absent()).writes(Lost("412"))
    assert keeper.of(Get) == [Get()]

    keeper.reads(foreign(left=29.0), "f1")

    assert isinstance(keeper.state, Waiting)
    assert keeper.one(LockDenied).holder == "java"


def test_contenders_that_keep_losing_back_off() -> None:
    """Fifty agents race for one lock."""
    keeper = Keeper().acquire()
    for _ in range(3):
        keeper.reads(Absent()).writes(Lost("412"))
    keeper.reads(Absent()).writes(Lost("412"))

    assert isinstance(keeper.state, Waiting)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"{}", b'{"expired":false,"validUntil":1700000000,"owner":"o"}', b"[1]"],
)
@pytest.mark.parametrize("state", ["reading", "reading back"])
def test_an_object_that_is_no_lock_is_never_overwritten(state: str, body: bytes) -> None:
    """A data file under the lock's name, or a lock of another format: another program may rely on it."""
    keeper = STATES[state]()
    sent = len(keeper.puts)

    keeper.reads(Found(body, "x1"))
    for _ in range(20):
        keeper.timer()
        if keeper.of(Get):
            keeper.reads(Found(body, "x1"))

    assert len(keeper.puts) == sent
    assert lease_of(keeper.state) is None
    assert isinstance(parse(body), Malformed)


def test_the_far_future_end_of_a_released_lease_is_not_inherited() -> None:
    """A writer with a wrong clock released the lock. With its end inherited, a crash of ours would block the table for days."""
    keeper = Keeper().acquire().reads(foreign(left=86_400.0, expired=True), "f1")

    assert keeper.written.valid_until == keeper.wall + 30_000


STRICT = replace(SETTINGS, strict=True)


def test_strict_acquires_a_lapsed_lock_only_after_a_whole_lease_without_a_change() -> None:
    """The holder's clock may be hours behind, so a record that has lapsed by our clock proves nothing."""
    keeper = Keeper(STRICT).acquire()
    began = keeper.now
    lapsed = foreign(left=-3600.0, at=keeper)
    keeper.reads(lapsed, "f1")
    while not keeper.puts:
        assert keeper.now - began < 60, "never acquired"
        keeper.timer().reads(lapsed, "f1")

    assert keeper.now - began > STRICT.validity + STRICT.drift
    assert keeper.put.condition == IfMatch("f1")


def test_strict_never_acquires_a_lock_that_is_renewed() -> None:
    """Each renewal is a new version, from which the whole lease counts again."""
    keeper = Keeper(STRICT).acquire()
    keeper.reads(foreign(left=-3600.0, at=keeper), "f0")
    for renewal in range(1, 30):
        keeper.timer().reads(foreign(left=-3600.0, at=keeper), f"f{renewal}")

    assert keeper.puts == []
    assert "unchanged" in keeper.one(LockDenied).why


def test_strict_acquires_a_released_lock_immediately() -> None:
    """The holder released it, so no clock is involved."""
    keeper = Keeper(STRICT).acquire().reads(foreign(expired=True), "f1")

    assert keeper.put.condition == IfMatch("f1")


def test_strict_still_respects_a_lease_that_has_not_lapsed() -> None:
    """A holder whose lease is longer than ours: unchanged for a whole lease of ours, and still in force."""
    keeper = Keeper(STRICT).acquire()
    record = foreign(left=300.0, at=keeper)
    keeper.reads(record, "f1")
    while keeper.now < 100.0 + 299.0:
        keeper.timer().reads(record, "f1")

    assert keeper.puts == []


# Renewing the lease, and the end of a lease that can't be renewed.


@pytest.mark.parametrize(
    ("took", "jitter", "spread"), [(0.4, 0.0, 0.0), (0.4, 0.5, 0.2), (0.002, 0.9, 0.0018), (9.0, 0.8, 1.2)]
)
def test_renewals_that_had_to_wait_for_each_other_spread_out(
    took: float, jitter: float, spread: float
) -> None:
    """A thousand locks were acquired at one moment. A fast answer adds no delay."""
    keeper = Keeper(jitter=jitter).acquire().reads(Absent())
    sent = keeper.now

    keeper.writes(Won("v1"), after=took)

    due = deadline(keeper.state, SETTINGS)
    assert due == pytest.approx(sent + SETTINGS.renew_interval + spread)
    keeper.timer()
    assert keeper.of(Put)


def test_every_write_of_one_owner_ends_later_than_the_one_before() -> None:
    """Two renewals in one millisecond, or a wall clock that was set back: no version occurs twice."""
    keeper = held()
    ends = [keeper.written.valid_until]
    for n in range(2, 6):
        keeper.timer()
        keeper.step(WriteDone(Moment(keeper.now, 0, "x", 0.0), Won(f"v{n}")))
        ends.append(keeper.written.valid_until)
        assert keeper.of(Confirmed)
    state = keeper.state
    assert isinstance(state, Held)
    back = Moment(state.lease.renew_at, keeper.wall - 3_600_000, "x", 0.0)
    keeper.step(Timer(back))
    ends.append(keeper.written.valid_until)

    assert ends == sorted(set(ends))


def test_an_unknown_renewal_that_took_effect_keeps_the_lease() -> None:
    """A timeout during a publish must not abort the publish."""
    keeper = renewing().writes(Unknown("timeout"))
    assert lease_of(keeper.state) is not None

    keeper.reads(keeper.written, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "renewed"
    assert keeper.of(LeaseEnded) == []
    assert keeper.requests <= 2 + 3


def test_an_unknown_renewal_that_did_not_take_effect_keeps_the_lease_too() -> None:
    """The object is unchanged, so the renewal is sent again under its version."""
    keeper = held()
    old = keeper.written
    keeper.timer().writes(Unknown("timeout")).reads(old, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.writes(Won("v2")).one(Confirmed).what == "renewed"


def test_a_renewal_that_finds_another_owner_ends_the_lease_and_names_the_owner() -> None:
    """Another process overwrote the lock, or an agent adopted it."""
    keeper = renewing().writes(Lost("412")).reads(foreign(), "f1")

    ended = keeper.one(LeaseEnded)
    assert ended.holder == "java"
    assert lease_of(keeper.state) is None


def test_a_deleted_lock_object_ends_the_lease() -> None:
    """An operator cleaned the bucket. Another agent may create the object at any moment."""
    keeper = renewing().writes(Lost("404")).reads(Absent())

    assert keeper.of(LeaseEnded)


def test_a_release_by_another_process_ends_the_lease() -> None:
    """`lakewarden lock release --if-owner`: there is no other holder."""
    keeper = renewing()
    released = replace(keeper.written, expired=True)

    ended = keeper.writes(Lost("412")).reads(released, "v9").one(LeaseEnded)

    assert ended.holder is None
    assert "released it in this owner's name" in ended.why


@pytest.mark.parametrize("outcome", [Unknown("500"), Throttled("503"), Lost("412")])
def test_an_unconfirmed_lease_ends_margin_before_its_end(outcome: WriteOutcome) -> None:
    """The store is down. The caller has two seconds to stop."""
    keeper = renewing()
    lease = lease_of(keeper.state)
    assert lease is not None

    for _ in range(1_000):
        if keeper.of(LeaseEnded):
            break
        if isinstance(keeper.state, Writing):
            keeper.writes(outcome, after=0.2)
        elif isinstance(keeper.state, Reading):
            keeper.reads(Unknown("500"), after=0.2)
        else:
            keeper.timer()

    assert keeper.one(LeaseEnded).owner == lease.record.owner
    assert lease.expires_at - SETTINGS.margin <= keeper.now <= lease.expires_at - SETTINGS.margin + 0.21
    assert lease_of(keeper.state) is None


@pytest.mark.parametrize("state", ["renewing", "reading back"])
def test_a_request_that_hangs_does_not_delay_the_end_of_the_lease(state: str) -> None:
    """The timer fires while the request is outstanding."""
    keeper = STATES[state]().timer()

    assert keeper.of(LeaseEnded)
    assert lease_of(keeper.state) is None


def test_after_a_suspension_the_first_input_ends_an_expired_lease() -> None:
    """A suspended virtual machine resumes. Any input ends the lease before it does anything else."""
    keeper = held()
    keeper.now += 60

    keeper.observe_release()

    assert keeper.of(LeaseEnded)


def test_a_late_answer_to_a_renewal_does_not_confirm_an_expired_lease() -> None:
    """The write was won, but so long ago that its lease has ended."""
    keeper = renewing()
    keeper.writes(Won("v2"), after=29.0)

    assert [type(each) for each in keeper.effects if not isinstance(each, Put)] == [LeaseEnded]
    assert keeper.put.condition == IfMatch("v2")


# Releasing the lock: with and without answers, during an acquisition or a renewal, and when it is needed again.


def test_release_writes_expired_and_keeps_the_end() -> None:
    """As Hudi releases. The next contender sees it immediately."""
    keeper = held()
    before = keeper.written

    keeper.release()

    assert keeper.written == LockRecord(expired=True, valid_until=before.valid_until, owner=before.owner)
    assert keeper.put.condition == IfMatch("v1")
    assert lease_of(keeper.state) is None
    released = keeper.writes(Won("v2")).one(Released)
    assert (released.owner, released.why) == (before.owner, None)
    assert isinstance(keeper.state, Idle)


@pytest.mark.parametrize("took_effect", [True, False])
def test_an_unknown_release_is_read_back(took_effect: bool) -> None:
    """Otherwise contenders would wait for the end of a lease that has no holder."""
    keeper = held()
    live = keeper.written
    keeper.release()
    lost_at = keeper.requests - 1
    released = keeper.written
    keeper.writes(Unknown("timeout"))

    if took_effect:
        keeper.reads(released, "v2")
    else:
        keeper.reads(live, "v1").writes(Won("v2"))

    assert keeper.one(Released).why is None
    assert isinstance(keeper.state, Idle)
    assert keeper.requests - lost_at <= 3


def test_a_release_without_an_answer_is_left_to_lapse() -> None:
    """A failed release must not turn a durable commit into a failure."""
    keeper = held().release()

    for _ in range(100):
        if keeper.of(Released):
            break
        if isinstance(keeper.state, Writing):
            keeper.writes(Unknown("500"))
        elif isinstance(keeper.state, Reading):
            keeper.reads(Unknown("500"))
        else:
            keeper.timer()

    assert "left to lapse" in (keeper.one(Released).why or "")
    assert keeper.requests < 3 * SETTINGS.release_tries
    assert isinstance(keeper.state, Idle)


def test_a_release_that_finds_another_owner_is_done() -> None:
    """Our lease had lapsed, and another owner acquired the lock."""
    keeper = held().release().writes(Lost("412")).reads(foreign(), "f1")

    assert "another owner" in (keeper.one(Released).why or "")
    assert isinstance(keeper.state, Idle)


def test_a_release_during_an_acquisition_releases_the_acquired_lock() -> None:
    """The last transaction ended while the PUT was outstanding."""
    keeper = Keeper().acquire().reads(Absent()).release().writes(Won("v1"))

    assert keeper.written.expired
    assert keeper.of(Confirmed) == []
    assert keeper.writes(Won("v2")).of(Released)


@pytest.mark.parametrize("state", ["renewing", "reading back", "renewal backing off"])
def test_a_failed_release_is_reported_in_every_state(state: str) -> None:
    """The store failed during a renewal, and the last transaction ended. The log must show why contenders wait."""
    keeper = renewing().writes(Throttled("503")) if state == "renewal backing off" else STATES[state]()
    owner = keeper.written.owner
    keeper.release()
    began = keeper.requests

    reports = []
    while not isinstance(keeper.state, Idle):
        match keeper.state:
            case Writing():
                keeper.writes(Unknown("500"))
            case Reading():
                keeper.reads(Unknown("500"))
            case _:
                keeper.timer()
        reports += keeper.of(Released)

    assert [each.owner for each in reports] == [owner]
    assert "left to lapse" in (reports[0].why or "")
    assert keeper.requests - began >= SETTINGS.release_tries - 1, "all tries belong to the release"


@pytest.mark.parametrize("answered", [True, False])
def test_a_lock_that_is_needed_again_during_its_renewal_is_kept(answered: bool) -> None:
    """The next transaction began in the instant in which the last one ended."""
    keeper = renewing().release().acquire()
    if not answered:
        keeper.writes(Unknown("500")).reads(keeper.written, "v2")
    keeper.writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert not keeper.written.expired


def test_a_release_after_an_unknown_acquisition_releases_what_was_acquired() -> None:
    """Without it, the lock would stay held for a whole lease, five minutes on a Hudi table."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500"))
    ours = keeper.written
    keeper.reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)

    keeper.release().timer().reads(ours, "v1")

    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("v2")).state, Idle)


def test_a_release_after_an_unknown_acquisition_without_effect_ends_with_a_read() -> None:
    """The read shows that the write had no effect."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).release()

    assert isinstance(keeper.timer().reads(Absent()).state, Idle)


def test_the_reads_after_a_release_are_bounded() -> None:
    """The store is unreachable, and the caller no longer needs the lock. The automaton must become idle."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).release()
    began = keeper.requests

    for _ in range(100):
        if isinstance(keeper.state, Idle):
            break
        keeper.timer().reads(Unknown("500"))

    assert isinstance(keeper.state, Idle)
    assert keeper.requests - began <= SETTINGS.release_tries


def test_a_lock_that_is_needed_again_during_its_release_is_acquired_again() -> None:
    """`per-commit`: the next commit was requested before the store answered the release."""
    keeper = held().release().acquire().writes(Won("v2"))
    assert keeper.of(Released)
    assert keeper.of(Get) == [Get()]
    released = keeper.written

    keeper.reads(released, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.valid_until > released.valid_until


@pytest.mark.parametrize("state", ["renewing", "reading back"])
def test_the_duration_of_a_release_counts_from_its_request(state: str) -> None:
    """`lock audit` ends the owner's interval there."""
    keeper = STATES[state]()
    keeper.now += 0.5
    requested = keeper.release().now
    if state == "renewing":
        keeper.writes(Won("v2"))
    else:
        keeper.reads(keeper.written, "v2")

    assert keeper.writes(Won("v3")).one(Released).cost.since == requested
