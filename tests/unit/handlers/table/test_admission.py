"""Which transactions the agent admits, which wait in the admission queue, and which batches it skips."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from lakewarden.events import Admitted, ConflictsLost
from lakewarden.handlers.table.state import MAX_LOST_ON, MAX_LOST_ON_CHARACTERS
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import World, m, world

STORIES = """
a queued intent without a scope is admitted at once
    # It declared nothing for which it could wait.
    intent A; touch A p/*; intent B queued → admitted B

a larger priority comes first in the queue
    # A compaction waits behind ingestion, although its intent came first.
    intent A; touch A p/f; intent compaction p/f queued priority=-1; intent ingestion p/f queued
    abandon A → admitted ingestion

a protected writer comes first in the queue
    # Otherwise a stream of larger priorities would starve it before it is even admitted.
    world max_losses=1
    intent A; touch A p/f; intent S0 writer=slow priority=-1; touch S0 p/f
    intent S1 p/f queued writer=slow priority=-1; intent B p/f queued priority=5
    abandon A → admitted S1

a protected writer waits only for a grant in its reserved partitions
    # That commit is going to land: a transaction that began before it would lose again.
    world max_losses=1
    intent A; touch A p/f; intent G; touch G p/g; intent S0 writer=slow; touch S0 p/f; lock; request G
    intent T0 writer=other; touch T0 p/f → G is granted
    intent S1 writer=slow → no admission
    complete G → admitted S1, aborted A conflict

of two protected writers without scope the later waits for the earlier
    # Whatever their priorities: otherwise the larger priority would win every time.
    world max_losses=1
    intent A; touch A p/f; intent one-0 writer=one; touch one-0 p/f; intent two-0 writer=two; touch two-0 p/f
    intent one-1 writer=one → admitted one-1
    intent two-1 writer=two priority=9 → no admission
    abandon one-1 → admitted two-1

a queued transaction blocks only those that overlap it
    # B waits for A. C overlaps only B in the queue, and D overlaps nothing.
    intent A; touch A p/1; intent B p/1 p/2 queued → no admission
    intent C p/2 queued → no admission
    intent D p/3 queued → admitted D
    abandon A → admitted B
    abandon B → admitted C

under deleted file two queued appends do not wait for each other
    # The queue applies the same rule as the conflict check.
    intent A p/f:append queued deleted-file; intent B p/f:append queued deleted-file → admitted B

a dead writer blocks the queue only until its heartbeats are missed
    # The process of a retry was killed.
    intent A; touch A p/f; intent dead p/f queued; intent B p/f queued; abandon A → admitted dead
    tick 10; beat B; tick 5.1 → aborted dead writer-lost, admitted B

a newcomer that overlaps an older queued transaction loses
    # Otherwise optimistic writers would overtake a waiting retry forever.
    intent A; touch A p/f; intent B p/f p/g queued; intent C; touch C p/g → aborted C conflict

a commit during the wait does not conflict
    # The transaction reads its base when it is admitted, which is the purpose of the wait.
    intent A; touch A p/f; intent B p/f queued; lock; commits A; touch B p/f → no abort
    commits B → no abort

batch ids of different writers are independent
    # Every query counts from zero.
    intent A batch_id=7 writer=w; lock; request A; complete A; intent B batch_id=7 writer=v → admitted B

a restarted writer is admitted after the lapse of its older grant
    # The old process is dead, and its commit may or may not be in the table.
    intent A writer=w batch_id=1; lock; touch A p/f; request A; intent A2 p/f writer=w batch_id=1
    tick 14; beat A2; tick 7 → aborted A outcome-unknown, admitted A2, A2 is active

a restarted writer does not conflict with its own earlier commit
    # It waited until that commit was reported and reads its base afterwards.
    intent A writer=w batch_id=1; lock; touch A p/f; request A; intent A2 writer=w batch_id=2
    complete A → admitted A2
    lock; touch A2 p/f → no abort
    request A2 → granted A2

a commit request of a queued transaction is granted after its admission
    # A writer that has nothing to compute, such as a metadata change.
    intent A; touch A p/f; intent B p/f queued; lock; request B → nothing
    abandon A → admitted B, granted B

whatever the order of the requests the grants come in the order of the admissions
    # Upserts of one bucket wait for their turn instead of aborting each other (docs/decisions/0045).
    where POLICY is first-intent | first-committer
    where EARLY is True | False
    where ORDER is request A; request B; request C | request A; request C; request B | request B; request A; request C
    | request B; request C; request A | request C; request A; request B | request C; request B; request A
    world policy=POLICY early_detection=EARLY
    intent A ordered; intent B ordered; intent C ordered; lock; touch A p/bucket-0; touch B p/bucket-0; touch C p/bucket-0; ORDER
    → A is granted, no abort
    complete A → granted B, no abort
    complete B → granted C, no abort

disjoint buckets are granted in the order of the requests
    intent A ordered; intent B ordered; lock; touch A p/bucket-0; touch B p/bucket-1
    request B → granted B

the next one is granted when the first is open for too long
    # Its heartbeats continue while its work hangs.
    world max_transaction=60.0
    intent A ordered heartbeat_seconds=100.0; lock; touch A p/f; tick 50; beat A; intent B p/f ordered; request B → no grant
    lock; beat A; tick 11 → aborted A timed-out, granted B

the next one is granted after a commit and after an unknown outcome
    # The commit of an earlier one is no conflict: its rows count as older ones, whenever it lands.
    intent A ordered heartbeat_seconds=100.0; intent B ordered heartbeat_seconds=100.0
    intent C ordered heartbeat_seconds=100.0; lock; touch A p/f; touch B p/f → no abort
    touch C p/f; request A; request B; request C; complete A → granted B
    lock 60; tick 21 → aborted B outcome-unknown, granted C

without early detection a late transaction is aborted before its grant
    world early_detection=False
    intent A ordered; intent B ordered; lock; touch B p/f; commits B; touch A p/f → no abort
    request A → aborted A conflict

a granted transaction that touches more aborts only earlier ones
    intent A ordered; intent B ordered; intent C ordered; lock; touch A p/f; touch C p/f; request B → granted B
    touch B p/f → aborted A conflict
    complete B; request C → granted C

a larger priority passes and the earlier transaction loses
    # Otherwise the one with the larger priority would wait for the other.
    intent A ordered; touch A p/f; intent B ordered priority=1; touch B p/f → aborted A conflict

a smaller priority waits for its turn
    intent A ordered; lock; touch A p/f; intent B ordered priority=-100; touch B p/f → no abort
    request B → no abort, no grant
    request A → granted A

a larger priority does not pass a granted transaction
    intent A ordered; lock; touch A p/f; request A; intent B ordered priority=1; touch B p/f → no abort
    request B → no grant
    complete A → granted B

a protected transaction that a larger priority can not pass holds it in the queue
    # The later one is aborted once, and its retry waits for its admission.
    world max_losses=1
    intent A ordered; touch A p/f; intent B ordered priority=1; touch B p/f; abandon B
    intent A2 ordered writer=w-A; touch A2 p/f; intent B2 ordered priority=1; touch B2 p/f → aborted B2 conflict
    intent B3 p/f ordered priority=1 queued → no admission, B3 is queued
    abandon A2 → admitted B3

queued transactions are admitted at once and wait for their grants
    # They compute beside each other: only their commits need an order.
    intent A p/f ordered queued; lock; intent B p/f ordered queued → admitted B
    request B → no grant
    request A → granted A

a replay waits for the same turns
    # The owner dies while B waits for A. The next one grants in the same order.
    intent A ordered; intent B ordered; lock; touch A p/f; touch B p/f; request B; restart; lock → no grant
    request A → granted A
    restart; complete A; lock → granted B

an optimistic intent is admitted at once with its own event as cause
    # The writer waits for this answer before it computes, so a missing agent is noticed then and not at the end.
    intent A → Admitted transaction=A writer=w-A cause=e-0-A cause_offset=0

the next in the queue is admitted in the step that ends the transaction ahead
    # No writer polls: the waiting writer is admitted within milliseconds.
    where END is commits A | intent C priority=9; touch C p/other; touch A p/other | abandon A | tick 10; beat B; tick 10
    intent A priority=-1; lock; touch A p/f; intent B p/f queued → nothing, B is queued
    END → admitted B, B is active

the queue is served in the order of the log
    # Three retries on one partition start one after the other, in the order of their intents.
    intent A; touch A p/f; intent B p/f queued; intent C p/f queued; intent D p/f queued; abandon A → admitted B
    abandon B → admitted C
    abandon C → admitted D

a protected writer without scope gets the partitions in which it lost reserved
    # Without markers it could not be protected from commits that land before its first marker.
    world max_losses=1
    intent A; touch A p/f; intent S0 writer=slow; touch S0 q/x:delete p/f:delete → aborted S0 conflict
    intent S1 writer=slow → reserved q/*:delete p/*:delete, aborted A conflict
    intent B; touch B q/new → aborted B conflict
    intent C; touch C elsewhere/f → no abort

nothing is reserved before max_losses or for a declared scope
    # A declared scope is sufficient, and protection begins at `max_losses`.
    world max_losses=2
    intent A; touch A p/f; intent S0 writer=slow; touch S0 p/f; intent S1 writer=slow → reserved
    touch S1 p/f; intent S2 r/f writer=slow → reserved

the reservation covers all losses since the last commit
    # The partitions of the latest loss come first. A commit ends the series.
    world max_losses=2
    lock; intent A; touch A p/f q/f; intent S0 writer=slow; touch S0 p/f; intent S1 writer=slow; touch S1 q/f; abandon A
    intent S2 writer=slow → reserved q/* p/*
    lock; commits S2; intent S3 writer=slow → reserved

a star blocks the queue for its partition
    # A partition overwrite waits for the updates in the partition, and they wait for it.
    where PAIR is intent A; touch A p/*; intent B p/f queued | intent A; touch A p/f; intent B p/* queued
    | intent A; touch A p/*; intent B p/* queued
    PAIR → no admission
    abandon A → admitted B

a batch in the ledger is skipped
    # A streaming query restarts from its checkpoint and replays its last micro-batch.
    lock; intent A batch_id=7 writer=w; lock; request A; complete A version=snapshot-12; intent A2 batch_id=7 writer=w
    → AlreadyCommitted transaction=A2 committed_transaction=A version=snapshot-12, no admission, A2 is committed, A2 is gone

smaller batch ids of the writer are skipped too
    # The batch ids of a streaming query rise.
    where SMALLER is 6 | 7
    intent A batch_id=7 writer=w; lock; request A; complete A; intent B writer=w batch_id=SMALLER → AlreadyCommitted

larger batch ids are not skipped
    # A query without batch ids is never skipped.
    where LARGER is 8 | None
    intent A batch_id=7 writer=w; lock; request A; complete A; intent B writer=w batch_id=LARGER → no AlreadyCommitted

a restarted writer supersedes its older transaction
    # The driver was killed and restarted before its heartbeats were missed.
    intent A writer=w; touch A p/f; intent A2 writer=w → Abort transaction=A reason=superseded retriable=False, A is aborted
    touch A2 p/f → A2 is active

a restarted writer waits while its older transaction is granted
    # The old process may still be publishing. Both together could write the batch twice.
    intent A writer=w batch_id=1; lock; touch A p/f; request A; intent A2 writer=w batch_id=1
    → aborted A superseded, no admission, A is granted
    complete A version=v9 → AlreadyCommitted committed_transaction=A

a batch whose completion arrives late is not granted again
    # The grant lapsed and the writer repeated the batch. Then the old process's completion arrives: G6.
    intent A writer=w batch_id=1; lock; touch A p/f; request A; tick 21 → aborted A outcome-unknown
    intent A2 writer=w batch_id=1 → admitted A2
    complete A → Abort transaction=A2 reason=superseded retriable=True
    lock; request A2 → no grant
    intent A3 writer=w batch_id=1 → AlreadyCommitted committed_transaction=A

a queued repeat of a batch is answered when the late completion arrives
    # Not only at the next periodic check: a replay would answer at once.
    intent A writer=w batch_id=1; lock; touch A p/f; request A; tick 21 → aborted A outcome-unknown
    intent B; touch B p/f; intent A2 p/f writer=w batch_id=1 queued → no admission, A2 is queued
    complete A → AlreadyCommitted transaction=A2 committed_transaction=A, A2 is gone

a transaction beyond max_open is refused and may be retried
    # A misconfigured job opens transactions endlessly. The agent's memory stays bounded.
    world max_open=2
    intent A; intent B; intent C → Abort transaction=C reason=not-allowed retriable=True detail~'2 transactions'
    abandon A; intent D → admitted D

a transaction beyond max_markers is aborted without retry
    # A retry would publish as many markers.
    world max_markers=3
    intent A; touch A p/0 p/1 p/2 → no abort
    touch A p/3 → Abort reason=not-allowed retriable=False, index is empty

repeated markers do not count towards max_markers
    # Speculative tasks publish them again.
    world max_markers=3
    intent A; touch A p/1 p/2 p/3:append; touch A p/1 p/2 p/3:append → no abort

an intent that names another lock is refused and changes nothing else
    # Neither the place of the lock, nor the writer's own older transaction, nor a later intent.
    where LOCK is s3://lake/warehouse/air.db/OTHER/snapshot/snapshot-43 | s3://lake/orders/..%2f | s3://lake/orders/../x
    | s3://lake/locks/orders.json | .. | s3://[/x | \x01
    where PLACE is s3://lake/orders/.hoodie/.locks/table_lock.json
    locate_lock PLACE; intent A; lock; intent B writer=w-A lock=LOCK
    → Abort transaction=B reason=not-allowed retriable=False detail~LOCK detail~PLACE, warned lock.another-named of B
    → no admission, no lock, A is active, state.lock_location=PLACE, state.lock.owner=agent-1
    intent C; request C → granted C

an intent that names no lock or the table's own is admitted
    # Those who named Hudi's lock for their Hudi tables keep working.
    where LOCK is None | s3://lake/locks/orders.json | s3a://lake/locks/orders.json
    locate_lock s3://lake/locks/orders.json; intent A lock=LOCK → admitted A, no abort

while the place of the lock is unknown intents are admitted and judged when it is known
    # A store that is down delays the lock, and no admission.
    intent A lock=s3://lake/other.json; intent B lock=s3://lake/locks/orders.json; intent C → admitted C, no abort
    locate_lock s3://lake/locks/orders.json → Abort transaction=A detail~s3://lake/other.json

a granted transaction is not aborted for the lock that it names
    # It may be publishing. The grant was decided under another place of the lock.
    intent A lock=s3://lake/other.json; lock; request A → granted A
    locate_lock s3://lake/locks/orders.json → no abort

an intent that a replay left unanswered is judged by the lock that it names
    # The agent died between the intent and its abort. The next one knows the place from its configuration.
    intent A; touch A p/f; intent Z p/f queued lock=s3://lake/other.json → no admission
    restart s3://lake/locks/orders.json → aborted Z not-allowed

the lock is released when the last open transaction named another
    intent A lock=s3://lake/other.json; locate_lock s3://lake/locks/orders.json → ReleaseLock

an admission names the transaction that blocked it last
    # Of two that blocked it, the one that ended last. One that didn't wait names none.
    intent A p/f → Admitted freed_by=None
    intent B q/f; intent W p/f q/f queued → no admission
    abandon B; abandon A → Admitted transaction=W freed_by=A
    restart; intent X p/f queued; abandon W → Admitted transaction=X freed_by=W

an admission after a take-over names what blocked it since
    intent A p/f; intent W p/f queued; restart; abandon A → Admitted transaction=W freed_by=A

one that is protected by its wait is looked at again
    # B2 would come before it, and waits for C.
    world max_losses=1
    intent C r/f; intent A0 p/f; intent W p/f queued priority=-1; intent A1 p/f q/f queued
    intent B2 p/f r/f queued → no admission
    abandon A0 → admitted A1
    abandon A1 → admitted W

those behind a writer are looked at again when its losses are forgotten
    # Its completion names no batch, so the ledger says nothing about it.
    world max_losses=1
    intent A; touch A p/f; intent S0 writer=slow; touch S0 p/f; abandon A; intent X r/f; touch X r/f
    lock; intent S1 writer=slow; touch S1 p/f; request S1 → granted S1
    intent S2 r/f q/f priority=-1 queued writer=slow; intent B q/f queued → no admission
    complete S1 → admitted B

an earlier transaction overtakes nothing
    world max_losses=1
    lock; intent A p/f; intent B q/f; intent waits p/f q/f queued priority=-1; abandon A → waits overtaken=0

each admission has a turn after those that are open
    # Writers that read one base number their rows by it. When none is open, the turns begin again.
    intent A ordered → Admitted turn=0
    intent B ordered → Admitted turn=1
    intent C → Admitted turn=None
    abandon A; intent D ordered → Admitted turn=2
    abandon B; abandon D; intent E ordered → Admitted turn=0

the next one is granted when the first has ended without a commit
    where END is abandon A | lock 60; tick 10; beat B; tick 10 | request_abort A | intent A2 writer=w-A ordered
    intent A ordered; intent B ordered; lock; touch A p/bucket-0; touch B p/bucket-0; request B → no grant, no abort
    END → granted B

a transaction that touches a bucket after a later one was granted is late
    # Its rows would count as older ones, so it must be staged again.
    where POLICY is first-intent | first-committer
    where MOMENT is beat B | complete B
    world policy=POLICY
    intent A ordered heartbeat_seconds=100; intent B ordered heartbeat_seconds=100; lock; touch B p/bucket-0
    request B → granted B
    MOMENT; touch A p/bucket-0 → aborted A conflict

a transaction that touches a bucket after the grant of a later one has lapsed is late
    where POLICY is first-intent | first-committer
    world policy=POLICY
    intent A ordered heartbeat_seconds=100; intent B ordered heartbeat_seconds=100; lock; touch B p/bucket-0
    request B → granted B
    lock 60; tick 21; touch A p/bucket-0 → aborted A outcome-unknown

with another rule the stricter one applies
    where RULE is file-group | deleted-file
    intent A RULE; intent B ordered; touch A p/bucket-0; touch B p/bucket-0 → aborted B conflict

a deleted file conflicts as under deleted-file
    # Rows that were computed from a file are no upsert: no order makes them right.
    where OPERATION is merge | delete
    intent A ordered; intent B ordered; touch A p/f:delete; touch B p/f:OPERATION → aborted B conflict

the lock is not held for a transaction that waits for its turn
    # With `per-commit`, foreign writers acquire the lock between two grants, also while a first transaction computes.
    world hold=per-commit
    intent A ordered; intent B ordered; lock; touch A p/bucket-0; touch B p/bucket-0; request B → state.lock_requested=False
    request A → state.lock_requested=True
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_the_queue_and_the_turns(story: Story) -> None:
    story.play()


@pytest.mark.parametrize("length, kept", [(10, MAX_LOST_ON), (1_024, MAX_LOST_ON_CHARACTERS // 1_024)])
def test_the_partitions_kept_of_losses_fit_into_a_record(length: int, kept: int) -> None:
    """Bounded in number and in total length."""
    places = [m(f"{n:0{length}}/f") for n in range(MAX_LOST_ON + 50)]
    w = world(max_losses=1).intent("A").touch("A", *places)

    w.intent("S0", writer="slow").touch("S0", *places, writer="slow")

    assert (
        len(w.one(ConflictsLost).lost_on) == len(w.intent("S1", writer="slow").one(Admitted).reserved) == kept
    )


@pytest.mark.parametrize("outcome", ["commits", "abandons"])
@pytest.mark.parametrize("admission", ["queued", "optimistic"])
def test_a_smaller_priority_waits_for_at_most_max_losses_later_transactions(
    admission: str, outcome: str
) -> None:
    """Two writers whose micro-batches overlap in time kept a backfill waiting for ever."""
    w = world(max_losses=2).intent("T0", m("p/f"), admission=admission).lock(10_000.0)
    w.intent("backfill", m("p/f"), admission="queued", priority=-10)
    overtaken = 0
    for number in range(1, 20):
        w.intent(f"T{number}", m("p/f"), admission="queued")
        if outcome == "abandons":
            w.abandon(f"T{number - 1}")
        else:
            w.commits(f"T{number - 1}")
        if w.phase("backfill") is not Phase.QUEUED:
            break
        overtaken += w.phase(f"T{number}") is not Phase.QUEUED

    assert overtaken == 2
    assert w.rebuilt().state.transactions["backfill"].overtaken == 2


@pytest.mark.parametrize("fields", [{"admission": "queued"}, {"conflict_rule": "ordered"}], ids=str)
def test_an_event_that_changes_nothing_for_others_costs_the_same_however_many_are_open(
    fields: dict[str, Any],
) -> None:
    """Each event visited each open transaction, and for each of them its pairs."""

    def events(w: World) -> None:
        w.beat("Q1")
        w.touch("D", m("q/f"))
        w.intent("last", m("p/f"), **fields)
        w.lock()

    assert _calls(events, 200, fields) <= _calls(events, 10, fields) + 5
    checks = [_calls(World.tick, others, fields) for others in (100, 200, 300)]
    assert checks[2] - checks[1] <= checks[1] - checks[0] + 5
    replays = [_calls(World.replayed, others, fields) for others in (100, 200)]
    assert fields == {"conflict_rule": "ordered"} or replays[1] <= 2 * replays[0]


@pytest.mark.parametrize("crowd", ["p/f", "p/*", "*/*"])
@pytest.mark.parametrize("place", ["p/f", "p/*", "*/*"])
def test_an_intent_meets_a_crowd_at_one_place_at_once(place: str, crowd: str) -> None:
    """A `*` entered each of a thousand for itself, and looked for it among all of its place: 7 ms for one intent."""

    def joins(w: World) -> None:
        w.intent("last", m(place), admission="queued")

    few, many = (_calls(joins, others, {"admission": "queued"}, crowd) for others in (100, 200))
    assert many - few <= 3 * 100


def _calls(act: Callable[[World], object], others: int, fields: dict[str, Any], place: str = "p/f") -> int:
    """How many functions are called beside so many others that share a place."""
    w = world().lock().intent("D", m(place), **fields)
    for number in range(others):
        w.intent(f"Q{number}", m(place), **fields)
    w = w.rebuilt() if act is World.replayed else w
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        act(w)
    finally:
        sys.setprofile(None)
    return counted
