"""A contest: both queries write the same flights to one table. The demo runs one for each admission, and compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakewarden.agent.attempts.trace import Outcome, Trace
from lakewarden.agent.demo import figures
from lakewarden.agent.demo.figures import Stops, Waste
from lakewarden.agent.demo.log import ConflictLog
from lakewarden.agent.demo.table import TablePlace
from lakewarden.agent.demo.verification import TableCheck


@dataclass(frozen=True, slots=True)
class Arena:
    """Where a contest takes place: its table, and the folder of its events and checkpoints."""

    admission: str | None
    """None: without an agent."""
    place: TablePlace
    folder: Path

    @property
    def name(self) -> str:
        """For file names and headings."""
        return self.admission or "without-agent"


@dataclass(frozen=True, slots=True)
class Contest:
    """The results of one contest."""

    admission: str | None
    """None: without an agent."""
    trace: Trace
    check: TableCheck
    log: ConflictLog = field(default_factory=ConflictLog)
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
        return len(self.log.victims)

    @property
    def stops(self) -> Stops:
        """How fast the losers stopped."""
        return figures.stop_seconds(self.trace, self.log)

    @property
    def waste(self) -> Waste:
        """What the losers computed in vain."""
        return figures.waste(self.trace)

    @property
    def batches(self) -> int:
        """Batches committed by both writers together."""
        return len(self.trace.of(Outcome.COMMITTED))

    @property
    def seconds(self) -> float:
        """From the first step of a writer to the last one, without the start of Spark."""
        times = [step.at for attempt in self.trace.attempts for step in attempt.steps]
        return max(times) - min(times) if times else 0.0
