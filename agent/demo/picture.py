"""Draws a run as one SVG: per contest, a row for each writer with its transactions on a time line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from lakewarden.agent.attempts.segments import document, key, segments
from lakewarden.agent.attempts.trace import Attempt, AttemptOutcome
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.flights import FEEDS

_WIDTH, _LEFT, _GAP, _TOP, _ROW, _BAR = 1500.0, 120.0, 36.0, 90.0, 100.0, 50.0
_LEAST_WIDTH = 0.3
_LEAST_LABEL = 16.0
"""A bar that is narrower gets no number, because it would not fit."""
_RED = "#8f1d1a"


def title(contests: Sequence[Contest]) -> str:
    """What the picture shows, in one line."""
    lost = sum(contest.check.lost for contest in contests)
    if contests[0].admission is None:
        return f"The same two queries without an agent: {lost:,} rows lost or damaged, and no error"
    rows = "no row lost" if all(each.check.clean for each in contests) else f"{lost:,} rows lost or damaged"
    first, *others = contests
    found = [f"{_conflicts(first)} with {first.name} admission"]
    found += [f"{each.conflicts or 'none'} with {each.name}" for each in others]
    return f"Two streaming queries, one table: {', '.join(found)}; {rows}"


def caption(contest: Contest) -> str:
    """The figures of one contest, above its time line."""
    batches = f"{contest.batches} batches in {contest.seconds:.0f} s"
    if contest.admission is None:
        return f"without an agent: {batches}"
    return (
        f"{contest.name}: {_conflicts(contest)}, {contest.wasted_seconds:.1f} s computed in vain, {batches}"
    )


def _conflicts(contest: Contest) -> str:
    return f"{contest.conflicts or 'no'} conflict{'' if contest.conflicts == 1 else 's'}"


def draw(contests: Sequence[Contest]) -> str:
    """The contests side by side, on the same scale."""
    seconds = max(1.0, *(contest.seconds for contest in contests))
    panel = (_WIDTH - _LEFT - _GAP * len(contests)) / len(contests)
    height = _TOP + len(FEEDS) * _ROW + 90
    parts: list[str] = []
    for index, feed in enumerate(FEEDS):
        parts.append(f'<text x="{_LEFT - 10}" y="{_middle(index) + 5}" text-anchor="end">{feed}</text>')
    shown: dict[str, str] = {}
    for number, contest in enumerate(contests):
        parts += _time_line(contest, _LEFT + number * (panel + _GAP), panel, seconds, shown)
    return document(_WIDTH, height, title(contests), [*parts, *key(shown, height - 32)])


def _middle(row: int) -> float:
    return _TOP + row * _ROW + _ROW / 2


def _time_line(
    contest: Contest, left: float, width: float, seconds: float, shown: dict[str, str]
) -> Iterator[str]:
    """A contest. Adds to `shown` what its colours mean."""
    attempts = contest.trace.attempts
    begin = attempts[0].started if attempts else 0.0
    last = begin + contest.seconds

    def at(moment: float) -> float:
        return round(left + (moment - begin) / seconds * width, 1)

    yield f'<text x="{left}" y="{_TOP - 16}" class="pale">{escape(caption(contest))}</text>'
    for row in range(len(FEEDS)):
        yield f'<rect x="{left}" y="{_middle(row) - 38}" width="{width}" height="76" fill="#f7f8fa"/>'
    step = next(each for each in (10, 20, 50, 100, 200, 500, 1000, 10_000) if seconds / each <= 5)
    bottom = _TOP + len(FEEDS) * _ROW
    for tick in range(0, int(seconds) + 1, step):
        yield f'<path d="M{at(begin + tick)} {_TOP} V{bottom}" stroke="#e4e7eb"/>'
        yield f'<text x="{at(begin + tick)}" y="{bottom + 20}" class="pale" text-anchor="middle">{tick} s</text>'
    rows = {feed: index for index, feed in enumerate(FEEDS)}
    for attempt in attempts:
        y = _middle(rows.get(attempt.writer, 0))
        for part in segments(attempt, last):
            if (wide := at(part.end) - at(part.begin)) < _LEAST_WIDTH:
                continue
            yield f'<rect x="{at(part.begin)}" y="{y - _BAR / 2}" width="{wide:.1f}" height="{_BAR}" fill="{part.colour}"/>'
            shown.setdefault(part.label, part.colour)
        yield from _number(
            attempt,
            at(attempt.computing_since),
            at(min(attempt.at("requested") or last, attempt.ended or last)),
            y,
        )
    for attempt in attempts:
        abort = attempt.first("abort")
        if abort is not None and attempt.outcome is AttemptOutcome.CONFLICT:
            x, y = at(abort.at), _middle(rows.get(attempt.writer, 0))
            if (winner := rows.get(attempt.winner or "")) is not None and _middle(winner) != y:
                towards = 1 if _middle(winner) < y else -1
                tip = y - towards * 10
                yield f'<path d="M{x} {_middle(winner) + towards * _BAR / 2} V{tip}" stroke="{_RED}" stroke-width="1.4"/>'
                yield f'<path d="M{x - 4} {tip - towards * 8} h8 L{x} {tip} z" fill="{_RED}"/>'
            yield f'<path d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="{_RED}" stroke-width="6"/>'
            yield f'<path d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="#fff" stroke-width="3"/>'
            shown.setdefault("cross: abort received, arrow: from the winner", _RED)


def _number(attempt: Attempt, start: float, end: float, y: float) -> Iterator[str]:
    """The batch's number on the bar of its computation, if it fits."""
    if (
        attempt.batch_id is not None
        and attempt.outcome is not AttemptOutcome.CONFLICT
        and end - start >= _LEAST_LABEL
    ):
        yield f'<text x="{(start + end) / 2:.1f}" y="{y + 4}" class="white">{attempt.batch_id}</text>'
