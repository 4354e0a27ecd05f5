"""The figures of the contention for a lock, and the table of the locks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench import locks
from tests.bench.figures import jain
from tests.servers.hudi import HUDI_VERSION


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


def spread(value: float) -> dict[str, Any]:
    return {"median": value, "each": [value]}


def figures() -> dict[str, Any]:
    operation = {"ms": {"p50": spread(2.0), "p99": spread(9.0)}, "requests": 1}
    names = ("cycles_per_second", "longest_wait_ms", "jain")
    contest = {name: spread(1.0) for name in names}
    return {
        "operations": dict.fromkeys(("acquire", "renew", "release"), operation),
        "hand_over_ms": {"p50": 1.0, "p99": 2.0, "max": 3.0},
        "contention": contest,
        "contention_delayed": contest,
        "lost": {
            "acquire": {"seconds": 0.009},
            "renew": {"seconds": 11.0, "stopped_after_seconds": 1.0},
            "release": {"seconds": 0.1, "raised": "HoodieLockException"},
        },
    }


def test_without_figures_of_hudi_the_table_has_no_column_for_them() -> None:
    report = {"agent": figures()}
    rows = list(locks.rows(report))

    assert {len(row) for row in rows} == {3}
    assert f"Hudi {HUDI_VERSION}" not in rows[0]
    assert "docs/benchmarks.md" in locks.footnote(report)


def test_figures_of_hudi_have_a_column_of_their_own() -> None:
    rows = list(locks.rows({"agent": figures(), "hudi": figures()}))

    assert {len(row) for row in rows} == {4}
    assert rows[0][3] == f"Hudi {HUDI_VERSION}"
    lost = {title: hudi for title, _, _, hudi in rows if "answer" in title}
    assert list(lost.values()) == [
        "9 ms",
        "11.0 s; the writer is interrupted after 1.0 s",
        "100 ms; the release raises HoodieLockException",
    ]
