"""The owner of a partition: what it refuses, which writers and grants it judges and when, and its pause in a rebalance."""

from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from lakewarden.agent import clock
from lakewarden.agent.operators.log_replay import LogReplay
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.takeover import Start
from lakewarden.events import (
    Abort,
    BatchCommitted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DeadLetter,
    DecisionEvent,
    PartitionTaken,
    encode,
    partition_name,
)
from lakewarden.events.access import partition_of
from lakewarden.handlers.table.machine import LockConfirmed
from lakewarden.handlers.table.state import LockView
from tests.unit.agent.serving.owner_in_memory import (
    BEGINNING,
    OTHER,
    TABLE,
    TOPICS,
    Log,
    Scene,
    SetClock,
    Table,
    consumed,
    memory_table,
    offline_owner,
)

__all__ = ["memory_table"]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    log = Log()
    made = Scene(offline_owner(log), log)
    made.owner.load(0, 0, BEGINNING)
    monkeypatch.setattr(clock, "time", SetClock(made.time))
    return made


def aborts(scene: Scene) -> dict[str, str]:
    """The reasons of the aborts, by transaction."""
    return {each.transaction: each.reason for each in scene.published(Abort)}


# The periodic check: which writers and grants it may judge, and when.


async def test_a_check_that_was_suspended_does_not_end_a_grant(scene: Scene) -> None:
    """A suspension between the request of the end offset and the decision: the completion may be in the log since."""
    scene.send(CommitIntent)
    scene.send(CommitRequested, seq=0)
    scene.owner.tables.step(
        TABLE, LockConfirmed(scene.time(), 1, LockView("owner", scene.time() + 29.0, 0.0))
    )
    await scene.check(after=1.0)

    await scene.check(after=25.0, asked=24.0, stalled=True)

    assert aborts(scene) == {}

    await scene.check(after=1.0)

    assert aborts(scene) == {"T": "outcome-unknown"}


@pytest.mark.parametrize("behind", [0.5, 3.0, 14.0])
async def test_silence_counts_up_to_the_request_of_the_end_offset_however_late_the_check_is(
    scene: Scene, behind: float
) -> None:
    """The process was not suspended: Kafka, the consumption or the other tables took that long."""
    await scene.check(after=1.0)
    scene.send(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=10.0)

    await scene.check(after=5.0 + behind, asked=behind)

    assert aborts(scene) == {}, "exactly three intervals had passed at the request of the end offset"

    await scene.check(after=0.1, asked=behind)

    assert aborts(scene) == {"T": "writer-lost"}


@pytest.mark.parametrize(
    ("interruption", "silence"),
    [
        pytest.param({"after": 25.0, "stalled": True}, (14.0, 2.0), id="the agent was suspended"),
        pytest.param({"after": 60.0, "end": None}, (15.0, 0.1), id="Kafka did not answer"),
    ],
)
async def test_after_an_interruption_silence_counts_from_the_next_check(
    scene: Scene, interruption: dict[str, Any], silence: tuple[float, float]
) -> None:
    """The writer's machine may have been suspended, too, and the writers could not reach Kafka either."""
    scene.send(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(**interruption)
    await scene.check(after=1.0)
    await scene.check(after=silence[0])

    assert aborts(scene) == {}

    await scene.check(after=silence[1])

    assert aborts(scene) == {"T": "writer-lost"}


async def test_a_check_before_the_end_of_the_log_ends_no_transaction(scene: Scene) -> None:
    """An unread event may be the missing heartbeat."""
    scene.send(CommitIntent, heartbeat_seconds=5.0)
    await scene.check(after=1.0)

    await scene.check(after=60.0, end=scene.owner.position + 1)

    assert aborts(scene) == {}


async def test_between_two_tables_the_check_yields_to_the_consumption(scene: Scene) -> None:
    """Otherwise a check of many tables would delay every event that arrives meanwhile by the sum of their checks."""
    scene.send(CommitIntent, heartbeat_seconds=5.0)
    scene.send(CommitIntent, "U", OTHER, heartbeat_seconds=5.0)
    await scene.check(after=1.0)
    seen: list[set[str]] = []

    async def watch() -> None:
        while len(seen) < 10:
            seen.append(set(aborts(scene)))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await scene.check(after=60.0)

    assert {"T"} in seen
    assert seen[-1] == {"T", "U"}


# A record in another Kafka partition than its table's: its producer has another partitioner. The agent never decides on it.

PARTITIONS = 12
PLACE = partition_of(TABLE, PARTITIONS)
AT: dict[str, Any] = {"event_id": "e", "at": datetime.now(UTC)}
COMMON: dict[str, Any] = {"table": TABLE, "writer": "w", **AT}


def _owner(log: Log, number: int) -> PartitionOwner:
    return offline_owner(log, number=number, partitions=PARTITIONS)


def _intent(number: int) -> Any:
    event = CommitIntent(transaction="T", batch_id=1, **COMMON)
    return consumed(encode(event), topic=TOPICS.writers, partition=number, key=TABLE)


@pytest.mark.parametrize("replayed", [False, True], ids=["live", "replayed"])
def test_the_owner_of_another_partition_refuses_the_record(replayed: bool) -> None:
    log, number = Log(), (PLACE + 1) % PARTITIONS
    owner = _owner(log, number)
    owner.load(0, int(replayed), BEGINNING)

    owner.consume([_intent(number)], 0.0)
    owner.finish_replay(1)

    assert owner.phase == "live"
    assert owner.tables.states == {}
    assert [type(each) for each in log.published(DecisionEvent)] == [Abort]
    [abort], [letter] = log.published(Abort), log.published(DeadLetter)
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
    entries = [BatchCommitted(transaction=f"T{batch}", batch_id=batch, **COMMON) for batch in (7, 6)]
    owner = _owner(log, number)
    owner.replay.read_ledger(
        consumed(encode(each), offset, topic=TOPICS.ledger, key=TABLE) for offset, each in enumerate(entries)
    )
    owner.load(0, 0, BEGINNING)

    assert owner.phase == "live"
    assert owner.tables.states == {}
    assert log.of(TOPICS.ledger) == []


def test_an_operators_replay_ignores_the_record() -> None:
    starts = {number: Start(None, 0, BEGINNING, ()) for number in range(PARTITIONS)}
    number = (PLACE + 1) % PARTITIONS
    found = LogReplay(starts)

    found.add(number, [_intent(number)], [])
    assert found.tables == {}

    found.add(PLACE, [_intent(PLACE)], [])
    assert [each.id for each in found.tables[TABLE].open()] == ["T"]


# A paused owner: its partition is revoked in a rebalance, and may be assigned to it again.


@pytest.fixture
def table(memory_table: Table) -> Table:
    """A table whose lock is held and in which A is open."""
    memory_table.send("commit-intent", 0)
    memory_table.lock("confirmed")
    acknowledge(memory_table)
    return memory_table


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
    return [(each.type, each.transaction) for each in table.decisions()]


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
    taken = [each for each in table.decisions() if isinstance(each, PartitionTaken)]
    assert [each.term for each in taken] == [table.owner.records.term] * 2


def test_the_loss_of_a_lock_during_the_pause_counts_when_the_owner_resumes(table: Table) -> None:
    """The granted writer gets `lease-lost`, although the lock was acquired again since."""
    table.send("commit-requested", 0, seq=1)
    table.owner.pause()
    for change in ("confirmed", "confirmed", "gone", "confirmed", "confirmed"):
        table.lock(change)

    assert len(table.owner.tables.deferred) == 3
    resume(table)

    assert [each.reason for each in table.log.published(Abort)] == ["lease-lost"]
    assert table.owner.tables.states[table.uri].lock is not None


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
    table.owner.tables.stop(table.uri, AssertionError("lock task"))

    assert table.owner.may_resume(1_000) == "no"


def test_a_second_pause_needs_another_take_over_record(table: Table) -> None:
    """The group rebalances again before the owner has resumed."""
    table.owner.pause()
    table.owner.publish_takeover()
    acknowledge(table, first=False)
    table.owner.pause()

    assert table.owner.may_resume(1_000) == "unknown yet"
    resume(table)


def test_a_refused_event_costs_no_later_intent_of_its_transaction_the_footprint(table: Table) -> None:
    """An event at an odd limit is refused, `not-allowed`; then the transaction begins. Found by a soak."""
    table.send("marker-created", 1, markers=[{"partition": 7}])
    assert [each.reason for each in table.log.published(Abort)] == ["not-allowed"]
    scope = [{"partition": "p", "file_group": "f", "operation": "merge"}]
    table.send("commit-intent", 1, scope=scope)
    transaction, _ = table.names[1]
    before = table.owner.tables.states[table.uri].transactions[transaction].footprint
    assert before == {"p": ["f"]}

    table.start()

    assert table.owner.tables.states[table.uri].transactions[transaction].footprint == before


def test_a_replay_gives_the_state_of_an_owner_that_was_paused(table: Table) -> None:
    """The repeated `partition-taken` changes nothing for a replay."""
    table.send("commit-intent", 1)
    table.owner.pause()
    resume(table)
    table.send("commit-requested", 0, seq=1)
    before = {name: each.phase for name, each in table.owner.tables.states[table.uri].transactions.items()}

    table.start()

    assert {
        name: each.phase for name, each in table.owner.tables.states[table.uri].transactions.items()
    } == before
    grants = [each for each in decided(table) if each[0] == CommitGranted.model_fields["type"].default]
    assert len(grants) == 1
