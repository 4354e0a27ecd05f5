"""Events of writers, built with the product's models: they are what a writer sends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from lakewarden.events import (
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
)

TABLES = "file:///bench"
HEARTBEAT_SECONDS = 300.0
"""The maximum: no writer is declared lost during a benchmark, and no heartbeat disturbs it."""

_ids = itertools.count()
_AT = datetime(2026, 3, 1, tzinfo=UTC)


def marker(number: int, partition: int) -> Marker:
    """A marker whose names are as long as Hudi's: month and day as the partition, a UUID as the file group."""
    return Marker(
        partition=f"month={partition // 28 + 1}/day={partition % 28 + 1}",
        file_group=f"{number:08x}-d9cb-469f-a165-70867728950e-0",
        operation="merge",
    )


def intent(table: str, transaction: str, **fields: Any) -> CommitIntent:
    return CommitIntent(**{"heartbeat_seconds": HEARTBEAT_SECONDS, **common(table, transaction), **fields})


def touched(table: str, transaction: str, markers: Iterable[Marker]) -> MarkerCreated:
    return MarkerCreated(**common(table, transaction), markers=tuple(markers))


def requested(table: str, transaction: str) -> CommitRequested:
    return CommitRequested(**common(table, transaction), seq=1)


def completed(table: str, transaction: str, grant: str) -> CommitCompleted:
    return CommitCompleted(**common(table, transaction), grant=grant)


def abandoned(table: str, transaction: str) -> TransactionAbandoned:
    return TransactionAbandoned(**common(table, transaction), reason="measured")


def common(table: str, transaction: str) -> dict[str, Any]:
    number = next(_ids)
    return {
        "event_id": f"bench-event-{number:012d}-c1f0a7e5d3b2",
        "table": table,
        "transaction": transaction,
        "writer": f"writer of {transaction}",
        "at": _AT,
    }
