"""Draws a run as one picture: for each contest a row per writer with its transactions on a time line, coloured by outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lakewarden.agent.attempts.segments import segments
from lakewarden.agent.attempts.trace import Attempt, Outcome, Trace
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.flights import FEEDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1f2933"
PALE = "#7b8794"
GRID = "#e4e7eb"

_WIDTH_INCHES = 15.0
_DOTS_PER_INCH = 110
_BAR_HEIGHT = 0.46
_LEAST_LABEL_SHARE = 0.01
"""A bar narrower than this share of the picture gets no number, because it would not fit."""


def title(contests: Sequence[Contest]) -> str:
    """What the picture shows, in one line."""
    lost = sum(contest.check.lost for contest in contests)
    rows = "no row lost" if all(each.check.clean for each in contests) else f"{lost:,} rows lost or damaged"
    if contests[0].admission is None:
        return f"The same two queries without an agent: {lost:,} rows lost or damaged, and no error"
    first, *others = contests
    found = [
        f"{_conflicts(first)} with {first.name} admission",
        *(f"{each.conflicts or 'none'} with {each.name}" for each in others),
    ]
    return f"Two streaming queries, one table: {', '.join(found)}; {rows}"


def caption(contest: Contest) -> str:
    """The figures of one contest, above its time line."""
    batches = f"{contest.batches} batches in {contest.seconds:.0f} s"
    if contest.admission is None:
        return f"without an agent: {batches}"
    return f"{contest.name}: {_conflicts(contest)}, {contest.waste.spent:.1f} s computed in vain, {batches}"


def _conflicts(contest: Contest) -> str:
    return f"{contest.conflicts or 'no'} conflict{'' if contest.conflicts == 1 else 's'}"


def draw(contests: Sequence[Contest], path: Path) -> None:
    """Write the picture as PNG: the contests side by side, on the same scale. Without steps a time line is empty."""
    mpl.rcParams["font.family"] = "DejaVu Sans"
    # In the order of the feeds, so that the time lines can be compared.
    names = {attempt.writer for contest in contests for attempt in contest.trace.attempts}
    writers = sorted(names, key=lambda name: (list(FEEDS).index(name) if name in FEEDS else len(FEEDS), name))
    rows = {writer: index for index, writer in enumerate(writers)}
    spans = [_Span(contest.trace) for contest in contests]
    seconds = max(span.last - span.begin for span in spans)

    height = 2.25 + 0.95 * max(1, len(rows))
    figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=_DOTS_PER_INCH, facecolor="white")
    panels = figure.subplots(1, len(contests), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.085, right=0.985, wspace=0.05, top=1 - 0.98 / height, bottom=1.02 / height)
    shown: dict[str, str] = {}
    crosses = 0
    for axes, contest, span in zip(panels, contests, spans, strict=True):
        _frame(axes, rows, seconds, 14 // len(contests))
        axes.set_title(caption(contest), fontsize=10.5, color=PALE, loc="left", pad=8)
        crosses += _time_line(axes, contest.trace, span, rows, shown)
    _legend(figure, shown, crosses)
    figure.text(
        0.012, 1 - 0.30 / height, title(contests), fontsize=14, fontweight="bold", color=INK, va="center"
    )
    figure.savefig(path, format="png")


class _Span:
    """When a contest began, and its last step."""

    def __init__(self, trace: Trace) -> None:
        attempts = trace.attempts
        self.begin = min((attempt.started for attempt in attempts), default=0.0)
        self.last = max((attempt.steps[-1].at for attempt in attempts), default=self.begin + 1.0)


def _time_line(axes: Axes, trace: Trace, span: _Span, rows: Mapping[str, int], shown: dict[str, str]) -> int:
    """Draw a contest. Add to `shown` what its colours mean. Return the number of crosses."""
    for attempt in trace.attempts:
        row = rows[attempt.writer]
        for segment in segments(attempt, span.last):
            axes.barh(
                row,
                segment.end - segment.begin,
                left=segment.begin - span.begin,
                height=_BAR_HEIGHT,
                color=segment.colour,
                linewidth=0,
                zorder=3,
            )
            shown.setdefault(segment.label, segment.colour)
        _number(axes, attempt, row, span)
    return sum(_conflict(axes, attempt, rows, span.begin) for attempt in trace.attempts)


def _frame(axes: Axes, rows: Mapping[str, int], seconds: float, ticks: int) -> None:
    axes.set_xlim(-0.005 * seconds, max(seconds, 1.0) * 1.005)
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.set_yticks(list(rows.values()), labels=list(rows), fontsize=11, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    axes.tick_params(axis="both", length=0, pad=6)
    axes.tick_params(axis="x", labelsize=9, labelcolor=PALE)
    axes.grid(visible=True, axis="x", color=GRID, linewidth=0.8, zorder=0)
    for side in axes.spines.values():
        side.set_visible(False)
    for row in rows.values():
        axes.axhspan(row - 0.36, row + 0.36, color="#f7f8fa", zorder=0.5, linewidth=0)


def _number(axes: Axes, attempt: Attempt, row: int, span: _Span) -> None:
    """Draw the batch's number on the bar of its computation, if it fits."""
    left, right = axes.get_xlim()
    start, end = (
        attempt.computing_since,
        min(attempt.at("requested") or span.last, attempt.ended or span.last),
    )
    if (
        attempt.batch_id is None
        or attempt.outcome is Outcome.CONFLICT
        or (end - start) / (right - left) * axes.get_position().width < _LEAST_LABEL_SHARE
    ):
        return
    middle = (start + end) / 2 - span.begin
    axes.text(
        middle, row, str(attempt.batch_id), ha="center", va="center", fontsize=8.5, color="white", zorder=5
    )


def _conflict(axes: Axes, attempt: Attempt, rows: Mapping[str, int], begin: float) -> bool:
    """Draw a cross where the loser received its abort, and an arrow from the winner. Returns whether it did."""
    abort = attempt.first("abort")
    if abort is None or attempt.outcome is not Outcome.CONFLICT:
        return False
    row, moment = rows[attempt.writer], abort.at - begin
    axes.plot(
        moment,
        row,
        marker="X",
        markersize=9,
        color="white",
        markeredgecolor="#8f1d1a",
        markeredgewidth=1.3,
        zorder=7,
    )
    winner = rows.get(attempt.winner or "")
    if winner is not None and winner != row:
        towards = 1 if winner < row else -1
        axes.add_patch(
            FancyArrowPatch(
                (moment, winner + towards * _BAR_HEIGHT / 2),
                (moment, row - towards * 0.16),
                arrowstyle="-|>,head_length=5,head_width=2.6",
                color="#8f1d1a",
                linewidth=1.2,
                shrinkA=0,
                shrinkB=1,
                zorder=6,
            )
        )
    return True


def _legend(figure: Figure, shown: dict[str, str], conflicts: int) -> None:
    handles: list[Patch | Line2D] = [Patch(facecolor=colour, label=label) for label, colour in shown.items()]
    if conflicts:
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker="X",
                markersize=8,
                color="white",
                markeredgecolor="#8f1d1a",
                label="abort received (arrow: from winner)",
            )
        )
    if handles:
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.005, 0.0),
            ncols=min(len(handles), 5),
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.2,
            handleheight=0.9,
            columnspacing=1.6,
        )
