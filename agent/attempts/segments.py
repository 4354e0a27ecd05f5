"""The phases of an attempt with their colours, for the timelines of `lakewarden web`; and what pictures have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lakewarden.agent.attempts.trace import Attempt, AttemptOutcome

WAITING = "#d5dae0"
COMMITTING = "#1b5e3b"
FAILED = "#6d28d9"
COMPUTING = {
    AttemptOutcome.COMMITTED: "#3fa66b",
    AttemptOutcome.CONFLICT: "#e0524d",
    AttemptOutcome.ABORTED: "#e8963e",
    AttemptOutcome.FAILED: FAILED,
    AttemptOutcome.SKIPPED: "#b8a9d9",
    AttemptOutcome.RUNNING: "#5b8def",
}
NAMES = {
    AttemptOutcome.COMMITTED: "computing, then committed",
    AttemptOutcome.CONFLICT: "computing, then aborted by a conflict",
    AttemptOutcome.ABORTED: "computing, then aborted otherwise",
    AttemptOutcome.FAILED: "computing, then failed",
    AttemptOutcome.SKIPPED: "skipped: already committed",
    AttemptOutcome.RUNNING: "still running",
}

WAITING_LABEL = "waiting for admission or grant"
_STYLE = "text{font:13px DejaVu Sans,Verdana,sans-serif;fill:#1f2933}.pale{fill:#7b8794}.white{fill:#fff;text-anchor:middle}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One phase of an attempt."""

    begin: float
    end: float
    colour: str
    label: str


def segments(attempt: Attempt, last: float) -> Iterator[Segment]:
    """The phases of an attempt: queued, computing, waiting for the grant, committing. A running attempt ends at `last`."""
    end = attempt.ended or last
    admitted = min(attempt.at("admitted") or attempt.started, end)
    requested = attempt.at("requested")
    granted = attempt.at("granted")
    computed = min(end, requested or end)
    if admitted > attempt.started:
        yield Segment(attempt.started, admitted, WAITING, WAITING_LABEL)
    if computed > admitted:
        yield Segment(admitted, computed, COMPUTING[attempt.outcome], NAMES[attempt.outcome])
    if requested is not None and (ungranted := min(end, granted or end)) > requested:
        colour, label = WAITING, WAITING_LABEL
        if granted is None and attempt.outcome is AttemptOutcome.COMMITTED:
            colour, label = COMMITTING, "committing"  # without an agent there is no grant
        yield Segment(requested, ungranted, colour, label)
    if granted is not None and end > granted:
        yield Segment(granted, end, COMMITTING, "committing under the grant")


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
