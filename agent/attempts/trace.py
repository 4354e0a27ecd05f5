"""The steps of a transaction, and its bar on a time line: of the page, and of the demo's picture. Times are in seconds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Any

from lakewarden.handlers.explain.condition import lane


@dataclass(frozen=True, slots=True)
class AttemptStep:
    """A step of a transaction, as its writer saw it or as the log has it."""

    at: float
    what: str
    table: str
    writer: str
    transaction: str
    batch_id: int | None
    attempt: int
    detail: dict[str, Any] = field(default_factory=dict)


class AttemptOutcome(StrEnum):
    """How an attempt ended, if it has."""

    COMMITTED = "committed"
    CONFLICT = "aborted by conflict"
    BYPASSED = "lost to a writer without the gate"
    EMPTY = "empty"
    ABORTED = "aborted"
    UNKNOWN = "outcome unknown"
    FAILED = "failed"
    SKIPPED = "already committed"
    RUNNING = "running"


@dataclass(slots=True)
class Attempt:
    """One transaction."""

    transaction: str
    writer: str
    batch_id: int | None
    number: int
    steps: list[AttemptStep] = field(default_factory=list)

    def at(self, what: str) -> float | None:
        """The time of the first step of this kind."""
        return next((step.at for step in self.steps if step.what == what), None)

    def first(self, *whats: str) -> AttemptStep | None:
        return next((step for step in self.steps if step.what in whats), None)

    @property
    def started(self) -> float:
        return self.steps[0].at

    @property
    def ended(self) -> float | None:
        """The time of the last step (Spark jobs stopped, committed, abandoned, …); None while the attempt runs."""
        if self.outcome is AttemptOutcome.RUNNING:
            return None
        return self.steps[-1].at

    @property
    def computing_since(self) -> float:
        """The start of the computation: the admission, or without an agent the first step."""
        return self.at("admitted") or self.started

    @property
    def outcome(self) -> AttemptOutcome:
        """How the attempt ended. A completed commit overrides every earlier step."""
        if self.at("completed") is not None:
            return AttemptOutcome.COMMITTED
        if self.at("already-committed") is not None:
            return AttemptOutcome.SKIPPED
        if self.at("lapse") is not None and self.at("abandoned") is None:
            return AttemptOutcome.UNKNOWN
        if (abort := self.first("abort")) is not None:
            conflict = abort.detail.get("reason", "conflict") == "conflict"
            return AttemptOutcome.CONFLICT if conflict else AttemptOutcome.ABORTED
        if self.at("failed") is not None:
            return AttemptOutcome.FAILED
        if (abandoned := self.first("abandoned")) is None:
            return AttemptOutcome.RUNNING
        match abandoned.detail.get("cause"):
            case "empty":
                return AttemptOutcome.EMPTY
            case "base-changed" if abandoned.detail.get("lost_to"):
                return AttemptOutcome.BYPASSED
            case _:
                return AttemptOutcome.ABORTED

    @property
    def fields(self) -> dict[str, Any]:
        """Its names and its end, as JSON."""
        return {
            "transaction": self.transaction,
            "batch_id": self.batch_id,
            "outcome": self.outcome.value,
            "started": self.started,
            "ended": self.ended,
            "lost_to": self.lost_to,
            "bypassed_by": self.bypassed_by,
        }

    @property
    def aborted_at(self) -> float | None:
        """The time of the abort, if a conflict ended the attempt."""
        return self.at("abort") if self.outcome is AttemptOutcome.CONFLICT else None

    @property
    def lost_to(self) -> list[str]:
        """The writers to which it lost a conflict."""
        abort = self.first("abort")
        return [] if abort is None or self.aborted_at is None else list(abort.detail.get("others", ()))

    @property
    def bypassed_by(self) -> str | None:
        """The commit without the gate to which its writer lost it, as the table says it."""
        abandoned = self.first("abandoned") if self.outcome is AttemptOutcome.BYPASSED else None
        return None if abandoned is None else abandoned.detail.get("lost_to")

    @property
    def made_by(self) -> str | None:
        """Who made it, as far as the table says it of an observed commit."""
        completed = self.first("completed")
        return None if completed is None else completed.detail.get("made_by")


WAITING = "#d5dae0"
COMMITTING = "#1b5e3b"
COMPUTING = {
    AttemptOutcome.COMMITTED: ("#3fa66b", "computing, then committed"),
    AttemptOutcome.CONFLICT: ("#e0524d", "computing, then aborted by a conflict"),
    AttemptOutcome.BYPASSED: ("#b0357a", "computing, then lost to a writer without the gate"),
    AttemptOutcome.EMPTY: ("#b8a9d9", "empty: nothing to write"),
    AttemptOutcome.ABORTED: ("#e8963e", "computing, then aborted otherwise"),
    AttemptOutcome.UNKNOWN: ("#c9a800", "computing, then granted without a report"),
    AttemptOutcome.FAILED: ("#6d28d9", "computing, then failed"),
    AttemptOutcome.SKIPPED: ("#b8a9d9", "skipped: already committed"),
    AttemptOutcome.RUNNING: ("#5b8def", "still running"),
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
        yield Segment(admitted, computed, *COMPUTING[attempt.outcome])
    if requested is not None and (ungranted := min(end, granted or end)) > requested:
        colour, label = WAITING, WAITING_LABEL
        if granted is None and attempt.outcome is AttemptOutcome.COMMITTED:
            colour, label = COMMITTING, "committing"  # without an agent there is no grant
        yield Segment(requested, ungranted, colour, label)
    if granted is not None and end > granted:
        yield Segment(granted, end, COMMITTING, "committing under the grant")


TICKS = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
MAX_WRITERS = 30
"""Rows of a drawing: the writers with the last transactions."""


def drawing(attempts: Iterable[Attempt], begin: float, end: float) -> dict[str, Any]:
    """What is drawn of a table between two times: a row per writer, a bar per transaction."""
    shown = [each for each in attempts if (each.ended or end) >= begin and each.started <= end]
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


def _bar(attempt: Attempt, begin: float, end: float) -> dict[str, Any]:
    return attempt.fields | {
        "aborted_at": attempt.aborted_at,
        "made_by": attempt.made_by,
        "segments": [
            {"begin": max(each.begin, begin), "end": each.end, "label": each.label, "colour": each.colour}
            for each in segments(attempt, end)
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
