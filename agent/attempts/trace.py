"""The steps that the writers record, grouped into one attempt per transaction.

A writer records each step of its gate as one line of JSON. This module reads the lines while they are written. Times are
seconds since the epoch; all processes of the demo use the clock of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class AttemptStep:
    """One line of a writer's events file."""

    at: float
    what: str
    table: str
    writer: str
    transaction: str
    batch_id: int | None
    attempt: int
    detail: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, line: str | bytes) -> AttemptStep:
        """Parse a line; unknown fields are ignored."""
        found = json.loads(line)
        return cls(
            at=float(found["at"]),
            what=str(found["what"]),
            table=str(found.get("table", "")),
            writer=short_name(str(found.get("writer", ""))),
            transaction=str(found.get("transaction") or ""),
            batch_id=found.get("batch_id"),
            attempt=int(found.get("attempt") or 0),
            detail=found.get("detail") or {},
        )


def short_name(writer: str) -> str:
    """The writer's configured name: in events a streaming writer is `<name>:<query id>`."""
    return writer.partition(":")[0]


class AttemptOutcome(StrEnum):
    """How an attempt ended, if it has."""

    COMMITTED = "committed"
    CONFLICT = "aborted by conflict"
    ABORTED = "aborted"
    FAILED = "failed"
    SKIPPED = "already committed"
    RUNNING = "running"


@dataclass(slots=True)
class Attempt:
    """One transaction, as recorded by its writer."""

    transaction: str
    writer: str
    batch_id: int | None
    number: int
    steps: list[AttemptStep] = field(default_factory=list)

    def at(self, what: str) -> float | None:
        """The time of the first step of this kind."""
        return next((step.at for step in self.steps if step.what == what), None)

    def first(self, *whats: str) -> AttemptStep | None:
        """The first step of one of these kinds."""
        return next((step for step in self.steps if step.what in whats), None)

    @property
    def started(self) -> float:
        """The time of the first step."""
        return self.steps[0].at

    @property
    def ended(self) -> float | None:
        """The time of the last step (Spark jobs stopped, committed, abandoned, …); None while the attempt runs."""
        if self.outcome is AttemptOutcome.RUNNING:
            return None
        return self.steps[-1].at

    @property
    def computing_since(self) -> float:
        """The start of the computation: the admission, or without an agent the first step."""
        return self.at("admitted") or self.started

    @property
    def outcome(self) -> AttemptOutcome:
        """How the attempt ended. A completed commit overrides every earlier step."""
        if self.at("completed") is not None:
            return AttemptOutcome.COMMITTED
        if self.at("already-committed") is not None:
            return AttemptOutcome.SKIPPED
        if (abort := self.first("abort")) is not None:
            return (
                AttemptOutcome.CONFLICT
                if abort.detail.get("reason", "conflict") == "conflict"
                else AttemptOutcome.ABORTED
            )
        if self.at("failed") is not None:
            return AttemptOutcome.FAILED
        return AttemptOutcome.ABORTED if self.at("abandoned") is not None else AttemptOutcome.RUNNING

    @property
    def winner(self) -> str | None:
        """The winning writer that the abort names."""
        abort = self.first("abort")
        others = abort.detail.get("others") if abort else None
        return short_name(str(others[0])) if others else None


class AttemptTrace:
    """All attempts so far, in the order of their start."""

    def __init__(self, steps: Iterable[AttemptStep] = ()) -> None:
        self._attempts: dict[str, Attempt] = {}
        for step in sorted(steps, key=lambda step: step.at):
            self.add(step)

    def add(self, step: AttemptStep) -> Attempt | None:
        """Add a step; returns its attempt, or None for a step without a transaction."""
        if not step.transaction:
            return None
        attempt = self._attempts.get(step.transaction)
        if attempt is None:
            attempt = Attempt(step.transaction, step.writer, step.batch_id, step.attempt)
            self._attempts[step.transaction] = attempt
        attempt.steps.append(step)
        return attempt

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, in the order of their start."""
        return tuple(sorted(self._attempts.values(), key=lambda attempt: attempt.started))

    def of(self, *outcomes: AttemptOutcome) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.outcome in outcomes)


class StepsFile:
    """Reads a growing file of JSON lines. A line is complete when its newline is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read_new(self) -> Iterator[AttemptStep]:
        """The steps written since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        for line in data[:complete].splitlines():
            if line.strip():
                yield AttemptStep.from_json(line)
