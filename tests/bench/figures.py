"""Statistics of measured values, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import psutil


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile, maximum and number of the values."""
    ordered = sorted(values)
    figures = {"p50": median(ordered), "p99": ordered[int(0.99 * len(ordered))], "max": ordered[-1]}
    return {name: round(value, 2) for name, value in figures.items()} | {"count": len(ordered)}


def shown(figure: dict[str, float], *, digits: str = "1", names: str = "p50 p99") -> str:
    """Some values of a summary as text. `digits` has one for all, or one for each."""
    return ", ".join(
        f"{name} {figure[name]:.{digits[min(number, len(digits) - 1)]}f} ms"
        for number, name in enumerate(names.split())
    )


def medians(runs: Sequence[dict[str, float]], digits: int = 3) -> dict[str, float]:
    """For each figure its median over the runs."""
    return {name: round(median(run[name] for run in runs), digits) for name in runs[0]}


def over_runs(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """For each figure its median over the runs, and its value in each run."""
    return {
        name: {"median": middle, "each": [run[name] for run in runs]}
        for name, middle in medians(runs).items()
    }


def spread(figure: dict[str, Any], form: str) -> str:
    """The median of the runs, and their range."""
    low, high = format(min(figure["each"]), form), format(max(figure["each"]), form)
    return f"{figure['median']:{form}}" + ("" if low == high else f" ({low}–{high})")


def cpu_seconds(pid: int | None = None) -> float:
    """CPU time of a process, by default this one, and of all that it has started."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)
