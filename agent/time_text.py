"""Times, durations and counts as text."""

from collections.abc import Sequence
from datetime import UTC, datetime

from lakewarden.agent.clock import moment

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""Limits of the years 1 and 9999. A client chooses the times in its records."""


def utc_time(epoch_ms: float) -> datetime:
    """The time in UTC, or the closest one that a `datetime` can be."""
    return datetime.fromtimestamp(min(max(epoch_ms, _FIRST_MS), _LAST_MS) / 1000, tz=UTC)


def timestamp(epoch_ms: float) -> str:
    """RFC 3339, UTC, milliseconds."""
    return utc_time(epoch_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch(time: str) -> float | None:
    """The seconds of an ISO time. None: it isn't one."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError):
        return None


def span(seconds: float) -> str:
    """A duration in a unit that fits its length."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return (
        f"{minutes} min"
        if minutes < 100
        else f"{seconds / 3600:.1f} h"
        if minutes < 6_000
        else f"{seconds / 86_400:.0f} days"
    )


def last(number: int, unit: str) -> str:
    """The time up to now: `the last hour`, `the last 6 hours`."""
    return f"the last {unit if number == 1 else counted(number, unit)}"


def when(epoch_ms: float) -> str:
    """A time in UTC, and its distance from now."""
    left = (epoch_ms - moment().wall_ms) / 1000
    relative = f"in {span(left)}" if left > 0 else f"{span(-left)} ago"
    return f"{timestamp(epoch_ms)} ({relative})"


MOST_LINES = 10
"""Lines of a list that grows with the log, unless all of it is requested. With twice as many, nothing is left out."""


def few(lines: Sequence[str], noun: str, *, first: int = 2) -> list[str]:
    """The `first` lines of a list and the last ones, `MOST_LINES` together, and how many are between them."""
    left_out = len(lines) - MOST_LINES
    if left_out <= MOST_LINES:
        return list(lines)
    more = f"  … {counted(left_out, f'more {noun}')}: --verbose prints them"
    return [*lines[:first], more, *lines[first + left_out :]]


def first_of(names: Sequence[str], most: int, count: int | None = None) -> str:
    """The first names in a sentence, and how many more there are. `count`: of all, if `names` has only some of them."""
    more = (len(names) if count is None else count) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """`1 event`, `1,200 events`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
