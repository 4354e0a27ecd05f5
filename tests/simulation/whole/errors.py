"""Unexpected exceptions in the agents' code, at the times that the scenario has.

The production code is entered through a wrapper, which raises once at each planned time: before a step of a table, after it (the
state is then ahead of the log), or when a decided record is built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lakewarden.agent.serving.partition.own_records import OwnRecords
from lakewarden.events import DecisionEvent
from tests.simulation.batch import Patch
from tests.simulation.timeline import Timeline
from tests.simulation.whole.scenario import PlannedError

PLANNED = "a planned error"


class PlannedFailure(Exception):
    """The exception that no code expects."""


class Errors:
    """Raises the planned errors."""

    def __init__(self, timeline: Timeline, planned: Iterable[PlannedError]) -> None:
        self._timeline = timeline
        self._planned = deque(sorted(planned, key=lambda each: each.at))

    def patches(self, step_module: Any) -> list[Patch]:
        """What to replace: `step` of one module, and what builds the records of a step."""
        step, build = step_module.step, OwnRecords.of_effect

        def failing_step(*arguments: Any) -> Any:
            self._raise_if_due("before the step")
            effects = step(*arguments)
            self._raise_if_due("after the step")
            return effects

        def failing_build(records: OwnRecords, uri: str, effect: Any, read: Any) -> Any:
            if isinstance(effect, DecisionEvent):
                self._raise_if_due("in building a record")
            return build(records, uri, effect, read)

        return [(step_module, "step", failing_step), (OwnRecords, "of_effect", failing_build)]

    @contextmanager
    def none(self) -> Iterator[None]:
        """Raise nothing in this block: the code in it runs in no agent."""
        planned, self._planned = self._planned, deque()
        try:
            yield
        finally:
            self._planned = planned

    def _raise_if_due(self, where: str) -> None:
        if self._planned and self._planned[0].at <= self._timeline.now and self._planned[0].where == where:
            self._planned.popleft()
            raise PlannedFailure(f"{PLANNED} {where}")
