"""Statistics of measured values."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile, maximum and number of the values."""
    ordered = sorted(values)
    figures = {"p50": median(ordered), "p99": ordered[int(0.99 * len(ordered))], "max": ordered[-1]}
    return {name: round(value, 2) for name, value in figures.items()} | {"count": len(ordered)}


def over_runs(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """For each figure its median over the runs, and its value in each run."""
    return {
        name: {"median": round(median(run[name] for run in runs), 3), "each": [run[name] for run in runs]}
        for name in runs[0]
    }


def jain(counts: Sequence[int]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0
