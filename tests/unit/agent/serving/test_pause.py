"""A paused owner: its partition is revoked in a rebalance, and may be assigned to it again."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest

from lakewarden.agent import clock
from lakewarden.events import (
    DECISION_RECORD,
    Abort,
    CommitGranted,
    LocksHandedOver,
    PartitionTaken,
    Undecodable,
    decode,
    partition_name,
)
from lakewarden.handlers.table.state import LockView, TableState
from tests.unit.agent.serving.owner_in_memory import TOPICS, Table
from tests.unit.agent.serving.set_clock import SetClock

NAMES = [("A", "w-A"), ("B", "w-B"), ("C", "w-C")]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table whose lock is held and in which A is open."""
    made = Table("s3://lake/orders", NAMES)
    monkeypatch.setattr(clock, "time", SetClock(lambda: made.now))
    made.send("commit-intent", 0)
    made.lock("confirmed")
    acknowledge(made)
    return made


def acknowledge(table: Table, *, first: bool = True) -> None:
    """Kafka acknowledges the owner's `partition-taken`: its first one, or the last one."""
    taken = [each for each in table.log.records if each.topic == TOPICS.decisions and each.on_offset]
    takeovers = [each for each in taken if b'"partition-taken"' in each.value]
    record = takeovers[0] if first else takeovers[-1]
    assert record.on_offset is not None
    record.on_offset(taken.index(record))


def resume(table: Table) -> None:
    """The partition is assigned to the owner again, and the log has no other take-over."""
    table.owner.publish_takeover()
    acknowledge(table, first=False)
    assert table.owner.may_resume(len(table.log.of(TOPICS.decisions))) == "yes"
    table.owner.resume()


def decided(table: Table) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for record in table.log.of(TOPICS.decisions):
        event = decode(DECISION_RECORD, record.value)
        assert not isinstance(event, Undecodable)
        found.append((event.type, event.transaction))
    return found


def taken_by_another(term: str = "another") -> PartitionTaken:
    return PartitionTaken(
        event_id=term, table=partition_name(0), at=datetime(2026, 3, 1, tzinfo=UTC), agent="b", term=term
    )


def test_a_paused_owner_decides_nothing(table: Table) -> None:
    """Another agent may own the partition by now."""
    before = decided(table)
    table.owner.pause()

    table.send("commit-requested", 0, seq=1)
    table.lock("confirmed")
    table.lock("gone")

    assert decided(table) == before
    assert table.owner.checkpoint() is None


def test_an_owner_that_resumes_continues_with_its_state_and_its_lock(table: Table) -> None:
    """It consumes from its own position what was published meanwhile."""
    table.owner.pause()
    table.send("commit-requested", 0, seq=1)
    position = table.owner.position

    resume(table)
    table.owner.consume(table.events[position:], table.now)

    assert decided(table)[-1] == ("commit-granted", "A")
    terms = [
        event.term
        for record in table.log.of(TOPICS.decisions)
        if isinstance(event := decode(DECISION_RECORD, record.value), PartitionTaken)
    ]
    assert terms == [table.owner.term] * 2


def test_the_loss_of_a_lock_during_the_pause_counts_when_the_owner_resumes(table: Table) -> None:
    """The granted writer gets `lease-lost`, although the lock was acquired again since."""
    table.send("commit-requested", 0, seq=1)
    table.owner.pause()
    for change in ("confirmed", "confirmed", "gone", "confirmed", "confirmed"):
        table.lock(change)

    assert len(table.owner._tables.deferred) == 3
    resume(table)

    aborts = [
        event
        for record in table.log.of(TOPICS.decisions)
        if isinstance(event := decode(DECISION_RECORD, record.value), Abort)
    ]
    assert [each.reason for each in aborts] == ["lease-lost"]
    assert table.owner.tables[table.uri].lock is not None


def test_what_has_become_due_during_the_pause_is_decided_when_the_owner_resumes(table: Table) -> None:
    """The lock was confirmed while the owner was paused, and a transaction waited for it."""
    table.lock("gone")
    table.send("commit-requested", 0, seq=1)
    table.owner.pause()
    table.lock("confirmed")

    resume(table)

    assert decided(table)[-1] == ("commit-granted", "A")


def test_an_owner_does_not_resume_if_another_agent_took_the_partition_meanwhile(table: Table) -> None:
    """This agent missed a generation of the group. The other agent's decisions are not in its state."""
    table.owner.pause()
    table.owner.on_partition_taken(taken_by_another(), 50)

    assert table.owner.may_resume(51) == "no"
    assert not table.owner.replaced, "the session goes on: this partition alone is taken over again"


def test_an_owner_does_not_resume_with_a_table_that_was_stopped_meanwhile(table: Table) -> None:
    """A new owner rebuilds it from the log, and aborts its open transactions."""
    table.owner.pause()
    table.owner._tables.stop(table.uri, AssertionError("lock task"))

    assert table.owner.may_resume(1_000) == "no"


def test_a_second_pause_needs_another_take_over_record(table: Table) -> None:
    """The group rebalances again before the owner has resumed."""
    table.owner.pause()
    table.owner.publish_takeover()
    acknowledge(table, first=False)
    table.owner.pause()

    assert table.owner.may_resume(1_000) == "unknown yet"
    resume(table)


def test_a_replay_gives_the_state_of_an_owner_that_was_paused(table: Table) -> None:
    """The repeated `partition-taken` changes nothing for a replay."""
    table.send("commit-intent", 1)
    table.owner.pause()
    resume(table)
    table.send("commit-requested", 0, seq=1)
    before = {name: each.phase for name, each in table.owner.tables[table.uri].transactions.items()}

    table.start()

    assert {name: each.phase for name, each in table.owner.tables[table.uri].transactions.items()} == before
    grants = [each for each in decided(table) if each[0] == CommitGranted.model_fields["type"].default]
    assert len(grants) == 1


def handed_over(table: Table) -> list[tuple[str, str]]:
    """The locks in the hand-overs that the log has."""
    return [
        (each.table, each.owner)
        for record in table.log.of(TOPICS.decisions)
        if isinstance(event := decode(DECISION_RECORD, record.value), LocksHandedOver)
        for each in event.locks
    ]


@pytest.mark.parametrize("leave", ["pause", "stop_deciding"])
def test_an_owner_that_leaves_hands_over_the_lock_of_a_running_grant(table: Table, leave: str) -> None:
    """It decides nothing after the record, so the next owner knows all its grants."""
    table.send("commit-requested", 0, seq=1)

    getattr(table.owner, leave)()
    table.owner.stop_deciding()
    table.send("writer-heartbeat", 0, seq=2)

    assert handed_over(table) == [(table.uri, "o" * 36)]
    assert decided(table)[-1] == ("locks-handed-over", "")


def test_a_lock_without_a_grant_is_released_and_not_handed_over(table: Table) -> None:
    table.owner.stop_deciding()

    assert handed_over(table) == []


def test_a_lost_lock_is_not_handed_over(table: Table) -> None:
    """Its owner id is in no lock object any more, or that is unknown."""
    table.send("commit-requested", 0, seq=1)
    table.lock("gone")

    table.owner.stop_deciding()

    assert handed_over(table) == []


def test_a_lock_in_its_own_quiet_time_is_not_handed_over(table: Table) -> None:
    """The owner before was killed, or is suspended and may still rely on its lease."""
    table.send("commit-requested", 0, seq=1)
    state = table.owner.tables[table.uri]
    assert state.lock is not None
    state.lock = LockView(state.lock.owner, state.lock.expires_at, table.now + 5.0)

    table.owner.stop_deciding()

    assert handed_over(table) == []


def test_the_next_owner_requests_the_lock_that_was_handed_over(table: Table) -> None:
    requested: list[tuple[object, ...]] = []
    table.send("commit-requested", 0, seq=1)
    table.owner.stop_deciding()

    def record(_: object, state: TableState, adopt: str | None, *, handed_over: bool = False) -> None:
        requested.append((state.uri, adopt, handed_over))

    table.start(start_acquire=partial(record, None))

    assert requested == [(table.uri, "o" * 36, True)]
