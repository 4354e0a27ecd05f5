"""What the compaction service takes on: which tables, which buckets, and how much in one transaction.

The service has a smaller priority than writers, so it can lose conflicts with upserts that replace the files it compacts.
`effort_after` says how it gets its commit nevertheless:

| the last transaction | admission | units in one transaction |
| --- | --- | --- |
| committed | `optimistic` | `MAX_UNITS` |
| is not known: the compactor has just started | `queued`: it waits until none computes on its files | `MAX_UNITS` |
| lost a conflict | `queued` | 1 |
| was not admitted from the queue in time | `optimistic`, in the same round | 1 |

Writers with `optimistic` admission may always compute on its files, so the wait may be wasted. A lost conflict isn't: the agent
counts it, and after `max_losses` of them (3) it protects the compactor, as every writer (`handlers/table/conflicts.py`).

The first transaction that is protected comes after a lost conflict, or after a restart, so it is queued. It is ahead of all that
wait, those that compute go on to their end, and one that begins during it is aborted at its markers, before it computes. A
protected transaction with `optimistic` admission would abort those that compute (docs/decisions/0056).

A unit is what Java Paimon compacts in one step: a group of small files of an append table, or a bucket.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
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


class Last(Enum):
    """How the compactor's last transaction ended."""

    UNKNOWN = auto()
    """There was none since the compactor's start."""
    DONE = auto()
    LOST = auto()
    NOT_ADMITTED = auto()
    """Its wait in the queue was wasted."""


def effort_after(last: Last, lost: int) -> Effort:
    """Return the effort of the next transaction. `lost`: how many in a row have not committed."""
    if last is Last.UNKNOWN:
        return Effort("queued", MAX_UNITS, "the first compaction since the start of the compactor")
    if last is Last.DONE:
        return Effort("optimistic", MAX_UNITS, "a compaction")
    reason = f"a compaction that has lost {lost} times in a row"
    return Effort("queued" if last is Last.LOST else "optimistic", 1, reason)


def may_compact(files: int, trigger: int, *, full: bool) -> bool:
    """Return whether Java Paimon may find something to compact in a bucket.

    Files of level 0 are one sorted run each, so there are never more runs than files, and below `trigger` runs it does nothing.
    """
    return full or files >= trigger


def worth_merging(sizes: Iterable[int], *, target: int, least: int) -> bool:
    """Return whether at least `least` manifests are smaller than Paimon wants them: by merging, their number becomes small."""
    return sum(size < target for size in sizes) >= least


def refusal(bucket: int, options: Mapping[str, str], *, primary_key: bool) -> str | None:
    """Return why the service doesn't compact a table, and what to do instead, or None.

    - Of a table with a primary key, deletion vectors and `first-row` show no row before it is compacted. A service that gives way
      to writers, and starts where files have piled up, would hide rows for an unknown time.
    - Of an append table with fixed buckets, Java's check before a commit doesn't compare deletion vectors: a row that is deleted
      while a compaction computes would be there again. Without buckets it does.
    """
    if bucket == POSTPONE_BUCKET:
        return "its buckets are postponed (bucket=-2), which need Paimon's rescale job"
    if options.get("data-evolution.enabled", "").lower() == "true":
        return "it has data evolution, whose compaction keeps row ids, which was not tried"
    if not primary_key:
        if bucket > 0 and options.get("deletion-vectors.enabled", "").lower() == "true":
            return (
                "with deletion vectors and fixed buckets, Java Paimon doesn't notice that a row is deleted while it compacts: "
                "the row would be there again; use bucket=-1, or let the writer that deletes rows compact (write-only=false)"
            )
        return None
    for name, value in (("deletion-vectors.enabled", "true"), ("merge-engine", "first-row")):
        if options.get(name, "").lower() == value:
            return (
                f"with {name}={value} and a primary key, readers see no row before it is compacted: let its writers compact "
                "(write-only=false), or use Paimon's own dedicated compaction"
            )
    return None
