"""What conflicts have cost, added up from their events."""

from __future__ import annotations

from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import moment
from lakewarden.agent.operators.losses import Losses
from lakewarden.events import encode
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.events.building import a_conflict, an_overlap


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
    assert (report["conflicts"], report["seconds"]) == (3, 14.0)
    assert [(each["winner"], each["conflicts"], each["seconds"]) for each in report["pairs"]] == [
        ("first", 1, 10.0),
        ("second", 1, 4.0),
        ("second", 1, 0.0),
    ]
    assert [(each["partition"], each["conflicts"], each["seconds"]) for each in report["partitions"]] == [
        ("p", 3, 9.0),
        ("q", 1, 5.0),
    ]


def test_the_commits_of_writers_without_the_gate_are_one_winner_per_format() -> None:
    """A watcher reports each commit as a writer of its own."""
    losses = Losses(hours=1)

    for number, winner in enumerate(("delta:49", "delta:50", "hudi:20261122135446024", "crm")):
        losses.add(lost("s3://lake/a", f"T{number}", winner, 1.0, "p"))

    winners = {each["winner"] for each in losses.report()["pairs"]}
    assert winners == {"delta, without the gate", "hudi, without the gate", "crm"}
