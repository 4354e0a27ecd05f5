from __future__ import annotations

from datetime import UTC, datetime

from lakewarden.events import Admitted, DecisionRecord, PartitionTaken, partition_name
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


def taken(term: str) -> PartitionTaken:
    return PartitionTaken(event_id=f"t-{term}", table=partition_name(3), at=NOW, agent="agent", term=term)


def decisions(*records: DecisionRecord, term: str | None = None, first: int = 100) -> PublishedDecisions:
    return PublishedDecisions(Position(first, term), list(enumerate(records, first)))


def named(published: PublishedDecisions, offset: int | None) -> list[str]:
    return [each.transaction for each in published.pop_due(offset)]


def test_a_decision_is_a_fact_after_the_event_that_it_names() -> None:
    """The two logs name each other's places."""
    published = decisions(admitted("a", 5), admitted("b", 5), admitted("c", 7))

    assert named(published, 4) == []
    assert named(published, 5) == ["a", "b"]
    assert named(published, 6) == []
    assert named(published, None) == ["c"]


def test_decisions_keep_the_order_of_their_own_log() -> None:
    """A later one with a smaller cause waits for those before it, as it did when it was made."""
    assert named(decisions(admitted("a", 9), admitted("b", 2)), 5) == []


def test_what_an_agent_says_after_another_has_taken_over_does_not_count() -> None:
    """It slept, woke, and published what it had in its queue."""
    published = decisions(
        taken("one"), admitted("a", 1, "one"), taken("two"), admitted("b", 2, "one"), admitted("c", 3, "two")
    )

    assert named(published, None) == ["a", "c"]


def test_a_term_that_began_before_the_part_that_is_read_is_in_force_in_it() -> None:
    """It was committed with the position."""
    published = decisions(admitted("a", 1, "sleeper"), admitted("b", 2, "one"), term="one")

    assert named(published, None) == ["b"]


def test_where_no_term_is_known_everything_counts() -> None:
    """The log's beginning, or one written before there were terms."""
    assert named(decisions(admitted("a", 1), admitted("b", 2, "one")), None) == ["a", "b"]


def test_the_position_names_the_next_decision_with_the_term_it_stands_under() -> None:
    """What is committed beside the offset of an intent."""
    published = decisions(taken("one"), admitted("a", 1, "one"), taken("two"), admitted("b", 2, "two"))

    assert published.next_position() == Position(101, "one")
    published.pop_due(1)
    assert published.next_position() == Position(103, "two")
    published.pop_due(None)
    assert published.next_position() is None
