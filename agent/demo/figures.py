"""The demo's figures, each defined here: how fast losers stopped, what that saved, and whether all accounts agree.

*Stopped after*: from the moment at which a conflict since until the loser's last Spark job had ended. A conflict
arises when the younger of the two markers on the same file group is published (its event's own `at`); the loser's
driver notes when its jobs have ended. Publishing, Kafka, the agent, the abort's way back and Spark's cancelling all
lie in between. All processes run on one machine and share its clock.

*Saved*: found at commit time, the same conflict would have cost the loser the whole of its computation. For every
attempt aborted by a conflict we take what its writer's own committed attempts needed (median from admission to
commit request), less the age at which the attempt was stopped, and never less than nothing. Time spent waiting in
line is no computation and counts on neither side. A writer without a committed attempt saves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from lakewarden.agent.demo.log import ConflictLog
from lakewarden.agent.demo.trace import Attempt, Outcome, Trace
from lakewarden.events import ALL_FILE_GROUPS, CommitRequested, ConflictDetected, MarkerCreated


@dataclass(frozen=True, slots=True)
class Stops:
    """Seconds from a conflict to the loser's idle executors, over all conflicts that could be timed."""

    p50: float | None
    max: float | None
    timed: int


@dataclass(frozen=True, slots=True)
class Waste:
    """Writer-seconds of the attempts that conflicts aborted."""

    spent: float
    """Computed in vain before they stopped."""
    saved: float
    """Not computed, because they were stopped."""


def stop_seconds(trace: Trace, log: ConflictLog) -> Stops:
    """How long after each conflict since its loser had stopped."""
    since = conflict_times(log)
    waits = [
        max(0.0, stopped.at - since[attempt.transaction])
        for attempt in trace.attempts
        if attempt.transaction in since
        and (stopped := attempt.first("jobs-stopped")) is not None
        and stopped.detail.get("gone", True)
    ]
    return Stops(median(waits), max(waits), len(waits)) if waits else Stops(None, None, 0)


def conflict_times(log: ConflictLog) -> dict[str, float]:
    """When the conflict of each victim since: both sides had marked, the younger marker just now."""
    marks: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for event in log.writer_events:
        if isinstance(event, MarkerCreated | CommitRequested):
            at = event.at.timestamp()
            marks[event.transaction] += [
                (at, marker.partition, marker.file_group) for marker in event.markers
            ]
    since: dict[str, float] = {}
    for conflict in log.conflicts:
        moments = list(_moments(conflict, marks))
        if moments:
            since.setdefault(conflict.victim, min(moments))
    return since


def _moments(conflict: ConflictDetected, marks: dict[str, list[tuple[float, str, str]]]) -> Iterable[float]:
    for entry in conflict.conflicts:
        sides = [
            _first_mark(marks.get(transaction, ()), entry.partition, entry.file_group)
            for transaction in (conflict.victim, entry.other_transaction)
        ]
        known = [side for side in sides if side is not None]
        if known:
            yield max(known)


def _first_mark(marks: Iterable[tuple[float, str, str]], partition: str, file_group: str) -> float | None:
    return min(
        (
            at
            for at, marked, group in marks
            if marked == partition and (group == file_group or ALL_FILE_GROUPS in (group, file_group))
        ),
        default=None,
    )


def waste(trace: Trace) -> Waste:
    """What the aborted attempts cost, and what they would have cost besides."""
    usual = {writer: _usual_seconds(trace, writer) for writer in trace.writers}
    spent = saved = 0.0
    for attempt in trace.of(Outcome.CONFLICT):
        age = _computed_seconds(attempt)
        spent += age
        if (whole := usual[attempt.writer]) is not None:
            saved += max(0.0, whole - age)
    return Waste(spent, saved)


def _usual_seconds(trace: Trace, writer: str) -> float | None:
    durations = [
        requested - attempt.computing_since
        for attempt in trace.of(Outcome.COMMITTED)
        if attempt.writer == writer and (requested := attempt.at("requested")) is not None
    ]
    return median(durations) if durations else None


def _computed_seconds(attempt: Attempt) -> float:
    """From admission until its jobs had stopped, or until it asked to commit and only waited from then on."""
    ends = [at for what in ("requested", "jobs-stopped") if (at := attempt.at(what)) is not None]
    end = min(ends) if ends else attempt.steps[-1].at
    return max(0.0, end - attempt.computing_since)


def discrepancies(trace: Trace, log: ConflictLog, in_parquet: set[str] | None) -> list[str]:
    """Where conflicts topic, third query and writers tell different stories, and what didn't stop when told to."""
    published = {conflict.victim for conflict in log.conflicts}
    heard = {attempt.transaction for attempt in trace.of(Outcome.CONFLICT)}
    notes = []
    if published != heard:
        notes.append(
            f"conflicts topic and writers disagree: {len(published)} published, {len(heard)} heard by writers, "
            f"{len(published & heard)} in both"
        )
    if (in_parquet or set()) != published:
        written = "nothing" if in_parquet is None else str(len(in_parquet))
        notes.append(
            f"conflicts topic and the third query disagree: {len(published)} published, {written} in its Parquet"
        )
    stubborn = [attempt for attempt in trace.attempts if _still_ran(attempt)]
    if stubborn:
        notes.append(
            f"Spark jobs of {len(stubborn)} aborted attempts did not stop in time; their times don't count"
        )
    return notes


def _still_ran(attempt: Attempt) -> bool:
    stopped = attempt.first("jobs-stopped")
    return stopped is not None and not stopped.detail.get("gone", True)
