"""What the compaction service takes on: which tables, which buckets, and how much in one transaction.

The service has a smaller priority than writers, so it can lose conflicts with upserts that replace the files it compacts.
`effort_after` says how it gets its commit nevertheless:

| lost in a row | admission | units in one transaction |
| --- | --- | --- |
| 0 | `optimistic` | `MAX_UNITS` |
| 1, 3, 5, … | `queued`: it waits until none computes on its files | 1 |
| 2, 4, 6, … | `optimistic` | 1 |

A wait in the queue that is too long counts as lost, too: writers with `optimistic` admission may always compute there. Each
lost conflict of an `optimistic` transaction counts for the agent, and after `max_losses` of them (3) it protects the
compactor, as every writer (`handlers/table/conflicts.py`). So the sixth transaction is ahead of all others.

A unit is what Java Paimon compacts in one step: a group of small files of an append table, or a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lakewarden.events import Admission

MAX_UNITS: Final = 32
"""In one transaction. A writer with queued admission may wait for the whole of it."""

POSTPONE_BUCKET: Final = -2


@dataclass(frozen=True, slots=True)
class Effort:
    """How one transaction is admitted, and how many units it compacts."""

    admission: Admission
    units: int
    reason: str


def effort_after(lost: int) -> Effort:
    """Return the effort of the next transaction, after `lost` in a row have lost."""
    if lost == 0:
        return Effort("optimistic", MAX_UNITS, "a compaction")
    return Effort(
        "queued" if lost % 2 else "optimistic", 1, f"a compaction that has lost {lost} times in a row"
    )


def may_compact(files: int, trigger: int, *, full: bool) -> bool:
    """Return whether Java Paimon may find something to compact in a bucket.

    Files of level 0 are one sorted run each, so there are never more runs than files, and below `trigger` runs it does nothing.
    """
    return full or files >= trigger


def worth_merging(sizes: Iterable[int], *, target: int, least: int) -> bool:
    """Return whether at least `least` manifests are smaller than Paimon wants them: by merging, their number becomes small."""
    return sum(size < target for size in sizes) >= least


def refusal(bucket: int, options: Mapping[str, str]) -> str | None:
    """Return why the service doesn't compact a table, or None."""
    if bucket == POSTPONE_BUCKET:
        return "its buckets are postponed (bucket=-2), which need Paimon's rescale job"
    if options.get("data-evolution.enabled", "").lower() == "true":
        return "it has data evolution, whose compaction keeps row ids, which was not tried"
    return None
