"""A table without events is forgotten; what the ledger has of it is found again when it is used."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lakewarden.agent import clock
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.partition.tables import QUIET_SECONDS
from lakewarden.events import (
    Abort,
    AlreadyCommitted,
    BatchCommitted,
    CommitIntent,
    ConflictsLost,
    Marker,
    PartitionTaken,
    TransactionAbandoned,
    encode,
    partition_name,
)
from lakewarden.handlers.table.ledger import CommittedBatch
from tests.unit.agent.serving.owner_in_memory import (
    BEGINNING,
    OTHER,
    SETTINGS,
    TABLE,
    TOPICS,
    Log,
    Scene,
    SetClock,
    consumed,
    offline_owner,
)

PLACES = (Marker(partition="p", file_group="*", operation="merge"),)
COMMON: dict[str, Any] = {"event_id": "e", "table": TABLE, "writer": "w", "at": datetime.now(UTC)}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A live owner of at most one table, whose ledger has a batch and two lost conflicts of writer `w`."""
    log = Log()
    made = Scene(offline_owner(log, Lasting(SETTINGS.model_copy(update={"max_tables": 1}))), log)
    entries = (
        BatchCommitted(transaction="T7", batch_id=7, **COMMON),
        ConflictsLost(transaction="T8", losses=2, lost_on=PLACES, **COMMON),
    )
    made.owner.replay.read_ledger(
        consumed(encode(entry), number, key=TABLE) for number, entry in enumerate(entries)
    )
    made.owner.load(0, 0, BEGINNING)
    assert made.owner.tables.states == {}, (
        "a take-over with a million entries must not cost a state per table"
    )
    monkeypatch.setattr(clock, "time", SetClock(made.time))
    return made


def use_once(scene: Scene) -> None:
    transaction = f"T{scene.owner.position}"
    scene.send(CommitIntent, transaction, writer="w", batch_id=8)
    scene.send(TransactionAbandoned, transaction, writer="w", reason="done")


async def test_a_quiet_table_is_forgotten_and_its_ledger_is_not(quiet: Scene) -> None:
    """A partition serves thousands of tables, each for some minutes a day."""
    use_once(quiet)
    quiet.owner.committed = quiet.owner.position

    await quiet.check(after=QUIET_SECONDS)

    assert quiet.owner.tables.states == {}

    quiet.send(CommitIntent, "again", writer="w", batch_id=7)

    assert len(quiet.published(AlreadyCommitted)) == 1
    state = quiet.owner.tables.states[TABLE]
    assert state.ledger == {"w": CommittedBatch(7, "T7", None)}
    assert (state.losses, state.lost_on) == ({"w": 2}, {"w": PLACES})


@pytest.mark.parametrize(
    ("behind", "after"),
    [
        pytest.param(0, QUIET_SECONDS - 1, id="late events may arrive, and get their own answer"),
        pytest.param(1, QUIET_SECONDS, id="a replay from the checkpoint would have its transactions"),
    ],
)
async def test_a_table_is_kept_until_it_is_quiet_and_before_the_checkpoint(
    quiet: Scene, behind: int, after: float
) -> None:
    use_once(quiet)
    quiet.owner.committed = quiet.owner.position - behind

    await quiet.check(after=after)

    assert list(quiet.owner.tables.states) == [TABLE]


async def test_a_table_with_an_open_transaction_is_kept(quiet: Scene) -> None:
    """Its writer is busy, however long it takes."""
    quiet.send(CommitIntent, "T", heartbeat_seconds=300)
    quiet.owner.committed = quiet.owner.position

    await quiet.check(after=QUIET_SECONDS)

    assert list(quiet.owner.tables.states) == [TABLE]


async def test_forgotten_tables_do_not_count_for_max_tables(quiet: Scene) -> None:
    """An allowed glob may match any number of tables over the years."""
    use_once(quiet)
    quiet.send(CommitIntent, "refused", OTHER)
    assert list(quiet.owner.tables.states) == [TABLE]
    [abort] = quiet.published(Abort)
    assert (abort.transaction, abort.reason) == ("refused", "not-allowed")
    assert "limit of 1 tables" in str(abort.detail)
    quiet.owner.committed = quiet.owner.position
    await quiet.check(after=QUIET_SECONDS)

    quiet.send(CommitIntent, "accepted", OTHER)

    assert list(quiet.owner.tables.states) == [OTHER]


@pytest.mark.parametrize("uri", [TABLE, OTHER], ids=["a forgotten table", "a new one"])
async def test_a_batch_that_another_agent_records_later_counts_without_a_state(
    quiet: Scene, uri: str
) -> None:
    """The ledger was lost, and the agent that knew the batch recorded it after the take-over."""
    entry = BatchCommitted(transaction="T8", batch_id=8, **COMMON | {"table": uri})

    quiet.owner.on_others_entry(entry, 100)

    assert quiet.owner.tables.states == {}
    assert not [each for each in quiet.log.of(TOPICS.ledger) if b'"batch_id":8' in each.value]
    quiet.send(CommitIntent, "again", uri, writer="w", batch_id=8)
    assert len(quiet.published(AlreadyCommitted)) == 1


async def test_after_a_late_take_over_in_the_ledger_the_owner_has_the_last_word(quiet: Scene) -> None:
    """Otherwise its losses would not count for the next owner. Found by the simulation, seed 2007126."""
    taken = PartitionTaken(
        agent="replaced", term="old", **COMMON | {"table": partition_name(0), "writer": ""}
    )

    quiet.owner.on_others_entry(taken, 100)

    last, losses = quiet.log.of(TOPICS.ledger)[-2:]
    assert b'"partition-taken"' in last.value
    assert b'"losses":2' in losses.value
    quiet.owner.pause()
    quiet.owner.on_others_entry(taken, 101)
    assert quiet.log.of(TOPICS.ledger)[-1] == losses


async def test_a_replaced_agents_entry_of_a_forgotten_table_is_recorded_over(quiet: Scene) -> None:
    """Compaction would keep the replaced agent's entry."""
    entry = BatchCommitted(transaction="T6", batch_id=6, **COMMON)

    quiet.owner.on_others_entry(entry, 100)

    [record] = quiet.log.of(TOPICS.ledger)
    assert b'"batch_id":7' in record.value
