"""`lakewarden assess`: what tables cost today, from their own history, as text, JSON and a picture.

It reads the tables and nothing else: no Kafka, no agent. The rules are in `handlers/assessment.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from lakewarden.agent.attempts.trace import COMPUTING, WAITING, document, key
from lakewarden.agent.name_text import visible
from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.assessment import Assessment, Rests, TableHistory, assess, duration, overlaps_of
from lakewarden.handlers.explain.life import End

_COMMITTED = COMPUTING[End.COMMITTED]
_CONTENDED = COMPUTING[End.ABORTED][0], "the same, in another commit's way"
_LOST = COMPUTING[End.CONFLICT][0], "wasted: rolled back, or files without a commit"
_WIDTH, _LEFT, _TOP, _ROW = 1500.0, 260.0, 62.0, 26.0
_MAX_ROWS = 30
_MAX_BARS = 20_000


_COUNTS = {
    "overlapping": "commits that overlapped another one",
    "in_the_way": "of them in a partition that one of the two rewrote",
    "lost_tries": "writes that were rolled back, or died",
    "lost_files": "data files that no commit names",
}
_SECONDS = {
    "known_seconds": "computed by commits, as the table says",
    "estimated_seconds": "or more, computed by the other commits since their first data file",
    "lost_seconds": "or more, wasted, if losers compute to their end",
}


def assessment_fields(found: Assessment) -> dict[str, Any]:
    """The JSON of one table."""
    times = {
        name: None if at is None else timestamp(at * 1000)
        for name, at in (("since", found.since), ("until", found.until))
    }
    partitions = [{"partition": partition, "times": times} for partition, times in found.partitions]
    return asdict(found) | times | {"partitions": partitions}


def assessment_lines(found: Assessment) -> Iterator[str]:
    """One table as text: what is known, what is estimated, what isn't known, and what the gate would change."""
    commits, by_gate = found["commits"], found["by_gate"]
    count = (
        "commits: how many is not known"
        if commits.value is None
        else f"{commits.hedge}{commits.value} commits"
    )
    also = "".join(f"; translated to {each}, too" for each in found.translations)
    yield f"{found.table}: {found.format}, {count}{also}"
    if found.since is None or found.until is None:
        if commits.rests_on is Rests.KNOWN and not found.unread:
            yield "  nothing to assess: the history has no commit that changed a file"
        yield from (f"  not read: {each}" for each in found.unread)
        return
    through = f", {by_gate.hedge}{by_gate.value} of them through the gate" if by_gate.value else ""
    yield f"  from {timestamp(found.since * 1000)} to {timestamp(found.until * 1000)}{through}"
    yield ""
    for rests in Rests:
        lines = [*_figure_lines(found, rests)]
        yield from [rests.value, *lines] if lines else ()
    yield from (f"not read: {each}" for each in found.unread)
    yield from (f"not known: {each}" for each in found.unknown)
    yield ""
    yield "by writer"
    for writer in found.writers:
        seconds = duration(writer.known_seconds + writer.estimated_seconds)
        services = f", {writer.services} of them rearrange only" if writer.services else ""
        yield f"  {seconds:>8}  {writer.commits:6} commits  {writer.writer}{services}"
    if found.pairs:
        yield "by pair of writers: in each other's way, of all overlaps"
    for pair in found.pairs:
        yield f"  {pair.in_the_way:8} of {pair.overlaps:<6}  {pair.later} during {pair.earlier}"
    if found.partitions:
        yield "by partition: how often commits met there, or were lost"
    for partition, times in found.partitions:
        yield f"  {times:8}  {partition or '(unpartitioned)'}"
    yield ""
    yield "the gate would change"
    yield from (f"  {each}" for each in found.changes)


def _figure_lines(found: Assessment, rests: Rests) -> Iterator[str]:
    """The figures that rest on the same."""
    for name, text in (_COUNTS | _SECONDS).items():
        figure = found.figures.get(name)
        if figure is None or figure.rests_on is not rests:
            continue
        size = found.figures.get("lost_bytes") if name == "lost_files" else None
        if figure.value is None:
            yield f"         ?  {text.removeprefix('or more, ')}"
        elif size is not None and size.value is not None:
            yield f"  {figure.value:8}  {text}, {size.value / 1e6:,.1f} MB"
        else:
            shown = duration(figure.value) if name in _SECONDS else str(figure.value)
            yield f"  {shown:>8}  {text}"


def picture(histories: Sequence[TableHistory]) -> str:
    """One SVG: a row for each writer of each table, with a bar for each commit, and one for wasted compute."""
    parts: list[str] = []
    y = _TOP
    for history in histories:
        drawn, y = _rows(history, y)
        parts += drawn
    title = "What the tables' own histories say: who wrote when, and who was in whose way"
    colours = {label: colour for colour, label in (_COMMITTED, _CONTENDED, _LOST)}
    return document(_WIDTH, y + 50, title, [*parts, *key(colours, y + 18)])


def _rows(history: TableHistory, y: float) -> tuple[list[str], float]:
    """One table, and where the next one begins."""
    parts = [f'<text x="14" y="{y}" style="font-weight:bold">{escape(visible(history.table))}</text>']
    commits = history.commits[-_MAX_BARS:]
    if not commits:
        return parts, y + _ROW
    begin = min(each.ended if each.began is None else each.began for each in commits)
    width = _WIDTH - _LEFT - 30
    scale = width / max(1.0, commits[-1].ended - begin)

    def bar(row: float, start: float, end: float, colour: str) -> str:
        left = _LEFT + max(0.0, start - begin) * scale
        wide = min(max(1.2, (end - start) * scale), _LEFT + width - left + 1.2)
        return f'<rect x="{left:.1f}" y="{row - 12:.1f}" width="{wide:.1f}" height="14" fill="{colour}"/>'

    contended = overlaps_of(history.commits).in_the_way
    writers = list(dict.fromkeys(each.writer for each in commits))[:_MAX_ROWS]
    lines = {writer: y + (number + 1) * _ROW for number, writer in enumerate(writers)}
    lost = y + (len(writers) + 1) * _ROW
    for name, row in [*lines.items(), ("wasted", lost)]:
        shown = visible(name)
        shown = shown if len(shown) <= 34 else f"{shown[:33]}…"
        parts.append(f'<text x="{_LEFT - 10}" y="{row}" text-anchor="end">{escape(shown)}</text>')
        parts.append(f'<path d="M{_LEFT} {row + 5} h{width}" stroke="{WAITING}"/>')
    for each in commits:
        if each.writer in lines:
            colour, _ = _CONTENDED if each.version in contended else _COMMITTED
            start = each.ended if each.began is None else each.began
            parts.append(bar(lines[each.writer], start, each.ended, colour))
    gone = [(each.began, each.began if each.until is None else each.until) for each in history.lost]
    left, wasted = (history.leftovers or ())[:_MAX_BARS], assess(history)["lost_seconds"].value or 0.0
    size = max(1, sum(each.size for each in history.leftovers or ()))
    gone += [(each.modified - wasted * each.size / size, each.modified) for each in left]
    parts += [bar(lost, *each, _LOST[0]) for each in gone if begin <= each[1] <= commits[-1].ended]
    ends = f"{timestamp(begin * 1000)} to {timestamp(commits[-1].ended * 1000)}"
    parts.append(f'<text x="{_LEFT}" y="{lost + 22}" class="pale">{ends}</text>')
    return parts, lost + 2 * _ROW
