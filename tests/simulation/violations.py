"""What a run has shown to be broken: every simulation's oracles say it here."""

from __future__ import annotations

from tests.simulation.timeline import Timeline


class ViolationRecorder:
    """Watches a run. `violations` is what it has seen; the first one ends the run."""

    def __init__(self, timeline: Timeline) -> None:
        self.violations: list[str] = []
        self._timeline = timeline

    def violated(self, oracle: str, what: str) -> None:
        """The run has shown a bug."""
        self.violations.append(f"{oracle}: {what}")
        self._timeline.log("ORACLE", self.violations[-1])
