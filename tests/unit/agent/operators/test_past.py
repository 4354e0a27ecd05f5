"""What conflicts have cost, added up from their events; what is kept of the past is bounded."""

from __future__ import annotations

import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import moment
from lakewarden.agent.operators import past
from lakewarden.agent.operators.past import HOUR_MS, OTHERS, Losses, PairLoss, Timelines, refused_event
from lakewarden.agent.operators.text import lines
from lakewarden.events import Abort, CommitIntent, PartitionTaken, TransactionAbandoned, encode
from lakewarden.handlers.explain.life import End
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.events.building import a_conflict, an_overlap, made


def lost(table: str, victim: str, winner: str, seconds: float, *partitions: str) -> ConsumerRecord:
    """The record of a conflict: a transaction loses to a writer in these partitions."""
    event = a_conflict(
        *(an_overlap(each, winner, other_transaction=f"of {winner}") for each in partitions),
        table=table,
        transaction=victim,
        writer=f"writer of {victim}",
        event_id=f"{victim} {winner}",
        victim_age_seconds=seconds,
    )
    return consumed(encode(event), at_ms=moment().wall_ms)


def test_the_seconds_of_a_transaction_that_loses_to_two_writers_count_once() -> None:
    """For the first of them; another table's conflict may come between."""
    losses = Losses(hours=1)

    for record in (
        lost("s3://lake/a", "T1", "first", 10.0, "p", "q"),
        lost("s3://lake/b", "T2", "first", 1.0, "p"),
        lost("s3://lake/a", "T1", "second", 10.0, "p"),
        lost("s3://lake/a", "T3", "second", 4.0, "p"),
    ):
        losses.add(record)

    report = losses.report("s3://lake/a")
    assert (report.conflicts, report.seconds) == (3, 14.0)
    assert [(each.winner, each.conflicts, each.seconds) for each in report.pairs] == [
        ("first", 1, 10.0),
        ("second", 1, 4.0),
        ("second", 1, 0.0),
    ]
    assert [(each.partition, each.conflicts, each.seconds) for each in report.partitions] == [
        ("p", 3, 9.0),
        ("q", 1, 5.0),
    ]


def test_the_commits_of_writers_without_the_gate_are_one_winner_per_format() -> None:
    """A watcher reports each commit as a writer of its own."""
    losses = Losses(hours=1)

    for number, winner in enumerate(("delta:49", "delta:50", "hudi:20261122135446024", "crm")):
        losses.add(lost("s3://lake/a", f"T{number}", winner, 1.0, "p"))

    winners = {each.winner for each in losses.report().pairs}
    assert winners == {"delta, without the gate", "hudi, without the gate", "crm"}


def test_what_is_lost_to_a_commit_without_a_label_counts_without_a_watcher() -> None:
    """No conflict shows it: the sink has found the commit under the grant. What ended otherwise doesn't count.

    Only if the table names the commit, it is known to be one without the gate.
    """
    losses, now = Losses(hours=1), moment().wall_ms
    timelines, table = Timelines(losses), "s3://lake/a"
    for name, cause, lost_to in (
        ("A", "base-changed", None),
        ("B", "base-changed", "version 49: UPDATE, Delta-Lake/4.0.0"),
        ("C", "empty", None),
        ("D", "lost-to-gate", "version 50: MERGE, job shop, transaction t"),
    ):
        each = {"table": table, "writer": "crm", "transaction": name}
        for event, at in (
            (made(CommitIntent, **each), now - 4_000),
            (made(TransactionAbandoned, reason="r", cause=cause, lost_to=lost_to, **each), now),
        ):
            timelines.add_event(consumed(encode(event), at_ms=at))
            timelines.add_event(consumed(encode(event), at_ms=at))  # delivered again

    report = losses.report()
    assert report.pairs == [
        PairLoss(table, 1, 4.0, winner, "crm")
        for winner in ("a commit that the table doesn't name", "a writer without the gate")
    ]
    assert lines("losses", report)[0] == "2 conflicts in the last hour, 8.0 s of compute wasted"
    assert [(each.transaction, each.end, each.bypassed_by) for each in timelines.find("crm", None, None)] == [
        ("A", "aborted", None),
        ("B", "lost to a writer without the gate", "version 49: UPDATE, Delta-Lake/4.0.0"),
        ("C", "empty", None),
        ("D", "aborted", None),
    ]
    to = "a writer without the gate (version 49: UPDATE, Delta-Lake/4.0.0)"
    assert timelines.ends[table].losing["crm"].to == to


def test_a_lapsed_transaction_has_an_unknown_outcome_until_its_writer_reports() -> None:
    """One that only met it is aborted."""
    timelines, now = Timelines(), moment().wall_ms
    for name in ("lapsed", "abandoned", "another"):
        each = {"table": "s3://lake/a", "writer": "crm", "transaction": name}
        met = (an_overlap("p", "shop"),) if name == "another" else ()
        abort = made(Abort, reason="outcome-unknown", conflicts=met, **each)
        timelines.add_event(consumed(encode(made(CommitIntent, **each)), at_ms=now))
        timelines.add_decision(consumed(encode(abort), at_ms=now + 1))
        if name == "abandoned":
            event = made(TransactionAbandoned, reason="not in the table", **each)
            timelines.add_event(consumed(encode(event), at_ms=now + 2))

    found = {each.transaction: each.end for each in timelines.find("crm", None, None)}
    assert found == {"lapsed": "outcome unknown", "abandoned": "aborted", "another": "aborted"}


# -- bounds -------------------------------------------------------------------------------------------------------------

NOW_MS = 1_800_000_000_000
LETTER = b'{"type":"dead-letter","reason":"r","topic":"t","partition":0,"offset":0,"value":"%s"}'


def intent(uri: str, number: int, at_ms: int = NOW_MS) -> ConsumerRecord:
    event = made(
        CommitIntent, event_id=f"e{number}", table=uri, transaction=f"T{number}", heartbeat_seconds=5
    )
    return consumed(encode(event), at_ms=at_ms)


def conflict(partitions: int, at_ms: int) -> ConsumerRecord:
    event = a_conflict(*(an_overlap(f"p{number}") for number in range(partitions)), table="s3://lake/t")
    return consumed(encode(event), at_ms=at_ms)


def test_a_table_keeps_its_last_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "MAX_OF_TABLE", 3)
    kept = Timelines()

    for number in range(10):
        kept.add_event(intent("s3://lake/t", number))

    assert list(kept.tables["s3://lake/t"]) == ["T7", "T8", "T9"]


def test_of_all_tables_the_one_without_an_event_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past, "MAX_TRANSACTIONS", 3)
    kept = Timelines()

    for number in range(5):
        kept.add_event(intent(f"s3://lake/t{number}", number))

    assert list(kept.tables) == ["s3://lake/t2", "s3://lake/t3", "s3://lake/t4"]


def test_a_table_is_forgotten_when_its_last_event_is_older_than_the_hours_that_are_kept() -> None:
    kept = Timelines()
    kept.add_event(intent("s3://lake/old", 1, NOW_MS))
    kept.add_event(intent("s3://lake/new", 2, NOW_MS + HOUR_MS))

    kept.drop_before((NOW_MS + 1) / 1000)

    assert list(kept.tables) == ["s3://lake/new"]
    assert kept._size == 1


def test_a_decision_of_a_replaced_agent_is_not_drawn() -> None:
    """It had lost the partition and did not know it yet: its abort doesn't count."""
    kept = Timelines()
    taken = made(PartitionTaken, table="lakewarden://partition/0", agent="new", term="new")
    abort = made(Abort, table="s3://lake/t", transaction="T1", agent="old", term="old", reason="writer-lost")
    kept.add_event(intent("s3://lake/t", 1))
    kept.add_decision(consumed(encode(taken), at_ms=NOW_MS))

    kept.add_decision(consumed(encode(abort), at_ms=NOW_MS + 1))

    assert kept.tables["s3://lake/t"]["T1"].end is End.RUNNING


def test_losses_of_hours_that_are_not_kept_are_dropped() -> None:
    kept = Losses(hours=2)

    for hour in range(10):
        kept.add(conflict(1, NOW_MS + hour * HOUR_MS))

    assert len(kept._counted) == 2 * 3, "pairs, and partitions, of three hours"


def test_partitions_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may have a million partitions."""
    monkeypatch.setattr(past, "MAX_ENTRIES", 2)
    kept = Losses(hours=2)

    kept.add(conflict(6, NOW_MS))

    [counted] = [each for (_, size), each in kept._counted.items() if size == 2]
    assert {key[1]: loss.conflicts for key, loss in counted.items()} == {"p0": 1, "p1": 1, OTHERS: 4}
    assert sum(loss.seconds for loss in counted.values()) == pytest.approx(6)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"\xff", b'{"type":"dead-letter"}', LETTER % b"\xc3\xa9", LETTER % b"a"]
)
def test_a_record_of_dead_letters_that_is_none_is_skipped(value: bytes) -> None:
    """Another producer of the topic must not end the page."""
    assert refused_event(consumed(value, at_ms=NOW_MS)) is None
