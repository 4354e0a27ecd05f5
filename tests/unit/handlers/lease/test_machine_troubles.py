"""Lost, repeated and throttled answers: the automaton reads back what a write did, and never guesses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lakewarden.handlers.lease.conditional import Unknown
from lakewarden.handlers.lease.machine import deadline
from tests.unit.handlers.lease.lease_keeper import SETTINGS, Keeper, foreign, stories
from tests.unit.stories import Story

STORIES = """

an unknown acquisition that took effect is ours after three requests
    # The self-block of RFC-91: the answer was lost, and the writer waited 300 s for its own lease. The read doesn't show when the
    # lost write took effect, so it is not relied upon before a second write.
    acquire; reads absent; writes unknown → requests≤3
    reads ours v1 → put if v1, wrote owner=o2 valid_until=1700000130030, no lease, no Confirmed
    writes won v2 → Confirmed what=acquired, requests≤4

an unknown acquisition that did not take effect is sent again
    # The store never received the request.
    acquire; reads absent; writes unknown; reads absent → put if-absent
    writes won v1 → Confirmed

a write that lost to our own first attempt is ours
    # The client library sent the request twice: the first attempt took effect, the second got the 412.
    acquire; reads absent; writes lost; reads ours v1; writes won v2 → Confirmed

a write that takes effect after the read back is recognised as ours
    # A proxy delayed it until after our read. With another owner id in the second write, we would wait for ourselves.
    acquire; reads released v0; writes unknown; reads released v0; writes lost; reads ours v1 back=1 → put if v1, no LockDenied
    writes won v2 → Confirmed

an unknown write that takes effect after a release is recognised as ours
    # Found by the simulation: sent, unknown, released, needed again, and then it takes effect: no self-block.
    where AGAIN is reads released v0; acquire | acquire
    acquire; reads released v0; writes unknown; release; AGAIN; reads released v0 → wrote owner=o2
    writes lost; reads ours v1 back=1; writes won v2 → Confirmed lease.record.owner=o2

after a release the read back of a write without effect ends the acquisition
    acquire; reads released v0; writes unknown; release; reads released v0 → is Idle

throttling backs off and reads again
    # 503 SlowDown: nothing was written.
    where STATE is writing | renewing | releasing
    state STATE; writes throttled → is Waiting
    timer → Get

continued unknown answers are reported
    # A store is unreachable for an hour. The operator must see why nothing commits.
    acquire; reads unknown; timer; reads unknown; timer; reads unknown; timer; reads unknown; timer → no LockDenied
    reads unknown → LockDenied kind=waiting holder=None why~timeout
    timer; reads unknown; timer; reads unknown; timer; reads unknown; timer; reads unknown; timer; reads unknown
    → LockDenied kind=waiting holder=None

a lease whose renewals are refused ends margin before its end
    # The caller has relied on the lease for as long as it could be confirmed later. The reason names the answer.
    state renewing; until LeaseEnded refused → now≈127.51, LeaseEnded why~ExpiredToken, denied only refused

a refusal without a lease is reported and retried within a renewal interval
    jitter 0.99; acquire; reads refused → LockDenied kind=refused
    for 60 refused; until Get refused → waited≤3
    reads absent; writes won v1 → Confirmed

a refusal lasts when every request was refused for refusal_seconds
    # A minute is not long enough: the caller waits. After two minutes it gets the error, once.
    acquire; for 115 refused → denied only refused
    for 10 refused → denied refused-too-long 1

a lasting refusal is reported with its answer and its length
    acquire; for 115 refused; until refused-too-long refused → LockDenied why~ExpiredToken why~'requests in 12'

after a lasting refusal a new series begins
    # Transactions that opened since wait as long as those before them.
    acquire; for 480 refused → denied refused-too-long 3

two refusals far apart are no lasting refusal
    # The agent was suspended between them.
    acquire; reads refused; pass 1200; timer; reads refused → no LockDenied

a store that permits reads and refuses writes refuses the lock
    # The permission to write is missing. The reads don't interrupt the series.
    acquire; for 125 read-only → denied refused-too-long 1

a lock that is found held ends the series
    # The store answers again, and another owner holds the lock. A later refusal counts from its own beginning.
    acquire; for 115 refused; until Get refused; reads java f1 left=1000 → is Waiting
    for 60 refused → denied refused-too-long 0

a lease that ends long after the first refusal is reported as lasting at once
    # A lease of five minutes, shared with Hudi: the refusal had lasted for minutes when the lease ended.
    settings validity=300.0 renew_interval=30.0
    acquire; reads absent; writes won v1; timer; until LeaseEnded refused → denied refused-too-long 0
    for 15 refused → denied refused-too-long 1

a refused release is retried
    # Otherwise the next contender would wait for the whole lease.
    state held; release; writes refused → no Released
    timer; reads ours v1 back=1; writes won v2 → Released why=None

a release that is refused again and again is left to lapse
    state held; release; until Released refused → Released why~'left to lapse'

what no retry can change is reported at once
    where FOUND is unusable | text
    acquire; reads FOUND → LockDenied kind=unusable
    timer → waited≈30
    reads absent; writes won v1 → Confirmed

an unusable object ends a lease at once
    # Another program replaced the object by a file of 2 MiB: this owner is not in it any more.
    state renewing; writes refused; timer; reads unusable → LeaseEnded why~'longer than', no lease

the lock of a running grant is adopted under its version with a new owner id
    # An agent was killed while a grant ran. Waiting for the end of its lease would abort the writer.
    acquire adopt=old; reads old a1 → put if a1, wrote owner≠old, wrote owner≠None
    writes won a2 → Confirmed lease.quiet_until≈120.5

an owner that the log does not name is not adopted
    # It may be a Java writer in the middle of its commit.
    acquire adopt=old; reads another f1 → is Waiting

an unknown write during the adoption does not shorten the quiet period
    # The adoption took effect and its answer was lost. The former owner may still rely on its lease.
    acquire adopt=old; reads old a1; writes unknown after=2.0; reads ours a2; writes won a3 → Confirmed lease.quiet_until≈120.5

a renewal of the former owner during the adoption extends the quiet period
    # The former owner was slow, not dead.
    acquire adopt=old; reads old a1; writes lost; reads old a2 left=29; writes won a3 → Confirmed lease.quiet_until≈129.51

a renewal keeps the quiet period
    # It depends on the former owner's lease, not on ours.
    acquire adopt=old; reads old a1; writes won a2; timer; writes won a3 → Confirmed lease.quiet_until≈120.5

an adopted lock ends no earlier than the former owner's lease
    # The former owner's leases are longer than ours. A contender must wait for the longer of the two.
    acquire adopt=old; reads old a1 left=200 → wrote valid_until≥1700000300001

an adopted lock is not released before the former owner's lease has ended
    # The running grant has ended. A contender that acquired the lock now could overlap with a grant of the former owner.
    acquire adopt=old; reads old a1; writes won a2; release → no Put, no lease
    timer → now≥120.5
    reads ours a2 → wrote expired=True
    writes won a3 → is Idle

an adopted lock that is needed again is kept with its quiet period
    # The next transaction came before the former owner's lease had ended.
    acquire adopt=old; reads old a1; writes won a2; release; acquire; reads ours a2; writes won a3
    → Confirmed lease.quiet_until≈120.5, no Released

the quiet period outlives our own lease
    # After an adoption our renewals failed. The former owner's lease is as long as before.
    acquire adopt=old; reads old a1 left=200; writes won a2; timer; timer → LeaseEnded
    writes unknown; reads ours a3; writes won a4 → Confirmed lease.quiet_until≈300.5

the quiet period outlives a release while the adoption is unknown
    acquire adopt=old; reads old a1 left=200; writes unknown; release; until Idle unknown; acquire; reads ours a2; writes won a3
    → Confirmed lease.quiet_until≈300.5

a former owner's live lock is taken over at once
    # It was killed, or is paused. None of its later grants counts, whether one runs now or not.
    where ADOPT is None | a-17 | other
    where STRICT is False | True
    owner_of_partition strict=STRICT; acquire adopt=ADOPT; reads a-17 a1 → put if a1, wrote owner~b-
    writes won a2 → Confirmed lease.quiet_until≤100.01 lease.former.owner=a-17 lease.former.fenced=True
    release → wrote expired=True

any other owner is waited for
    # A later owner of the partition, a lost lease of our own, a Java writer, an agent of an older release.
    where OWNER is c-1 | b-9 | a | java | o1
    owner_of_partition; acquire; reads OWNER f1 → is Waiting

a renewal of the former owner that comes first is taken over
    # It is paused, and its request was still on its way.
    owner_of_partition; acquire; reads a-17 a1; writes lost; reads a-17 a2 → put if a2

an adopted lock has an owner id that no later owner fences
    # The owner after this one must wait, too, for the adopted owner, which no term fences.
    owner_of_partition; acquire adopt=old; reads old a1 → wrote owner=o2

a fenced owner shortens no quiet period
    # An adopted lock was lost to a former owner of the partition, which woke up.
    owner_of_partition; acquire adopt=old; reads old a1; writes won a2; timer; writes lost; reads a-18 a3; timer
    reads a-18 a3; writes won a4 → Confirmed lease.quiet_until≈120.5

the first contender reads immediately after a release
    # Another agent published `lock-released`.
    acquire; reads another f1 left=300; observe_release → Get, no Put

a contender waits a slot for each contender ahead
    # Eight agents that read at once would all write at once.
    acquire; reads another f1 left=300; observe_release ahead=3 → no Get
    timer → Get, waited≈0.75

after another agent's acquisition the contender waits for the next poll
    # The first contender acquired the lock, so the others need not read.
    acquire; reads another f1 left=300; observe_release ahead=1; observe_acquisition left=30.0; timer → waited≈10

a read that overlaps a release is repeated in our turn
    # The answer of the read took longer than the release and its audit event.
    acquire; observe_release ahead=0; reads another left=300 → LockDenied
    timer → Get, waited≈0
    state reading; observe_release ahead=2; reads another left=300 → LockDenied
    timer → Get, waited≈0.5

invented contenders delay a repeated read by one poll interval at most
    acquire; observe_release ahead=1000; reads another left=300 → LockDenied
    timer → Get, waited≈10

a read is not repeated for an earlier release
    acquire; observe_release; reads another f1 left=300; timer; reads another f2 left=300; timer → waited≈10

a read is not repeated after another agent has acquired the lock
    # Then the end of the new holder's lease counts.
    acquire; observe_release; observe_acquisition left=300.0; reads another left=300; timer → waited≈10

a forged hint costs reads and nothing else
    # Hints come from the network. A lock that is held according to its object stays held.
    acquire; reads another f1 left=300; observe_release; reads another f1 left=300; observe_release; reads another f1 left=300
    → no put

a hint does not change the back-off of an unknown write
    # The automaton reads it back after its back-off.
    where HINT is pass 0 | observe_release | observe_acquisition left=30.0
    acquire; reads absent; writes unknown; reads unknown; HINT; timer → waited≈0.1

a new contender joins the end of the queue
    # It may have held the lock a moment ago.
    acquire ahead=2 → no Get, LockDenied kind=waiting cost.requests=0
    timer → Get, waited≈0.5

a thousand contenders that do not exist delay a free lock by one poll interval at most
    # The review's script: it was 250 s.
    acquire ahead=1000 → no Get, LockDenied kind=waiting cost.requests=0
    timer → Get, waited≈10

a holder that releases and needs the lock again joins the end of the queue
    # `per-commit`: the next commit was requested before the store answered the release.
    state held; release; acquire ahead=1; writes won v2 → Released, no Get
    timer → Get

it also joins the end after an unknown release
    # As above, but the answer was lost, and the object is read back first.
    state held; release; writes unknown; reads unknown → is Waiting
    acquire ahead=1; timer; reads ours-released v2 → Released, no Get
    timer → Get

an adoption skips the queue
    # A grant runs under this lock.
    acquire adopt=former ahead=5 → Get
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_a_lock_in_trouble(story: Story) -> None:
    story.play()


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
