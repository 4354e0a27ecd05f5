"""The final report: each contest's table comparison and figures, side by side as text, and as one JSON object."""

from __future__ import annotations

import json
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
    """Failures during the run."""

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
        console.print()
        console.print(self._table())
        for note in self.notes:
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        for what, path in (("picture", self.picture), ("tables, checkpoints and logs", self.kept)):
            if path is not None:
                console.print(Text(f"{what}: {path}"), soft_wrap=True)
        console.print(self._verdict(), soft_wrap=True)

    def _table(self) -> Table:
        table = Table(show_header=self.with_agent, box=None, padding=(0, 1))
        table.add_column("admission")
        for contest in self.contests:
            table.add_column(contest.name, justify="right")
        table.add_column("", style="dim")

        def count(name: str, meaning: str, values: list[int], *, errors: bool = False) -> None:
            styles = [("bold red" if value else "green") if errors else "" for value in values]
            table.add_row(name, *map(Text, (f"{each:,}" for each in values), styles), meaning)

        checks = [contest.check for contest in self.contests]
        count("rows expected", "every flight once, columns of both feeds", [each.expected for each in checks])
        count("rows missing", "flights without a row", [each.missing for each in checks], errors=True)
        count(
            "rows duplicated",
            "further rows of the same flight",
            [each.duplicated for each in checks],
            errors=True,
        )
        count("rows wrong", self._wrong(), [each.wrong for each in checks], errors=True)
        count("batches committed", self._restarts(), [each.batches for each in self.contests])
        if self.contests[0].compactions is not None:
            count(
                "compactions", "committed by the compactor", [each.compactions or 0 for each in self.contests]
            )
        if self.with_agent:
            count(
                "conflicts",
                "the agent aborted one of two transactions",
                [each.conflicts for each in self.contests],
            )
            wasted = [f"{each.wasted_seconds:.1f} s" for each in self.contests]
            table.add_row("computed in vain", *wasted, "by aborted attempts before they stopped")
        seconds = [f"{each.seconds:.0f} s" for each in self.contests]
        table.add_row(
            "contest time", *seconds, f"without the start of Spark; the whole run took {self.seconds:.0f} s"
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
        cause = (
            "This is a bug of lakewarden; please report it with the logs."
            if self.with_agent
            else "The two queries overwrote each other's rows, and no commit failed. Compare with a run with the agent."
        )
        return Text(
            f"{lost:,} of {expected * len(self.contests):,} rows are lost or damaged. {cause}",
            style="bold red",
        )


def _contest_fields(contest: Contest) -> dict[str, Any]:
    check = contest.check
    return {
        "admission": contest.admission,
        "expected": check.expected,
        "present": check.present,
        "missing": check.missing,
        "duplicated": check.duplicated,
        "wrong": check.wrong,
        "conflicts": contest.conflicts,
        "wasted_seconds": round(contest.wasted_seconds, 3),
        "batches": contest.batches,
        "restarts": dict(contest.restarts),
        "compactions": contest.compactions,
        "seconds": round(contest.seconds, 1),
    }
