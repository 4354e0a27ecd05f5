"""What the page keeps of the past is bounded."""

from __future__ import annotations

import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.operators import losses, timelines
from lakewarden.agent.operators.losses import HOUR_MS, OTHERS, Losses
from lakewarden.agent.operators.refused import refused_event
from lakewarden.agent.operators.timelines import Timelines
from lakewarden.agent.web.pages import seconds_clock
from lakewarden.events import Abort, CommitIntent, PartitionTaken, encode
from tests.unit.agent.web.test_server import record
from tests.unit.events.building import a_conflict, an_overlap, made

NOW_MS = 1_800_000_000_000
LETTER = b'{"type":"dead-letter","reason":"r","topic":"t","partition":0,"offset":0,"value":"%s"}'


def intent(uri: str, number: int, at_ms: int = NOW_MS) -> ConsumerRecord:
    event = made(
        CommitIntent, event_id=f"e{number}", table=uri, transaction=f"T{number}", heartbeat_seconds=5
    )
    return record(encode(event), at_ms)


def conflict(partitions: int, at_ms: int, table: str = "s3://lake/t") -> ConsumerRecord:
    event = a_conflict(*(an_overlap(f"p{number}") for number in range(partitions)), table=table)
    return record(encode(event), at_ms)


def test_a_table_keeps_its_last_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MAX_OF_TABLE", 3)
    kept = Timelines()

    for number in range(10):
        kept.add_event(intent("s3://lake/t", number))

    [row] = kept.drawing("s3://lake/t", NOW_MS / 1000 - 60, NOW_MS / 1000 + 60)["writers"]
    assert [each["transaction"] for each in row["attempts"]] == ["T7", "T8", "T9"]


def test_of_all_tables_the_one_without_an_event_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timelines, "MAX_TRANSACTIONS", 3)
    kept = Timelines()

    for number in range(5):
        kept.add_event(intent(f"s3://lake/t{number}", number))

    assert list(kept._tables) == ["s3://lake/t2", "s3://lake/t3", "s3://lake/t4"]


def test_a_table_is_forgotten_when_its_last_event_is_older_than_the_hours_that_are_kept() -> None:
    kept = Timelines()
    kept.add_event(intent("s3://lake/old", 1, NOW_MS))
    kept.add_event(intent("s3://lake/new", 2, NOW_MS + HOUR_MS))

    kept.drop_before((NOW_MS + 1) / 1000)

    assert list(kept._tables) == ["s3://lake/new"]
    assert kept._size == 1


def test_a_decision_of_a_replaced_agent_is_not_drawn() -> None:
    """It had lost the partition and did not know it yet: its abort doesn't count."""
    kept = Timelines()
    taken = made(PartitionTaken, table="lakewarden://partition/0", agent="new", term="new")
    abort = made(Abort, table="s3://lake/t", transaction="T1", agent="old", term="old", reason="writer-lost")
    kept.add_event(intent("s3://lake/t", 1))
    kept.add_decision(record(encode(taken), NOW_MS))

    kept.add_decision(record(encode(abort), NOW_MS + 1))

    [row] = kept.drawing("s3://lake/t", NOW_MS / 1000 - 60, NOW_MS / 1000 + 60)["writers"]
    assert [each["outcome"] for each in row["attempts"]] == ["running"]


def test_losses_of_hours_that_are_not_kept_are_dropped() -> None:
    kept = Losses(hours=2)

    for hour in range(10):
        kept.add(conflict(1, NOW_MS + hour * HOUR_MS))

    assert len(kept._pairs) == len(kept._partitions) == 3


def test_partitions_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may have a million partitions."""
    monkeypatch.setattr(losses, "MAX_ENTRIES", 2)
    kept = Losses(hours=2)

    kept.add(conflict(6, NOW_MS))

    [counted] = kept._partitions.values()
    assert {key[1]: loss.conflicts for key, loss in counted.items()} == {"p0": 1, "p1": 1, OTHERS: 4}
    assert sum(loss.seconds for loss in counted.values()) == pytest.approx(6)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"\xff", b'{"type":"dead-letter"}', LETTER % b"\xc3\xa9", LETTER % b"a"]
)
def test_a_record_of_dead_letters_that_is_none_is_skipped(value: bytes) -> None:
    """Another producer of the topic must not end the page."""
    assert refused_event(record(value, NOW_MS)) is None


def test_a_record_with_an_impossible_time_is_drawn_without_it() -> None:
    assert seconds_clock(-1e15) == ""
