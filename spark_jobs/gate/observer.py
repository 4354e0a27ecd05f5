"""The steps of each transaction, for programs that draw, count or log them."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lakewarden.events import AbandonCause, Abort
from lakewarden.handlers.writers_log import short_table, without_query
from lakewarden.spark_jobs.gate.errors import GateError
from lakewarden.spark_jobs.gate.event_publisher import Intent
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

EMPTY = "empty: nothing to write"
"""Why a transaction that has touched nothing ended without a commit."""
MAX_ERROR = 500
"""Characters of an error in an event."""

_LEVELS: Mapping[Step, int] = {
    "intent": logging.DEBUG,
    "admitted": logging.DEBUG,
    "markers": logging.DEBUG,
    "jobs-stopped": logging.DEBUG,
    "requested": logging.DEBUG,
    "granted": logging.DEBUG,
    "failed": logging.ERROR,
}
"""The others: INFO."""

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
    | `abandoned` | the transaction ended without a commit | `reason`, and its `cause` as in `transaction-abandoned` |
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
    log.step(
        _LEVELS.get(event.what, logging.INFO),
        f"gate.{event.what}",
        _sentence(event),
        {
            "table": event.table,
            "writer": event.writer,
            "transaction": event.transaction,
            "batch_id": event.batch_id,
            "attempt": event.attempt,
            **event.detail,
        },
    )
    if observer is None:
        return
    try:
        observer(event)
    except Exception as error:  # noqa: BLE001 - an observer may raise anything
        log.warning("gate.observer-failed", what=event.what, error=repr(error))


class Steps:
    """Logs the steps of one transaction and passes them to the observer."""

    def __init__(self, intent: Intent, observer: Observer | None) -> None:
        self._intent = intent
        self._observer = observer

    def event(self, what: Step, **detail: Any) -> GateEvent:
        """Return the event of a step that is taken now."""
        intent = self._intent
        return GateEvent(
            epoch_seconds(),
            what,
            intent.table,
            intent.writer,
            intent.transaction,
            intent.batch_id,
            intent.attempt,
            detail,
        )

    def pass_on(self, event: GateEvent) -> None:
        notify(self._observer, event)

    def notify(self, what: Step, **detail: Any) -> None:
        """Log a step and pass it on."""
        self.pass_on(self.event(what, **detail))


def epoch_seconds() -> float:
    """Return the wall clock's time, for `GateEvent.at`."""
    return time.time()


def reason_of(error: BaseException | None, *, touched: bool) -> str:
    """Return why a transaction ended without a commit, as text, on one line. `touched`: whether it has touched anything."""
    if error is None:
        return "left without commit()" if touched else EMPTY
    return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


def cause_of(error: BaseException | None, *, touched: bool) -> AbandonCause:
    """Return the same as data."""
    if error is None:
        return "not-committed" if touched else "empty"
    return error.cause if isinstance(error, GateError) else "failed"


def first_line(error: BaseException) -> str:
    """Return the line of an error that names its cause. That of a JVM's error follows py4j's own; a stack follows it."""
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip()] or [""]
    of_jvm = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1 if of_jvm else 0][:MAX_ERROR]


def _sentence(event: GateEvent) -> str:
    detail = event.detail
    table = short_table(event.table)
    match event.what:
        case "queued" | "waits-for-turn":
            behind = _listed(map(without_query, detail["ahead"])) or "its admission"
            said = f"waits for {behind}, {detail['waited_seconds']:.0f} s so far"
        case "abort" if detail["conflicts"]:
            where = _listed(" ".join(each) for each in detail["conflicts"])
            said = f"lost to {_listed(map(without_query, detail['others']))} on {where}"
        case "abort":
            said = f"aborted ({detail['reason']})"
        case "completed":
            version = "" if detail["version"] is None else f", version {detail['version']}"
            said = f"committed to {table}{version}"
        case "already-committed":
            said = f"is in {table} already, and is not written again"
        case "abandoned":
            said = detail["reason"] if detail["reason"] == EMPTY else f"not committed: {detail['reason']}"
        case "failed":
            said = f"failed, {detail['outcome'].replace('unknown', 'outcome unknown')}: {detail['error']}"
        case other:
            said = other
    batch = "" if event.batch_id is None else f" batch {event.batch_id}"
    again = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return f"{without_query(event.writer)}{batch}{again}: {said}"


def _listed(items: Iterable[str]) -> str:
    found = list(dict.fromkeys(items))
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def abort_detail(abort: Abort) -> dict[str, Any]:
    """Return the `detail` of an abort's `GateEvent`."""
    return {
        "reason": abort.reason,
        "retriable": abort.retriable,
        "others": sorted({entry.other_writer for entry in abort.conflicts}),
        "conflicts": [[entry.partition, entry.file_group] for entry in abort.conflicts[:MAX_LISTED]],
    }
