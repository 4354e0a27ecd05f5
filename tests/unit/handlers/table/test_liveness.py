"""When a writer is lost, and why an agent that lags loses no writer."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import facts, m, world


@pytest.mark.parametrize("heartbeat", [0.1, 5.0, 60.0])
def test_a_writer_that_misses_three_heartbeats_is_lost(heartbeat: float) -> None:
    """Its driver was killed. What it touched must not block the other writers."""
    w = world().intent("A", heartbeat_seconds=heartbeat).touch("A", m("p/f"))

    assert w.tick(heartbeat * 3).aborted == {}
    w.tick(0.01)

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A", "writer-lost", True)
    assert w.state.footprints.index == {}


@pytest.mark.parametrize("event", ["beat", "touch", "request"])
def test_every_event_of_the_writer_counts_as_a_heartbeat(event: str) -> None:
    """Executors publish markers while the driver's heartbeat is late."""
    w = world().intent("A")
    for _ in range(4):
        w.tick(14)
        assert w.aborted == {}
        {"beat": w.beat, "touch": w.touch, "request": w.request}[event]("A")


def test_an_agent_that_lags_loses_no_writer() -> None:
    """The agent was busy for a minute: the heartbeats are in the log, unread."""
    w = world().intent("A")
    w.caught_up_since = None

    assert w.tick(60).aborted == {}


def test_after_a_lag_silence_counts_from_when_the_agent_caught_up() -> None:
    """Each writer gets three full intervals again."""
    w = world().intent("A")
    w.caught_up_since = None
    w.tick(60)
    w.caught_up_since = w.now

    assert w.tick(14.9).aborted == {}
    assert w.tick(0.2).aborted == {"A": "writer-lost"}


def test_silence_ends_when_the_agent_requested_the_end_of_the_log() -> None:
    """Kafka or the agent was slow: a heartbeat may be in the log behind the end that the agent knows."""
    w = world().intent("A")

    assert w.tick(17, request_age=2.5).aborted == {}
    assert w.tick(0.6, request_age=2.5).aborted == {"A": "writer-lost"}


def test_queued_and_waiting_transactions_need_heartbeats_too() -> None:
    """A dead writer in either queue would block those behind it."""
    w = world().intent("A").touch("A", m("p/f")).request("A").intent("B", m("p/f"), admission="queued")

    assert w.tick(15.1).aborted == {"A": "writer-lost", "B": "writer-lost"}


def test_a_granted_transaction_is_judged_by_its_lease_alone() -> None:
    """Its writer may publish many files. An abort would only make the outcome unknown earlier."""
    w = world().intent("A").lock().request("A")

    assert w.tick(16).aborted == {}
    assert w.phase("A") is Phase.GRANTED
    assert w.tick(5).aborted == {"A": "outcome-unknown"}


def test_a_writer_that_comes_back_finds_its_abort() -> None:
    """It paused for a long garbage collection. Other writers may have committed to the files that it touched."""
    w = world().intent("A").tick(16)
    assert w.aborted == {"A": "writer-lost"}

    assert w.beat("A").effects == []
    assert w.touch("A", m("p/f")).effects == []
    w.request("A")

    abort = w.one(Abort)
    assert (abort.reason, abort.retriable) == ("writer-lost", True)
    assert abort.cause == "e-3-A"
    assert w.state.footprints.index == {}


@pytest.mark.parametrize("phase", ["queued", "active", "waiting"])
def test_a_transaction_that_is_open_for_too_long_times_out_whatever_its_writer_publishes(phase: str) -> None:
    """Its work hangs. Heartbeats come from a thread of their own, so they continue."""
    w = world(max_transaction=60.0).intent("other", m("p/f"))
    w.intent("A", m("p/f"), admission="queued" if phase == "queued" else "optimistic", priority=1)
    w.request("A") if phase == "waiting" else None
    w.abandon("other") if phase != "queued" else None
    for _ in range(6):
        w.beat("A").beat("other").tick(9.9)
        assert "A" not in w.aborted

    w.beat("A").tick(0.6)

    abort = w.one(Abort) if phase != "queued" else w.of(Abort)[-1]
    assert (abort.transaction, abort.reason, abort.retriable) == ("A", "timed-out", True)
    assert "limit 60 s (max_transaction_seconds)" in (abort.detail or "")
    assert facts(w.rebuilt().state) == facts(w.state)


def test_no_transaction_times_out_by_default() -> None:
    """A batch may take a day."""
    w = world().intent("A")
    for _ in range(24 * 60):
        w.now += 50
        w.beat("A").tick(10)

    assert w.phase("A") is Phase.ACTIVE


def test_a_granted_transaction_does_not_time_out() -> None:
    """Its writer may be publishing; `max_grant` bounds the grant."""
    w = world(max_transaction=10.0).intent("A").lock().request("A")

    assert w.beat("A").tick(12).aborted == {}
    assert w.phase("A") is Phase.GRANTED
