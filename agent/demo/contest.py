"""A contest: both queries write the same flights to one table. The demo runs one for each admission, and compares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from lakewarden.agent.attempts.trace import Attempt, AttemptOutcome, AttemptStep, AttemptTrace, short_name
from lakewarden.agent.demo.verification import TableCheck
from lakewarden.events import ALL_FILE_GROUPS

_SHOWN_OVERLAPS = 2
_COLOURS = {"departures": "blue", "arrivals": "magenta"}


@dataclass(frozen=True, slots=True)
class Contest:
    """The results of one contest."""

    admission: str | None
    """None: without an agent."""
    trace: AttemptTrace
    check: TableCheck
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often the demo restarted each writer."""
    compactions: int | None = None
    """Snapshots that the compactor has committed. None: there was no compactor."""

    @property
    def name(self) -> str:
        """The heading of its column and its time line."""
        return self.admission or "without an agent"

    @property
    def conflicts(self) -> int:
        """The transactions that the agent aborted because of a conflict."""
        return len(self.trace.of(AttemptOutcome.CONFLICT))

    @property
    def wasted_seconds(self) -> float:
        """What the losers computed in vain: from the admission to the end of the Spark jobs, or to the commit request."""
        return sum(_computed_seconds(each) for each in self.trace.of(AttemptOutcome.CONFLICT))

    @property
    def batches(self) -> int:
        """Batches committed by both writers together."""
        return len(self.trace.of(AttemptOutcome.COMMITTED))

    @property
    def seconds(self) -> float:
        """From the first step of a writer to the last one, without the start of Spark."""
        times = [step.at for attempt in self.trace.attempts for step in attempt.steps]
        return max(times) - min(times) if times else 0.0


def _computed_seconds(attempt: Attempt) -> float:
    ends = [at for what in ("requested", "jobs-stopped") if (at := attempt.at(what)) is not None]
    return max(0.0, (min(ends) if ends else attempt.steps[-1].at) - attempt.computing_since)


class Transcript:
    """Prints a line for each step of a contest, and keeps the steps."""

    def __init__(self, console: Console) -> None:
        self.trace = AttemptTrace()
        self._console = console
        self._began: float | None = None

    def show(self, step: AttemptStep) -> None:
        """Record a writer's step, and print its line if it has one."""
        attempt = self.trace.add(step)
        if (line := line_of(step, attempt)) is None:
            return
        self._began = step.at if self._began is None else self._began
        text, style = line
        self._console.print(
            Text.assemble(
                (f"{step.at - self._began:6.1f} s  ", "dim"),
                (f"{step.writer:<11}", _COLOURS.get(step.writer, "bold")),
                (f"{'' if step.batch_id is None else f'batch {step.batch_id}':<10}", "dim"),
                (text, style),
            ),
            soft_wrap=True,
        )


def line_of(step: AttemptStep, attempt: Attempt | None) -> tuple[str, str] | None:
    """The text of a step and its style, or None for a step that is not shown. `attempt` already contains the step."""

    def since(what: str) -> float:
        earlier = None if attempt is None else attempt.at(what)
        return 0.0 if earlier is None else max(0.0, step.at - earlier)

    match step.what:
        case "intent":
            queued = ", queued for admission" if step.detail.get("admission") == "queued" else ""
            return f"{'restarts' if step.attempt > 1 else 'starts'}{queued}", "dim"
        case "admitted" if since("intent") > 0.5:
            return f"admitted after {since('intent'):.1f} s in the queue", "dim"
        case "abort":
            return _abort(step), "bold red"
        case "jobs-stopped":
            return f"Spark jobs stopped {since('abort'):.2f} s after the abort", "red"
        case "granted":
            return f"commit granted {since('requested'):.2f} s after its request", "cyan"
        case "completed":
            return "committed", "green"
        case "already-committed":
            return "skipped: already committed", "yellow"
        case "abandoned" if attempt is None or attempt.at("abort") is None:
            return "abandoned", "yellow"
        case "failed":
            reason = str(step.detail.get("error") or step.detail.get("reason") or "see the writer's log")
            return f"failed: {reason.splitlines()[0][:200]}", "bold red"
        case _:
            return None


def _abort(step: AttemptStep) -> str:
    reason = str(step.detail.get("reason", "conflict"))
    if reason != "conflict":
        return f"aborted: {reason}"
    others = ", ".join(short_name(str(other)) for other in step.detail.get("others") or ("another writer",))
    return f"aborted: CONFLICT with {others} on {overlaps(step.detail.get('conflicts') or ())}"


def overlaps(touched: Iterable[Sequence[str]]) -> str:
    """The partitions and file groups that both transactions touched, shortened."""
    names = list(
        dict.fromkeys(
            partition if file_group == ALL_FILE_GROUPS else f"{partition} {file_group}"
            for partition, file_group in touched
        )
    )
    more = f" and {len(names) - _SHOWN_OVERLAPS} more" if len(names) > _SHOWN_OVERLAPS else ""
    return ", ".join(names[:_SHOWN_OVERLAPS]) + more
