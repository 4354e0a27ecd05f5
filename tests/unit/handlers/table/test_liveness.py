from __future__ import annotations

import pytest

from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction
from tests.unit.handlers.table.world import m, world


@pytest.mark.parametrize("heartbeat", [0.1, 5.0, 60.0])
def test_a_writer_that_misses_three_heartbeats_is_lost(heartbeat: float) -> None:
    """Its driver was killed; what it touched must not block the others."""
    w = world().intent("A", heartbeat_seconds=heartbeat).touch("A", m("p/f"))

    assert w.tick(heartbeat * 3).aborted == {}
    w.tick(0.01)

    abort = w.one(AbortTransaction)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A", "writer-lost", True)
    assert w.state.footprints.index == {}


@pytest.mark.parametrize("sign", ["beat", "touch", "request"])
def test_any_event_of_the_writer_is_a_sign_of_life(sign: str) -> None:
    """Executors send markers also when the driver's heartbeat is late."""
    w = world().intent("A")
    for _ in range(4):
        w.tick(14)
        assert w.aborted == {}
        {"beat": w.beat, "touch": w.touch, "request": w.request}[sign]("A")


def test_lag_is_not_death() -> None:
    """The agent was busy elsewhere for a minute: the heartbeats are in the log, unread."""
    w = world().intent("A")
    w.caught_up_since = None

    assert w.tick(60).aborted == {}


def test_after_a_lag_the_silence_counts_from_when_the_agent_had_caught_up() -> None:
    """Everybody gets three full intervals to be heard again."""
    w = world().intent("A")
    w.caught_up_since = None
    w.tick(60)
    w.caught_up_since = w.now

    assert w.tick(14.9).aborted == {}
    assert w.tick(0.2).aborted == {"A": "writer-lost"}


def test_silence_ends_where_the_logs_end_was_asked() -> None:
    """The answer was slow, or the agent: a heartbeat may have come to the log behind the end that it knows."""
    w = world().intent("A")

    assert w.tick(17, asked=2.5).aborted == {}
    assert w.tick(0.6, asked=2.5).aborted == {"A": "writer-lost"}


def test_one_in_the_line_and_one_that_waits_for_its_grant_must_be_heard_too() -> None:
    """A dead one in either place would block those behind it."""
    w = world().intent("A").touch("A", m("p/f")).request("A").intent("B", m("p/f"), admission="queued")

    assert w.tick(15.1).aborted == {"A": "writer-lost", "B": "writer-lost"}


def test_a_granted_writer_is_judged_by_its_lease_alone() -> None:
    """It may be in a long publish; aborting it could only make the outcome unknown sooner."""
    w = world().intent("A").lock().request("A")

    assert w.tick(16).aborted == {}
    assert w.phase("A") is Phase.GRANTED
    assert w.tick(5).aborted == {"A": "outcome-unknown"}


def test_a_writer_that_comes_back_finds_its_abort_not_a_second_chance() -> None:
    """A long garbage collection: others may have committed on what it touched."""
    w = world().intent("A").tick(16)
    assert w.aborted == {"A": "writer-lost"}

    assert w.beat("A").effects == []
    assert w.touch("A", m("p/f")).effects == []
    w.request("A")

    abort = w.one(AbortTransaction)
    assert (abort.reason, abort.retriable) == ("writer-lost", True)
    assert abort.cause.event_id == "e-3-A"
    assert w.state.footprints.index == {}
