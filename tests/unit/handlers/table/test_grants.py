"""When the agent grants a commit, for how long, and what it does when the lease or the lock ends."""

from __future__ import annotations

import pytest

from lakewarden.events import CommitGranted
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import World

STORIES = """
no grant if less than half of its lease remains
    # The lock is about to be renewed. A grant of two seconds would only produce an unknown outcome.
    world grant_lease=20.0
    intent A; lock 9.0; request A → no grant
    lock 29.5 → granted A

no grant under an expired lock lease
    # The renewal hangs, and the loss of the lock is not reported yet.
    intent A; lock 29.5; beat A; tick 14; beat A; tick 14; beat A; tick 2; request A → no grant

one grant at a time in the order of the commit requests
    # Not in the order of the intents: the writer that is ready first commits first.
    intent A; intent B; intent C; lock; request C → granted C
    request A → no grant
    request B → no grant
    complete C → granted A
    complete A → granted B

a grant names the transaction whose end it waited for
    # Without a wait, and after a wait for the lock alone, it names none.
    intent A; intent B; intent C; lock; request A → CommitGranted transaction=A freed_by=None
    request B; complete A → CommitGranted transaction=B freed_by=A
    complete B; request C → CommitGranted transaction=C freed_by=None

a grant in turn names the transaction with the earlier turn
    intent A ordered; touch A p/f; intent B ordered; touch B p/f; lock; request B → no grant
    abandon A → CommitGranted transaction=B freed_by=A

a grant after a wait for the lock names no transaction
    intent A; intent B; lock; request A; complete A; lose_lock; request B; lock → CommitGranted transaction=B freed_by=None

a repeated commit request keeps its place in the grant queue
    # An impatient writer sends its request again.
    intent A; intent B; intent C; lock; request C; request A; request B; request A; complete C → granted A

after an adoption no grant before the former lease has ended
    # The former agent may still run, and grant under the lease that it believes to hold.
    intent A; lock quiet=12.0; request A → no grant
    beat A; tick 11.9 → no grant
    tick 0.2 → granted A

a grant lapses only after the agent has read the log up to its end
    # The check was slow: a completion may be in the log, in time, behind the end that the agent knows.
    intent A; touch A p/f; lock; request A → granted A
    tick 20.5 request_age=1.0 → no abort
    tick 0.6 request_age=1.0 → aborted A outcome-unknown

a lapse conflicts also with late markers of the granted transaction
    # Under `first-committer` late markers abort no transaction, but the possible commit does.
    world policy=first-committer
    intent A; intent B; lock; touch B p/f; request A; touch A p/f; tick 14; beat B → no abort
    tick 6.1 → aborted A outcome-unknown and B outcome-unknown

a transaction that begins after a lapse does not conflict
    # Its base contains the commit, if there was one.
    intent A; touch A p/f; lock; request A → granted A
    intent keeps-evidence; tick 20.1; intent B; touch B p/f → no abort

a completion after the lapse counts from the lapse
    # The commit landed before the lease expired; only the report was late.
    intent A; touch A p/f; lock; request A → granted A
    intent early; beat early; tick 14; beat early; tick 6.1; intent late; touch late p/f
    complete A version=s-3 → no abort, A is committed, late is active
    touch early p/f → aborted early conflict

an abandonment after the lapse removes the footprint
    # The writer read the table back and found no commit, so no other transaction conflicts with it.
    intent A; touch A p/f; lock; request A → granted A
    intent B; beat B; tick 14; beat B; tick 6.1 → A is unknown
    abandon A; touch B p/f → no abort

after a lost lock no grant before the end of the old one
    # The old writer may be publishing, and receive the abort too late.
    intent A; touch A p/f; lock; request A → granted A
    intent B; request B; lose_lock; lock 29.5 → no grant
    tick 14; beat B; tick 5 → no grant
    lock 29.5; tick 1.5 → aborted A outcome-unknown, granted B

an abandonment after lease-lost or superseded frees the table at once
    # Its writer had published nothing. Without the abandonment, the table waits for the end of the lease.
    intent A; touch A p/f; lock; request A → granted A
    intent B; request B; lose_lock; lock 29.5 → no grant
    abandon A → granted B
    world; intent A writer=w; lock; touch A p/f; request A; intent A2 p/f writer=w → aborted A superseded
    abandon A → admitted A2

a revoked grant is not extended
    # Its writer was aborted. Its heartbeats must not keep the others waiting.
    intent A; touch A p/f; lock; request A → granted A
    lose_lock; lock; beat A → nothing

a lost lease is published once
    # The lock's keeper reports a lost lock and then a forbidden one.
    intent A; touch A p/f; lock; request A → granted A
    lose_lock; lose_lock → nothing

a lost lock does not abort transactions that wait
    # The agent acquires it again, or another owner releases it. Waiting costs nothing.
    intent A; request A; lock 1.0; lose_lock → no abort
    lock → granted A

a completion after an abort is logged
    # An aborted writer reports that it has committed: operators must learn of it.
    intent A; intent B; touch A p/f; touch B p/f; complete B → warned commit-without-grant of B, B is aborted

per commit the lock is acquired for a request and released after the commit
    # Unmodified Hudi writers share the table and must be able to acquire the lock.
    world hold=per-commit
    intent A → no lock
    request A → only AcquireLock(adopt=None)
    lock → granted A
    complete A → only ReleaseLock()

per commit the lock is released between two grants
    # Our grant queue must not keep a foreign writer waiting for its whole length.
    world hold=per-commit
    intent A; intent B; request A; request B; lock → granted A
    complete A → only ReleaseLock() and AcquireLock(adopt=None), no grant
    lock → granted B

a running grant in the log requests the adoption of its lock
    # The agent was killed during a grant. Its successor takes over the lock that covers it.
    intent A; touch A p/f; lock; request A → granted A
    restart → only AcquireLock(adopt='agent-1')

an old heartbeat extends nothing
    # A repeated or late delivery. The writer counts from when it *sent* the heartbeat.
    intent A; touch A p/f; lock; request A → granted A
    beat A seq=9; tick 5; lock; beat A seq=9 → no renewal
    beat A seq=3 → no renewal

a running grant survives the restart and stays the only one
    # The agent is killed during a grant. Its successor neither grants another nor drops it. A former owner that resumes would
    # not know of an extension.
    intent A; intent B; lock; request A; request B; restart → no grant
    lock quiet=10.0 → no grant
    beat A → no renewal
    complete A → no grant
    beat B; tick 10.1 → granted B

a request is granted in the same step
    # The agent holds the lock, so the grant needs no store request and takes milliseconds.
    intent A; touch A p/f; lock
    request A → CommitGranted transaction=A writer=w-A lock_owner=agent-1 lease_seconds≈20 cause=e-2-A

a grant echoes the largest seq that was read
    # The writer counts its lease from when it sent that `seq`, whatever the clocks show.
    intent A; lock; beat A seq=4; beat A seq=9; beat A seq=7; request A seq=8 → CommitGranted seq=9

a grant lasts no longer than the lock
    # The lock's end has the drift subtracted. A foreign writer takes the lock over only after that.
    world grant_lease=20.0
    intent A; lock 13.0; request A → CommitGranted lease_seconds≈13

the next grant follows in the step that ends the running one
    where END is complete A | abandon A | beat B; tick 10; beat B; lock 29.5; tick 10.1
    intent A; touch A p/f; lock; request A; intent B; request B → no grant
    END → granted B

a restarted writer completes the batch that its former process published
    # It finds the batch in the table, and needs no markers. The version is that of the former publish.
    intent A writer=w batch_id=4; touch A p/f; lock; request A; tick 20.1 → A is unknown
    intent again writer=w batch_id=4; lock; request again → granted again
    complete again version=s-1 → recorded again w 4 s-1

a batch that was abandoned is admitted again
    # It had no data. The ledger doesn't know it.
    intent A writer=w batch_id=4; abandon A → no record
    intent again writer=w batch_id=4 → admitted again

a heartbeat extends a running grant
    # Publishing many files takes longer than one lease.
    intent A; touch A p/f; lock; request A; tick 8; lock 29.5
    beat A seq=5 → GrantRenewed grant=0:2:t lease_seconds≈20 seq=5
    tick 15 → no abort
    tick 6 → aborted A outcome-unknown

a heartbeat extends no further than the lock lease
    # The lock is not being renewed, so the grant must end before it.
    intent A; touch A p/f; lock; request A; wait 15; beat A → GrantRenewed lease_seconds≈14.5
    wait 5; beat A → no renewal

a lapse is published before anything follows from it
    # The record is the lapse: an agent that restarts reads it and needs no clock to decide it again.
    intent A; touch A p/f; lock; request A; intent B; touch B q/f; request B; beat B; tick 10; beat B; lock
    tick 10.1 → first Abort transaction=A, granted B

after a lapse overlapping transactions that began before get outcome unknown
    # A may have committed, so B's base may be outdated. C doesn't overlap A.
    intent A deleted-file; intent B deleted-file; intent C; touch A p/f:delete; touch C q/f; lock; request A
    beat C; beat B; tick 14; beat B; beat C; tick 6.1 → aborted A outcome-unknown
    touch B p/f:delete → aborted B outcome-unknown, met A commit f, C is active

a lost lock aborts the granted transaction at once
    # With RFC-91 the writer learns nothing of it.
    intent A; touch A p/f; lock; request A
    lose_lock 'another owner is in the lock object' → Abort transaction=A reason=lease-lost detail~'another owner', A is granted

while active the lock is held until the last transaction has ended
    # Grants in between cost no store request.
    world hold=while-active
    intent A → AcquireLock adopt=None
    intent B; lock → nothing
    commits A → no ReleaseLock
    abandon B → only ReleaseLock()
    intent C → AcquireLock adopt=None

a confirmation of a released lock is ignored
    # A renewal was under way when the last transaction ended.
    intent A; lock; abandon A; lock → state.lock=None

a forbidden lock aborts all open transactions
    # The object is no lock, or the store ignores conditions. Only an operator can change that.
    intent A; touch A p/f; lock; request A; intent B; intent C p/f queued; request B
    forbid_lock 'a text file' → some Abort transaction=B reason=not-allowed retriable=False detail='a text file'
    → some Abort transaction=C reason=not-allowed retriable=False detail='a text file', some Abort transaction=A reason=lease-lost

a withheld lock aborts the transactions that wait and they may retry
    # The store refuses for minutes. The granted transaction has its own lease, which the lock's keeper ends separately.
    intent A; touch A p/f; lock; request A; intent B; intent C p/f queued; request B
    withhold_lock ExpiredToken → aborted B lock-refused and C lock-refused
    → some Abort transaction=B retriable=True detail=ExpiredToken, some Abort transaction=C retriable=True detail=ExpiredToken

a commit with a batch id is recorded in the ledger once
    # The compacted topic keeps each writer's last batch beyond the retention of the log.
    intent A batch_id=4; lock; commits A version=s-1 → recorded A w-A 4 s-1
    complete A version=s-1 → nothing

a commit missing in the ledger is recorded after the replay
    # The agent died between reading the completion and publishing the ledger's record.
    intent A batch_id=4; lock; commits A version=s-1; restart → recorded A w-A 4 s-1

a publish that hangs does not own the table and may still be reported
    # Heartbeats come from a thread of their own, so they continue while the publish hangs on a socket without timeout. The lapse
    # is in the log, and a replay needs no clock.
    world max_grant=30.0
    intent A batch_id=4; intent B; lock; request A; request B; tick 10; lock; beat B; beat A → GrantRenewed transaction=A
    tick 10; lock; beat B; beat A; tick 9.9; lock; beat B; beat A → GrantRenewed transaction=A
    tick 5; lock; beat B; beat A → no renewal
    tick 10; lock; beat B; beat A → no renewal
    tick 4.8 → no abort
    tick 0.5 → Abort transaction=A reason=outcome-unknown retriable=True detail~"not extended beyond 30 s, the limit of max_grant"
    → granted B, a replay agrees
    complete A → recorded A w-A 4, A is committed
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_grants_and_their_ends(story: Story) -> None:
    story.play()


def test_two_owners_of_a_partition_give_no_grant_the_same_id() -> None:
    """An agent that was replaced publishes a grant late, at the offsets of its successor's. A completion names one of the two."""
    owners = [World(term=each).intent("A").lock().request("A") for each in ("t1", "t2")]

    assert len({each.one(CommitGranted).grant for each in owners}) == 2
