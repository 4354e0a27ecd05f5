"""What happens in the gate, told to whoever draws, counts or logs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import structlog

from lakewarden.events import Abort

Step: TypeAlias = Literal[
    "intent",
    "admitted",
    "markers",
    "abort",
    "jobs-stopped",
    "requested",
    "granted",
    "completed",
    "already-committed",
    "abandoned",
    "failed",
]

MAX_LISTED = 20
"""Overlaps told of one abort: enough to draw; all of them are in `CommitAborted.conflicts`."""

_DEBUG_STEPS: frozenset[Step] = frozenset({"intent", "admitted", "markers", "requested"})

log = structlog.get_logger("lakewarden.gate")


@dataclass(frozen=True, slots=True)
class GateEvent:
    """One step of one transaction. `at` is this machine's wall clock: for drawing, never for ordering writers."""

    at: float
    what: Step
    table: str
    writer: str
    transaction: str
    batch_id: int | None
    attempt: int
    detail: Mapping[str, Any] = field(default_factory=dict)


Observer: TypeAlias = Callable[[GateEvent], None]


def notify(observer: Observer | None, event: GateEvent) -> None:
    """Log the event and hand it on. An observer that fails is logged: watching must not stop a commit."""
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
    except Exception as error:  # noqa: BLE001 - whatever it raises is the observer's
        log.warning("gate.observer-failed", what=event.what, error=repr(error))


def epoch_seconds() -> float:
    """Epoch seconds, for `GateEvent.at`."""
    return time.time()


def reason_of(error: BaseException | None) -> str:
    """Why a transaction ended without a commit, for people."""
    return "left without commit()" if error is None else f"{type(error).__name__}: {error}"


def abort_detail(abort: Abort) -> dict[str, Any]:
    """What an observer is told of an abort."""
    return {
        "reason": abort.reason,
        "retriable": abort.retriable,
        "others": sorted({entry.other_writer for entry in abort.conflicts}),
        "conflicts": [[entry.partition, entry.file_group] for entry in abort.conflicts[:MAX_LISTED]],
    }
