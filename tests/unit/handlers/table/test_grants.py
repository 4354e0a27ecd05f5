"""When the agent grants a commit, for how long, and what it does when the lease or the lock ends."""

from __future__ import annotations

from typing import Literal

import pytest

from lakewarden.events import Abort, BatchCommitted, CommitGranted, GrantRenewed
from lakewarden.handlers.table.effects import AcquireLock, ReleaseLock, Warn
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import World, batch_entry, facts, m, world


def granted(hold: Literal["while-active", "per-commit"] = "while-active") -> World:
    """Return a world in which A has a grant of 20 s under a lock of 29.5 s."""
    w = world(hold=hold).intent("A").touch("A", m("p/f")).lock().request("A")
    if hold == "per-commit":
        w.lock()
    assert w.granted == ["A"]
    return w


def test_a_request_is_granted_in_the_same_step() -> None:
    """The agent holds the lock, so the grant needs no store request and takes milliseconds."""
    grant = granted().one(CommitGranted)

    assert (grant.transaction, grant.writer, grant.lock_owner) == ("A", "w-A", "agent-1")
    assert grant.lease_seconds == pytest.approx(20)
    assert grant.cause == "e-2-A"


def test_a_grant_echoes_the_latest_seq_that_was_read() -> None:
    """The writer counts its lease from when it sent that `seq`, whatever the clocks show."""
    w = world().intent("A").lock().beat("A", seq=4).beat("A", seq=9).beat("A", seq=7).request("A", seq=8)

    assert w.one(CommitGranted).seq == 9


def test_a_grant_lasts_no_longer_than_the_lock() -> None:
    """The lock's end has the drift subtracted. A foreign writer takes the lock over only after that."""
    w = world(grant_lease=20.0).intent("A").lock(left=13.0)

    assert w.request("A").one(CommitGranted).lease_seconds == pytest.approx(13.0, abs=0.01)


def test_no_grant_if_less_than_half_of_its_lease_remains() -> None:
    """The lock is about to be renewed. A grant of two seconds would only produce an unknown outcome."""
    w = world(grant_lease=20.0).intent("A").lock(left=9.0).request("A")
    assert w.granted == []

    assert w.lock(left=29.5).granted == ["A"]


def test_no_grant_under_an_expired_lock_lease() -> None:
    """The renewal hangs, and the loss of the lock is not reported yet."""
    w = world().intent("A").lock(left=29.5).beat("A").tick(14).beat("A").tick(14).beat("A").tick(2)

    assert w.request("A").granted == []


def test_no_grant_without_the_lock() -> None:
    """A foreign writer holds it."""
    w = world().intent("A").request("A")
    assert w.granted == []

    assert w.lock().granted == ["A"]


def test_one_grant_at_a_time_in_the_order_of_the_commit_requests() -> None:
    """Not in the order of the intents: the writer that is ready first commits first."""
    w = world().intent("A").intent("B").intent("C").lock()
    assert w.request("C").granted == ["C"]
    assert w.request("A").granted == []
    assert w.request("B").granted == []

    assert w.complete("C").granted == ["A"]
    assert w.complete("A").granted == ["B"]


def test_a_repeated_commit_request_keeps_its_place_in_the_grant_queue() -> None:
    """An impatient writer sends its request again."""
    w = world().intent("A").intent("B").intent("C").lock().request("C").request("A").request("B").request("A")

    assert w.complete("C").granted == ["A"]


@pytest.mark.parametrize("end", ["complete", "abandon", "lapse"])
def test_the_next_grant_follows_in_the_step_that_ends_the_running_one(end: str) -> None:
    """Whether it was completed, abandoned, or has lapsed."""
    w = granted().intent("B").request("B")
    assert w.granted == []

    match end:
        case "complete":
            w.complete("A")
        case "abandon":
            w.abandon("A")
        case _:
            w.beat("B").tick(10).beat("B").lock(left=29.5).tick(10.1)

    assert w.granted == ["B"]


def test_after_an_adoption_no_grant_before_the_former_lease_has_ended() -> None:
    """The former agent may still run, and grant under the lease that it believes to hold."""
    w = world().intent("A").lock(quiet=12.0).request("A")
    assert w.granted == []
    assert w.beat("A").tick(11.9).granted == []

    assert w.tick(0.2).granted == ["A"]


def test_a_heartbeat_extends_a_running_grant() -> None:
    """Publishing many files takes longer than one lease."""
    w = granted()
    w.tick(8).lock(left=29.5)

    w.beat("A", seq=5)

    renewed = w.one(GrantRenewed)
    assert renewed.grant == w.state.transactions["A"].grant.id  # type: ignore[union-attr]
    assert renewed.lease_seconds == pytest.approx(20)
    assert renewed.seq == 5
    assert w.tick(15).aborted == {}
    assert w.tick(6).aborted == {"A": "outcome-unknown"}


def test_a_grant_lapses_only_after_the_agent_has_read_the_log_up_to_its_end() -> None:
    """The check was slow: a completion may be in the log, in time, behind the end that the agent knows."""
    w = granted()

    assert w.tick(20.5, request_age=1.0).aborted == {}
    assert w.tick(0.6, request_age=1.0).aborted == {"A": "outcome-unknown"}


def test_a_heartbeat_extends_no_further_than_the_lock_lease() -> None:
    """The lock is not being renewed, so the grant must end before it."""
    w = granted()
    w.now += 15

    assert w.beat("A").one(GrantRenewed).lease_seconds == pytest.approx(14.5, abs=0.01)
    w.now += 5
    assert w.beat("A").of(GrantRenewed) == []


def test_an_old_heartbeat_extends_nothing() -> None:
    """A repeated or late delivery. The writer counts from when it *sent* the heartbeat."""
    w = granted().beat("A", seq=9)
    w.tick(5).lock()

    assert w.beat("A", seq=9).of(GrantRenewed) == []
    assert w.beat("A", seq=3).of(GrantRenewed) == []


def test_a_lapse_is_published_before_anything_follows_from_it() -> None:
    """The record is the lapse: an agent that restarts reads it and needs no clock to decide it again."""
    w = granted().intent("B").touch("B", m("q/f")).request("B").beat("B").tick(10).beat("B").lock().tick(10.1)

    kinds = [(type(each).__name__, getattr(each, "transaction", None)) for each in w.effects]
    assert kinds[0] == ("Abort", "A")
    assert ("CommitGranted", "B") in kinds[1:]


def test_after_a_lapse_overlapping_transactions_that_began_before_get_outcome_unknown() -> None:
    """A may have committed, so B's base may be outdated. C doesn't overlap A."""
    w = (
        world()
        .intent("A", conflict_rule="deleted-file")
        .intent("B", conflict_rule="deleted-file")
        .intent("C")
    )
    w.touch("A", m("p/f", "delete")).touch("C", m("q/f")).lock().request("A").beat("C").beat("B").tick(14)
    w.beat("B").beat("C").tick(6.1)
    assert w.aborted == {"A": "outcome-unknown"}

    w.touch("B", m("p/f", "delete"))

    assert w.aborted == {"B": "outcome-unknown"}
    assert w.one(Abort).conflicts[0].kind == "commit"
    assert w.phase("C") is Phase.ACTIVE


def test_a_lapse_conflicts_also_with_late_markers_of_the_granted_transaction() -> None:
    """Under `first-committer` late markers abort no transaction, but the possible commit does."""
    w = world(policy="first-committer").intent("A").intent("B").lock().touch("B", m("p/f")).request("A")
    w.touch("A", m("p/f")).tick(14)
    assert w.beat("B").aborted == {}

    w.tick(6.1)

    assert w.aborted == {"A": "outcome-unknown", "B": "outcome-unknown"}


def test_a_transaction_that_begins_after_a_lapse_does_not_conflict() -> None:
    """Its base contains the commit, if there was one."""
    w = granted().intent("keeps-evidence").tick(20.1).intent("B").touch("B", m("p/f"))

    assert w.aborted == {}


def test_a_completion_after_the_lapse_counts_from_the_lapse() -> None:
    """The commit landed before the lease expired; only the report was late."""
    w = granted().intent("early").beat("early").tick(14).beat("early").tick(6.1).intent("late")
    w.touch("late", m("p/f"))

    w.complete("A", version="s-3")

    assert w.aborted == {}
    assert w.phase("A") is Phase.COMMITTED
    assert w.phase("late") is Phase.ACTIVE
    assert w.touch("early", m("p/f")).aborted == {"early": "conflict"}


def test_an_abandonment_after_the_lapse_removes_the_footprint() -> None:
    """The writer read the table back and found no commit, so no other transaction conflicts with it."""
    w = granted().intent("B").beat("B").tick(14).beat("B").tick(6.1)
    assert w.phase("A") is Phase.UNKNOWN

    assert w.abandon("A").touch("B", m("p/f")).aborted == {}


def test_a_lost_lock_aborts_the_granted_transaction_at_once() -> None:
    """With RFC-91 the writer learns nothing of it."""
    w = granted().lose_lock("another owner is in the lock object")

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason) == ("A", "lease-lost")
    assert "another owner" in (abort.detail or "")
    assert w.phase("A") is Phase.GRANTED


def test_after_a_lost_lock_no_grant_before_the_end_of_the_old_one() -> None:
    """The old writer may be publishing, and receive the abort too late."""
    w = granted().intent("B").request("B").lose_lock().lock(left=29.5)
    assert w.granted == []
    w.tick(14).beat("B").tick(5)
    assert w.granted == []

    w.lock(left=29.5).tick(1.5)

    assert w.aborted == {"A": "outcome-unknown"}
    assert w.granted == ["B"]


def test_a_revoked_grant_is_not_extended() -> None:
    """Its writer was aborted. Its heartbeats must not keep the others waiting."""
    w = granted().lose_lock().lock()

    assert w.beat("A").effects == []


def test_a_lost_lease_is_published_once() -> None:
    """The lock's keeper reports a lost lock and then a forbidden one."""
    w = granted().lose_lock().lose_lock()

    assert w.effects == []


def test_a_completion_of_a_revoked_grant_counts() -> None:
    """The abort came after its publish had begun."""
    w = granted().lose_lock().complete("A")

    assert w.phase("A") is Phase.COMMITTED


def test_a_lost_lock_does_not_abort_transactions_that_wait() -> None:
    """The agent acquires it again, or another owner releases it. Waiting costs nothing."""
    w = world().intent("A").request("A").lock(left=1.0).lose_lock()

    assert w.aborted == {}
    assert w.lock().granted == ["A"]


def test_while_active_the_lock_is_held_until_the_last_transaction_has_ended() -> None:
    """Grants in between cost no store request."""
    w = world(hold="while-active").intent("A")
    assert w.of(AcquireLock) == [AcquireLock()]
    assert w.intent("B").lock().effects == []
    assert w.commits("A").of(ReleaseLock) == []

    assert w.abandon("B").effects == [ReleaseLock()]
    assert w.intent("C").of(AcquireLock) == [AcquireLock()]


def test_per_commit_the_lock_is_acquired_for_a_request_and_released_after_the_commit() -> None:
    """Unmodified Hudi writers share the table and must be able to acquire the lock."""
    w = world(hold="per-commit").intent("A")
    assert w.of(AcquireLock) == []
    assert w.request("A").effects == [AcquireLock()]
    assert w.lock().granted == ["A"]

    assert w.complete("A").effects == [ReleaseLock()]


def test_per_commit_the_lock_is_released_between_two_grants() -> None:
    """Our grant queue must not keep a foreign writer waiting for its whole length."""
    w = world(hold="per-commit").intent("A").intent("B").request("A").request("B").lock()
    assert w.granted == ["A"]

    w.complete("A")

    assert w.effects == [ReleaseLock(), AcquireLock()]
    assert w.granted == []
    assert w.lock().granted == ["B"]


def test_a_confirmation_of_a_released_lock_is_ignored() -> None:
    """A renewal was under way when the last transaction ended."""
    w = world().intent("A").lock().abandon("A").lock()

    assert w.state.lock is None


def test_a_running_grant_in_the_log_requests_the_adoption_of_its_lock() -> None:
    """The agent was killed during a grant. Its successor takes over the lock that covers it."""
    w = granted().rebuilt().replayed()

    assert w.effects == [AcquireLock(adopt="agent-1")]


def granted_waiting_and_queued() -> World:
    """A is granted, B waits for its grant, and C is queued."""
    return granted().intent("B").intent("C", m("p/f"), admission="queued").request("B")


def aborts_of(w: World) -> dict[str, tuple[str, bool, str | None]]:
    """Reason, whether it is retriable, and detail of each abort, by transaction."""
    return {each.transaction: (each.reason, each.retriable, each.detail) for each in w.of(Abort)}


def test_a_forbidden_lock_aborts_all_open_transactions() -> None:
    """The object is no lock, or the store ignores conditions. Only an operator can change that."""
    w = granted_waiting_and_queued().forbid_lock("a text file")

    aborts = aborts_of(w)
    assert aborts["B"] == aborts["C"] == ("not-allowed", False, "a text file")
    assert aborts["A"][0] == "lease-lost"


def test_a_withheld_lock_aborts_the_transactions_that_wait_and_they_may_retry() -> None:
    """The store refuses for minutes. The granted transaction has its own lease, which the lock's keeper ends separately."""
    w = granted_waiting_and_queued().withhold_lock("lock s3://b/l: 403 ExpiredToken")

    assert aborts_of(w) == dict.fromkeys("BC", ("lock-refused", True, "lock s3://b/l: 403 ExpiredToken"))


def test_a_commit_with_a_batch_id_is_recorded_in_the_ledger_once() -> None:
    """The compacted topic keeps each writer's last batch beyond the retention of the log."""
    w = world().intent("A", batch_id=4).lock().commits("A", version="s-1")
    assert w.of(BatchCommitted) == [batch_entry("A", "w-A", 4, "s-1")]

    assert w.complete("A", version="s-1").effects == []


def test_a_commit_missing_in_the_ledger_is_recorded_after_the_replay() -> None:
    """The agent died between reading the completion and publishing the ledger's record."""
    w = world().intent("A", batch_id=4).lock().commits("A", version="s-1").rebuilt().replayed()

    assert w.of(BatchCommitted) == [batch_entry("A", "w-A", 4, "s-1")]


def test_a_completion_without_a_grant_is_reported_and_changes_nothing() -> None:
    """A writer violates the protocol, or another client uses its names."""
    w = world().intent("A", batch_id=4).touch("A", m("p/f")).intent("B")
    before = facts(w.state)

    w.complete("A")

    assert [each.event for each in w.of(Warn)] == ["commit-without-grant"]
    assert facts(w.state) == before
    assert w.touch("B", m("p/f")).aborted == {"B": "conflict"}, "A is still open"


def test_a_completion_after_an_abort_is_logged() -> None:
    """An aborted writer reports that it has committed: operators must learn of it."""
    w = world().intent("A").intent("B").touch("A", m("p/f")).touch("B", m("p/f")).complete("B")

    assert [(each.event, each.transaction) for each in w.of(Warn)] == [("commit-without-grant", "B")]
    assert w.phase("B") is Phase.ABORTED


def test_a_publish_that_hangs_does_not_own_the_table() -> None:
    """Heartbeats come from a thread of their own, so they continue while the publish hangs on a socket without timeout."""
    w = world(max_grant=600.0).intent("A").intent("B").lock().request("A").request("B")
    assert w.phase("A") is Phase.GRANTED
    began = w.now
    while w.now - began < 599:
        w.now += 5
        w.lock().beat("A").beat("B").tick(0.0)
        assert w.aborted == {}
    renewed = w.now

    while not w.aborted:
        w.now += 5
        w.lock().beat("A")
        assert w.of(GrantRenewed) == []
        w.beat("B").tick(0.0)

    assert w.now - renewed <= 30
    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A", "outcome-unknown", True)
    assert "not extended beyond 600 s, the limit of max_grant_seconds" in (abort.detail or "")
    assert w.granted == ["B"]
    assert facts(w.rebuilt().state) == facts(w.state), "the lapse is in the log, and a replay needs no clock"


def test_a_grant_that_ends_for_its_age_may_still_be_reported() -> None:
    """The publish came through after all: the same as after any lapse."""
    w = world(max_grant=30.0).intent("A", batch_id=4).lock().request("A").tick(15).lock().beat("A").tick(15)
    w.lock().beat("A").tick(5.1)
    assert w.aborted == {"A": "outcome-unknown"}

    assert w.complete("A").of(BatchCommitted) == [batch_entry("A", "w-A", 4, None)]
    assert w.phase("A") is Phase.COMMITTED
