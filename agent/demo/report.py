"""The final report: what the check and the figures found, as text for people and as one JSON object for programs."""

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
    """Everything that the demo found out."""

    check: TableCheck
    with_agent: bool
    conflicts: int
    stops: Stops
    waste: Waste
    batches: int
    """Committed by both writers together."""
    restarts: Mapping[str, int]
    """How often each writer had to be started again."""
    seconds: float
    picture: Path | None = None
    kept: Path | None = None
    """Table, checkpoints and logs, where they are kept."""
    notes: tuple[str, ...] = ()
    """What a reader should know: accounts that disagree, failures on the way."""

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
        """For people."""
        console.print()
        console.print(self._table())
        for note in self.notes:
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        for what, path in (("picture", self.picture), ("kept", self.kept)):
            if path is not None:
                console.print(Text(f"{what}: {path}"), soft_wrap=True)
        console.print(self._verdict(), soft_wrap=True)

    def _table(self) -> Table:
        check = self.check
        table = Table(show_header=False, box=None, padding=(0, 1), title=None)
        table.add_column(justify="left")
        table.add_column(justify="right")
        table.add_column(justify="left", style="dim")
        table.add_row("rows expected", _count(check.expected), "every flight once, the columns of both feeds")
        table.add_row("rows present", _count(check.present), "")
        for name, found, meaning in (
            ("rows missing", check.missing, "not in the table at all"),
            ("rows duplicated", check.duplicated, "beyond the first of their flight"),
            ("rows wrong", check.wrong, self._wrong()),
        ):
            table.add_row(name, Text(_count(found), style="bold red" if found else "green"), meaning)
        if self.with_agent:
            table.add_row("conflicts", _count(self.conflicts), "one of two overlapping transactions aborted")
            table.add_row(
                "stopped after, p50", _seconds(self.stops.p50), "from younger marker to idle executors"
            )
            table.add_row(
                "stopped after, max", _seconds(self.stops.max), f"the slowest of {self.stops.timed}"
            )
            table.add_row(
                "computed in vain", f"{self.waste.spent:.1f} s", "by aborted attempts, until they stopped"
            )
            table.add_row(
                "writer-seconds saved", f"{self.waste.saved:.1f} s", "against finding out at commit time"
            )
        table.add_row("batches committed", _count(self.batches), _restarts(self.restarts))
        table.add_row("run time", f"{self.seconds:.0f} s", "Spark and Kafka starting included")
        return table

    def _wrong(self) -> str:
        found = [
            f"{count:,} lack what {feed} brought" for feed, count in self.check.wrong_by_feed.items() if count
        ]
        return "; ".join(found) or "some column is not what its feed brought"

    def _verdict(self) -> Text:
        check = self.check
        if check.clean:
            agent = "" if self.with_agent else ", this time, by luck and without an agent"
            return Text(f"All {check.expected:,} rows are there, once, and right{agent}.", style="bold green")
        lost = check.missing + check.wrong
        cause = (
            "the check failed: this must not happen, please report it with the logs"
            if self.with_agent
            else "two queries overwrote each other, and no commit failed. Run it with the agent to see the difference"
        )
        return Text(f"{lost:,} of {check.expected:,} rows are lost or damaged: {cause}.", style="bold red")


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
    return f"started again: {', '.join(again)}" if again else "no writer had to be started again"
