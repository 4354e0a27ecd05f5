from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from lakewarden.handlers.conditional import (
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
from lakewarden.handlers.lease import (
    Confirmed,
    Drop,
    Effect,
    Get,
    HeardReleased,
    HeardTaken,
    Held,
    Idle,
    IllegalInputError,
    Input,
    LeaseEnded,
    LeaseSettings,
    LockDenied,
    Moment,
    Put,
    ReadDone,
    Reading,
    Released,
    State,
    Timer,
    Waiting,
    Want,
    WriteDone,
    Writing,
    deadline,
    lease_of,
    step,
)
from lakewarden.handlers.lock_object import LockRecord, Malformed, parse, render

E = TypeVar("E")
WALL = 1_700_000_000_000
"""Wall clock at monotonic 0."""
SETTINGS = LeaseSettings()


@dataclass
class Keeper:
    """One automaton with a clock; its requests are answered by hand."""

    settings: LeaseSettings = SETTINGS
    state: State = field(default_factory=Idle)
    now: float = 100.0
    effects: tuple[Effect, ...] = ()
    minted: int = 0
    jitter: float = 0.0
    requests: int = 0
    puts: list[Put] = field(default_factory=list)

    def at(self) -> Moment:
        self.minted += 1
        return Moment(self.now, self.wall, f"o{self.minted}", self.jitter)

    @property
    def wall(self) -> int:
        return WALL + round(self.now * 1000)

    def give(self, given: Input) -> Keeper:
        self.state, self.effects = step(self.state, given, self.settings)
        self.requests += len(self.of(Get)) + len(self.of(Put))
        self.puts += self.of(Put)
        return self

    def want(self, adopt: str | None = None) -> Keeper:
        return self.give(Want(self.at(), adopt))

    def drop(self) -> Keeper:
        return self.give(Drop(self.at()))

    def hear_released(self, ahead: int = 0) -> Keeper:
        return self.give(HeardReleased(self.at(), ahead))

    def hear_taken(self, left: float) -> Keeper:
        return self.give(HeardTaken(self.at(), self.wall + round(left * 1000)))

    def timer(self) -> Keeper:
        """Sleep until the state's own deadline."""
        due = deadline(self.state, self.settings)
        assert due is not None, self.state
        self.now = max(self.now, due)
        return self.give(Timer(self.at()))

    def reads(self, outcome: ReadOutcome | LockRecord, version: str = "v?", after: float = 0.01) -> Keeper:
        self.now += after
        if isinstance(outcome, LockRecord):
            outcome = Found(render(outcome), version)
        return self.give(ReadDone(self.at(), outcome))

    def writes(self, outcome: WriteOutcome, after: float = 0.01) -> Keeper:
        self.now += after
        return self.give(WriteDone(self.at(), outcome))

    def of(self, kind: type[E]) -> list[E]:
        return [each for each in self.effects if isinstance(each, kind)]

    def one(self, kind: type[E]) -> E:
        (found,) = self.of(kind)
        return found

    @property
    def put(self) -> Put:
        """The last write that was sent."""
        return self.puts[-1]

    @property
    def written(self) -> LockRecord:
        """The record in it."""
        record = parse(self.put.body)
        assert isinstance(record, LockRecord)
        return record

    def lease_seconds(self) -> float:
        lease = lease_of(self.state)
        assert lease is not None
        return lease.expires_at - self.now


def held() -> Keeper:
    """Holds the lock under version v1."""
    keeper = Keeper().want().reads(Absent()).writes(Won("v1"))
    assert isinstance(keeper.state, Held)
    return keeper


def renewing() -> Keeper:
    """The renewal was just sent."""
    return held().timer()


def foreign(left: float = 20.0, *, expired: bool = False, at: Keeper | None = None) -> LockRecord:
    """Somebody else's record."""
    now = (at or Keeper()).wall
    return LockRecord(expired, now + round(left * 1000), "java")


STATES: dict[str, Callable[[], Keeper]] = {
    "idle": Keeper,
    "reading": lambda: Keeper().want(),
    "writing": lambda: Keeper().want().reads(Absent()),
    "held": held,
    "renewing": renewing,
    "reading back": lambda: renewing().writes(Unknown("timeout")),
    "waiting for another": lambda: Keeper().want().reads(foreign(), "f1"),
    "backing off": lambda: Keeper().want().reads(Throttled("503")),
    "releasing": lambda: held().drop(),
}
INPUTS: dict[str, Callable[[Keeper], Input]] = {
    "want": lambda k: Want(k.at()),
    "drop": lambda k: Drop(k.at()),
    "timer": lambda k: Timer(k.at()),
    "released": lambda k: HeardReleased(k.at(), 0),
    "taken": lambda k: HeardTaken(k.at(), k.wall + 30_000),
    "read done": lambda k: ReadDone(k.at(), Unknown("timeout")),
    "write done": lambda k: WriteDone(k.at(), Unknown("timeout")),
}
LEGAL = """
state                want     drop     timer    released  taken    read done  write done
idle                 Reading  Idle     Idle     Idle      Idle     illegal    illegal
reading              Reading  Reading  Reading  Reading   Reading  Waiting    illegal
writing              Writing  Writing  Writing  Writing   Writing  illegal    Reading
held                 Held     Writing  Held     Held      Held     illegal    illegal
renewing             Writing  Writing  Writing  Writing   Writing  illegal    Reading
reading back         Reading  Reading  Reading  Reading   Reading  Waiting    illegal
waiting for another  Waiting  Idle     Waiting  Reading   Waiting  illegal    illegal
backing off          Waiting  Idle     Waiting  Reading   Waiting  illegal    illegal
releasing            Writing  Writing  Writing  Writing   Writing  illegal    Reading
"""
"""The state after each input; an answer here is `Unknown`."""


def table(text: str) -> dict[tuple[str, str], str]:
    """Cells by the names of their row and column; columns are two spaces apart."""
    head, *rows = [re.split(r"  +", line) for line in text.strip().splitlines()]
    return {(row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("given", INPUTS)
def test_exactly_the_legal_pairs_are_accepted(state: str, given: str) -> None:
    """The table is the specification; an answer to a request that wasn't sent is a bug of the shell."""
    keeper = STATES[state]()
    expected = table(LEGAL)[state, given]

    if expected == "illegal":
        before = keeper.state
        with pytest.raises(IllegalInputError, match="lock automaton got"):
            keeper.give(INPUTS[given](keeper))
        assert keeper.state is before
    else:
        assert type(keeper.give(INPUTS[given](keeper)).state).__name__ == expected


@pytest.mark.parametrize("state", STATES)
def test_one_request_is_outstanding_in_exactly_reading_and_writing(state: str) -> None:
    """The shell runs one request a table; a second one would race the first."""
    keeper = STATES[state]()

    outstanding = [each for each in keeper.effects if isinstance(each, Get | Put)]

    assert bool(outstanding) is isinstance(keeper.state, Reading | Writing)
    assert len(outstanding) <= 1


# -- acquiring


def test_a_lock_that_nobody_ever_took_is_created_only_if_absent() -> None:
    """The first commit to a table."""
    keeper = Keeper().want().reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.written == LockRecord(
        expired=False, valid_until=keeper.wall + 30_000, owner=keeper.written.owner
    )
    confirmed = keeper.writes(Won("v1")).one(Confirmed)
    assert confirmed.what == "acquired"
    assert confirmed.spent.requests == 2


def test_a_released_lock_is_taken_under_the_version_that_was_read() -> None:
    """Two agents read the same free lock: one write wins."""
    keeper = Keeper().want().reads(foreign(expired=True), "v7")

    assert keeper.put.condition == IfMatch("v7")
    assert keeper.written.owner != "java"


@pytest.mark.parametrize("past, taken", [(-0.001, False), (0.0, False), (0.5, False), (0.501, True)])
def test_a_lapsed_lock_is_taken_only_when_its_end_is_past_by_the_drift(past: float, taken: bool) -> None:
    """Its holder's clock may be behind ours."""
    keeper = Keeper().want()
    keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall - round(past * 1000), owner="java"), "v7", after=0
    )

    assert isinstance(keeper.state, Writing) is taken


def test_the_lease_counts_from_before_the_write_was_sent() -> None:
    """The answer took four seconds: they are gone from the lease, for the store counted them too."""
    keeper = Keeper().want().reads(Absent()).writes(Won("v1"), after=4.0)

    assert keeper.lease_seconds() == pytest.approx(30 - 0.5 - 4.0)


def test_an_answer_that_took_as_long_as_the_lease_is_worth_nothing() -> None:
    """A stalled agent wakes up: the write is ours, and must be sent again before anybody relies on it."""
    keeper = Keeper().want().reads(Absent()).writes(Won("v1"), after=28.0)

    assert keeper.of(Confirmed) == []
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.writes(Won("v2")).one(Confirmed).what == "acquired"


# -- waiting


def test_a_foreign_holder_costs_at_most_one_read_a_poll_interval() -> None:
    """Ten agents wait for a lock of five minutes: not a request a second each."""
    keeper = Keeper().want().reads(record := foreign(left=300.0), "f1")
    began, reads = keeper.now, 0

    while keeper.now < began + 100:
        keeper.timer()
        reads += len(keeper.of(Get))
        keeper.reads(record, "f1", after=0)

    assert reads <= 100 / SETTINGS.poll_seconds + 1


def test_a_foreign_holder_is_read_again_at_its_end_and_not_before() -> None:
    """It dies without a release: the lock is taken a few milliseconds after its lease and the drift are over."""
    keeper = Keeper().want().reads(record := foreign(left=4.0), "f1")

    end = keeper.now
    keeper.timer()

    assert keeper.now - end == pytest.approx(4.0 + 0.5, abs=0.02)
    assert isinstance(keeper.reads(record, "f1", after=0).state, Writing)


def test_waiters_do_not_all_read_at_the_same_instant() -> None:
    """Jitter spreads the challengers."""
    due = set()
    for jitter in (0.0, 0.3, 0.9):
        keeper = Keeper(jitter=jitter).want().reads(foreign(left=300.0), "f1")
        due.add(deadline(keeper.state, SETTINGS))

    assert len(due) == 3


def test_who_waits_first_reads_at_once_when_the_lock_is_heard_to_be_released() -> None:
    """An agent told the audit log."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1").hear_released()

    assert keeper.of(Get) == [Get()]
    assert keeper.of(Put) == []


def test_who_waits_behind_others_gives_each_of_them_its_turn() -> None:
    """Eight agents that all read at once would fight for it."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1").hear_released(ahead=3)
    heard = keeper.now
    assert keeper.of(Get) == []

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - heard == pytest.approx(3 * SETTINGS.turn_seconds)


def test_when_another_took_its_turn_the_lock_is_left_alone_again() -> None:
    """The first in line took it: those behind need not look."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1").hear_released(ahead=1).hear_taken(left=30.0)
    heard = keeper.now

    keeper.timer()

    assert keeper.now - heard == pytest.approx(SETTINGS.poll_seconds)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_read_that_was_overtaken_by_the_release_is_repeated_in_our_turn(ahead: int) -> None:
    """Its answer took longer than the holder's release, and the word of it, to come here."""
    keeper = Keeper().want().hear_released(ahead=ahead).reads(foreign(left=300.0), "f1")
    denied = keeper.now
    assert keeper.of(LockDenied)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - denied == pytest.approx(ahead * SETTINGS.turn_seconds)


def test_a_read_is_not_repeated_for_a_release_that_it_comes_after() -> None:
    """Or whose lock was heard to be taken again: the next end to wait for is the new holder's."""
    taken = Keeper().want().hear_released().hear_taken(left=300.0).reads(foreign(left=300.0), "f1")
    repeated = Keeper().want().hear_released().reads(foreign(left=300.0), "f1").timer()
    repeated.reads(foreign(left=300.0), "f2")

    for keeper in (taken, repeated):
        heard = keeper.now
        keeper.timer()
        assert keeper.now - heard == pytest.approx(SETTINGS.poll_seconds)


def test_a_forged_hint_costs_reads_and_nothing_else() -> None:
    """Hints come from the network: a lock that the object says is held stays held, whatever was heard."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1")
    for _ in range(5):
        keeper.hear_released().reads(foreign(left=300.0), "f1")

    assert keeper.puts == []


def test_a_hint_does_not_hurry_a_write_in_doubt() -> None:
    """It has its own time, and reads back what it did."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500")).reads(Unknown("500"))
    due = deadline(keeper.state, SETTINGS)

    assert deadline(keeper.hear_released().state, SETTINGS) == due
    assert deadline(keeper.hear_taken(left=30.0).state, SETTINGS) == due


def test_who_wants_the_lock_while_others_wait_comes_after_them() -> None:
    """It may have held the lock until a moment ago."""
    keeper = Keeper().give(Want(Keeper().at(), None, ahead=2))
    asked = keeper.now
    assert keeper.of(Get) == []
    assert (keeper.one(LockDenied).fatal, keeper.one(LockDenied).spent.requests) == (False, 0)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - asked == pytest.approx(2 * SETTINGS.turn_seconds)


def test_who_wants_it_again_while_giving_it_back_comes_after_those_who_wait() -> None:
    """`per-commit`: the next commit was requested before the release was answered."""
    keeper = held().drop()
    keeper.give(Want(keeper.at(), None, ahead=1)).writes(Won("v2"))

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_an_adoption_waits_for_nobody() -> None:
    """A grant runs under that lock."""
    keeper = Keeper().give(Want(Keeper().at(), "former", ahead=5))

    assert keeper.of(Get) == [Get()]


STRICT = replace(SETTINGS, strict=True)


def test_strict_takes_a_lapsed_lock_over_only_after_a_whole_lease_without_a_change() -> None:
    """The holder's clock may be hours behind: that its record has lapsed by our clock proves nothing."""
    keeper = Keeper(STRICT).want()
    began = keeper.now
    lapsed = foreign(left=-3600.0, at=keeper)
    keeper.reads(lapsed, "f1")
    while not keeper.puts:
        assert keeper.now - began < 60, "never taken over"
        keeper.timer().reads(lapsed, "f1")

    assert keeper.now - began > STRICT.validity + STRICT.drift
    assert keeper.put.condition == IfMatch("f1")


def test_strict_never_takes_over_what_is_being_renewed() -> None:
    """Each renewal is a new version; then the whole lease counts anew."""
    keeper = Keeper(STRICT).want()
    keeper.reads(foreign(left=-3600.0, at=keeper), "f0")
    for renewal in range(1, 30):
        keeper.timer().reads(foreign(left=-3600.0, at=keeper), f"f{renewal}")

    assert keeper.puts == []
    assert "unchanged" in keeper.one(LockDenied).why


def test_strict_takes_a_released_lock_at_once() -> None:
    """Its holder has said so; no clock is needed."""
    keeper = Keeper(STRICT).want().reads(foreign(expired=True), "f1")

    assert keeper.put.condition == IfMatch("f1")


def test_strict_still_respects_a_lease_that_has_not_lapsed() -> None:
    """Seen unchanged for longer than our own lease: a holder whose lease is longer than ours."""
    keeper = Keeper(STRICT).want()
    record = foreign(left=300.0, at=keeper)
    keeper.reads(record, "f1")
    while keeper.now < 100.0 + 299.0:
        keeper.timer().reads(record, "f1")

    assert keeper.puts == []


def test_who_is_kept_waiting_is_told_by_whom() -> None:
    """`lakewarden status` shows the holder."""
    keeper = Keeper().want()
    record = foreign(left=20.0, at=keeper)

    denied = keeper.reads(record, "f1").one(LockDenied)

    assert (denied.fatal, denied.holder, denied.held_until) == (False, "java", record.valid_until)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"{}", b'{"expired":false,"validUntil":1700000000,"owner":"o"}', b"[1]"],
)
@pytest.mark.parametrize("state", ["reading", "reading back"])
def test_an_object_that_is_no_lock_is_never_overwritten(state: str, body: bytes) -> None:
    """A data file in the lock's place, or a lock of another format: nobody can tell who relies on it."""
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


def test_a_refused_lock_is_reported_and_tried_again_later() -> None:
    """Somebody mends the permissions while the agent runs."""
    keeper = Keeper().want().reads(Refused("403: denied"))
    assert keeper.one(LockDenied).fatal

    before = keeper.now
    keeper.timer()

    assert keeper.now - before == pytest.approx(SETTINGS.refused_seconds)
    assert keeper.reads(Absent()).writes(Won("v1")).of(Confirmed)


# -- doubts


def test_an_unknown_acquisition_that_took_effect_is_ours_after_three_requests() -> None:
    """RFC-91's self-block: the answer was lost, and the writer waited 300 s for itself."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("timeout"))
    ours, lost_at = keeper.written, keeper.requests - 1

    keeper.reads(ours, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.owner == ours.owner
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.written.valid_until > ours.valid_until
    assert keeper.requests - lost_at <= 3


def test_what_is_read_back_as_ours_is_not_relied_upon_before_it_was_written_again() -> None:
    """How long ago the lost write took effect, nobody knows."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("timeout"))
    keeper.reads(keeper.written, "v1")

    assert lease_of(keeper.state) is None
    assert keeper.of(Confirmed) == []


def test_an_unknown_acquisition_that_did_not_take_effect_is_sent_again() -> None:
    """The connection was refused after all."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("reset")).reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.writes(Won("v1")).of(Confirmed)


def test_a_write_that_lands_after_it_was_read_back_is_still_known_as_ours() -> None:
    """It sat in a proxy, landed between our read and our second write: without the same owner we'd wait for ourselves."""
    keeper = Keeper().want().reads(foreign(expired=True), "v0").writes(Unknown("timeout"))
    first = keeper.written

    keeper.reads(foreign(expired=True), "v0").writes(Lost("412")).reads(first, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.of(LockDenied) == []
    assert keeper.writes(Won("v2")).of(Confirmed)


def test_a_lost_race_is_lost() -> None:
    """Two agents saw the free lock; the other one's write came first."""
    keeper = Keeper().want().reads(Absent()).writes(Lost("412"))
    assert keeper.of(Get) == [Get()]

    keeper.reads(foreign(left=29.0), "f1")

    assert isinstance(keeper.state, Waiting)
    assert keeper.one(LockDenied).holder == "java"


def test_a_lost_write_that_was_our_own_first_one_is_not_lost() -> None:
    """The client library tried twice: the first attempt took effect, the second got the 412."""
    keeper = Keeper().want().reads(Absent()).writes(Lost("412"))

    keeper.reads(keeper.written, "v1").writes(Won("v2"))

    assert keeper.of(Confirmed)


@pytest.mark.parametrize(
    ("took", "jitter", "apart"), [(0.4, 0.0, 0.0), (0.4, 0.5, 0.2), (0.002, 0.9, 0.0018), (9.0, 0.8, 1.2)]
)
def test_renewals_that_had_to_wait_for_each_other_part_again(
    took: float, jitter: float, apart: float
) -> None:
    """A thousand locks that were taken at one moment; a store that answers at once is asked when it is due."""
    keeper = Keeper(jitter=jitter).want().reads(Absent())
    sent = keeper.now

    keeper.writes(Won("v1"), after=took)

    due = deadline(keeper.state, SETTINGS)
    assert due == pytest.approx(sent + SETTINGS.renew_interval + apart)
    keeper.timer()
    assert keeper.of(Put)


def test_an_unknown_renewal_that_took_effect_keeps_the_lease() -> None:
    """A timeout in the middle of a publish must not abort it."""
    keeper = renewing().writes(Unknown("timeout"))
    assert lease_of(keeper.state) is not None

    keeper.reads(keeper.written, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "renewed"
    assert keeper.of(LeaseEnded) == []
    assert keeper.requests <= 2 + 3


def test_an_unknown_renewal_that_did_not_take_effect_keeps_the_lease_too() -> None:
    """The old record is still there: the renewal is sent again under its version."""
    keeper = held()
    old = keeper.written
    keeper.timer().writes(Unknown("timeout")).reads(old, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.writes(Won("v2")).one(Confirmed).what == "renewed"


def test_a_renewal_that_finds_another_owner_is_lost_and_says_to_whom() -> None:
    """Somebody took the lock by force, or an adopting agent replaced us."""
    keeper = renewing().writes(Lost("412")).reads(foreign(), "f1")

    ended = keeper.one(LeaseEnded)
    assert ended.holder == "java"
    assert lease_of(keeper.state) is None


@pytest.mark.parametrize("outcome", [Unknown("500"), Throttled("503"), Lost("412")])
def test_a_lease_in_doubt_is_given_up_margin_before_its_end(outcome: WriteOutcome) -> None:
    """The store is down: whoever relies on the lease has two seconds to hear of it."""
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
def test_a_request_that_hangs_does_not_hold_up_the_end_of_the_lease(state: str) -> None:
    """The timer comes while the answer is outstanding."""
    keeper = STATES[state]().timer()

    assert keeper.of(LeaseEnded)
    assert lease_of(keeper.state) is None


def test_a_holder_that_slept_through_its_lease_gives_it_up_before_anything_else() -> None:
    """A paused virtual machine wakes up: the first input, whatever it is, ends the lease."""
    keeper = held()
    keeper.now += 60

    keeper.hear_released()

    assert keeper.of(LeaseEnded)


def test_a_late_answer_to_a_renewal_makes_no_lease_of_an_old_write() -> None:
    """It was won, but so long ago that it has ended."""
    keeper = renewing()
    keeper.writes(Won("v2"), after=29.0)

    assert [type(each) for each in keeper.effects if not isinstance(each, Put)] == [LeaseEnded]
    assert keeper.put.condition == IfMatch("v2")


def test_doubts_that_go_on_back_off() -> None:
    """The store is in trouble: it gets room, up to one renewal interval, with jitter."""
    keeper = Keeper().want()
    waits = []
    for _ in range(12):
        keeper.reads(Unknown("500"))
        before = keeper.now
        keeper.timer()
        waits.append(keeper.now - before)

    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] <= SETTINGS.renew_interval


def test_doubts_that_go_on_are_told() -> None:
    """A store that is out of reach for an hour: somebody should know why nothing commits."""
    keeper = Keeper().want()
    told = []
    for _ in range(2 * SETTINGS.doubts_told):
        told += keeper.reads(Unknown("no answer in time")).of(LockDenied)
        keeper.timer()

    assert [(each.fatal, each.holder) for each in told] == [(False, None), (False, None)]
    assert "no answer in time" in told[0].why


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
def test_throttling_backs_off_and_asks_again(state: str) -> None:
    """503 SlowDown: nothing was written, and nothing is assumed."""
    keeper = STATES[state]().writes(Throttled("503"))

    assert isinstance(keeper.state, Waiting)
    assert keeper.timer().of(Get) == [Get()]


def test_a_409_or_reset_on_a_create_leads_to_a_read_not_to_a_loss() -> None:
    """409: another conditional request was under way; who won is in the object."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("409"))

    assert keeper.of(Get) == [Get()]
    assert keeper.of(LockDenied) == []


def test_challengers_that_keep_losing_give_each_other_room() -> None:
    """Fifty agents race for one lock."""
    keeper = Keeper().want()
    for _ in range(3):
        keeper.reads(Absent()).writes(Lost("412"))
    keeper.reads(Absent()).writes(Lost("412"))

    assert isinstance(keeper.state, Waiting)


def test_a_deleted_lock_object_ends_the_lease() -> None:
    """Somebody cleaned the bucket: another agent may create it any moment."""
    keeper = renewing().writes(Lost("404")).reads(Absent())

    assert keeper.of(LeaseEnded)


# -- releasing


def test_release_writes_expired_and_keeps_the_end() -> None:
    """As Hudi releases: whoever comes next sees it at once."""
    keeper = held()
    before = keeper.written

    keeper.drop()

    assert keeper.written == LockRecord(expired=True, valid_until=before.valid_until, owner=before.owner)
    assert keeper.put.condition == IfMatch("v1")
    assert lease_of(keeper.state) is None
    released = keeper.writes(Won("v2")).one(Released)
    assert (released.owner, released.why) == (before.owner, None)
    assert isinstance(keeper.state, Idle)


@pytest.mark.parametrize("took_effect", [True, False])
def test_an_unknown_release_is_read_back(took_effect: bool) -> None:
    """Otherwise the others would wait for the lease of a holder that is gone."""
    keeper = held()
    live = keeper.written
    keeper.drop()
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


def test_a_release_that_the_store_keeps_doubting_is_left_to_lapse() -> None:
    """A durable commit is never turned into a failure by a release."""
    keeper = held().drop()

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
    """Our lease had lapsed, and somebody took the lock: it is theirs."""
    keeper = held().drop().writes(Lost("412")).reads(foreign(), "f1")

    assert "another owner" in (keeper.one(Released).why or "")
    assert isinstance(keeper.state, Idle)


def test_a_lock_that_is_dropped_while_it_is_being_taken_is_released() -> None:
    """The last transaction ended while the PUT was on its way."""
    keeper = Keeper().want().reads(Absent()).drop().writes(Won("v1"))

    assert keeper.written.expired
    assert keeper.of(Confirmed) == []
    assert keeper.writes(Won("v2")).of(Released)


def test_a_lock_that_is_dropped_while_its_taking_is_in_doubt_is_released_if_it_was_taken() -> None:
    """Going idle at once would leave it held for a whole validity, five minutes on a Hudi table."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500"))
    ours = keeper.written
    keeper.reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)

    keeper.drop().timer().reads(ours, "v1")

    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("v2")).state, Idle)


def test_a_lock_that_was_not_taken_needs_no_release() -> None:
    """The doubt is settled by the read: nothing of ours is there."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).drop()

    assert isinstance(keeper.timer().reads(Absent()).state, Idle)


def test_settling_a_doubt_after_the_drop_is_bounded() -> None:
    """The store is gone, and so is the interest in the lock: the automaton must come to rest."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).drop()
    began = keeper.requests

    for _ in range(100):
        if isinstance(keeper.state, Idle):
            break
        keeper.timer().reads(Unknown("500"))

    assert isinstance(keeper.state, Idle)
    assert keeper.requests - began <= SETTINGS.release_tries


def test_a_lock_that_is_wanted_again_while_it_is_released_is_taken_again() -> None:
    """Per-commit: the next commit was asked for before the release had been answered."""
    keeper = held().drop().want().writes(Won("v2"))
    assert keeper.of(Released)
    assert keeper.of(Get) == [Get()]
    released = keeper.written

    keeper.reads(released, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.valid_until > released.valid_until


# -- the object's history


def test_every_write_of_one_owner_ends_later_than_the_one_before() -> None:
    """Two renewals in one millisecond, or a wall clock that was set back: still no version comes twice."""
    keeper = held()
    ends = [keeper.written.valid_until]
    for n in range(2, 6):
        keeper.timer()
        keeper.give(WriteDone(Moment(keeper.now, 0, "x", 0.0), Won(f"v{n}")))
        ends.append(keeper.written.valid_until)
        assert keeper.of(Confirmed)
    state = keeper.state
    assert isinstance(state, Held)
    back = Moment(state.lease.renew_at, keeper.wall - 3_600_000, "x", 0.0)
    keeper.give(Timer(back))
    ends.append(keeper.written.valid_until)

    assert ends == sorted(set(ends))


def test_a_far_future_end_that_binds_nobody_is_not_inherited() -> None:
    """A writer with a wrong clock released the lock: were its end carried on, our own crash would block the table for days."""
    keeper = Keeper().want().reads(foreign(left=86_400.0, expired=True), "f1")

    assert keeper.written.valid_until == keeper.wall + 30_000


# -- adoption


def adopting(left: float = 20.0) -> Keeper:
    """The log says that a grant runs under `old`, whose lease is still live."""
    keeper = Keeper().want(adopt="old")
    return keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall + round(left * 1000), owner="old"), "a1", after=0
    )


def test_the_lock_of_a_running_grant_is_adopted_under_its_version_by_a_fresh_owner() -> None:
    """The agent was killed while a grant was out; waiting for its lease would abort the writer."""
    keeper = adopting()

    assert keeper.put.condition == IfMatch("a1")
    assert keeper.written.owner not in ("old", None)
    lease = keeper.writes(Won("a2")).one(Confirmed).lease
    assert lease.quiet_until == pytest.approx(100.0 + 20.0 + 0.5)


def test_an_owner_that_the_log_does_not_name_is_not_adopted() -> None:
    """It may be a Java writer in the middle of its commit."""
    keeper = Keeper().want(adopt="old").reads(foreign(), "f1")

    assert isinstance(keeper.state, Waiting)


def test_a_doubt_during_the_adoption_does_not_shorten_the_quiet_time() -> None:
    """The adoption took effect, its answer was lost: the former owner believes in its lease all the same."""
    keeper = adopting().writes(Unknown("timeout"), after=2.0)
    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_a_former_owner_that_renews_during_the_adoption_makes_the_quiet_time_longer() -> None:
    """It was not dead, only slow."""
    keeper = adopting().writes(Lost("412"))
    renewed = LockRecord(expired=False, valid_until=keeper.wall + 29_000, owner="old")

    keeper.reads(renewed, "a2", after=0).writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(100.01 + 29.0 + 0.5, abs=0.02)


def test_a_renewal_keeps_the_quiet_time() -> None:
    """It is about the former owner, not about our lease."""
    keeper = adopting().writes(Won("a2")).timer().writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_an_adopted_lock_ends_no_sooner_than_the_former_owner_believes() -> None:
    """Its validity was configured longer than ours: a challenger must wait for the longer of the two."""
    keeper = adopting(left=200.0)

    assert keeper.written.valid_until > WALL + 300_000


def test_an_adopted_lock_is_not_released_before_the_former_owners_lease_has_ended() -> None:
    """The running grant has ended; a challenger that took the lock now could meet a grant of the former owner."""
    keeper = adopting().writes(Won("a2")).drop()
    assert len(keeper.puts) == 1
    assert lease_of(keeper.state) is None

    keeper.timer()
    assert keeper.now >= 120.5

    keeper.reads(keeper.written, "a2")
    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("a3")).state, Idle)


def test_an_adopted_lock_that_is_wanted_again_is_kept_and_still_quiet() -> None:
    """The next transaction came before the former owner's lease had ended."""
    keeper = adopting().writes(Won("a2")).drop().want()

    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)
    assert keeper.of(Released) == []


@pytest.mark.parametrize("way", ["given up", "dropped in doubt"])
def test_the_quiet_time_outlives_the_lease_itself(way: str) -> None:
    """Our own renewals failed after an adoption; the former owner's lease is as long as it was."""
    keeper = adopting(left=200.0)
    if way == "given up":
        keeper.writes(Won("a2")).timer()
        while not keeper.of(LeaseEnded):
            keeper.timer()
        keeper.writes(Unknown("500")).reads(keeper.written, "a3").writes(Won("a4"))
    else:
        keeper.writes(Unknown("500")).drop()
        for _ in range(20):
            if isinstance(keeper.state, Idle):
                break
            if isinstance(keeper.state, Reading):
                keeper.reads(Unknown("500"))
            else:
                keeper.timer()
        keeper.want().reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(300.5)


@pytest.mark.parametrize("again", ["after the release", "before the release"])
def test_a_write_that_lands_after_it_was_given_up_in_doubt_is_still_known_as_ours(again: str) -> None:
    """Found by the simulation: sent, in doubt, dropped, wanted again, and then it lands: no self-block."""
    keeper = Keeper().want().reads(foreign(expired=True), "v0")
    late = keeper.written
    keeper.writes(Unknown("timeout")).drop()
    if again == "after the release":
        keeper.reads(foreign(expired=True), "v0")
        assert isinstance(keeper.state, Idle)
        keeper.want()
    else:
        keeper.want()
    keeper.reads(foreign(expired=True), "v0")
    assert keeper.written.owner == late.owner

    keeper.writes(Lost("412")).reads(late, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).lease.record.owner == late.owner


def test_a_release_in_our_name_is_told_as_such() -> None:
    """`lakewarden lock release --if-owner`: nobody else holds it."""
    keeper = renewing()
    released = replace(keeper.written, expired=True)

    ended = keeper.writes(Lost("412")).reads(released, "v9").one(LeaseEnded)

    assert ended.holder is None
    assert "in our name" in ended.why


@pytest.mark.parametrize("state", ["renewing", "reading back"])
def test_the_time_of_a_release_counts_from_when_it_was_asked_for(state: str) -> None:
    """The audit's checker ends an owner's interval there."""
    keeper = STATES[state]()
    keeper.now += 0.5
    dropped = keeper.drop().now
    if state == "renewing":
        keeper.writes(Won("v2"))
    else:
        keeper.reads(keeper.written, "v2")

    assert keeper.writes(Won("v3")).one(Released).spent.since == dropped


# -- every outcome in every writing state

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
releasing  Idle Released   Reading Get  Waiting    Reading Get  Idle Released
"""


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_of_every_write_has_its_consequence(state: str, outcome: str) -> None:
    """Won, lost, throttled, unknown, refused: never two of them."""
    keeper = STATES[state]().writes(OUTCOMES[outcome])

    happened = [type(keeper.state), *(type(each) for each in keeper.effects)]

    assert " ".join(each.__name__ for each in happened) == table(AFTER)[state, outcome]
    if state == "renewing":
        assert lease_of(keeper.state) is not None
