"""What each owner of a partition must know of committed batches, after Kafka has lost records of the ledger.

Written from docs/decisions/0050, not from the code under test. An owner must know

- the batches that the ledger had when the owner had read it,
- those whose intents it has replayed,
- those whose completions it has read since.

Any other batch is known to the table alone. While records of the ledger were never lost, every owner must know every batch. At
the end of a session, each owner must have recorded in the ledger what it must know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""Table and writer."""


@dataclass(slots=True)
class Known:
    """What an owner must know."""

    partition: int
    loaded_at: float
    end: int
    """Of `writers` at its take-over. It has read what follows."""
    batches: dict[Key, int]
    """The largest ones that it must know since its take-over."""
    after_loss: bool
    """The ledger had lost records before."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion in the log."""

    key: Key
    batch: int
    sequence: int
    """Offset of its transaction's intent."""
    offset: int


@dataclass(slots=True)
class LedgerKnowledge:
    """What the ledger has, and what the owners must know."""

    partition_of: Callable[[str], int]
    completions: Callable[[], Iterable[Completion]]
    in_ledger: dict[Key, int] = field(default_factory=dict)
    """The largest batch in the ledger."""
    lost_at: dict[int, float] = field(default_factory=dict)
    """By partition: when records of the ledger were lost last."""
    _owners: dict[str, Known] = field(default_factory=dict)
    """By term."""

    def on_entry(self, key: Key, batch: int) -> None:
        """A batch was written to the ledger."""
        self.in_ledger[key] = max(batch, self.in_ledger.get(key, -1))

    def on_loss(self, partition: int, now: float, left: Iterable[tuple[Key, int]]) -> None:
        """The ledger of a partition has lost records. `left`: the batches in it."""
        self.lost_at[partition] = now
        for key in [each for each in self.in_ledger if self.partition_of(each[0]) == partition]:
            del self.in_ledger[key]
        for key, batch in left:
            self.on_entry(key, batch)

    def on_loaded(self, term: str, now: float, *, partition: int, span: tuple[int, int]) -> None:
        """An owner has read decisions and ledger, and replays this span of `writers`."""
        start, end = span
        batches = {
            key: batch for key, batch in self.in_ledger.items() if self.partition_of(key[0]) == partition
        }
        found = [
            (each.key, each.batch)
            for each in self._of(partition)
            if each.sequence >= start and each.offset < end
        ]
        _add(batches, found)
        self._owners[term] = Known(partition, now, end, batches, after_loss=partition in self.lost_at)

    def unrecorded(self, term: str, position: int) -> tuple[Key, int] | None:
        """A batch that an owner must know, and that the ledger has lost and lacks. `position`: of the owner in `writers`."""
        known = self._owners.get(term)
        if known is None or known.partition not in self.lost_at:
            return None
        batches = dict(known.batches)
        completed = self._of(known.partition)
        _add(batches, ((each.key, each.batch) for each in completed if known.end <= each.offset < position))
        lacking = (each for each in batches.items() if self.in_ledger.get(each[0], -1) < each[1])
        return next(lacking, None)

    def must_know(self, term: str | None, key: Key, batch: int, offset: int) -> bool:
        """Whether the owner must know that this batch is committed, whose completion is at this offset."""
        known = self._owners.get(term or "")
        if known is None or not known.after_loss:
            return True
        return batch <= known.batches.get(key, -1) or offset >= known.end

    def problem(self, term: str, *, shown: bool) -> str | None:
        """What is wrong at the end with a live owner that has had time. `shown`: the checkpoint names the loss."""
        known = self._owners.get(term)
        if known is None or known.partition not in self.lost_at:
            return None
        if known.loaded_at < self.lost_at[known.partition]:
            return f"the owner of partition {known.partition} goes on, although the ledger has lost records"
        if not shown:
            return f"the checkpoint of partition {known.partition} doesn't name what the ledger had lost"
        return None

    def _of(self, partition: int) -> Iterable[Completion]:
        return (each for each in self.completions() if self.partition_of(each.key[0]) == partition)


def _add(batches: dict[Key, int], more: Iterable[tuple[Key, int]]) -> None:
    for key, batch in more:
        batches[key] = max(batch, batches.get(key, -1))
