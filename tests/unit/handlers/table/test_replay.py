"""An agent that restarts, or takes a partition over, rebuilds the state from the log and the ledger."""

from __future__ import annotations

import pytest

from lakewarden.events import (
    Abort,
    Admitted,
    BatchCommitted,
    CommitRequested,
    ConflictsLost,
    LedgerRecord,
    Marker,
)
from lakewarden.handlers.table.ledger import CommittedBatch, LedgerEntries, losses_entry
from lakewarden.handlers.table.machine import (
    EntryTaken,
    Tick,
    repeat_entry,
    replay_event,
    restore,
    step,
    take_entry,
)
from lakewarden.handlers.table.replay import MAX_POSITIONS, CheckpointPositions, Position
from lakewarden.handlers.table.state import MAX_CLOSED
from lakewarden.handlers.table.transactions import Phase
from tests.unit.events.building import made, partition_taken
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import World, batch_entry, ledger_of, m, world

STORIES = """

a verdict missing after a crash is decided after the replay
    # The agent died after it had read the marker and before it published the abort.
    intent A; intent B; touch A p/f; touch B p/f → aborted B conflict
    crash → aborted B conflict, reported B to A

during a replay nothing is decided
    # Two agents that both read the log must not both answer it.
    intent A; touch A p/f; intent B; read_the_events → A is queued

after a replay no transaction is aborted for one that is aborted with it
    # B has the larger priority than A, and had lost to K's commit when the agent died. A must not lose to B.
    intent A; intent K; intent B priority=1; touch A p/ab; touch K p/kb; lock; commits K
    touch B p/ab p/kb → aborted B conflict
    crash → aborted B conflict

intents published while no agent ran are answered after the replay
    # All agents were down for a minute.
    intent A; touch A p/f; intent B p/f queued; outage → admitted A, B is queued

a writer that restarted while no agent ran supersedes its older transaction
    # Otherwise the new transaction would lose to its own dead predecessor for fifteen seconds.
    intent A writer=w; touch A p/f; intent A2 p/f writer=w; crash → aborted A superseded, admitted A2

a batch committed while no agent ran is not granted again
    # The replay read the completion, and a second attempt at the batch is open.
    intent A writer=w batch_id=1; lock; request A; tick 21; intent A2 writer=w batch_id=1; complete A; crash
    → aborted A2 superseded

the owner of an adopted lock is published
    # The agent is killed twice during one grant: the third agent must recognise the lock that it finds.
    intent A; lock; request A; restart
    lock owner=agent-2 quiet=10.0 → GrantRenewed lock_owner=agent-2, A grant.deadline≈1025
    lock owner=agent-2 quiet=5.0 → no renewal
    restart → AcquireLock adopt=agent-2

publishing the new lock owner does not extend the grant
    # The writer has sent heartbeats since. Counted from one of them, the rest of the lease would reach too far.
    intent A; lock left=20.0; request A → CommitGranted seq=1 lease_seconds≈20
    beat A; beat A; restart; lock owner=agent-2 quiet=10.0 → GrantRenewed seq=1 lease_seconds≈20

a commit resets the losses in the ledger
    # Only losses in a row count.
    intent A; touch A p/f; intent B writer=w-B; touch B p/f; abandon A; intent B2 writer=w-B; lock; request B2; complete B2
    → ConflictsLost writer=w-B losses=0 lost_on=(), losses is empty

a completion after a lapse counts across a restart
    # Its outcome was unknown, and the agent restarted meanwhile. The batch must not be written twice (G6). Nothing else is
    # open, and the checkpoint holds its intent.
    intent gone writer=w-A batch_id=7; lock; request gone; tick 21 → aborted gone outcome-unknown, gone is gone, needs 0
    restart; complete gone version=v7 → recorded gone w-A 7 v7
    intent again writer=w-A batch_id=7 → AlreadyCommitted committed_transaction=gone, needs None

the checkpoint does not hold the intent of a lapsed transaction for ever
    # Its driver is dead, and the replay must not grow from day to day.
    intent gone; lock; request gone; tick 21; wait 600 → needs 0
    wait 1 → needs None

an abandonment after a lapse lets the checkpoint go
    intent gone; lock; request gone; tick 21; intent B; request B; abandon gone → needs 2

a replay starts at the oldest intent that is needed
    # The committed offset covers the open transactions and what they may still conflict with.
    intent x; abandon x; intent A; lock; touch A p/f → needs 2, busy
    intent B; commits A → needs 2, busy
    abandon B → needs None, idle

a request of an unknown transaction is answered once
    # Its intent was removed, or is older than the checkpoint, and no agent ran. Its writer would wait for its own timeout.
    request gone; outage → Abort transaction=gone reason=unknown-transaction retriable=True cause=e-0-gone
    restart → no abort

a request that was answered is not answered again
    # The answer of a live agent stands, also where its reason is another one.
    intent A; intent B; touch A p/f; touch B p/f; request B → aborted B conflict
    replay_last 2 → no abort

an admission is no answer to a request
    # The log has lost the intent, and the replay reads the admission after the request.
    intent A; request A; swap_last_two → aborted A unknown-transaction

a writer that has ended its unknown transaction needs no answer
    where END is abandon gone | complete gone
    request gone; END; outage → no abort
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_a_restart(story: Story) -> None:
    story.play()


def test_losses_in_ledger_and_log_are_not_counted_twice() -> None:
    """The ledger is newer than the start of the replay."""
    w = world().intent("A").touch("A", m("p/f"))
    for attempt in range(2):
        w.intent(f"B{attempt}", writer="w-B").touch(f"B{attempt}", m("p/f"), writer="w-B")
    fresh = World(w.settings, now=w.now, offset=w.offset)
    restore_losses(fresh, "w-B", 2, (m("p/*"),))
    for each in w.log:
        fresh.replay(each)

    assert fresh.state.losses == {"w-B": 2}
    assert fresh.state.lost_on == w.state.lost_on


def test_losses_that_a_replaced_agent_records_after_the_take_over_do_not_count() -> None:
    """Found by the storm test: an agent suspended before it sent its entry sends it later, after those of the owner."""
    earlier, owners, replaced = (
        _losses(losses, term) for losses, term in ((1, "old"), (2, "new"), (3, "old"))
    )
    taken_over = partition_taken("new")

    assert _in_force([earlier, taken_over, owners, replaced]) == (2, True)
    assert _in_force([earlier, taken_over, replaced, owners]) == (2, False)
    assert _in_force([earlier, taken_over, replaced]) == (1, True)
    assert _in_force([earlier, taken_over]) == (1, False), "the former owner's entries still count"


def test_losses_count_where_the_ledger_has_no_take_over_before_them() -> None:
    """Compaction keeps one `partition-taken` only, and agents of earlier releases recorded none."""
    earlier, later = _losses(1, "older"), _losses(2, "old")

    assert _in_force([earlier, later, partition_taken("new")]) == (2, False)


def test_a_writer_of_whose_losses_none_counts_has_lost_nothing() -> None:
    """Found by the simulation, seeds 1602 and 702268: the only entry is one of a replaced agent."""
    assert _in_force([partition_taken("new"), _losses(1, "old", "T")]) == (0, True)


def restore_losses(w: World, writer: str, losses: int, lost_on: tuple[Marker, ...]) -> None:
    entries = LedgerEntries(w.state.ledger)
    entries.keep_losses(writer, losses, lost_on)
    restore(w.state, entries)


def _in_force(records: list[LedgerRecord]) -> tuple[int, bool]:
    """The losses in force of the only writer, and whether they must be recorded again."""
    ledger = ledger_of(*records)
    found = [losses for entries in ledger.tables.values() for _, losses, _ in entries.losses()]
    return (found[0] if found else 0), bool(ledger.to_repeat)


def test_another_agents_entry_makes_the_owner_record_its_own_again() -> None:
    """Compaction keeps the last entry of a key, which would then be one that does not count."""
    w = world()
    w.state.ledger["w"] = CommittedBatch(7, "T", None)
    restore_losses(w, "v", 2, (m("p/*"),))

    take_entry(w.state, _batch(6))
    take_entry(w.state, _losses(1, "old").model_copy(update={"writer": "v"}))

    effects = step(w.state, Tick(w.now, w.offset, None))
    assert [each for each in effects if isinstance(each, BatchCommitted | ConflictsLost)] == [
        batch_entry("T", "w", 7),
        losses_entry(w.state.uri, "v", 2, (m("p/*"),)),
    ]


@pytest.mark.parametrize("known", [None, 6, 7])
def test_another_agents_batch_that_is_not_smaller_counts_and_is_not_recorded_again(known: int | None) -> None:
    """Found by the simulation, seed 2008084: the ledger was lost, and its former owner recorded it after this one read it."""
    w = world().intent("A", batch_id=7)
    if known is not None:
        w.state.ledger["w-A"] = CommittedBatch(known, "T", None)

    take_entry(w.state, _batch(7).model_copy(update={"writer": "w-A"}))

    assert w.apply(EntryTaken(w.now, w.offset, "w-A")).aborted == {"A": "superseded"}
    assert w.state.ledger["w-A"].batch_id == 7
    assert not [each for each in w.effects if isinstance(each, BatchCommitted)]


def test_the_largest_batch_in_the_ledger_counts_whichever_agent_recorded_it() -> None:
    """The commit is a fact, even if the agent that read its completion no longer owned the partition."""
    ledger = ledger_of(partition_taken("new"), _batch(7), _batch(6))

    assert ledger.tables["s3://lake/t"].batches == {"w": CommittedBatch(7, "T", None)}
    assert list(ledger.to_repeat) == [("batch-committed", "s3://lake/t", "w")]


@pytest.mark.parametrize("repeated", [True, False])
def test_an_entry_that_counts_but_is_not_the_last_is_recorded_again(repeated: bool) -> None:
    """Compaction would keep the other one."""
    w = world()
    w.state.ledger["w-A"] = CommittedBatch(7, "old", "v7")
    lost = losses_entry(w.state.uri, "w-B", 2, (m("p/*"),))
    restore_losses(w, "w-B", 2, (m("p/*"),))
    if repeated:
        repeat_entry(w.state, "batch-committed", "w-A")
        repeat_entry(w.state, "conflicts-lost", "w-B")

    w.replayed()

    assert w.of(BatchCommitted) == [batch_entry("old", "w-A", 7, "v7")] * repeated
    assert w.of(ConflictsLost) == [lost] * repeated


def _batch(batch_id: int) -> BatchCommitted:
    return made(BatchCommitted, table="s3://lake/t", batch_id=batch_id)


def _losses(losses: int, term: str, transaction: str = "") -> ConflictsLost:
    return made(ConflictsLost, table="s3://lake/t", transaction=transaction, losses=losses, term=term)


@pytest.mark.parametrize("intents", [10, 3 * MAX_POSITIONS])
def test_the_positions_of_a_checkpoint_that_does_not_move_are_bounded_and_stay_valid(intents: int) -> None:
    """A table is stopped, or a transaction stays open: 50 intents a second were 0.6 GB a day."""
    positions = CheckpointPositions()
    for offset in range(intents):
        positions.on_intent(2 * offset, Position(offset, "term"))

    assert len(positions._by_intent) <= MAX_POSITIONS
    end = Position(10**9, "term")
    for offset in range(0, intents, max(1, intents // 10)):
        assert 0 <= offset - positions.at(2 * offset, end).offset <= 8
    assert positions.at(2 * intents, end) == end
    assert not positions._by_intent


# After a replay, the agent decides the intents that a crash left unanswered as if it had read them one by one.


def aborts(w: World) -> dict[str, str]:
    return {each.transaction: each.reason for each in w.log if isinstance(each, Abort)}


def opened(w: World) -> set[str]:
    return {each.id for each in w.state.open()}


@pytest.mark.parametrize(
    "writers",
    ["abcdef", "aabbcc", "abcabc", "aaaaaa", "abcdefabcdef", "abc", "abcaaaadddd", "abcda", "abcdefghad"],
)
def test_the_answers_are_those_of_an_agent_that_did_not_crash(writers: str) -> None:
    """The agent died with a backlog. `max_open` and restarted writers are judged in the order of the log."""
    live = world(max_open=3)
    for number, writer in enumerate(writers):
        live.intent(f"t{number}", writer=writer)

    replayed = live.read_the_events().replayed()

    assert aborts(replayed) == aborts(live)
    assert opened(replayed) == opened(live)
    assert len(opened(live)) <= 3


def test_a_reservation_that_a_crash_left_as_the_last_decision_is_part_of_the_footprint() -> None:
    """The agent publishes the admission of a protected writer, and is killed before it publishes the abort that follows."""
    w = world(max_losses=1).intent("A").touch("A", m("p/1")).intent("B", writer="b").touch("B", m("p/1"))
    assert w.aborted == {"B": "conflict"}
    w.intent("B2", writer="b")
    *published, _ = w.log

    assert getattr(published[-1], "reserved", ()) != ()
    assert w.rebuilt(published).replayed().aborted == {"A": "conflict"}


def test_transactions_admitted_before_the_crash_stay_open_with_a_smaller_max_open() -> None:
    """The operator restarts the agent with another configuration."""
    live = world(max_open=4)
    for number in range(4):
        live.intent(f"t{number}")
    admitted = [each for each in live.log if isinstance(each, Admitted)]
    for number in range(4, 6):
        live.intent(f"t{number}")
    w = world(max_open=2)
    for each in live.log:
        if isinstance(each, tuple) or each in admitted:
            w.replay(each)

    w.replayed()

    assert w.aborted == {"t4": "not-allowed", "t5": "not-allowed"}
    assert {each.phase for each in w.state.open()} == {Phase.ACTIVE}


@pytest.mark.parametrize("priorities", [(0, 1), (1, 0), (1, 1), (0, 0), (1, 0, 1, 0)])
def test_a_priority_above_the_limit_is_refused_and_supersedes_nothing(priorities: tuple[int, ...]) -> None:
    """Any client may name a priority. Above `max_priority` it would win every conflict."""
    live = world(max_priority=0)
    for number, priority in enumerate(priorities):
        live.intent(f"t{number}", writer="a", priority=priority)

    replayed = live.read_the_events().replayed()

    over = {f"t{number}" for number, priority in enumerate(priorities) if priority == 1}
    for w in (live, replayed):
        refused = [each for each in w.log if isinstance(each, Abort) and each.reason == "not-allowed"]
        assert {each.transaction for each in refused} == over
        assert all("max_priority" in (each.detail or "") and not each.retriable for each in refused)
        allowed = [f"t{number}" for number, priority in enumerate(priorities) if priority == 0]
        assert opened(w) == set(allowed[-1:])


def test_a_repeated_request_of_the_last_committed_transaction_needs_no_answer() -> None:
    """A producer delivered it twice, and the checkpoint is after the commit."""
    w = world().request("done", writer="w")
    [request] = [each for each in w.log if isinstance(each, tuple)]
    rebuilt = world()
    rebuilt.state.ledger["w"] = CommittedBatch(3, "done", None)
    rebuilt.replay(request)

    assert rebuilt.replayed().aborted == {}


def test_the_unknown_requests_of_a_replay_are_bounded() -> None:
    """A client may publish any number of them."""
    flood = world()
    for number in range(MAX_CLOSED + 10):
        event = flood.event(CommitRequested, f"T{number}", seq=1)
        replay_event(flood.state, event, number, 0.0)

    assert len(flood.replayed().aborted) == MAX_CLOSED
