"""The line of the transcript for each step of a writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakewarden.agent.attempts.trace import Attempt, Step, short_name
from lakewarden.events import ALL_FILE_GROUPS

_SHOWN_OVERLAPS = 2


@dataclass(frozen=True, slots=True)
class Line:
    """A line's text, and its rich style."""

    text: str
    style: str = ""


def line_for_step(step: Step, attempt: Attempt | None) -> Line | None:
    """The line for a step, or None for a step that is not shown. `attempt` already contains the step."""
    match step.what:
        case "intent":
            verb = "restarts" if step.attempt > 1 else "starts"
            queued = ", queued for admission" if step.detail.get("admission") == "queued" else ""
            return Line(f"{verb}{queued}", "dim")
        case "admitted" if attempt is not None and _since(attempt, "intent", step) > 0.5:
            return Line(f"admitted after {_since(attempt, 'intent', step):.1f} s in the queue", "dim")
        case "abort":
            return Line(_abort(step), "bold red")
        case "jobs-stopped":
            after = f" {_since(attempt, 'abort', step):.2f} s after the abort" if attempt is not None else ""
            return Line(f"Spark jobs stopped{after}", "red")
        case "granted":
            waited = f" {_since(attempt, 'requested', step):.2f} s after its request" if attempt else ""
            return Line(f"commit granted{waited}", "cyan")
        case "completed":
            return Line("committed", "green")
        case "already-committed":
            return Line("skipped: already committed", "yellow")
        case "abandoned" if attempt is None or attempt.at("abort") is None:
            return Line("abandoned", "yellow")
        case "failed":
            return Line(f"failed: {_reason(step.detail)}", "bold red")
        case _:
            return None


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


def _abort(step: Step) -> str:
    reason = str(step.detail.get("reason", "conflict"))
    if reason != "conflict":
        return f"aborted: {reason}"
    others = ", ".join(short_name(str(other)) for other in step.detail.get("others") or ("another writer",))
    return f"aborted: CONFLICT with {others} on {overlaps(step.detail.get('conflicts') or ())}"


def _reason(detail: dict[str, Any]) -> str:
    text = str(detail.get("error") or detail.get("reason") or detail.get("message") or "see the writer's log")
    return text.splitlines()[0][:200]


def _since(attempt: Attempt, what: str, step: Step) -> float:
    earlier = attempt.at(what)
    return 0.0 if earlier is None else max(0.0, step.at - earlier)
