"""What the compaction service takes on."""

from __future__ import annotations

import pytest

from lakewarden.handlers.paimon.compaction import (
    MAX_UNITS,
    effort_after,
    may_compact,
    refusal,
    worth_merging,
)


def test_a_compaction_that_loses_takes_on_less_and_every_second_time_waits_in_the_queue() -> None:
    efforts = [(each.admission, each.units) for each in map(effort_after, range(6))]

    assert efforts == [
        ("optimistic", MAX_UNITS),
        ("queued", 1),
        ("optimistic", 1),
        ("queued", 1),
        ("optimistic", 1),
        ("queued", 1),
    ]


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


def test_tables_that_are_refused() -> None:
    assert refusal(-1, {}) is None
    assert refusal(4, {"data-evolution.enabled": "false"}) is None
    assert "rescale" in (refusal(-2, {}) or "")
    assert "data evolution" in (refusal(-1, {"data-evolution.enabled": "true"}) or "")
