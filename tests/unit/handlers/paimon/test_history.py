"""Which batches are in a table, from its retained snapshots."""

from __future__ import annotations

import pytest

from lakewarden.handlers.paimon.history import (
    MAX_WRITERS,
    Batches,
    Committed,
    LastBatch,
    NotCommitted,
    PublishAttempt,
    SnapshotFacts,
    Undecided,
    carried,
    decode,
    encode,
    find,
    resolve,
    with_batch,
)
from lakewarden.handlers.paimon.publish import CommitName

UNNUMBERED = 2**63 - 1


def gate(number: int, writer: str, batch: int, batches: Batches | None = None) -> SnapshotFacts:
    return SnapshotFacts(number, CommitName(writer, batch, f"t{number}"), batches)


def foreign(number: int, user: str = "java", identifier: int = 1) -> SnapshotFacts:
    return SnapshotFacts(number, CommitName(user, identifier, None), None)


W3 = {"w": LastBatch(3, 4), "v": LastBatch(9, 5)}


@pytest.mark.parametrize(
    ("batch", "snapshots", "answer"),
    [
        pytest.param(3, [gate(8, "w", 3, W3)], Committed(8, exact=True), id="its own snapshot"),
        pytest.param(4, [gate(8, "w", 3)], NotCommitted(), id="a smaller batch of the writer"),
        pytest.param(3, [gate(8, "v", 9, W3)], Committed(4, exact=True), id="the property, the same batch"),
        pytest.param(2, [gate(8, "v", 9, W3)], Committed(4, exact=False), id="the property, a later batch"),
        pytest.param(4, [gate(8, "v", 9, W3)], NotCommitted(), id="the property, a smaller batch"),
        pytest.param(3, [gate(8, "v", 9, {})], Undecided(), id="not in the property"),
        pytest.param(
            3,
            [foreign(9), foreign(8), gate(7, "v", 9, W3)],
            Committed(4, exact=True),
            id="below foreign ones",
        ),
        pytest.param(
            3, [foreign(2), foreign(1)], NotCommitted(), id="all snapshots of the table are foreign"
        ),
        pytest.param(3, [foreign(9), foreign(8)], Undecided(), id="all retained snapshots are foreign"),
        pytest.param(3, [], NotCommitted(), id="an empty table"),
        pytest.param(
            3, [gate(2, "w", 5), gate(1, "w", 3)], Committed(1, exact=True), id="an earlier release"
        ),
        pytest.param(
            3, [gate(9, "w", UNNUMBERED, W3)], Committed(4, exact=True), id="a batch without a number above"
        ),
    ],
)
def test_a_batch_is_found_by_the_first_snapshot_that_answers(
    batch: int, snapshots: list[SnapshotFacts], answer: Committed | NotCommitted | Undecided
) -> None:
    assert find("w", batch, snapshots) == answer


@pytest.mark.parametrize(
    ("attempt", "snapshots", "answer"),
    [
        pytest.param(None, [foreign(9)], NotCommitted(), id="no attempt"),
        pytest.param(PublishAttempt(2, 5), [foreign(9)], NotCommitted(), id="an attempt of an earlier batch"),
        pytest.param(PublishAttempt(4, 5), [foreign(9)], Undecided(), id="an attempt of a later batch"),
        pytest.param(
            PublishAttempt(3, 8), [foreign(9), foreign(8)], NotCommitted(), id="all snapshots since"
        ),
        pytest.param(
            PublishAttempt(3, 8), [foreign(9)], NotCommitted(), id="all snapshots since, the base expired"
        ),
        pytest.param(PublishAttempt(3, 8), [foreign(8)], NotCommitted(), id="no snapshot since"),
        pytest.param(PublishAttempt(3, 0), [], NotCommitted(), id="an empty table"),
        pytest.param(PublishAttempt(3, 7), [foreign(9)], Undecided(), id="one since has expired"),
        pytest.param(
            PublishAttempt(3, 7), [foreign(9), gate(8, "w", 3)], Committed(8, exact=True), id="its own"
        ),
    ],
)
def test_an_undecided_batch_is_resolved_by_the_last_attempt_and_the_snapshots_since(
    attempt: PublishAttempt | None,
    snapshots: list[SnapshotFacts],
    answer: Committed | NotCommitted | Undecided,
) -> None:
    """A failed first publish of a new writer leaves an attempt, and the retry must find out that nothing came of it."""
    assert resolve("w", 3, attempt, snapshots) == answer


def test_no_snapshot_below_the_answer_is_read() -> None:
    """Each is a request."""
    snapshots = iter([foreign(9), gate(8, "v", 9, W3), foreign(7)])

    find("w", 3, snapshots)

    assert next(snapshots).number == 7


def test_the_next_snapshot_carries_the_batches_of_the_newest_with_the_property() -> None:
    snapshots = [foreign(9), gate(8, "v", 9, W3), gate(7, "x", 1, {})]

    assert carried(snapshots) == W3


def test_the_writer_that_committed_longest_ago_is_dropped_at_the_limit() -> None:
    batches: Batches = {}
    for number in range(MAX_WRITERS + 1):
        batches = with_batch(batches, f"w{number}", LastBatch(0, number))
    batches = with_batch(batches, "w1", LastBatch(1, MAX_WRITERS + 1))

    assert len(batches) == MAX_WRITERS
    assert "w0" not in batches
    assert list(batches)[-1] == "w1"


def test_a_batch_never_falls() -> None:
    assert with_batch(W3, "w", LastBatch(2, 9))["w"] == LastBatch(3, 4)


def test_the_property_survives_its_encoding() -> None:
    assert encode(W3) == '{"w":[3,4],"v":[9,5]}'
    assert decode(encode(W3)) == W3
    assert decode(None) is None


@pytest.mark.parametrize("value", ["", "[]", '{"w":3}', '{"w":["a",1]}', '{"w":[1]}'])
def test_another_value_of_the_property_is_an_error(value: str) -> None:
    """It is never taken for an empty history."""
    with pytest.raises(ValueError, match=r"."):
        decode(value)
