"""The entries in force of a partition's ledger, in a compact form."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from lakewarden.events import BatchCommitted
from lakewarden.handlers.table.ledger import (
    CommittedBatch,
    CommittedBatches,
    Correction,
    Ledger,
    LedgerEntries,
)
from tests.unit.events.building import made
from tests.unit.handlers.table.world import m

TABLE = "s3://lake/orders"
AT = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize("version", [None, "", "7", "a\nversion of\n\nmany lines"])
@pytest.mark.parametrize("correction", [None, Correction(3, "e3")])
@pytest.mark.parametrize("edition", [None, "1a2b"])
def test_a_batch_is_kept_as_it_was(
    version: str | None, correction: Correction | None, edition: str | None
) -> None:
    """A version is any text; it comes from the table format."""
    batches = CommittedBatches()
    batch = CommittedBatch(-(2**63), "transaction é", version, correction, 2, edition)

    batches["writer"] = batch

    assert batches["writer"] == batch
    assert batches == {"writer": batch}


def test_the_writer_that_committed_last_is_the_last_one() -> None:
    """The agent names the last ten of a job's query ids."""
    batches = CommittedBatches()
    for number, writer in enumerate(("v", "w", "v")):
        batches[writer] = CommittedBatch(number, "t", None)

    assert list(batches) == ["w", "v"]


def test_losses_are_kept_with_their_places_until_a_commit() -> None:
    """A protected writer stays protected when its quiet table is used again."""
    entries = LedgerEntries()
    lost = "w", 3, (m("p/*"), m("q/*", "delete"))

    entries.keep_losses(*lost)

    assert list(entries.losses()) == [lost]

    entries.keep_losses("w", 0, ())

    assert list(entries.losses()) == []
    assert not entries


def test_the_memory_depends_on_the_number_of_writers_not_on_the_length_of_the_topic() -> None:
    """The active segment is not compacted: it may have a million records of a hundred writers."""
    ledger = Ledger()
    _commit(ledger, writers=100, batches=1)
    before = _allocated()

    _commit(ledger, writers=100, batches=50)

    assert _allocated() - before < 20_000


def test_an_entry_of_the_ledger_needs_less_than_400_bytes() -> None:
    """An agent keeps each writer that has ever committed."""
    ledger = Ledger()
    before = _allocated()

    _commit(ledger, writers=5_000, batches=1)

    assert (_allocated() - before) / 5_000 < 400
    assert len(ledger.tables[TABLE].batches) == 5_000


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def _allocated() -> int:
    return tracemalloc.get_traced_memory()[0]


def _commit(ledger: Ledger, *, writers: int, batches: int) -> None:
    for batch in range(batches):
        for writer in range(writers):
            ledger.add(
                made(
                    BatchCommitted,
                    table=TABLE,
                    transaction=f"{batch:016}{writer:016}",
                    writer=f"arrivals:0f8fad5b-d9cb-469f-a165-{writer:012}",
                    batch_id=batch,
                    version=str(batch),
                )
            )
