"""The figures of the contention for a lock."""

from __future__ import annotations

import pytest

from tests.bench import locks
from tests.bench.figures import jain


def test_jains_index_is_one_for_equal_shares_and_one_nth_for_a_single_winner() -> None:
    assert jain([5, 5, 5, 5]) == 1.0
    assert jain([8, 0, 0, 0]) == 0.25
    assert jain([2, 1]) == pytest.approx(0.9)
    assert jain([0, 0]) == 0.0


def test_waits_of_all_contenders_are_counted() -> None:
    found = locks.contention([[(0.0, 0.1), (0.2, 0.5)], [(0.0, 0.2), (0.4, 0.6)]], 2.0)

    assert found["cycles_per_second"] == 2.0
    assert found["jain"] == 1.0
    assert found["longest_wait_ms"] == 300.0


def test_an_unfinished_wait_counts_for_the_longest_wait_only() -> None:
    found = locks.contention([[(0.0, 0.1), (0.2, 0.3)], [(0.5, 9.0)]], 2.0)

    assert found["cycles_per_second"] == 1.0
    assert found["jain"] == 0.5
    assert found["longest_wait_ms"] == 1500.0
