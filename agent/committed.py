"""What is committed with a partition's offset: enough for the next owner to begin where this one ended.

Kafka keeps one offset and a short text beside it. The offset is the oldest intent that a replay must see; the text, JSON,
names the position in `decisions` that belongs to it, the term in force there, and how many partitions the topic had: if that
number has changed, tables have moved between partitions, and what is in them is no longer one order a table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lakewarden.handlers.replay import Position


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """Where a replay begins, in `writers` and in `decisions`."""

    offset: int
    decided: Position

    def metadata(self, partitions: int) -> str:
        """The text beside the offset."""
        return json.dumps(
            {"decisions": self.decided.offset, "term": self.decided.term, "partitions": partitions}
        )


def decided_from(metadata: str) -> Position:
    """The position in `decisions` that was committed; the beginning where there is none."""
    known = _parse(metadata)
    decisions, term = known.get("decisions"), known.get("term")
    return Position(decisions if isinstance(decisions, int) else 0, term if isinstance(term, str) else None)


def partitions_then(metadata: str) -> int | None:
    """How many partitions the topic had."""
    found = _parse(metadata).get("partitions")
    return found if isinstance(found, int) else None


def _parse(metadata: str) -> dict[str, object]:
    try:
        known = json.loads(metadata)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}
