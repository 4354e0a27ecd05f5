"""For which transactions a transaction waits, and why. `explain`, `status` and the web page all ask here."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from lakewarden.handlers.table.admission import blocking_overlaps, reservation_blockers, waits_in_queue
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.grants import earlier_turns, grant_queue
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase, Transaction

WaitReason: TypeAlias = Literal["computing", "ahead in the queue", "granted", "publishing", "earlier turn"]
"""Why a transaction has to wait for another one. The values are part of the JSON.

| value | the other transaction |
| --- | --- |
| `computing` | is admitted and touches the same places |
| `ahead in the queue` | comes before it in the admission queue, or requested its grant earlier |
| `granted` | holds the grant |
| `publishing` | is an older one of the same writer, which may still be publishing |
| `earlier turn` | comes before it in the order of `ordered` transactions, touches the same places, and has not ended |
"""
WAIT_TEXTS: Final[Mapping[WaitReason, str]] = {
    "computing": "which is computing",
    "ahead in the queue": "which is ahead in the queue",
    "granted": "which holds the grant",
    "publishing": "an older transaction of its writer, which may still be publishing",
    "earlier turn": "whose turn is earlier and which has not ended",
}


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
        if waits_in_queue(state, this):
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
