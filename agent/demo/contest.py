"""A contest: both queries write the same flights to one table. The demo runs one for each admission, and compares them.

The picture has the time line of each contest, with the bars of the page, side by side on one scale.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, cast

import pyarrow as pa

from lakewarden.agent.attempts.trace import document, drawing, key
from lakewarden.agent.demo.flights import FEEDS
from lakewarden.agent.time_text import counted, first_of
from lakewarden.events import ALL_FILE_GROUPS
from lakewarden.handlers.explain.life import End, Life, LifeStep

_SHOWN_OVERLAPS = 2
_WIDTH, _LEFT, _GAP, _TOP, _ROW, _BAR = 1500.0, 120.0, 36.0, 90.0, 100.0, 50.0
_LEAST_LABEL = 16.0
"""A bar that is narrower gets no number, because it would not fit."""
_MIDDLES = {feed: _TOP + _ROW * (number + 0.5) for number, feed in enumerate(FEEDS)}
_BOTTOM = _TOP + _ROW * len(FEEDS)
_RED = "#8f1d1a"
_ABORTED = "cross: abort received, line: from the winner"


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The result of the comparison."""

    expected: int
    """Flights that must be in the table."""
    missing: int
    """Expected flights without a row."""
    duplicated: int
    """Rows beyond the first row of their flight."""
    wrong: int
    """Flights with a row that differs from the expected row, and flights that are in no feed."""

    @property
    def lost(self) -> int:
        return self.missing + self.wrong

    @property
    def clean(self) -> bool:
        """Whether every flight is present exactly once and correct."""
        return self.lost == self.duplicated == 0


def compare(actual: pa.Table, expected: pa.Table) -> TableCheck:
    """Compare the rows by `flight_id`. Two nulls are equal; a null and a value are not."""
    wanted = dict(_rows(expected))
    found = list(_rows(actual.select(expected.schema.names)))
    present = {flight for flight, _ in found}
    wrong = {flight for flight, row in found if wanted.get(flight) != row}
    return TableCheck(
        len(wanted), len(wanted.keys() - present), duplicated=len(found) - len(present), wrong=len(wrong)
    )


def _rows(table: pa.Table) -> Iterator[tuple[int, tuple[Any, ...]]]:
    columns = [column.to_pylist() for column in table.columns]
    return zip(table["flight_id"].to_pylist(), zip(*columns, strict=True), strict=True)


@dataclass(frozen=True, slots=True)
class Contest:
    """The results of one contest."""

    admission: str | None
    """None: without an agent."""
    attempts: tuple[Life, ...]
    """In the order of their start."""
    check: TableCheck
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often the demo restarted each writer."""
    compactions: int | None = None
    """Snapshots that the compactor has committed. None: there was no compactor."""

    @property
    def name(self) -> str:
        """The heading of its column and its time line."""
        return self.admission or "without an agent"

    def _of(self, outcome: End) -> list[Life]:
        return [each for each in self.attempts if each.end is outcome]

    @property
    def conflicts(self) -> int:
        return len(self._of(End.CONFLICT))

    @property
    def wasted_seconds(self) -> float:
        """Compute that the losers wasted: from the admission to the end of the Spark jobs, or to the commit request."""
        return sum(_computed_seconds(each) for each in self._of(End.CONFLICT))

    @property
    def batches(self) -> int:
        return len(self._of(End.COMMITTED))

    @property
    def seconds(self) -> float:
        """From the first step of a writer to the last one, without the start of Spark."""
        return max((each.last for each in self.attempts), default=0.0)


def _computed_seconds(life: Life) -> float:
    ends = [at for what in ("requested", "jobs-stopped") if (at := life.times.get(what)) is not None]
    began = life.times.get("admitted") or life.started
    return max(0.0, min(ends, default=life.last) - began)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a transaction, as its writer saw it."""

    at: float
    what: str
    table: str
    writer: str
    transaction: str
    batch_id: int | None
    attempt: int
    detail: dict[str, Any] = field(default_factory=dict)

    def note_in(self, life: Life) -> None:
        told = {"reason": "reason", "cause": "cause", "others": "winners"}
        facts = {told[name]: value for name, value in self.detail.items() if name in told}
        life.take(cast("LifeStep", self.what), self.at, **facts)


class Transcript:
    """Prints a line for each step of a contest, and keeps the steps. Times are seconds since the first one."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._attempts: dict[str, Life] = {}
        self._show = show
        self._began: float | None = None

    @property
    def attempts(self) -> tuple[Life, ...]:
        return tuple(sorted(self._attempts.values(), key=lambda each: each.started))

    def add(self, step: Step) -> None:
        """Record a step of a transaction, and print its line if it has one."""
        self._began = step.at if self._began is None else self._began
        step = replace(step, at=step.at - self._began)
        life = Life(step.transaction, step.writer, step.batch_id)
        if step.transaction:  # a batch that failed early has none
            life = self._attempts.setdefault(step.transaction, life)
        step.note_in(life)
        if line := line_of(step, life):
            batch = "" if step.batch_id is None else f"batch {step.batch_id}"
            self._show(f"{step.at:6.1f} s  {step.writer:<11}{batch:<10}{line}")


def step_of(line: str) -> Step:
    """The step that a writer has printed."""
    found = json.loads(line)
    return Step(**{**found, "writer": _short(found["writer"])})


def _short(writer: str) -> str:
    """The writer's configured name: in events a streaming writer is `<name>:<query id>`."""
    return writer.partition(":")[0]


def line_of(step: Step, life: Life) -> str | None:
    """The text of a step, or None for a step that is not shown. `life` already has the step."""

    def since(what: LifeStep) -> float:
        earlier = life.times.get(what)
        return 0.0 if earlier is None else max(0.0, step.at - earlier)

    match step.what:
        case "intent":
            queued = ", queued for admission" if step.detail.get("admission") == "queued" else ""
            return f"{'restarts' if step.attempt > 1 else 'starts'}{queued}"
        case "admitted" if since("intent") > 0.5:
            return f"admitted after {since('intent'):.1f} s in the queue"
        case "abort":
            return _abort(step)
        case "jobs-stopped":
            return f"Spark jobs stopped {since('abort'):.2f} s after the abort"
        case "granted":
            return f"commit granted {since('requested'):.2f} s after its request"
        case "completed":
            return "committed"
        case "already-committed":
            return "skipped: already committed"
        case "abandoned" if life.times.get("abort") is None:
            return "abandoned"
        case "failed":
            reason = str(step.detail.get("error") or step.detail.get("reason") or "see the writer's log")
            return f"failed: {reason.splitlines()[0][:200]}"
        case _:
            return None


def _abort(step: Step) -> str:
    reason = str(step.detail.get("reason", "conflict"))
    if reason != "conflict":
        return f"aborted: {reason}"
    others = ", ".join(_short(str(other)) for other in step.detail.get("others") or ("another writer",))
    return f"aborted: CONFLICT with {others} on {overlaps(step.detail.get('conflicts') or ())}"


def overlaps(touched: Iterable[Sequence[str]]) -> str:
    """The partitions and file groups that both transactions touched, shortened."""
    names = dict.fromkeys(
        partition if file_group == ALL_FILE_GROUPS else f"{partition} {file_group}"
        for partition, file_group in touched
    )
    return first_of(list(names), _SHOWN_OVERLAPS)


def report_lines(contests: Sequence[Contest], whole_seconds: float) -> Iterator[str]:
    """The figures of the contests side by side, and whether each table is right."""

    def line(name: str, values: Iterable[str], meaning: str = "") -> str:
        return f" {name:<18}{''.join(f'{each:>12}' for each in values)}  {meaning}".rstrip()

    def counts(name: str, values: Iterable[int], meaning: str) -> str:
        return line(name, (f"{each:,}" for each in values), meaning)

    checks = [each.check for each in contests]
    yield line("admission", (each.admission or "–" for each in contests))
    yield counts(
        "rows expected", [each.expected for each in checks], "every flight once, columns of both feeds"
    )
    yield counts("rows missing", [each.missing for each in checks], "flights without a row")
    yield counts("rows duplicated", [each.duplicated for each in checks], "further rows of the same flight")
    yield counts("rows wrong", [each.wrong for each in checks], "flights with a wrong value in some column")
    again = [f"{writer} {n}×" for each in contests for writer, n in each.restarts.items() if n]
    restarts = f"restarted after a failure: {', '.join(again)}" if again else "no writer failed"
    yield counts("batches committed", [each.batches for each in contests], restarts)
    if contests[0].compactions is not None:
        yield counts(
            "compactions", [each.compactions or 0 for each in contests], "committed by the compactor"
        )
    if contests[0].admission is not None:
        yield counts(
            "conflicts", [each.conflicts for each in contests], "the agent aborted one of two transactions"
        )
        wasted = (f"{each.wasted_seconds:.1f} s" for each in contests)
        yield line("compute wasted", wasted, "by aborted attempts before they stopped")
    seconds = (f"{each.seconds:.0f} s" for each in contests)
    yield line(
        "contest time", seconds, f"without the start of Spark; the whole run took {whole_seconds:.0f} s"
    )
    yield _verdict(contests)


def _verdict(contests: Sequence[Contest]) -> str:
    expected = contests[0].check.expected
    each_table = " in each table" if len(contests) > 1 else ""
    if all(contest.check.clean for contest in contests):
        chance = "" if contests[0].admission else ". Without an agent this is chance"
        return f"All {expected:,} rows are present exactly once and correct{each_table}{chance}."
    lost = sum(contest.check.lost for contest in contests)
    if contests[0].admission is None:
        cause = "The queries reported no error: each overwrote rows that the other had just written."
    else:
        cause = "A bug of lakewarden: please report it with the kept folder."
    return f"{lost:,} of {expected * len(contests):,} rows are lost or damaged. {cause}"


# -- the picture ---------------------------------------------------------------------------------------------------------


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
    return counted(contest.conflicts, "conflict") if contest.conflicts else "no conflicts"


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
        winner = _short(bar["lost_to"][0]) if bar["lost_to"] else writer
        yield f'<path d="M{x} {_MIDDLES.get(winner, y)} V{y}" stroke="{_RED}" stroke-width="1.4"/>'
        for colour, width in ((_RED, 6), ("#fff", 3)):
            yield f'<path d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="{colour}" stroke-width="{width}"/>'
        shown.setdefault(_ABORTED, _RED)
