"""A scripted run: the writers' steps and the log's events, with round numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lakewarden.agent.attempts.trace import Step
from lakewarden.events import ConflictDetected, ConflictEntry, Marker, MarkerCreated

TABLE = "file:///lake/demo.db/flights"
BEGAN = 1_700_000_000.0


def step(at: float, what: str, transaction: str, writer: str, batch: int = 0, **detail: Any) -> Step:
    """A writer's step, `at` seconds after the start of the run."""
    return Step(BEGAN + at, what, TABLE, writer, transaction, batch, 0, detail)


def marked(at: float, transaction: str, writer: str, partition: str = "month=1/day=2") -> MarkerCreated:
    """A marker on the whole partition."""
    return MarkerCreated(
        event_id=f"marker-{transaction}-{at}",
        table=TABLE,
        transaction=transaction,
        writer=writer,
        at=datetime.fromtimestamp(BEGAN + at, UTC),
        markers=(Marker(partition=partition, file_group="*", operation="merge"),),
    )


def conflict(at: float, victim: str, winner: str, partition: str = "month=1/day=2") -> ConflictDetected:
    """The transaction `victim` of `arrivals` lost to `winner` of `departures`."""
    entry = ConflictEntry(
        partition=partition,
        file_group="*",
        operation="merge",
        other_operation="merge",
        other_transaction=winner,
        other_writer="departures",
        kind="marker",
    )
    return ConflictDetected(
        event_id=f"conflict-{victim}",
        table=TABLE,
        transaction=victim,
        writer="arrivals",
        at=datetime.fromtimestamp(BEGAN + at, UTC),
        victim=victim,
        victim_writer="arrivals",
        winner=winner,
        winner_writer="departures",
        rule="file-group",
        kind="marker",
        conflicts=(entry,),
        detected_after_ms=3.0,
        victim_age_seconds=2.0,
    )


def committed(transaction: str, writer: str, began: float, computed: float, batch: int = 0) -> list[Step]:
    """An attempt that is admitted immediately, computes, waits half a second for its grant, and commits."""
    requested = began + computed
    return [
        step(began, "intent", transaction, writer, batch),
        step(began, "admitted", transaction, writer, batch),
        step(requested, "requested", transaction, writer, batch),
        step(requested + 0.5, "granted", transaction, writer, batch),
        step(requested + 1.0, "completed", transaction, writer, batch),
    ]


def lost(transaction: str, began: float, aborted: float, stopped: float) -> list[Step]:
    """An attempt of `arrivals` that receives an abort and stops a little later."""
    detail: dict[str, Any] = {
        "reason": "conflict",
        "others": ["departures:0b1c"],
        "conflicts": [["month=1/day=2", "*"]],
    }
    return [
        step(began, "intent", transaction, "arrivals"),
        step(began, "admitted", transaction, "arrivals"),
        step(aborted, "abort", transaction, "arrivals", **detail),
        step(stopped, "jobs-stopped", transaction, "arrivals"),
    ]
