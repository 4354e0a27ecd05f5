"""A record in another Kafka partition than its table's: its producer has another partitioner. The agent never decides on it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.kafka import partition_of
from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.operators.log_replay import LogReplay
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.takeover import Start
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    Abort,
    BatchCommitted,
    CommitIntent,
    DeadLetter,
    Undecodable,
    decode,
    encode,
)
from lakewarden.handlers.table.replay import Position, PublishedDecisions

PARTITIONS = 12
TABLE = "s3://lake/orders"
PLACE = partition_of(TABLE, PARTITIONS)
SETTINGS = Settings(allow=("s3://*",), lock_places=("s3://*=>usual",))
TOPICS = SETTINGS.topics
AT = datetime.now(UTC)
COMMON: dict[str, Any] = {"table": TABLE, "writer": "w", "at": AT}


class Log:
    """In place of the publisher."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    def put(self, record: Outgoing) -> None:
        self.records.append(record)

    def aborts(self) -> list[Abort]:
        return [each for each in self.decisions() if isinstance(each, Abort)]

    def decisions(self) -> list[Any]:
        found: list[Any] = [
            decode(DECISION_RECORD, each.value) for each in self.records if each.topic == TOPICS.decisions
        ]
        assert not any(isinstance(each, Undecodable) for each in found)
        return found

    def dead_letters(self) -> list[DeadLetter]:
        return [
            DeadLetter.model_validate_json(each.value)
            for each in self.records
            if each.topic == TOPICS.dead_letters
        ]


def _owner(number: int, log: Any) -> PartitionOwner:
    tasks: Any = None
    owner = PartitionOwner(
        number, SETTINGS, log, Stores(SETTINGS, AsyncExitStack()), tasks, partitions=PARTITIONS
    )
    for name in ("start_acquire", "start_release"):
        setattr(owner.locks, name, lambda *_, **__: None)
    return owner


def _record(number: int, offset: int, value: bytes, topic: str = TOPICS.writers) -> ConsumerRecord:
    record: Any = ConsumerRecord(
        topic, number, offset, 0, 0, TABLE.encode(), value, None, len(TABLE), len(value), ()
    )
    return record


def _intent(number: int) -> ConsumerRecord:
    return _record(number, 0, encode(CommitIntent(event_id="e", transaction="T", batch_id=1, **COMMON)))


def test_the_owner_of_the_tables_partition_admits_it() -> None:
    log = Log()
    owner = _owner(PLACE, log)
    owner.load(0, 0, Position(0, None), [], [])

    owner.consume([_intent(PLACE)], 0.0)

    assert (log.aborts(), log.dead_letters()) == ([], [])
    assert [each.type for each in log.decisions()] == ["admitted"]


@pytest.mark.parametrize("replayed", [False, True], ids=["live", "replayed"])
def test_the_owner_of_another_partition_refuses_the_record(replayed: bool) -> None:
    log, number = Log(), (PLACE + 1) % PARTITIONS
    owner = _owner(number, log)
    owner.load(0, int(replayed), Position(0, None), [], [])

    owner.consume([_intent(number)], 0.0)
    owner.finish_replay(1)

    assert owner.phase == "live"
    assert owner.tables == {}
    assert [type(each) for each in log.decisions()] == [Abort]
    [abort], [letter] = log.aborts(), log.dead_letters()
    assert (abort.transaction, abort.reason, abort.retriable) == ("T", "not-allowed", False)
    assert abort.detail == letter.reason
    for part in (
        TABLE,
        f"partition {PLACE} of {TOPICS.writers}",
        f"in partition {number};",
        "murmur2_random",
    ):
        assert part in letter.reason
    assert (letter.topic, letter.partition, letter.offset) == (TOPICS.writers, number, 0)


def test_a_ledger_entry_in_another_partition_opens_no_table() -> None:
    """Only another agent's entry is recorded again, and of a table that this owner has."""
    log, number = Log(), (PLACE + 1) % PARTITIONS
    entries = [
        BatchCommitted(event_id="e", transaction=f"T{batch}", batch_id=batch, **COMMON) for batch in (7, 6)
    ]
    owner = _owner(number, log)
    owner.load(
        0,
        0,
        Position(0, None),
        [],
        [_record(number, offset, encode(each), TOPICS.ledger) for offset, each in enumerate(entries)],
    )

    assert owner.phase == "live"
    assert owner.tables == {}
    assert [each for each in log.records if each.topic == TOPICS.ledger] == []


def test_an_operators_replay_ignores_the_record() -> None:
    starts = {number: Start(None, 0, Position(0, None), ()) for number in range(PARTITIONS)}
    number = (PLACE + 1) % PARTITIONS
    found = LogReplay(starts)

    found.replay(number, [_intent(number)], PublishedDecisions(Position(0, None), ()))
    assert found.tables == {}

    found.replay(PLACE, [_intent(PLACE)], PublishedDecisions(Position(0, None), ()))
    assert [each.id for each in found.tables[TABLE].open()] == ["T"]
