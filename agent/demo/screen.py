"""The demo's output while it runs: a live view on a terminal, plain lines otherwise."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lakewarden.agent.attempts.trace import Attempt, Outcome, Step, Trace
from lakewarden.agent.demo.narration import Line, line_for_step

COLOURS = {"departures": "blue", "arrivals": "magenta"}
"""The colour of each writer's name."""


class Screen:
    """Prints a line for each step. On a terminal, it also shows the state of both writers below the lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.trace = Trace()
        self._began: float | None = None
        self._now = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("batches committed"),
            TimeElapsedColumn(),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._view, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def begin(self) -> Trace:
        """Begin a contest: return its trace, to which `show` adds. Times and progress start again."""
        self.trace, self._began = Trace(), None
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars = {}
        return self.trace

    def expect(self, writer: str, batches: int) -> None:
        """Add a progress bar for a writer with this number of batches."""
        self._bars[writer] = self._progress.add_task(self._name(writer), total=batches)

    def note(self, text: str, style: str = "") -> None:
        """Print a line about the demo itself."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    def show(self, step: Step) -> None:
        """Record a writer's step, and print its line if it has one."""
        attempt = self.trace.add(step)
        line = line_for_step(step, attempt)
        if line is not None:
            self._print(step, line)
        if step.what in ("completed", "already-committed") and step.writer in self._bars:
            bar = self._bars[step.writer]
            done = {
                done.batch_id
                for done in self.trace.of(Outcome.COMMITTED, Outcome.SKIPPED)
                if done.writer == step.writer
            }
            self._progress.update(bar, completed=len(done))

    def tick(self, now: float) -> None:
        """Set the time that the live view uses."""
        self._now = now

    def _print(self, step: Step, line: Line) -> None:
        if self._began is None:
            self._began = step.at
        batch = "" if step.batch_id is None else f"batch {step.batch_id}"
        self.console.print(
            Text.assemble(
                (f"{step.at - self._began:6.1f} s  ", "dim"),
                (f"{step.writer:<11}", self._style(step.writer)),
                (f"{batch:<10}", "dim"),
                (line.text, line.style),
            ),
            soft_wrap=True,
        )

    def _view(self) -> Group:
        states = Table.grid(padding=(0, 2))
        for writer in self._bars:
            states.add_row(Text(writer, style=self._style(writer)), self._state(writer))
        return Group(Text(), self._progress, states)

    def _state(self, writer: str) -> Text:
        attempts = [attempt for attempt in self.trace.attempts if attempt.writer == writer]
        if not attempts:
            return Text("Spark is starting", style="dim")
        last = attempts[-1]
        state = last.outcome.value if last.outcome is not Outcome.RUNNING else _activity(last)
        age = max(0.0, self._now - last.steps[-1].at)
        return Text(f"batch {last.batch_id}: {state}, {age:.0f} s", style="dim")

    def _name(self, writer: str) -> str:
        return f"[{self._style(writer)}]{writer:<10}[/]"

    @staticmethod
    def _style(writer: str) -> str:
        return COLOURS.get(writer, "bold")


def _activity(attempt: Attempt) -> str:
    match attempt.steps[-1].what:
        case "intent":
            return "waiting for admission"
        case "requested":
            return "waiting for the grant"
        case "granted":
            return "committing"
        case _:
            return "computing"
