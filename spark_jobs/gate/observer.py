"""The steps of each transaction, for programs that draw, count or log them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lakewarden.events import Abort
from lakewarden.spark_jobs.gate.logs import EventLogger

Step: TypeAlias = Literal[
    "intent",
    "queued",
    "admitted",
    "markers",
    "abort",
    "jobs-stopped",
    "requested",
    "waits-for-turn",
    "granted",
    "completed",
    "already-committed",
    "abandoned",
    "failed",
]

MAX_LISTED = 20
"""Overlaps of one abort, and partitions of one list of markers, in a `GateEvent`: enough to draw. `CommitAborted.conflicts`
has all overlaps."""

_DEBUG_STEPS: frozenset[Step] = frozenset({"intent", "admitted", "markers", "requested"})

log = EventLogger("lakewarden.gate")


@dataclass(frozen=True, slots=True)
class GateEvent:
    """One step of one transaction, as `CommitGate(observer=…)` receives it.

    | `what` | when | `detail` |
    | --- | --- | --- |
    | `intent` | Kafka has acknowledged the intent | `admission`, its `reason`, `scope` (markers), `sequence` (Kafka offset) |
    | `queued` | after 10 s in the queue | `ahead` (writers), `waited_seconds`, `timeout_seconds`, `detail` |
    | `admitted` | the agent admitted the transaction; the body starts | `turn`, if its rule is `ordered` |
    | `markers` | Kafka has acknowledged markers of the driver | `count`, `partitions` (the first 20) |
    | `abort` | an abort arrived | `reason`, `retriable`, `others` (writers), `conflicts` (the first 20), `late` |
    | `jobs-stopped` | `foreach_batch` cancelled the batch's Spark jobs after an abort | `gone` (none is left), `seconds` |
    | `requested` | Kafka has acknowledged the request for the grant | |
    | `waits-for-turn` | 10 s after the request, if the rule is `ordered` and others come before | as of `queued` |
    | `granted` | the grant arrived; the publish may begin | `token`, `lease_seconds` |
    | `completed` | the commit is in the table | `version` |
    | `already-committed` | the agent knows the batch to be committed | `version` |
    | `abandoned` | the transaction ended without a commit | `reason` |
    | `failed` | the outcome is unknown, or `foreach_batch` stops retrying | `outcome`, `error`; `attempts` from `foreach_batch` |

    A `late` abort arrived after the publish began, and stopped nothing.
    """

    at: float
    """Seconds since the epoch on this machine's wall clock: for display, never for ordering writers."""
    what: Step
    table: str
    writer: str
    transaction: str
    batch_id: int | None
    attempt: int
    detail: Mapping[str, Any] = field(default_factory=dict)


Observer: TypeAlias = Callable[[GateEvent], None]


def notify(observer: Observer | None, event: GateEvent) -> None:
    """Log the event and pass it to the observer. An exception of the observer is logged and does not stop the commit."""
    level = log.debug if event.what in _DEBUG_STEPS else log.info
    level(
        f"gate.{event.what}",
        table=event.table,
        writer=event.writer,
        transaction=event.transaction,
        batch_id=event.batch_id,
        attempt=event.attempt,
        **event.detail,
    )
    if observer is None:
        return
    try:
        observer(event)
    except Exception as error:  # noqa: BLE001 - an observer may raise anything
        log.warning("gate.observer-failed", what=event.what, error=repr(error))


def epoch_seconds() -> float:
    """Return the wall clock's time, for `GateEvent.at`."""
    return time.time()


def reason_of(error: BaseException | None) -> str:
    """Return why a transaction ended without a commit, for people."""
    return "left without commit()" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")


def abort_detail(abort: Abort) -> dict[str, Any]:
    """Return the `detail` of an abort's `GateEvent`."""
    return {
        "reason": abort.reason,
        "retriable": abort.retriable,
        "others": sorted({entry.other_writer for entry in abort.conflicts}),
        "conflicts": [[entry.partition, entry.file_group] for entry in abort.conflicts[:MAX_LISTED]],
    }
