"""For which transactions a transaction waits, and why. `explain`, `status` and the web page all ask here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lakewarden.handlers.explain.timeline import WaitReason
from lakewarden.handlers.table.admission import blocking_overlaps, reservation_blockers
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.grants import earlier_turns, grant_queue
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase, Transaction


@dataclass(frozen=True, slots=True)
class Wait:
    """A transaction waits for `other`."""

    other: Transaction
    reason: WaitReason
    overlaps: tuple[Overlap, ...] = ()
    """The shared places that block it. Empty if it waits for another reason."""


def waits(state: TableState, this: Transaction) -> Iterator[Wait]:
    """The transactions for which `this` waits at this moment. One may be named twice, for two reasons."""
    running = state.running()
    if this.phase is Phase.QUEUED:
        if running is not None and running.writer == this.writer:
            yield Wait(running, "publishing")
        if this.admission == "queued":
            yield from _by_other(blocking_overlaps(state, this), _reason)
        for other in reservation_blockers(state, this):
            yield Wait(other, _reason(other))
    elif this.phase is Phase.WAITING:
        if running is not None:
            yield Wait(running, "granted")
        yield from _by_other(earlier_turns(state, this), lambda _: "earlier turn")
        queue = list(grant_queue(state))
        for other in queue[: queue.index(this)] if this in queue else ():
            yield Wait(other, "ahead in the queue")


def _by_other(overlaps: Iterable[Overlap], reason: Callable[[Transaction], WaitReason]) -> Iterator[Wait]:
    """One wait for each of the other transactions in `overlaps`."""
    groups: dict[str, list[Overlap]] = {}
    for each in overlaps:
        groups.setdefault(each.other.transaction.id, []).append(each)
    for group in groups.values():
        other = group[0].other.transaction
        yield Wait(other, reason(other), tuple(group))


def _reason(blocker: Transaction) -> WaitReason:
    match blocker.phase:
        case Phase.QUEUED:
            return "ahead in the queue"
        case Phase.GRANTED:
            return "granted"
        case _:
            return "computing"
