"""When the agent finds a conflict, which transaction it aborts, and what the abort contains. Names, stars: `test_rfc56.py`."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import m, world

STORIES = """
under deleted file an append does not conflict with appends committed since it began
    # Snapshots were committed while a slow append computed. Its snapshot id is outdated, its files are not.
    intent slow deleted-file; lock; intent A deleted-file; touch A p/b:append; commits A
    intent B deleted-file; touch B p/b:append; commits B → no abort
    touch slow p/b:append → no abort
    request slow → granted slow

under deleted file append-only writers never conflict in any order of commits
    # Each commit takes the snapshot id that the others expected. They take the next id, each under its own grant. A conflict of
    # snapshots aborts nothing, see https://paimon.apache.org/docs/master/concepts/concurrency-control/; one of files does.
    where OPERATION is create | append
    where ORDER is commits A; commits B; commits C | commits A; commits C; commits B | commits B; commits A; commits C
    | commits B; commits C; commits A | commits C; commits A; commits B | commits C; commits B; commits A
    intent A deleted-file; intent B deleted-file; intent C deleted-file; lock
    touch A p/bucket-0:OPERATION /bucket-1:OPERATION → no abort
    touch B p/bucket-0:OPERATION /bucket-1:OPERATION → no abort
    touch C p/bucket-0:OPERATION /bucket-1:OPERATION → no abort
    ORDER
    → no abort

under deleted file a partition overwrite conflicts with deletes and not with appends
    intent overwrite deleted-file; intent compaction deleted-file; intent append deleted-file; touch overwrite p/*:delete
    touch append p/new:append → no abort
    touch compaction p/old:delete → aborted compaction conflict

a commit before the intent does not conflict
    # B began after A had landed, so A's commit is in the base that B reads.
    intent A; intent keeps-A-as-evidence; lock; touch A p/f; commits A; intent B; touch B p/f → no abort
    commits B → no abort

a commit aborts others on the same file group whatever their priority
    # The granted transaction has the lower priority, but its commit has landed.
    intent A priority=-1; intent B priority=5; lock; request A; touch B p/f; complete A → B is active
    world early_detection=False
    intent A priority=-1; intent B priority=5; lock; touch B p/f; touch A p/f; commits A → no abort
    request B → aborted B conflict

a second operation on the same file group is checked too
    # A Paimon writer appends to a bucket, then deletes a file on which another writer builds.
    intent A deleted-file; intent B deleted-file; touch A p/f; touch B p/f:append → no abort
    touch B p/f:delete → aborted B conflict

an earlier transaction aborts all later ones that it overlaps oldest first
    # A compaction of high priority starts in a partition where several small writers work.
    intent A; intent B; intent C; touch B p/1; touch C p/2
    touch A p/2 p/1 → aborted B conflict and C conflict, reported B to A and C to A

in a chain the last survives because the middle was aborted
    # A < B < C, and B overlaps both. B loses to A, so C has no transaction left to lose to.
    intent A; intent B; intent C; touch A p/ab; touch B p/ab → aborted B conflict
    touch C p/bc → nothing
    lock; commits A → no abort
    commits C → no abort

in a chain read from its end each transaction loses to its predecessor
    # C loses to B, and later B to A: two conflicts, two victims. No pair aborts each other.
    intent A; intent B; intent C; touch C p/bc; touch B p/bc → aborted C conflict
    touch B p/ab; touch A p/ab → aborted B conflict

a granted transaction is never aborted for a conflict
    # Its publish may be under way. Others that overlap it lose, whatever their priority.
    intent A priority=-5; touch A p/f; lock; request A; intent B priority=5; touch B p/f → aborted B conflict
    intent C priority=9; touch C p/g; touch A p/g → aborted C conflict, A is granted

a writer that lost max_losses times wins the next conflict
    # A slow job among fast ones: the fourth time, the others lose.
    world max_losses=3
    intent A; touch A p/f; intent S0 writer=slow; touch S0 p/f → aborted S0 conflict
    intent S1 writer=slow; touch S1 p/f → aborted S1 conflict
    intent S2 writer=slow; touch S2 p/f → aborted S2 conflict
    intent S3 p/f writer=slow → aborted A conflict
    touch S3 p/f → no abort

a commit ends the protection
    # Otherwise a writer that once lost three times would win forever.
    world max_losses=1
    lock; intent A; touch A p/f; intent S0 writer=slow; touch S0 p/f; intent S1 writer=slow → aborted A conflict
    lock; request S1; complete S1; intent B; touch B p/f; intent S2 writer=slow
    touch S2 p/f → aborted S2 conflict

only conflicts count as losses
    # A job that restarts again and again has lost no conflict.
    world max_losses=1
    intent A; touch A p/f; intent S0 writer=s; intent S1 writer=s; touch S1 p/f → aborted S1 conflict

the scope of an optimistic intent counts like markers
    # A writer that knows its partitions declares them first, and learns of the conflict before it computes.
    intent A; touch A p/f; intent B p/f → admitted B, aborted B conflict

a scope that loses aborts only its own transaction
    # A scope is a batch of markers like any other: C must not be aborted for B, which is aborted itself.
    intent A priority=9; touch A p/a; intent C; touch C p/c; intent B p/a p/c priority=5 → aborted B conflict

the scope of a committed batch aborts no other transaction
    # A replayed micro-batch of high priority has no work to do. It must not abort transactions that have.
    intent A writer=w batch_id=1 priority=5; lock; request A; complete A; intent B; touch B p/f
    intent A2 p/f writer=w batch_id=1 priority=5 → no abort, B is active

under first-committer markers abort no transaction
    # The first transaction that is granted wins.
    world policy=first-committer
    intent A; intent B; touch A p/f; touch B p/f → nothing

under first-committer a grant aborts the others
    # B is granted first. A is aborted at that moment, not when it requests its own commit.
    world policy=first-committer
    intent A; intent B; lock; touch A p/f; touch B p/f; request B → granted B, aborted A conflict

under first-committer a protected writer takes precedence over a grant
    # Otherwise a slow writer among fast ones would never be granted.
    world policy=first-committer max_losses=1
    intent S0 writer=slow; intent A; lock; touch S0 p/f; touch A p/f; request A → aborted S0 conflict
    complete A; intent S1 writer=slow; intent B; lock; touch S1 p/f; touch B p/f; request B → aborted B conflict
    request S1 → granted S1

under first-committer a marker on a committed file group aborts
    # The base has changed, so further computing would be wasted.
    world policy=first-committer
    intent A; intent B; lock; touch A p/f; commits A; touch B p/f → aborted B conflict

the markers of a commit request are checked
    # A driver that learns its files only at the end.
    intent A; touch A p/f; intent B; lock; request B p/f → aborted B conflict, no grant

similar partitions in one event stay apart
    # A driver sends its markers sorted, so neighbours differ by one letter.
    intent A; intent B; touch A dt=1/f dt=10/g dt=1/h dt=10/f; touch B dt=1/g dt=10/h dt=100/f → no abort
    touch B dt=10/g → aborted B conflict

a marker between request and grant can lose
    # A late task: its driver requested the commit too early, and would commit a conflict.
    intent A; touch A p/f; intent B; request B; touch B p/f → aborted B conflict
    lock → no grant

a marker between request and grant can win
    # A late task of the earlier transaction.
    intent A; request A; intent B; touch B p/f; touch A p/f → aborted B conflict
    lock → granted A

a marker after the grant aborts others before and after the commit
    # It is part of the commit, so a transaction that touches it after the commit must lose too.
    intent A; lock; request A; intent B; intent C; touch B p/f; touch A p/f p/g → aborted B conflict
    complete A; touch C p/g → aborted C conflict

a marker after the commit is ignored
    # A leftover task of a job that has committed: no commit contains what it writes.
    intent A; intent B; lock; touch A p/f; commits A; touch A p/g; touch B p/g → no abort
    touch B p/f → aborted B conflict

an abandonment of an unknown transaction needs no answer
    # The writer committed nothing and waits for nothing.
    abandon X → nothing

an unknown transaction is aborted once across a restart
    # The abort is in the log.
    beat X; restart; beat X → nothing

an intent with a used transaction id is ignored
    # The id is unique per attempt. A client that uses it again waits for nothing, and finds why among the refused records.
    intent A; abandon A; intent A → warned transaction.repeated of A, A is aborted

a grant that expired during the restart lapses after it
    # Not before a full lease after the replay: the grant may have been extended just before the crash.
    intent A; lock; request A; restart; tick 19 → no abort
    tick 1.5 → aborted A outcome-unknown

the later of two transactions on one file group is aborted when its marker is read
    # Two streaming queries update the same file group. The loser is aborted while it computes.
    intent A; intent B; touch A p/f; touch B p/f:append → Abort transaction=B reason=conflict retriable=True, met A marker f
    → Abort conflicts.0.partition=p conflicts.0.operation=append conflicts.0.other_operation=merge conflicts.0.other_writer=w-A
    → A is active, B is aborted

a conflict report names victim winner file groups and times
    # A row of a dashboard: how early the conflict was found, and how much compute was spent until then.
    intent A; touch A p/f; intent B; wait 7; late_touch B p/f lag=0.25
    → ConflictDetected victim=B winner=A rule=file-group kind=marker detected_after_ms≈250 victim_age_seconds≈7
    → ConflictDetected conflicts.0.file_group=f, met A marker f

a commit since the intent conflicts although its transaction has ended
    # RFC-56, figure 4: A commits before B publishes its first marker. B's base is older than A's commit.
    intent A; intent B; lock; touch A p/f; commits A → no abort
    touch B p/f → aborted B conflict, met A commit f, ConflictDetected kind=commit

a conflict entry names the victim's own file group not the star
    # The victim's writer must recognise the entry: partition, file group and operation are those of its own marker.
    intent A; intent B; touch B p/f:append p/g; touch A p/*:delete → aborted B conflict, met A marker f and A marker g
    → Abort conflicts.0.file_group=f conflicts.0.operation=append conflicts.0.other_operation=delete
    → Abort conflicts.1.file_group=g conflicts.1.operation=merge conflicts.1.other_operation=delete

a batch of markers that loses aborts only its own transaction
    # B overlaps A and C. If C were aborted as well, its conflict with B would have been for nothing.
    intent A; intent B; intent C; touch A p/a; touch C p/c; touch B p/c p/a → aborted B conflict, C is active, met A marker a

one abort lists all conflicts
    # B lost to A on two file groups and to a commit on a third. The retry declares all three as its scope.
    intent K; intent A; intent B; lock; touch K p/k; touch A p/1 p/2; commits K; touch B p/1 p/2 p/k
    → met A marker 1 and A marker 2 and K commit k, reported B to K and B to A

a transaction never conflicts with itself
    # Task retries, speculation and redelivery repeat markers, or touch the same file group with another operation.
    intent A; touch A p/f p/f p/f:delete; touch A p/* p/f → no abort, A markers=2
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_which_transaction_is_aborted(story: Story) -> None:
    story.play()


def test_the_entries_of_an_abort_are_bounded() -> None:
    """Two full rewrites of a partitioned table: the abort must fit into a record."""
    many = [m(f"p/{n}") for n in range(500)]

    w = world().intent("A").touch("A", *many).intent("B").touch("B", *many)

    assert len(w.one(Abort).conflicts) == 100
