"""The final report: the comparison of the table and the figures, as text and as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lakewarden.agent.demo.figures import Stops, Waste
from lakewarden.agent.demo.verification import TableCheck


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run."""

    check: TableCheck
    with_agent: bool
    conflicts: int
    stops: Stops
    waste: Waste
    batches: int
    """Batches committed by both writers together."""
    restarts: Mapping[str, int]
    """How often the demo restarted each writer."""
    seconds: float
    picture: Path | None = None
    kept: Path | None = None
    """The folder of table, checkpoints and logs, if they are kept."""
    notes: tuple[str, ...] = ()
    """Remarks: failures during the run, and sources that disagree."""

    def as_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(
            {
                "expected": self.check.expected,
                "present": self.check.present,
                "missing": self.check.missing,
                "duplicated": self.check.duplicated,
                "wrong": self.check.wrong,
                "conflicts": self.conflicts,
                "stop_seconds": {"p50": _rounded(self.stops.p50), "max": _rounded(self.stops.max)},
                "saved_writer_seconds": round(self.waste.saved, 3),
                "picture": None if self.picture is None else str(self.picture),
                "with_agent": self.with_agent,
                "spent_writer_seconds": round(self.waste.spent, 3),
                "batches": self.batches,
                "restarts": dict(self.restarts),
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
        for what, path in (("picture", self.picture), ("table, checkpoints and logs", self.kept)):
            if path is not None:
                console.print(Text(f"{what}: {path}"), soft_wrap=True)
        console.print(self._verdict(), soft_wrap=True)

    def _table(self) -> Table:
        check = self.check
        table = Table(show_header=False, box=None, padding=(0, 1), title=None)
        table.add_column(justify="left")
        table.add_column(justify="right")
        table.add_column(justify="left", style="dim")
        table.add_row("rows expected", _count(check.expected), "every flight once, columns of both feeds")
        table.add_row("rows present", _count(check.present), "flights with at least one row")
        for name, found, meaning in (
            ("rows missing", check.missing, "flights without a row"),
            ("rows duplicated", check.duplicated, "further rows of the same flight"),
            ("rows wrong", check.wrong, self._wrong()),
        ):
            table.add_row(name, Text(_count(found), style="bold red" if found else "green"), meaning)
        if self.with_agent:
            table.add_row("conflicts", _count(self.conflicts), "the agent aborted one of two transactions")
            table.add_row(
                "time to stop, median",
                _seconds(self.stops.p50),
                "from the later marker to idle executors",
            )
            table.add_row(
                "time to stop, maximum", _seconds(self.stops.max), f"of {self.stops.timed} aborted attempts"
            )
            table.add_row(
                "computing time wasted",
                f"{self.waste.spent:.1f} s",
                "by aborted attempts before they stopped",
            )
            table.add_row(
                "computing time saved",
                f"{self.waste.saved:.1f} s",
                "compared with detection at commit time",
            )
        table.add_row("batches committed", _count(self.batches), _restarts(self.restarts))
        table.add_row("run time", f"{self.seconds:.0f} s", "including the start of Kafka and Spark")
        return table

    def _wrong(self) -> str:
        found = [
            f"{count:,} with wrong values from {feed}"
            for feed, count in self.check.wrong_by_feed.items()
            if count
        ]
        return "; ".join(found) or "flights with a wrong value in some column"

    def _verdict(self) -> Text:
        check = self.check
        if check.clean:
            chance = "" if self.with_agent else ". Without an agent this is chance"
            return Text(
                f"All {check.expected:,} rows are present exactly once and correct{chance}.",
                style="bold green",
            )
        lost = check.missing + check.wrong
        cause = (
            "This is a bug of lakewarden; please report it with the logs."
            if self.with_agent
            else "The two queries overwrote each other's rows, and no commit failed. Compare with a run with the agent."
        )
        return Text(f"{lost:,} of {check.expected:,} rows are lost or damaged. {cause}", style="bold red")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _count(value: int) -> str:
    return f"{value:,}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _restarts(restarts: Mapping[str, int]) -> str:
    again = [
        f"{writer} {times} time{'s' if times > 1 else ''}" for writer, times in restarts.items() if times
    ]
    return f"restarted after a failure: {', '.join(again)}" if again else "no writer failed"
