"""The bar of a life on a time line: of the page. Times are in seconds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

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
_STYLE = "text{font:13px DejaVu Sans,Verdana,sans-serif;fill:#1f2933}.pale{fill:#7b8794}.white{fill:#fff;text-anchor:middle}"


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


def fields_of(life: Life) -> dict[str, Any]:
    """Its names and its end, as JSON."""
    return {
        "transaction": life.transaction,
        "batch_id": life.batch_id,
        "outcome": life.end.value,
        "started": life.started,
        "ended": life.ended,
        "lost_to": life.lost_to,
        "bypassed_by": life.bypassed_by,
    }


TICKS = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
MAX_WRITERS = 30
"""Rows of a drawing: the writers with the last transactions."""


def drawing(lives: Iterable[Life], begin: float, end: float) -> dict[str, Any]:
    """What is drawn of a table between two times: a row per writer, a bar per transaction."""
    shown = [each for each in lives if (each.ended or end) >= begin and each.started <= end]
    lanes = {each.transaction: lane(each.writer) for each in shown}
    writers = list(dict.fromkeys(lanes[each.transaction] for each in reversed(shown)))[:MAX_WRITERS]
    return {
        "begin": begin,
        "end": end,
        "writers": [
            {
                "writer": name,
                "attempts": [_bar(each, begin, end) for each in shown if lanes[each.transaction] == name],
            }
            for name in sorted(writers)
        ],
        "more_writers": len(set(lanes.values())) - len(writers),
        "ticks": _ticks(begin, end),
    }


def _ticks(begin: float, end: float) -> list[float]:
    step = next((each for each in TICKS if (end - begin) / each <= 12), TICKS[-1])
    first = begin - begin % step + step
    return [first + number * step for number in range(int((end - first) // step) + 1)]


def _bar(life: Life, begin: float, end: float) -> dict[str, Any]:
    return fields_of(life) | {
        "aborted_at": life.aborted_at,
        "made_by": life.made_by,
        "segments": [
            {"begin": max(each.begin, begin), "end": each.end, "label": each.label, "colour": each.colour}
            for each in segments(life, end)
            if each.end >= begin
        ],
    }


def document(width: float, height: float, what: str, parts: Sequence[str]) -> str:
    """An SVG with its title and these parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f'<title>{escape(what)}</title><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="14" y="32" style="font-size:19px;font-weight:bold">{escape(what)}</text>\n'
        + "\n".join(parts)
        + "</svg>\n"
    )


def key(shown: Mapping[str, str], y: float) -> Iterator[str]:
    """What the colours mean, by label."""
    x = 14.0
    for label, colour in shown.items():
        yield f'<rect x="{x}" y="{y}" width="14" height="11" fill="{colour}"/>'
        yield f'<text x="{x + 21}" y="{y + 10}">{escape(label)}</text>'
        x = round(x + 50 + 7.3 * len(label), 1)
