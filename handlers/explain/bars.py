"""The bars of lives on a time line. Times are in seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from lakewarden.handlers.explain.life import End, Life, lane

WAITING = "#d5dae0"
COMMITTING = "#1b5e3b"
COMPUTING = {
    End.COMMITTED: ("#3fa66b", "computing, then committed"),
    End.CONFLICT: ("#e0524d", "computing, then aborted by a conflict"),
    End.BYPASSED: ("#b0357a", "computing, then lost to a writer without the gate"),
    End.EMPTY: ("#b8a9d9", "empty: nothing to write"),
    End.ABORTED: ("#e8963e", "computing, then aborted otherwise"),
    End.UNKNOWN: ("#c9a800", "computing, then granted without a report"),
    End.FAILED: ("#6d28d9", "computing, then failed"),
    End.SKIPPED: ("#b8a9d9", "skipped: already committed"),
    End.RUNNING: ("#5b8def", "still running"),
}
"""The colour and the label of a computation, by its end."""

WAITING_LABEL = "waiting for admission or grant"


@dataclass(frozen=True, slots=True)
class Segment:
    """One phase of an attempt."""

    begin: float
    end: float
    colour: str
    label: str


def segments(life: Life, last: float) -> Iterator[Segment]:
    """The phases of a life: queued, computing, waiting for the grant, committing. One that runs ends at `last`."""
    end = life.ended or last
    admitted = min(life.times.get("admitted") or life.started, end)
    requested, granted = life.times.get("requested"), life.times.get("granted")
    computed = min(end, requested or end)
    if admitted > life.started:
        yield Segment(life.started, admitted, WAITING, WAITING_LABEL)
    if computed > admitted:
        yield Segment(admitted, computed, *COMPUTING[life.end])
    if requested is not None and (ungranted := min(end, granted or end)) > requested:
        yield Segment(requested, ungranted, WAITING, WAITING_LABEL)
    if granted is not None and end > granted:
        yield Segment(granted, end, COMMITTING, "committing under the grant")


TICKS = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
MAX_WRITERS = 30
"""Rows of a drawing: the writers with the last transactions."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A transaction on the time line."""

    life: Life = field(metadata={"flat": True})
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class Lane:
    """The transactions of a writer. The field names are JSON, as those of a drawing."""

    writer: str
    attempts: list[Bar]


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn of a table between two times."""

    begin: float
    end: float
    writers: list[Lane]
    more_writers: int
    ticks: list[float]


def drawing(lives: Iterable[Life], begin: float, end: float) -> Drawing:
    """A row for each writer, with a bar for each transaction."""
    lanes: dict[str, list[Life]] = {}
    for life in lives:
        if (life.ended or end) >= begin and life.started <= end:
            name = lane(life.writer)
            lanes[name] = [*lanes.pop(name, []), life]  # the writers with the last transactions are last
    shown = sorted(list(lanes)[-MAX_WRITERS:])
    rows = [Lane(name, [_bar(each, begin, end) for each in lanes[name]]) for name in shown]
    return Drawing(begin, end, rows, len(lanes) - len(shown), _ticks(begin, end))


def _ticks(begin: float, end: float) -> list[float]:
    step = next((each for each in TICKS if (end - begin) / each <= 12), TICKS[-1])
    first = begin - begin % step + step
    return [first + number * step for number in range(int((end - first) // step) + 1)]


def _bar(life: Life, begin: float, end: float) -> Bar:
    shown = (each for each in segments(life, end) if each.end >= begin)
    return Bar(life, [replace(each, begin=max(each.begin, begin)) for each in shown])
