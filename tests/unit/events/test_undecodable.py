from __future__ import annotations

from lakewarden.events import Undecodable, UndecodableRecords
from lakewarden.events.codec import LOG_EVERY, MAX_LOGGED_REASON


def add(records: UndecodableRecords, topic: str, count: int) -> list[int]:
    """Add so many records of a topic; the offsets of those that are to be logged."""
    lines = [records.add(topic, 3, offset, Undecodable("empty record")) for offset in range(1, count + 1)]
    return [int(line["offset"]) for line in lines if line is not None]


def test_the_log_line_names_the_record_and_the_reason() -> None:
    line = UndecodableRecords().add("lakewarden.decisions", 3, 17, Undecodable("empty record"))

    assert line == {
        "topic": "lakewarden.decisions",
        "partition": 3,
        "offset": 17,
        "reason": "empty record",
        "undecodable": 1,
    }


def test_every_record_is_counted_by_topic() -> None:
    records = UndecodableRecords()

    add(records, "lakewarden.decisions", 5)
    add(records, "lakewarden.ledger", 2)

    assert records.total == 7
    assert records.by_topic == {"lakewarden.decisions": 5, "lakewarden.ledger": 2}


def test_a_flood_is_logged_with_a_bound() -> None:
    """A faulty producer writes a million records: the log must stay readable, and must show that it goes on."""
    logged = add(UndecodableRecords(), "lakewarden.decisions", 4 * LOG_EVERY)

    assert logged == [
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        512,
        LOG_EVERY,
        2 * LOG_EVERY,
        3 * LOG_EVERY,
        4 * LOG_EVERY,
    ]


def test_a_flood_in_one_topic_does_not_hide_the_first_record_of_another() -> None:
    records = UndecodableRecords()
    add(records, "lakewarden.audit", 100)

    assert add(records, "lakewarden.decisions", 1) == [1]


def test_a_long_reason_is_cut() -> None:
    """A reason may quote the record, and the record may be a megabyte."""
    line = UndecodableRecords().add("lakewarden.decisions", 0, 0, Undecodable("x" * 10_000))

    assert line is not None
    assert line["reason"] == "x" * MAX_LOGGED_REASON
