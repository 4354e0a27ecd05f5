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
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import render
from lakewarden.handlers.lease.machine import (
    Acquire,
    AcquisitionHint,
    Confirmed,
    Get,
    Held,
    IllegalInputError,
    Input,
    LockDenied,
    Moment,
    Put,
    ReadDone,
    Reading,
    Release,
    ReleaseHint,
    Timer,
    WriteDone,
    Writing,
    deadline,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign, held, stories
from tests.unit.stories import Story

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


# Histories of one lock.

STORIES = """

a lock without an object is created only if absent
    # The first commit to a table.
    acquire; reads absent → put if-absent, wrote expired=False valid_until=1700000130010
    writes won v1 → Confirmed what=acquired cost.requests=2

a released lock is acquired under the version that was read
    # Two agents read the same free lock: one write wins.
    acquire; reads released v7 → put if v7, wrote owner≠java

a lapsed lock is left alone until its end is past by the drift
    # The holder's clock may be behind ours.
    where LEFT is 0.001 | 0.0 | -0.5
    acquire; reads java v7 left=LEFT → is Waiting

a lapsed lock is acquired when its end is past by the drift
    acquire; reads java v7 left=-0.501 → is Writing

the lease counts from before the write was sent
    # The answer took four seconds. They count, because contenders count from when the record was written.
    acquire; reads absent; writes won v1 after=4.0 → lease_seconds≈25.5

an answer that took as long as the lease confirms nothing
    # A stalled agent resumes: the write took effect, and must be repeated before the caller relies on the lease.
    acquire; reads absent; writes won v1 after=28.0 → no Confirmed, put if v1
    writes won v2 → Confirmed what=acquired

the object is read again when the lease of the holder ends
    # The holder died without a release: the lock is acquired a few milliseconds after its lease and the drift are over.
    acquire; reads another f1 left=4.0; timer → waited≈4.5
    reads another f1 left=4.0 after=0 → is Writing

contenders do not all read at the same time
    # Jitter spreads them. It only delays: an early read finds the lock held, and would be repeated without a wait.
    jitter 0.0; acquire; reads another f1 left=300; timer → waited≈10
    jitter 0.3; acquire; reads another f1 left=300; timer → waited≈10.3
    jitter 0.9; acquire; reads another f1 left=300; timer → waited≈10.9

an object that is no lock is never overwritten
    # A data file under the lock's name, or a lock of another format: another program may rely on it.
    state reading; for 600 text → no put, no lease
    state reading back → put if v1, requests≤4
    for 600 text; for 600 text → put if v1, no lease

a denied lock is reported with its holder
    # `lakewarden status` shows the holder.
    acquire; reads java f1 → LockDenied kind=waiting holder=java held_until=1700000120000

a lost write that finds another holder waits
    # Two agents read the free lock, and the write of the other one came first.
    acquire; reads absent; writes lost → Get
    reads another f1 left=29.0 → is Waiting, LockDenied holder=java

contenders that keep losing back off
    # Fifty agents race for one lock.
    acquire; reads absent; writes lost; reads absent; writes lost; reads absent; writes lost; reads absent; writes lost
    → is Waiting

the far future end of a released lease is not inherited
    # A writer with a wrong clock released the lock. With its end inherited, a crash of ours would block the table for days.
    acquire; reads released f1 left=86400 → wrote valid_until=1700000130010

strict acquires a released lock immediately
    # The holder released it, so no clock is involved.
    strict; acquire; reads released f1 → put if f1

strict acquires a lapsed lock only after a whole lease without a change
    # The holder's clock may be hours behind, so a record that has lapsed by our clock proves nothing.
    strict; acquire; until Writing lapsed → now≥130.51, now≤160, put if v?

an unknown renewal that took effect keeps the lease
    # A timeout during a publish must not abort the publish.
    state renewing; writes unknown → lease
    reads ours v2; writes won v3 → Confirmed what=renewed, no LeaseEnded, requests≤5

an unknown renewal that did not take effect keeps the lease too
    # The object is unchanged, so the renewal is sent again under its version.
    state renewing; writes unknown; reads ours v1 back=1 → put if v1
    writes won v2 → Confirmed what=renewed

a renewal that finds another owner ends the lease and names the owner
    # Another process overwrote the lock, or an agent adopted it.
    state renewing; writes lost; reads another f1 → LeaseEnded holder=java, no lease

a deleted lock object ends the lease
    # An operator cleaned the bucket. Another agent may create the object at any moment.
    state renewing; writes lost; reads absent → LeaseEnded

a release by another process ends the lease
    # `lakewarden lock release --if-owner`: there is no other holder.
    state renewing; writes lost; reads ours-released v9 → LeaseEnded holder=None why~"released it in this owner's name"

an unconfirmed lease ends margin before its end
    # The store is down. The caller has two seconds to stop.
    where ANSWER is unknown | throttled | lost
    state renewing; until LeaseEnded ANSWER after=0.2 → LeaseEnded owner=o2, no lease, now≥127.5, now≤127.73

a request that hangs does not delay the end of the lease
    # The timer fires while the request is outstanding.
    where STATE is renewing | reading back
    state STATE; timer → LeaseEnded, no lease

after a suspension the first input ends an expired lease
    # A suspended virtual machine resumes. Any input ends the lease before it does anything else.
    state held; pass 60; observe_release → LeaseEnded

a late answer to a renewal does not confirm an expired lease
    # The write was won, but so long ago that its lease has ended.
    state renewing; writes won v2 after=29.0 → LeaseEnded, no Confirmed, no LockDenied, no Released, no Get, put if v2

release writes expired and keeps the end
    # As Hudi releases. The next contender sees it immediately.
    state held; release → wrote expired=True valid_until=1700000130010 owner=o2, put if v1, no lease
    writes won v2 → Released owner=o2 why=None, is Idle

from the moment of a release the lease is not relied upon
    where STATE is held | renewing | reading back
    state STATE; release → no lease

an unknown release is read back
    # Otherwise contenders would wait for the end of a lease that has no holder.
    where FOUND is reads ours v2 | reads ours v1 back=1; writes won v2
    state held; release; writes unknown; FOUND → Released why=None, is Idle, requests≤5

a release without an answer is left to lapse
    # A failed release must not turn a durable commit into a failure.
    state held; release; until Released unknown → Released why~'left to lapse', requests≤16, is Idle

a failed release is reported in every state
    # The store failed during a renewal, and the last transaction ended. The log must show why contenders wait. All tries belong
    # to the release.
    where FAILS is state renewing; release; until Released unknown → requests≥7
    | state renewing; writes throttled; release; until Released unknown → requests≥7
    | state reading back; release; until Released unknown → requests≥8
    FAILS
    → Released owner=o2 why~'left to lapse', is Idle

a release that finds another owner is done
    # Our lease had lapsed, and another owner acquired the lock.
    state held; release; writes lost; reads another f1 → Released why~'another owner', is Idle

a release during an acquisition releases the acquired lock
    # The last transaction ended while the PUT was outstanding.
    acquire; reads absent; release; writes won v1 → wrote expired=True, no Confirmed
    writes won v2 → Released

a lock that is needed again during its renewal is kept
    # The next transaction began in the instant in which the last one ended.
    where ANSWER is writes won v3 | writes unknown; reads ours v2; writes won v3
    state renewing; release; acquire; ANSWER → Confirmed what=acquired, wrote expired=False

a release after an unknown acquisition releases what was acquired
    # Without it, the lock would stay held for a whole lease, five minutes on a Hudi table.
    acquire; reads absent; writes unknown; reads unknown → is Waiting
    release; timer; reads ours v1 → wrote expired=True
    writes won v2 → is Idle

a release after an unknown acquisition without effect ends with a read
    # The read shows that the write had no effect.
    acquire; reads absent; writes unknown; reads unknown; release; timer; reads absent → is Idle

the reads after a release are bounded
    # The store is unreachable, and the caller no longer needs the lock. The automaton must become idle.
    acquire; reads absent; writes unknown; reads unknown; release → requests≤3
    until Idle unknown → requests≤8

a lock that is needed again during its release is acquired again
    # `per-commit`: the next commit was requested before the store answered the release.
    state held; release; acquire; writes won v2 → Released, Get
    reads ours v2; writes won v3 → Confirmed what=acquired, wrote valid_until≠1700000130010

the duration of a release counts from its request
    # There the owner's interval ends in `tests/lock_audit.py`.
    state renewing; pass 0.5; release; writes won v2; writes won v3 → Released cost.since≈103.51
    state reading back; pass 0.5; release; reads ours v2; writes won v3 → Released cost.since≈103.52
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_a_history_of_a_lock(story: Story) -> None:
    story.play()


# Acquiring the lock, and waiting for another holder: when the automaton writes, reads again, or leaves the object unchanged.


def test_a_lock_of_another_holder_is_read_at_most_once_per_poll_interval() -> None:
    """Ten agents that wait for a lease of five minutes must not send a request per second each."""
    keeper = Keeper().acquire().reads(record := foreign(left=300.0), "f1")
    began, reads = keeper.now, 0

    while keeper.now < began + 100:
        keeper.timer()
        reads += len(keeper.of(Get))
        keeper.reads(record, "f1", after=0)

    assert reads <= 100 / SETTINGS.poll_seconds + 1


STRICT = replace(SETTINGS, strict=True)


def test_strict_never_acquires_a_lock_that_is_renewed() -> None:
    """Each renewal is a new version, from which the whole lease counts again."""
    keeper = Keeper(STRICT).acquire()
    keeper.reads(foreign(left=-3600.0, at=keeper), "f0")
    for renewal in range(1, 30):
        keeper.timer().reads(foreign(left=-3600.0, at=keeper), f"f{renewal}")

    assert keeper.puts == []
    assert "unchanged" in keeper.one(LockDenied).why


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
