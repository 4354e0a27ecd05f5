"""The picture of `lakewarden assess`: what tables cost today, from their own history.

The command reads the tables and nothing else: no Kafka, no agent. The rules are in `handlers/assessment.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from lakewarden.agent.name_text import visible
from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.assessment import TableHistory, assess, overlaps_of
from lakewarden.handlers.explain.bars import COMPUTING, WAITING
from lakewarden.handlers.explain.life import End

_COMMITTED = COMPUTING[End.COMMITTED]
_CONTENDED = COMPUTING[End.ABORTED][0], "the same, in another commit's way"
_LOST = COMPUTING[End.CONFLICT][0], "wasted: rolled back, or files without a commit"
_WIDTH, _LEFT, _TOP, _ROW = 1500.0, 260.0, 62.0, 26.0
_MAX_ROWS = 30
_MAX_BARS = 20_000
_STYLE = "text{font:13px DejaVu Sans,Verdana,sans-serif;fill:#1f2933}.pale{fill:#7b8794}.white{fill:#fff;text-anchor:middle}"


def picture(histories: Sequence[TableHistory]) -> str:
    """One SVG: a row for each writer of each table, with a bar for each commit, and one for wasted compute."""
    parts: list[str] = []
    y = _TOP
    for history in histories:
        drawn, y = _rows(history, y)
        parts += drawn
    title = "What the tables' own histories say: who wrote when, and who was in whose way"
    colours = {label: colour for colour, label in (_COMMITTED, _CONTENDED, _LOST)}
    return _document(_WIDTH, y + 50, title, [*parts, *_key(colours, y + 18)])


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


def _document(width: float, height: float, what: str, parts: Sequence[str]) -> str:
    """An SVG with its title and these parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f'<title>{escape(what)}</title><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="14" y="32" style="font-size:19px;font-weight:bold">{escape(what)}</text>\n'
        + "\n".join(parts)
        + "</svg>\n"
    )


def _key(shown: Mapping[str, str], y: float) -> Iterator[str]:
    """What the colours mean, by label."""
    x = 14.0
    for label, colour in shown.items():
        yield f'<rect x="{x}" y="{y}" width="14" height="11" fill="{colour}"/>'
        yield f'<text x="{x + 21}" y="{y + 10}">{escape(label)}</text>'
        x = round(x + 50 + 7.3 * len(label), 1)
