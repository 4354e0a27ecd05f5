"""Finds out whether the log still has what a checkpoint relies on.

A checkpoint names, for each topic, the offset from which a replay must read, and the last record that its owner had read or
published, with a digest. The topic is *incomplete* in one of these cases, the first that applies:

| problem | found when |
| --- | --- |
| `no-checkpoint` | there is no checkpoint, and the topic does not begin at offset 0 |
| `end-lost` | the checkpoint, the cause of a published decision, or a correction in the ledger names an offset beyond the end |
| `replaced` | the record at the offset of the last one, or of a correction in the ledger, is another: the topic is a new one |
| `beginning-lost` | the topic begins after the offset from which the replay must read |

Where the replay starts, if `writers` or `decisions` is incomplete:

- `writers` at the checkpoint's offset if it is still there and nothing was replaced, otherwise at the topic's beginning.
- `decisions` likewise. If the start in `writers` has moved backwards, `decisions` is read from its beginning, so that no
  decision about a replayed event is missing.
- A topic that Kafka deleted takes the group's checkpoints along. Then only the ledger shows that `writers` is a new one.
- The term in force at a start that is not the checkpoint's is unknown.

What an owner does then is in `machine.py` (`Replayed`) and in decision record 16.

The ledger is read from its beginning, and compaction removes records from its midst, so it has a rule of its own
(`find_ledger_gap`, decision record 50).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from lakewarden.events import DecisionEventUnion
from lakewarden.handlers.table.ledger import Correction
from lakewarden.handlers.table.replay import Position

Problem: TypeAlias = Literal["no-checkpoint", "end-lost", "replaced", "beginning-lost"]


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record that an owner had read from a topic, or published to it."""

    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class Extent:
    """What Kafka has of one topic in one partition."""

    beginning: int
    """Offset of the first record."""
    end: int
    """Offset of the next record."""
    digest: str | None = None
    """Digest of the record at the offset of the checkpoint's last record, if one is there."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What is missing in one topic of one partition."""

    topic: str
    problem: Problem
    expected: int
    """The offset that the checkpoint relies on."""
    found: int
    """Where the topic begins or ends instead."""

    @property
    def description(self) -> str:
        match self.problem:
            case "no-checkpoint":
                return f"{self.topic} begins at offset {self.found}, and the group has no checkpoint"
            case "end-lost":
                return f"{self.topic} ends at offset {self.found} and had reached {self.expected}"
            case "replaced":
                return f"{self.topic} has another record at offset {self.expected} than before"
            case "beginning-lost":
                return f"{self.topic} begins at offset {self.found} and is needed from {self.expected} on"
            case _:
                assert_never(self.problem)


def find_gap(topic: str, needed: int | None, last: LastRecord | None, extent: Extent) -> Gap | None:
    """What is missing in a topic. `needed`: the offset from which the replay must read, None without a checkpoint."""
    if needed is None:
        return Gap(topic, "no-checkpoint", 0, extent.beginning) if extent.beginning > 0 else None
    known_end = needed if last is None else max(needed, last.offset + 1)
    if known_end > extent.end:
        return Gap(topic, "end-lost", known_end, extent.end)
    if last is not None and last.offset >= extent.beginning and extent.digest != last.digest:
        return Gap(topic, "replaced", last.offset, extent.end)
    if needed < extent.beginning:
        return Gap(topic, "beginning-lost", needed, extent.beginning)
    return None


def find_ledger_gap(
    topic: str, beginning: int | None, end: int, last: LastRecord | None, extent: Extent
) -> Gap | None:
    """What is missing in the ledger.

    `beginning` and `end`: what it had before; the former is None without a checkpoint. `last`: the last entry, which compaction
    may have removed since.
    """
    if end > extent.end:
        return Gap(topic, "end-lost", end, extent.end)
    if last is not None and extent.digest not in (None, last.digest):
        return Gap(topic, "replaced", last.offset, extent.end)
    if beginning is None:
        return Gap(topic, "no-checkpoint", 0, extent.beginning) if extent.beginning > 0 else None
    return Gap(topic, "beginning-lost", beginning, extent.beginning) if beginning < extent.beginning else None


def find_correction_gap(topic: str, correction: Correction, extent: Extent, found: str | None) -> Gap | None:
    """The gap that the ledger shows: it names a correction that isn't in `writers`.

    `found`: the `event_id` of the record at the correction's offset. A correction that retention has removed shows nothing.
    """
    if correction.offset >= extent.end:
        return Gap(topic, "end-lost", correction.offset + 1, extent.end)
    if correction.offset >= extent.beginning and found != correction.event_id:
        return Gap(topic, "replaced", correction.offset, extent.end)
    return None


def missing_events(
    writers: str, decided: Iterable[DecisionEventUnion], end: int, gaps: Iterable[Gap]
) -> Gap | None:
    """The gap that published decisions show: the cause of one is beyond the end of `writers`. None if it has a gap already."""
    reach = max((each.cause_offset + 1 for each in decided), default=0)
    if reach <= end or any(each.topic == writers for each in gaps):
        return None
    return Gap(writers, "end-lost", reach, end)


def replay_start(
    offset: int | None,
    decisions: Position,
    gaps: tuple[Gap | None, Gap | None],
    extents: tuple[Extent, Extent],
) -> tuple[int, Position]:
    """The offset in `writers` and the position in `decisions` at which to start. Gaps and extents are in this order."""

    def start(needed: int, gap: Gap | None, extent: Extent) -> int:
        there = extent.beginning <= needed <= extent.end
        return needed if there and (gap is None or gap.problem != "replaced") else extent.beginning

    known = -1 if offset is None else offset
    first = start(known, gaps[0], extents[0])
    first_decision = start(decisions.offset, gaps[1], extents[1])
    if first < known:
        first_decision = extents[1].beginning
    return first, Position(first_decision, decisions.term if first_decision == decisions.offset else None)
