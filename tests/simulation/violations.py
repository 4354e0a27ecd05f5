"""The violations that a run has shown. The oracles of both simulations report here."""

from __future__ import annotations

from tests.simulation.timeline import Timeline


class ViolationRecorder:
    """Records violations. The first one ends the run."""

    def __init__(self, timeline: Timeline) -> None:
        self.violations: list[str] = []
        self._timeline = timeline

    def violated(self, oracle: str, what: str) -> None:
        self.violations.append(f"{oracle}: {what}")
        self._timeline.log("ORACLE", self.violations[-1])
