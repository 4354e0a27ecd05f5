"""Draws a run as one SVG: the time line of each contest, with the bars of the page, side by side on one scale."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from lakewarden.agent.attempts.trace import document, drawing, key
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.flights import FEEDS

_WIDTH, _LEFT, _GAP, _TOP, _ROW, _BAR = 1500.0, 120.0, 36.0, 90.0, 100.0, 50.0
_LEAST_LABEL = 16.0
"""A bar that is narrower gets no number, because it would not fit."""
_MIDDLES = {feed: _TOP + _ROW * (number + 0.5) for number, feed in enumerate(FEEDS)}
_BOTTOM = _TOP + _ROW * len(FEEDS)
_RED = "#8f1d1a"
_ABORTED = "cross: abort received, line: from the winner"


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
        f"{contest.name}: {_conflicts(contest)}, {contest.wasted_seconds:.1f} s of compute wasted, {batches}"
    )


def _conflicts(contest: Contest) -> str:
    return f"{contest.conflicts or 'no'} conflict{'' if contest.conflicts == 1 else 's'}"


def draw(contests: Sequence[Contest]) -> str:
    """The contests side by side, on the same scale."""
    panel = (_WIDTH - _LEFT) / len(contests)
    scale = (panel - _GAP) / max(1.0, *(contest.seconds for contest in contests))
    parts = [
        f'<text x="{_LEFT - 10}" y="{y + 5}" text-anchor="end">{feed}</text>' for feed, y in _MIDDLES.items()
    ]
    shown: dict[str, str] = {}
    for number, contest in enumerate(contests):
        left = _LEFT + number * panel
        line = drawing(contest.attempts, 0.0, contest.seconds)
        parts.append(f'<text x="{left}" y="{_TOP - 16}" class="pale">{escape(caption(contest))}</text>')
        for tick in line["ticks"]:
            x = round(left + tick * scale, 1)
            parts.append(f'<path d="M{x} {_TOP} V{_BOTTOM}" stroke="#e4e7eb"/>')
            parts.append(
                f'<text x="{x}" y="{_BOTTOM + 20}" class="pale" text-anchor="middle">{tick:.0f} s</text>'
            )
        for row in line["writers"]:
            for bar in row["attempts"]:
                parts += _bar(bar, row["writer"], left, scale, shown)
    return document(_WIDTH, _BOTTOM + 90, title(contests), [*parts, *key(shown, _BOTTOM + 58)])


def _bar(bar: dict[str, Any], writer: str, left: float, scale: float, shown: dict[str, str]) -> Iterator[str]:
    """A transaction. Adds to `shown` what its colours mean."""
    y = _MIDDLES[writer]
    for part in bar["segments"]:
        x, wide = left + part["begin"] * scale, (part["end"] - part["begin"]) * scale
        yield f'<rect x="{x:.1f}" y="{y - _BAR / 2}" width="{wide:.1f}" height="{_BAR}" fill="{part["colour"]}"/>'
        shown.setdefault(part["label"], part["colour"])
        if part["label"].startswith("computing") and bar["aborted_at"] is None and wide >= _LEAST_LABEL:
            yield f'<text x="{x + wide / 2:.1f}" y="{y + 4}" class="white">{bar["batch_id"]}</text>'
    if bar["aborted_at"] is not None:
        x = round(left + bar["aborted_at"] * scale, 1)
        winner = bar["lost_to"][0].partition(":")[0] if bar["lost_to"] else writer
        yield f'<path d="M{x} {_MIDDLES.get(winner, y)} V{y}" stroke="{_RED}" stroke-width="1.4"/>'
        for colour, width in ((_RED, 6), ("#fff", 3)):
            yield f'<path d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="{colour}" stroke-width="{width}"/>'
        shown.setdefault(_ABORTED, _RED)
