"""What `lakewarden migrate` writes: the entries in force, without what only the source understands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lakewarden.agent.operators.migrate import Copied, Entries
from lakewarden.agent.serving.checkpoint import digest
from lakewarden.events import (
    LEDGER_EVENT,
    BatchCommitted,
    ConflictsLost,
    LedgerRecord,
    Marker,
    PartitionTaken,
    Undecodable,
    decode,
    ledger_key,
    partition_name,
)
from lakewarden.handlers.table.ledger import CommittedBatch, Ledger
from lakewarden.handlers.table.verdicts import RecordLosses

TABLE = "s3://lake/orders"
COMMON: dict[str, Any] = {"event_id": "e", "table": TABLE, "at": datetime(2026, 11, 22, tzinfo=UTC)}
PLACES = (Marker(partition="p", file_group="*", operation="merge"),)


def _batch(batch_id: int | None, writer: str = "w", **more: Any) -> BatchCommitted:
    return BatchCommitted(transaction="T", writer=writer, batch_id=batch_id, **COMMON, **more)


def _lost(losses: int, writer: str = "w", **more: Any) -> ConflictsLost:
    return ConflictsLost(transaction="L", writer=writer, losses=losses, lost_on=PLACES, **COMMON, **more)


def _records(entries: Entries) -> list[LedgerRecord]:
    found: list[LedgerRecord] = []
    for value in entries.values.values():
        entry = decode(LEDGER_EVENT, value)
        assert not isinstance(entry, Undecodable)
        found.append(entry)
    return found


def test_an_offset_of_the_source_does_not_outrank_the_commits_of_the_target() -> None:
    """`corrected_at` 900 would hide every batch that the target commits before its offset 900."""
    entries, target = Entries(), Ledger()
    entries.add(_batch(5, corrected_at=900, correction="c", term="source"))
    for each in _records(entries):
        target.add(each)
    target.add(PartitionTaken(**{**COMMON, "table": partition_name(0)}, agent="a", term="target"))

    target.add(_batch(6, term="target"))

    assert target.tables[TABLE].batches == {"w": CommittedBatch(6, "T", None)}


def test_losses_count_in_the_target_whichever_take_over_precedes_them() -> None:
    entries, target = Entries(), Ledger()
    entries.add(_lost(3, term="source"))
    target.add(PartitionTaken(**{**COMMON, "table": partition_name(0)}, agent="a", term="target"))

    for each in _records(entries):
        target.add(each)

    assert list(target.tables[TABLE].losses()) == [RecordLosses("w", 3, PLACES, "L")]


def test_the_last_entry_in_force_is_copied_and_no_losses_are_none() -> None:
    entries = Entries()
    for each in (_batch(1), _lost(2), _batch(None, "v"), _batch(2), _lost(0), _lost(1, "v")):
        entries.add(each)

    assert entries.count() == (1, 2, 1)
    assert {key: (each.batch_id if isinstance(each, BatchCommitted) else None) for key, each in zip(
        entries.values, _records(entries), strict=True
    )} == {
        ledger_key(TABLE, "w"): 2,
        ledger_key(TABLE, "v"): None,
        ledger_key(TABLE, "v", "losses"): None,
    }  # fmt: skip


def test_a_writer_may_be_named_like_a_kind_of_entry() -> None:
    entries = Entries()
    entries.add(_batch(1, "losses"))

    assert entries.count() == (1, 1, 0)


def test_entries_that_the_source_does_not_have_are_counted() -> None:
    """The source was served again after an interrupted copy."""
    entries = Entries()
    entries.add(_batch(2))
    key = ledger_key(TABLE, "w")

    assert Copied({key: digest(entries.values[key])}).others(entries) == 0
    assert Copied({key: "another"}).others(entries) == 1
    assert Copied({key: digest(entries.values[key]), b"t\nv": "x"}).others(entries) == 1
