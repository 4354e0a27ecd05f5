"""Published decisions are merged into the replay, and only those of the term in force count."""

from __future__ import annotations

import pytest

from lakewarden.events import Admitted, DecisionRecord
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from tests.unit.events.building import made, partition_taken


def admitted(transaction: str, cause_offset: int, term: str | None = None) -> Admitted:
    return made(
        Admitted,
        event_id=f"d-{transaction}",
        table="s3://lake/t",
        transaction=transaction,
        cause_offset=cause_offset,
        term=term,
    )


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


def test_a_decision_of_before_a_lost_end_is_due_there_at_the_latest() -> None:
    """The offset of its cause belongs to another event by now. Those of after the loss stay where they are."""
    published = decisions(admitted("a", 3), admitted("b", 28), admitted("c", 22))
    published.lost_ends = [(102, 21)]

    assert due_transactions(published, 3) == ["a"]
    assert due_transactions(published, 19) == []
    assert due_transactions(published, 20) == ["b"]
    assert due_transactions(published, 22) == ["c"]


@pytest.mark.parametrize(
    ("records", "term", "due"),
    [
        # The agent was suspended, resumed, and published what it had queued.
        (("taken one", "a one", "taken two", "b one", "c two"), None, ["a", "c"]),
        # The term was committed with the position.
        (("a sleeper", "b one"), "one", ["b"]),
        # The beginning of the log, or a log written before terms existed.
        (("a", "b one"), None, ["a", "b"]),
    ],
    ids=["of a replaced agent", "of another term than the checkpoint's", "no term is known"],
)
def test_only_decisions_of_the_term_in_force_count(
    records: tuple[str, ...], term: str | None, due: list[str]
) -> None:
    made_of = [
        partition_taken(rest) if name == "taken" else admitted(name, 1, rest or None)
        for name, _, rest in (each.partition(" ") for each in records)
    ]

    assert due_transactions(decisions(*made_of, term=term), None) == due


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


def test_the_terms_before_an_owners_own_are_those_whose_locks_it_takes_over() -> None:
    """Not those of owners that took the partition over later, even if one of them had it before, too."""
    published = decisions(
        partition_taken("one"),
        partition_taken("two"),
        partition_taken("one"),
        partition_taken("three"),
        term="zero",
    )

    assert published.terms_before("two") == ("zero", "one")
    assert published.terms_before("three") == ("zero", "one", "two")
    assert published.terms_before("zero") == published.terms_before("unknown") == ()
