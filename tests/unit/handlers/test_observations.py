"""A position in a log of numbered commits, and the markers of a commit."""

from __future__ import annotations

from typing import Any

import pytest

from lakewarden.handlers.observations import LogPosition, observed_commit

LOST: dict[str, Any] = {
    "idle": (5, "a", False, None),
    "only a checkpoint": (5, None, False, None),
    "new ones": (7, "a", True, None),
    "replaced": (5, "other", False, "another one than before"),
    "vanished": (None, None, False, "is gone"),
    "a shorter log": (4, None, False, "is gone"),
    "a gap": (7, "a", False, "6 is missing, and 7 exists"),
}


@pytest.mark.parametrize(("newest", "identity", "has_next", "why"), LOST.values(), ids=LOST)
def test_a_position_is_lost_by_a_gap_or_another_table(
    newest: int | None, identity: str | None, has_next: bool, why: str | None
) -> None:
    found = LogPosition(5, "a").why_lost(newest, identity=identity, has_next=has_next)

    assert found is None if why is None else found is not None and why in found


def test_an_identity_counts_from_the_listing_after_a_commit() -> None:
    position = LogPosition(5, "a")
    position.advance()

    assert position.why_lost(6, identity="b", has_next=False) is None
    assert position == LogPosition(6, "b")


def test_of_two_operations_on_a_file_the_one_that_invalidates_counts() -> None:
    file = ("p", "f")
    found = observed_commit("1", [file], [file], additions_refute=False, rearranged=[file])

    assert found is not None
    (marker,) = found.markers
    assert (marker.partition, marker.file_group, marker.operation) == ("p", "f", "delete")


def test_names_that_no_marker_can_have_are_no_error() -> None:
    """Of a longer file name the end counts. No writer can declare a longer partition."""
    added = [("p", "x" * 5_000 + "end"), ("p" * 5_000, "f")]
    found = observed_commit("1", [], added, additions_refute=False)

    assert found is not None
    (marker,) = found.markers
    assert (len(marker.file_group), marker.file_group[-3:]) == (1024, "end")
