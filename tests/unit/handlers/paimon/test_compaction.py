"""What the compaction service takes on."""

from __future__ import annotations

import pytest

from lakewarden.handlers.paimon.compaction import (
    MAX_UNITS,
    Last,
    effort_after,
    may_compact,
    refusal,
    worth_merging,
)


@pytest.mark.parametrize(
    ("last", "lost", "admission", "units"),
    [
        (Last.UNKNOWN, 0, "queued", MAX_UNITS),
        (Last.DONE, 0, "optimistic", MAX_UNITS),
        (Last.LOST, 1, "queued", 1),
        (Last.NOT_ADMITTED, 2, "optimistic", 1),
    ],
    ids=str,
)
def test_how_a_compaction_is_admitted_and_what_it_takes_on(
    last: Last, lost: int, admission: str, units: int
) -> None:
    effort = effort_after(last, lost)

    assert (effort.admission, effort.units) == (admission, units)


def test_the_first_protected_compaction_is_queued_whatever_was_in_vain_before() -> None:
    """It may be after any lost conflict: `max_losses` is the agent's, and queued transactions lose conflicts, too."""
    assert {effort_after(Last.LOST, lost).admission for lost in range(1, 9)} == {"queued"}


@pytest.mark.parametrize(
    ("files", "full", "may"), [(4, False, False), (5, False, True), (1, True, True)], ids=str
)
def test_a_bucket_is_opened_only_if_it_has_enough_files(files: int, *, full: bool, may: bool) -> None:
    assert may_compact(files, 5, full=full) is may


@pytest.mark.parametrize(
    ("sizes", "worth"),
    [([10] * 30, True), ([10] * 29, False), ([10] * 29 + [100] * 50, False), ([], False)],
    ids=["many small", "few small", "many of the wanted size", "none"],
)
def test_manifests_are_merged_if_many_are_small(sizes: list[int], *, worth: bool) -> None:
    assert worth_merging(sizes, target=100, least=30) is worth


VECTORS = {"deletion-vectors.enabled": "true"}


@pytest.mark.parametrize(
    ("bucket", "options", "primary_key", "why"),
    [
        (-1, {}, False, None),
        (4, {"data-evolution.enabled": "false"}, True, None),
        (-1, VECTORS, False, None),
        (4, {}, False, None),
        (4, VECTORS, False, "a row is deleted while it compacts"),
        (-2, {}, True, "rescale"),
        (-1, {"data-evolution.enabled": "true"}, False, "data evolution"),
        (4, VECTORS, True, "readers see no row before it is compacted"),
        (4, {"merge-engine": "first-row"}, True, "readers see no row before it is compacted"),
    ],
    ids=str,
)
def test_tables_that_are_refused(
    bucket: int, options: dict[str, str], why: str | None, *, primary_key: bool
) -> None:
    found = refusal(bucket, options, primary_key=primary_key)
    assert found is None if why is None else why in (found or "")
