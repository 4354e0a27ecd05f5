"""The demo's figures: how fast losers stopped, how much computing time that saved, and whether all sources agree.

*Time to stop*: from the start of a conflict to the end of the loser's last Spark job. A conflict starts when the later of two
markers on the same file group is published (the `at` of its event); the loser's driver records the end of its jobs. The time
includes publishing, Kafka, the agent, the way back of the abort, and Spark's cancellation. All processes use the clock of one
machine.

*Saved*: if the conflict had been detected at commit time, the loser would have computed its whole batch. For every attempt that
a conflict aborted, the saved time is the usual computing time of its writer (the median from admission to commit request over
its committed attempts), minus the computing time of the attempt, and at least zero. Time in the admission queue is not
computing time. A writer without a committed attempt saves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from lakewarden.agent.attempts.trace import Attempt, Outcome, Trace
from lakewarden.agent.demo.log import ConflictLog
from lakewarden.events import ALL_FILE_GROUPS, CommitRequested, ConflictDetected, MarkerCreated


@dataclass(frozen=True, slots=True)
class Stops:
    """Seconds from the start of a conflict to the end of the loser's Spark jobs, over all conflicts with both times."""

    p50: float | None
    max: float | None
    timed: int


@dataclass(frozen=True, slots=True)
class Waste:
    """Computing time of the attempts that conflicts aborted, in writer-seconds."""

    spent: float
    """Computing time until they stopped."""
    saved: float
    """Computing time that was not spent, because they were stopped early."""


def stop_seconds(trace: Trace, log: ConflictLog) -> Stops:
    """The time to stop, over all conflicts."""
    started = conflict_times(log)
    waits = [
        max(0.0, stopped.at - started[attempt.transaction])
        for attempt in trace.attempts
        if attempt.transaction in started
        and (stopped := attempt.first("jobs-stopped")) is not None
        and stopped.detail.get("gone", True)
    ]
    return Stops(median(waits), max(waits), len(waits)) if waits else Stops(None, None, 0)


def conflict_times(log: ConflictLog) -> dict[str, float]:
    """When the conflict of each victim started: the time of the later marker."""
    marks: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for event in log.writer_events:
        if isinstance(event, MarkerCreated | CommitRequested):
            at = event.at.timestamp()
            marks[event.transaction] += [
                (at, marker.partition, marker.file_group) for marker in event.markers
            ]
    started: dict[str, float] = {}
    for conflict in log.conflicts:
        times = list(_overlap_times(conflict, marks))
        if times:
            started.setdefault(conflict.victim, min(times))
    return started


def _overlap_times(
    conflict: ConflictDetected, marks: dict[str, list[tuple[float, str, str]]]
) -> Iterable[float]:
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
    """The computing time that aborted attempts spent and saved."""
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
    """From the admission to the end of the Spark jobs, or to the commit request, after which it only waited."""
    ends = [at for what in ("requested", "jobs-stopped") if (at := attempt.at(what)) is not None]
    end = min(ends) if ends else attempt.steps[-1].at
    return max(0.0, end - attempt.computing_since)


def discrepancies(contests: Sequence[tuple[Trace, ConflictLog]], in_parquet: set[str] | None) -> list[str]:
    """Differences between the conflicts topic, the third query's output and the writers' steps; jobs that didn't stop."""
    attempts = [attempt for trace, _ in contests for attempt in trace.attempts]
    published = {victim for _, log in contests for victim in log.victims}
    received = {attempt.transaction for attempt in attempts if attempt.outcome is Outcome.CONFLICT}
    notes = []
    if published != received:
        notes.append(
            f"conflicts topic and writers disagree: {len(published)} published, {len(received)} received by writers, "
            f"{len(published & received)} in both"
        )
    if (in_parquet or set()) != published:
        written = "nothing" if in_parquet is None else str(len(in_parquet))
        notes.append(
            f"conflicts topic and the third query disagree: {len(published)} published, {written} in its Parquet files"
        )
    not_stopped = [attempt for attempt in attempts if _jobs_not_stopped(attempt)]
    if not_stopped:
        notes.append(
            f"Spark jobs of {len(not_stopped)} aborted attempts did not stop in time; the figures exclude them"
        )
    return notes


def _jobs_not_stopped(attempt: Attempt) -> bool:
    stopped = attempt.first("jobs-stopped")
    return stopped is not None and not stopped.detail.get("gone", True)
