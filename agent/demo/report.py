"""The final report: each contest's table comparison and figures, side by side as text, and as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lakewarden.agent.demo.contest import Contest


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run."""

    contests: tuple[Contest, ...]
    """In the order in which they ran, at least one."""
    seconds: float
    """Of the whole run."""
    picture: Path | None = None
    kept: Path | None = None
    """The folder of tables, checkpoints and logs, if they are kept."""
    notes: tuple[str, ...] = ()
    """Remarks: failures during the run, and sources that disagree."""

    @property
    def with_agent(self) -> bool:
        """Whether an agent coordinated the queries."""
        return self.contests[0].admission is not None

    @property
    def clean(self) -> bool:
        """Whether every row is present exactly once and correct, in each table."""
        return all(contest.check.clean for contest in self.contests)

    def as_json(self) -> str:
        """One JSON object on one line. `contests` has the figures of each contest."""
        return json.dumps(
            {
                "contests": [_contest_fields(contest) for contest in self.contests],
                "picture": None if self.picture is None else str(self.picture),
                "with_agent": self.with_agent,
                "seconds": round(self.seconds, 1),
                "notes": list(self.notes),
            }
        )

    def print(self, console: Console) -> None:
        """Print the report as text."""
        console.print()
        console.print(self._table())
        for note in self.notes:
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        for what, path in (("picture", self.picture), ("tables, checkpoints and logs", self.kept)):
            if path is not None:
                console.print(Text(f"{what}: {path}"), soft_wrap=True)
        console.print(self._verdict(), soft_wrap=True)

    def _table(self) -> Table:
        table = Table(show_header=self.with_agent, box=None, padding=(0, 1), title=None)
        table.add_column("admission", justify="left")
        for contest in self.contests:
            table.add_column(contest.name, justify="right")
        table.add_column("", justify="left", style="dim")

        def add(name: str, meaning: str, shown: Callable[[Contest], str | Text]) -> None:
            table.add_row(name, *map(shown, self.contests), meaning)

        add(
            "rows expected",
            "every flight once, columns of both feeds",
            lambda each: _count(each.check.expected),
        )
        add("rows present", "flights with at least one row", lambda each: _count(each.check.present))
        add("rows missing", "flights without a row", lambda each: _error(each.check.missing))
        add("rows duplicated", "further rows of the same flight", lambda each: _error(each.check.duplicated))
        add("rows wrong", self._wrong(), lambda each: _error(each.check.wrong))
        add("batches committed", self._restarts(), lambda each: _count(each.batches))
        if self.contests[0].compactions is not None:
            add("compactions", "committed by the compactor", lambda each: _count(each.compactions or 0))
        if self.with_agent:
            add("conflicts", "the agent aborted one of two transactions", lambda each: _count(each.conflicts))
            add(
                "computed in vain",
                "by aborted attempts before they stopped",
                lambda each: f"{each.waste.spent:.1f} s",
            )
            add(
                "computing saved",
                "compared with detection at commit time",
                lambda each: f"{each.waste.saved:.1f} s",
            )
            add(
                "time to stop, median",
                "from the later marker to idle executors",
                lambda each: _seconds(each.stops.p50),
            )
            add("time to stop, maximum", "of all aborted attempts", lambda each: _seconds(each.stops.max))
        add(
            "contest time",
            f"without the start of Spark; the whole run took {self.seconds:.0f} s",
            lambda each: f"{each.seconds:.0f} s",
        )
        return table

    def _wrong(self) -> str:
        found = [
            f"{count:,} with wrong values from {feed}"
            for contest in self.contests
            for feed, count in contest.check.wrong_by_feed.items()
            if count
        ]
        return "; ".join(found) or "flights with a wrong value in some column"

    def _restarts(self) -> str:
        again = [
            f"{writer} {times} time{'s' if times > 1 else ''}"
            for contest in self.contests
            for writer, times in contest.restarts.items()
            if times
        ]
        return f"restarted after a failure: {', '.join(again)}" if again else "no writer failed"

    def _verdict(self) -> Text:
        expected = self.contests[0].check.expected
        if self.clean:
            each = " in each table" if len(self.contests) > 1 else ""
            chance = "" if self.with_agent else ". Without an agent this is chance"
            return Text(
                f"All {expected:,} rows are present exactly once and correct{each}{chance}.",
                style="bold green",
            )
        lost = sum(contest.check.lost for contest in self.contests)
        total = sum(contest.check.expected for contest in self.contests)
        cause = (
            "This is a bug of lakewarden; please report it with the logs."
            if self.with_agent
            else "The two queries overwrote each other's rows, and no commit failed. Compare with a run with the agent."
        )
        return Text(f"{lost:,} of {total:,} rows are lost or damaged. {cause}", style="bold red")


def _contest_fields(contest: Contest) -> Mapping[str, Any]:
    check, stops, waste = contest.check, contest.stops, contest.waste
    return {
        "admission": contest.admission,
        "expected": check.expected,
        "present": check.present,
        "missing": check.missing,
        "duplicated": check.duplicated,
        "wrong": check.wrong,
        "conflicts": contest.conflicts,
        "stop_seconds": {"p50": _rounded(stops.p50), "max": _rounded(stops.max)},
        "saved_writer_seconds": round(waste.saved, 3),
        "spent_writer_seconds": round(waste.spent, 3),
        "batches": contest.batches,
        "restarts": dict(contest.restarts),
        "compactions": contest.compactions,
        "seconds": round(contest.seconds, 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _count(value: int) -> str:
    return f"{value:,}"


def _error(value: int) -> Text:
    return Text(f"{value:,}", style="bold red" if value else "green")


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"
