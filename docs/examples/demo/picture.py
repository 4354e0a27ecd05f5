"""Draws contests side by side, on one scale: the bars of the page, as SVG."""
# ruff: noqa: INP001 - a script's neighbour

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from contest import COMMITTED, CONFLICT, Contest, TimeLine, short
from flights import FEEDS

WIDTH, LEFT, GAP, TOP, ROW, BAR = 1500.0, 120.0, 36.0, 90.0, 100.0, 50.0
LEAST_LABEL = 16.0
"""A bar that is narrower gets no number, because it would not fit."""
MIDDLES = {feed: TOP + ROW * (number + 0.5) for number, feed in enumerate(FEEDS)}
BOTTOM = TOP + ROW * len(FEEDS)
TICK_SECONDS = (5, 10, 30, 60, 120, 300, 600)
RED = "#8f1d1a"
ABORTED = "cross: abort received, line: from the winner"
STYLE = (
    "text{font:13px DejaVu Sans,Verdana,sans-serif;fill:#1f2933}.pale{fill:#7b8794}"
    ".white{fill:#fff;text-anchor:middle}.title{font-size:19px;font-weight:bold}"
)


def draw(contests: Sequence[Contest]) -> str:
    """The picture of contests under an agent."""
    lines = [(each, each.timeline) for each in contests if each.timeline is not None]
    panel = (WIDTH - LEFT) / len(lines)
    scale = (panel - GAP) / max(1.0, *(line.seconds for _, line in lines))
    parts = [
        f'<text x="{LEFT - 10}" y="{y + 5}" text-anchor="end">{feed}</text>' for feed, y in MIDDLES.items()
    ]
    colours: dict[str, str] = {}
    for number, (contest, line) in enumerate(lines):
        left = LEFT + number * panel
        parts.append(f'<text x="{left}" y="{TOP - 16}" class="pale">{escape(_caption(contest, line))}</text>')
        step = next((each for each in TICK_SECONDS if line.seconds / each <= 12), TICK_SECONDS[-1])
        for tick in range(step, int(line.seconds) + 1, step):
            x = round(left + tick * scale, 1)
            parts.append(f'<path d="M{x} {TOP} V{BOTTOM}" stroke="#e4e7eb"/>')
            parts.append(f'<text x="{x}" y="{BOTTOM + 20}" class="pale" text-anchor="middle">{tick} s</text>')
        for transaction in line.transactions.values():
            parts += _bar(transaction, left - line.begin * scale, scale, colours)
    title = escape(_title(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {BOTTOM + 90:.0f}" role="img">'
        f'<title>{title}</title><style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="14" y="32" class="title">{title}</text>\n'
        + "\n".join([*parts, *_key(colours)])
        + "</svg>\n"
    )


def _bar(transaction: dict[str, Any], left: float, scale: float, colours: dict[str, str]) -> Iterator[str]:
    """A transaction. Adds to `colours` what they mean."""
    y = MIDDLES[transaction["writer"]]
    aborted = transaction["aborted_at"]
    for part in transaction["segments"]:
        x, wide = left + part["begin"] * scale, (part["end"] - part["begin"]) * scale
        yield f'<rect x="{x:.1f}" y="{y - BAR / 2}" width="{wide:.1f}" height="{BAR}" fill="{part["colour"]}"/>'
        colours.setdefault(part["label"], part["colour"])
        if part["label"].startswith("computing") and aborted is None and wide >= LEAST_LABEL:
            yield f'<text x="{x + wide / 2:.1f}" y="{y + 4}" class="white">{transaction["batch_id"]}</text>'
    if aborted is None:
        return
    x = round(left + aborted * scale, 1)
    winners = [short(each) for each in transaction["lost_to"]]
    from_y = MIDDLES.get(winners[0], y) if winners else y
    yield f'<path d="M{x} {from_y} V{y}" stroke="{RED}" stroke-width="1.4"/>'
    for colour, width in ((RED, 6), ("#fff", 3)):
        yield f'<path d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="{colour}" stroke-width="{width}"/>'
    colours.setdefault(ABORTED, RED)


def _key(colours: dict[str, str]) -> Iterator[str]:
    """What the colours mean."""
    x, y = 14.0, BOTTOM + 58
    for label, colour in colours.items():
        yield f'<rect x="{x}" y="{y}" width="14" height="11" fill="{colour}"/>'
        yield f'<text x="{x + 21}" y="{y + 10}">{escape(label)}</text>'
        x = round(x + 50 + 7.3 * len(label), 1)


def _title(lines: Sequence[tuple[Contest, TimeLine]]) -> str:
    """What the picture shows, in one line."""
    lost = sum(contest.check.lost for contest, _ in lines)
    rows = f"{lost:,} rows lost or damaged" if lost else "no row lost"
    first, *others = lines
    found = [f"{_conflicts(first[1])} with {first[0].admission} admission"]
    found += [f"{_conflicts(line)} with {contest.admission}" for contest, line in others]
    return f"Two streaming queries, one table: {', '.join(found)}; {rows}"


def _caption(contest: Contest, line: TimeLine) -> str:
    """The figures of one contest, above its time line."""
    batches = f"{len(line.of(COMMITTED))} batches in {line.seconds:.0f} s"
    wasted = f"{line.wasted_seconds:.1f} s of compute wasted"
    return f"{contest.admission}: {_conflicts(line)}, {wasted}, {batches}"


def _conflicts(line: TimeLine) -> str:
    number = len(line.of(CONFLICT))
    if number == 0:
        return "no conflicts"
    return f"{number} conflict" if number == 1 else f"{number} conflicts"
