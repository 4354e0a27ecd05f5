"""Which batches a Paimon table contains, from its snapshots: docs/decisions/0042-paimon-batches-past-expiry.md.

`find` receives the snapshots one by one, the newest first, and stops at the one that answers.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from lakewarden.handlers.paimon.publish import CommitName

MAX_WRITERS: Final = 2_000
"""In the property of one snapshot, about 80 kB."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch of a writer, and the snapshot that committed it."""

    batch: int
    snapshot: int


Batches: TypeAlias = Mapping[str, LastBatch]
"""The last batch of each writer, the one that committed most recently last."""


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What a snapshot contributes. `batches` is None if it hasn't the property; `name.transaction` None: a foreign commit."""

    number: int
    name: CommitName
    batches: Batches | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The batch is in the table. `exact`: `snapshot` is its own, and not the one of a later batch of its writer."""

    snapshot: int
    exact: bool


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The batch is not in the table."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """No retained snapshot names the writer, and older ones have expired."""


def find(writer: str, batch: int, snapshots: Iterable[SnapshotFacts]) -> Committed | NotCommitted | Undecided:
    """Return whether the batch is committed. `snapshots` are the retained ones, the newest first, without a gap."""
    number = 0
    for snapshot in snapshots:
        number = snapshot.number
        if snapshot.name.user == writer:
            if snapshot.name.identifier == batch:
                return Committed(number, exact=True)
            if snapshot.name.identifier < batch:
                return NotCommitted()
        if snapshot.batches is not None:
            last = snapshot.batches.get(writer)
            if last is None:
                return Undecided()
            return (
                NotCommitted() if last.batch < batch else Committed(last.snapshot, exact=last.batch == batch)
            )
    return Undecided() if number > 1 else NotCommitted()


@dataclass(frozen=True, slots=True)
class PublishAttempt:
    """A writer was about to publish `batch`, when `after` was the newest snapshot."""

    batch: int
    after: int


def resolve(
    writer: str, batch: int, attempt: PublishAttempt | None, snapshots: Iterable[SnapshotFacts]
) -> Committed | NotCommitted | Undecided:
    """Return whether an undecided batch is committed, from the writer's last attempt and the snapshots since."""
    if attempt is None or attempt.batch < batch:
        return NotCommitted()
    if attempt.batch > batch:
        return Undecided()
    lowest = attempt.after + 1
    for snapshot in snapshots:
        if snapshot.number <= attempt.after:
            return NotCommitted()
        if (snapshot.name.user, snapshot.name.identifier) == (writer, batch):
            return Committed(snapshot.number, exact=True)
        lowest = snapshot.number
    return NotCommitted() if lowest == attempt.after + 1 else Undecided()


def carried(snapshots: Iterable[SnapshotFacts]) -> Batches:
    """Return what the retained snapshots, the newest first, pass on to the next one."""
    return next((each.batches for each in snapshots if each.batches is not None), {})


def with_batch(batches: Batches, writer: str, last: LastBatch) -> dict[str, LastBatch]:
    """Return `batches` with this one as the most recent, and without the oldest writers beyond the limit."""
    before = batches.get(writer, last)
    entries = {name: entry for name, entry in batches.items() if name != writer}
    entries[writer] = before if before.batch > last.batch else last
    for name in list(entries)[: max(0, len(entries) - MAX_WRITERS)]:
        del entries[name]
    return entries


def encode(batches: Batches) -> str:
    """Return the property's value."""
    return json.dumps(
        {writer: [last.batch, last.snapshot] for writer, last in batches.items()}, separators=(",", ":")
    )


def decode(value: str | None) -> Batches | None:
    """Return the batches in the property's value. Raises `ValueError` for anything that `encode` doesn't return."""
    if value is None:
        return None
    try:
        entries = json.loads(value).items()
        return {str(writer): LastBatch(int(batch), int(snapshot)) for writer, (batch, snapshot) in entries}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not the last batches of writers: {value[:100]}") from error
