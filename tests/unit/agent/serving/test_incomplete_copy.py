"""A partition whose ledger `lakewarden migrate` has not finished copying is not served: it doesn't know what is committed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    BatchCommitted,
    CommitIntent,
    LedgerCopied,
    PartitionTaken,
    encode,
    partition_name,
)
from lakewarden.handlers.table.replay import Position

TABLE = "s3://lake/orders"
SETTINGS = Settings(allow=("s3://*",), lock_places=("s3://*=>usual",))
AT = datetime.now(UTC)
COMMON: dict[str, Any] = {"event_id": "e", "at": AT}
BATCH = BatchCommitted(table=TABLE, transaction="T", writer="w", batch_id=7, version="v7", **COMMON)
TAKEN = PartitionTaken(table=partition_name(0), agent="a", term="t", **COMMON)


def _copied(*, complete: bool) -> LedgerCopied:
    return LedgerCopied(table=partition_name(0), source="old", complete=complete, **COMMON)


def _record(offset: int, value: bytes) -> ConsumerRecord:
    record: Any = ConsumerRecord("t", 0, offset, 0, 0, TABLE.encode(), value, None, 0, len(value), ())
    return record


def _decisions(*ledger: BatchCommitted | LedgerCopied | PartitionTaken) -> tuple[str, list[bytes]]:
    """The phase of an owner with this ledger, and its answers to an intent for the copied batch."""
    records: list[Outgoing] = []

    class Log:
        def put(self, record: Outgoing) -> None:
            records.append(record)

    publisher: Any = Log()
    tasks: Any = None
    owner = PartitionOwner(0, SETTINGS, publisher, Stores(SETTINGS, AsyncExitStack()), tasks)
    for name in ("start_acquire", "start_release"):
        setattr(owner.locks, name, lambda *_, **__: None)
    owner.load(
        0, 0, Position(0, None), [], [_record(offset, encode(each)) for offset, each in enumerate(ledger)]
    )
    intent = CommitIntent(table=TABLE, transaction="again", writer="w", batch_id=7, **COMMON)
    owner.consume([_record(0, encode(intent))], 0.0)
    return owner.phase, [each.value for each in records if each.topic == SETTINGS.topics.decisions]


@pytest.mark.parametrize("taken", [(), (TAKEN,)], ids=["", "an agent had refused it before"])
def test_an_incomplete_copy_is_refused(taken: tuple[PartitionTaken, ...]) -> None:
    phase, decisions = _decisions(_copied(complete=False), BATCH, *taken)

    assert (phase, decisions) == ("refused", [])


def test_a_complete_copy_is_served() -> None:
    phase, decisions = _decisions(_copied(complete=False), BATCH, _copied(complete=True))

    assert phase == "live"
    assert len(decisions) == 1
    assert b'"type":"already-committed"' in decisions[0]


def test_a_copy_that_was_begun_again_is_incomplete() -> None:
    """Compaction may have removed the first marker; the last one counts."""
    phase, _ = _decisions(_copied(complete=True), _copied(complete=False))

    assert phase == "refused"
