"""Published decisions are merged into the replay, and only those of the term in force count."""

from __future__ import annotations

from datetime import UTC, datetime

from lakewarden.events import (
    Admitted,
    CommitGranted,
    DecisionRecord,
    HandedOverLock,
    LocksHandedOver,
    PartitionTaken,
    partition_name,
)
from lakewarden.handlers.table.replay import Position, PublishedDecisions

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def admitted(transaction: str, cause_offset: int, term: str | None = None) -> Admitted:
    return Admitted(
        event_id=f"d-{transaction}",
        table="s3://lake/t",
        transaction=transaction,
        writer="w",
        at=NOW,
        agent="agent",
        cause_offset=cause_offset,
        term=term,
    )


def partition_taken(term: str) -> PartitionTaken:
    return PartitionTaken(event_id=f"t-{term}", table=partition_name(3), at=NOW, agent="agent", term=term)


def decisions(*records: DecisionRecord, term: str | None = None, first: int = 100) -> PublishedDecisions:
    return PublishedDecisions(Position(first, term), list(enumerate(records, first)))


def due_transactions(published: PublishedDecisions, offset: int | None) -> list[str]:
    return [each.transaction for each in published.pop_due(offset)]


def test_a_decision_is_due_after_the_event_at_its_cause_offset() -> None:
    """The decision names its place among the events."""
    published = decisions(admitted("a", 5), admitted("b", 5), admitted("c", 7))

    assert due_transactions(published, 4) == []
    assert due_transactions(published, 5) == ["a", "b"]
    assert due_transactions(published, 6) == []
    assert due_transactions(published, None) == ["c"]


def test_decisions_keep_the_order_of_their_own_topic() -> None:
    """A later decision with a smaller cause offset waits for those before it, as it did when it was made."""
    assert due_transactions(decisions(admitted("a", 9), admitted("b", 2)), 5) == []


def test_decisions_of_a_replaced_agent_do_not_count() -> None:
    """The agent was suspended, resumed, and published what it had queued."""
    published = decisions(
        partition_taken("one"),
        admitted("a", 1, "one"),
        partition_taken("two"),
        admitted("b", 2, "one"),
        admitted("c", 3, "two"),
    )

    assert due_transactions(published, None) == ["a", "c"]


def test_the_term_of_the_checkpoint_is_in_force_from_the_start() -> None:
    """It was committed with the position."""
    published = decisions(admitted("a", 1, "sleeper"), admitted("b", 2, "one"), term="one")

    assert due_transactions(published, None) == ["b"]


def test_without_a_known_term_all_decisions_count() -> None:
    """The beginning of the log, or a log written before terms existed."""
    assert due_transactions(decisions(admitted("a", 1), admitted("b", 2, "one")), None) == ["a", "b"]


def test_the_next_position_has_the_offset_and_term_of_the_next_decision() -> None:
    """It is committed with the offset of an intent."""
    published = decisions(
        partition_taken("one"), admitted("a", 1, "one"), partition_taken("two"), admitted("b", 2, "two")
    )

    assert published.next_position() == Position(101, "one")
    published.pop_due(1)
    assert published.next_position() == Position(103, "two")
    published.pop_due(None)
    assert published.next_position() is None


def handed_over(term: str, owner: str = "lock-1", table: str = "s3://lake/t") -> LocksHandedOver:
    return LocksHandedOver(
        event_id=f"h-{term}",
        table=partition_name(3),
        at=NOW,
        agent="agent",
        term=term,
        locks=(HandedOverLock(table=table, owner=owner),),
    )


def granted(term: str, lock_owner: str, table: str = "s3://lake/t") -> CommitGranted:
    return CommitGranted(
        event_id=f"g-{lock_owner}",
        table=table,
        transaction="T",
        writer="w",
        at=NOW,
        agent="agent",
        cause_offset=1,
        term=term,
        grant="g",
        lease_seconds=20,
        seq=1,
        lock_owner=lock_owner,
    )


def test_an_owner_that_left_in_order_has_handed_its_locks_over() -> None:
    """Its hand-over is before the take-over of the next owner, which reads it."""
    published = decisions(
        partition_taken("one"), granted("one", "lock-1"), handed_over("one"), partition_taken("two")
    )

    assert published.handed_over == {"s3://lake/t": "lock-1"}
    assert len(published) == 1


def test_the_hand_over_of_a_replaced_owner_does_not_count() -> None:
    """The former owner was suspended, and granted after the take-over: a writer may believe it until the lease ends."""
    published = decisions(
        partition_taken("one"), granted("one", "lock-1"), partition_taken("two"), handed_over("one")
    )

    assert published.handed_over == {}


def test_an_owner_that_resumes_relies_on_its_locks_again() -> None:
    """It was paused in a rebalance, kept the partition, and was killed later."""
    published = decisions(
        partition_taken("one"), handed_over("one"), partition_taken("one"), partition_taken("two")
    )

    assert published.handed_over == {}


def test_a_hand_over_outlives_an_owner_that_died_before_it_used_it() -> None:
    """The lock object shows which owner it has; the id is never used again."""
    published = decisions(
        partition_taken("one"), handed_over("one"), partition_taken("two"), partition_taken("three")
    )

    assert published.handed_over == {"s3://lake/t": "lock-1"}


def test_a_later_lock_owner_of_the_table_ends_the_hand_over() -> None:
    """The next owner adopted the lock, published that, and was killed: its own lock was not handed over."""
    published = decisions(
        partition_taken("one"),
        handed_over("one"),
        handed_over("one", "lock-9", "s3://lake/other"),
        partition_taken("two"),
        granted("two", "lock-2"),
        partition_taken("three"),
    )

    assert published.handed_over == {"s3://lake/other": "lock-9"}


def test_a_grant_that_does_not_count_ends_no_hand_over() -> None:
    published = decisions(
        partition_taken("one"), handed_over("one"), partition_taken("two"), granted("one", "lock-1")
    )

    assert published.handed_over == {"s3://lake/t": "lock-1"}


def test_without_a_known_term_no_hand_over_counts() -> None:
    """Its owner may have been replaced before the beginning of what was read."""
    assert decisions(handed_over("one")).handed_over == {}
    assert decisions(handed_over("one"), term="one").handed_over == {"s3://lake/t": "lock-1"}
