"""The picture of `lakewarden assess`: what tables cost today, from their own history.

The command reads the tables and nothing else: no Kafka, no agent. The rules are in `handlers/assessment.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.assessment import TableHistory, assess, overlaps_of
from lakewarden.handlers.explain.bars import COMPUTING
from lakewarden.handlers.explain.life import End

_COMMITTED = COMPUTING[End.COMMITTED]
_CONTENDED = COMPUTING[End.ABORTED][0], "the same, in another commit's way"
_LOST = COMPUTING[End.CONFLICT][0], "wasted: rolled back, or files without a commit"
_WIDTH = 1210.0
_MAX_ROWS = 30
_MAX_BARS = 20_000


class _Drawn(NamedTuple):
    """What is drawn of a table: by writer, the left end, width and colour of each bar."""

    table: str
    rows: list[tuple[str, list[tuple[float, float, str]]]]
    ends: str = ""


def picture(histories: Sequence[TableHistory]) -> str:
    """One SVG: a row for each writer of each table, with a bar for each commit, and one for wasted compute."""
    # Imported here, as where text is printed: a command that doesn't draw needs no Jinja2.
    from lakewarden.agent.operators.text import templates

    found, key = [_drawn(each) for each in histories], (_COMMITTED, _CONTENDED, _LOST)
    return templates().get_template("picture.svg").render(found=found, key=key, width=round(_WIDTH)) + "\n"


def _drawn(history: TableHistory) -> _Drawn:
    commits = history.commits[-_MAX_BARS:]
    if not commits:
        return _Drawn(history.table, [])
    starts = [each.ended if each.began is None else each.began for each in commits]
    begin, end = min(starts), commits[-1].ended
    scale = _WIDTH / max(1.0, end - begin)

    def bar(start: float, stop: float, colour: str) -> tuple[float, float, str]:
        left = max(0.0, start - begin) * scale
        return left, min(max(1.2, (stop - start) * scale), _WIDTH - left + 1.2), colour

    contended = overlaps_of(history.commits).in_the_way
    writers = dict.fromkeys(each.writer for each in commits)
    rows: dict[str, list[tuple[float, float, str]]] = {each: [] for each in list(writers)[:_MAX_ROWS]}
    for each, start in zip(commits, starts, strict=True):
        colour, _ = (_COMMITTED, _CONTENDED)[each.version in contended]
        rows.get(each.writer, []).append(bar(start, each.ended, colour))
    gone = [(each.began, each.began if each.until is None else each.until) for each in history.lost]
    # What files without a commit have cost is known for all of them together.
    left, wasted = (history.leftovers or ())[:_MAX_BARS], assess(history)["lost_seconds"].value or 0.0
    size = max(1, sum(each.size for each in history.leftovers or ()))
    gone += [(each.modified - wasted * each.size / size, each.modified) for each in left]
    lost = [bar(*each, _LOST[0]) for each in gone if begin <= each[1] <= end]
    ends = f"{timestamp(begin * 1000)} to {timestamp(end * 1000)}"
    return _Drawn(history.table, [*rows.items(), ("wasted", lost)], ends)
