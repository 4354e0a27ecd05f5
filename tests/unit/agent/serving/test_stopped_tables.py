"""An unexpected error in one table stops that table. The agent and the other tables continue."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from lakewarden.agent import wire_events
from lakewarden.agent.operators.log_replay import Partition
from lakewarden.agent.serving.partition import replay, tables
from lakewarden.agent.serving.partition.own_records import OwnRecords
from lakewarden.agent.serving.partition.stopped_tables import STOPPED
from lakewarden.events import Abort, CommitGranted, ConflictDetected, PartitionTaken
from lakewarden.handlers.table import machine
from tests.unit.agent.serving.owner_in_memory import NAMES, OTHER, TABLE, TOPICS, Table, memory_table

__all__ = ["memory_table"]

MARKER = [{"partition": "p", "file_group": "f", "operation": "merge"}]


@pytest.fixture
def table(memory_table: Table) -> Iterator[Table]:
    """At the end of each test, the metrics must count the aborts that are in the log."""
    yield memory_table
    reasons = Counter(each.reason for each in memory_table.log.published(Abort))
    assert counted(memory_table, "lakewarden_aborts_total", "reason") == reasons


def counted(table: Table, sample: str, label: str) -> Counter[str]:
    """The values of a counter by one label, summed over the others."""
    found: Counter[str] = Counter()
    for family in table.metrics.registry.collect():
        for each in family.samples:
            if each.name == sample:
                found[each.labels[label]] += int(each.value)
    return found


def refused_tables(table: Table) -> dict[str, str]:
    """What `status` shows as refused."""
    partition = Partition(None, -1)
    partition.note(table.log.of(TOPICS.decisions))
    return partition.refused


def decisions(table: Table) -> list[tuple[str, str, str]]:
    """Type, transaction and reason of each decision."""
    return [
        (each.type, each.transaction, each.reason if isinstance(each, Abort) else "")
        for each in table.decisions()
        if not isinstance(each, PartitionTaken)
    ]


def aborts_of_the_stop(table: Table) -> dict[str, tuple[str, bool]]:
    found = [each for each in table.log.published(Abort) if (each.detail or "").startswith(STOPPED)]
    assert len({each.transaction for each in found}) == len(found), "each is aborted once"
    return {each.transaction: (each.reason, each.retriable) for each in found}


def fails(real: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **fields: Any) -> Any:
        if when(*arguments):
            raise ZeroDivisionError("planted")
        return real(*arguments, **fields)

    return wrapped


def test_a_grant_that_cannot_be_stamped_stops_its_table_and_no_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has the grant already, the log doesn't: no transaction may publish under it."""
    for which in range(3):
        table.send("commit-intent", which)
    table.send("commit-intent", 0, table=OTHER, transaction="X")
    table.send("commit-requested", 0, seq=1)
    stamp = fails(wire_events.stamped, lambda event, *_: isinstance(event, CommitGranted))
    monkeypatch.setattr(wire_events, "stamped", stamp)

    with capture_logs() as logs:
        table.lock("confirmed")

    assert "commit-granted" not in {kind for kind, _, _ in decisions(table)}
    assert aborts_of_the_stop(table) == {name: ("not-allowed", False) for name, _ in NAMES}
    (stopped,) = [each for each in logs if each["event"] == "table.stopped"]
    assert (stopped["table"], stopped["reason"]) == (TABLE, "planted")
    assert stopped["unpublished"] == ["CommitGranted A"]
    assert stopped["recent"][-1].endswith("LockConfirmed")
    assert list(table.owner.tables.stopped.reasons) == [TABLE]
    assert refused_tables(table) == {
        TABLE: f"{STOPPED}planted; restart the agent to rebuild it from the log; table={TABLE}"
    }
    table.send("commit-intent", 1, table=OTHER, transaction="Y")
    assert ("admitted", "Y", "") in decisions(table)
    assert counted(table, "lakewarden_aborts_total", "table") == {TABLE: 3}
    assert counted(table, "lakewarden_transactions_total", "outcome") == {"aborted": 3}


def test_what_a_failed_step_decided_is_not_published(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """One conflict aborts B in the state, then the report fails: B gets the abort of the stop, which has no conflicts."""
    for which in range(2):
        table.send("commit-intent", which)
    stamp = fails(wire_events.stamped, lambda event, *_: isinstance(event, ConflictDetected))
    monkeypatch.setattr(wire_events, "stamped", stamp)
    table.send("marker-created", 0, markers=MARKER)

    table.send("marker-created", 1, markers=MARKER)

    assert ("abort", "B", "conflict") not in decisions(table)
    assert aborts_of_the_stop(table) == {"A": ("not-allowed", False), "B": ("not-allowed", False)}


def test_a_running_grant_of_a_stopped_table_is_revoked_and_its_completion_counts_after_a_restart(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may be publishing. The next owner finds the commit, although the stopped table's owner refused the event."""
    table.send("commit-intent", 0, batch_id=7)
    table.send("commit-requested", 0, seq=1)
    table.lock("confirmed")
    grant = table.grant_of(0)
    before = table.owner.checkpoint()
    with monkeypatch.context() as broken:
        broken.setattr(tables, "step", fails(machine.step, lambda *_: True))
        table.send("commit-intent", 1)

    assert aborts_of_the_stop(table) == {"A": ("lease-lost", True), "B": ("not-allowed", False)}
    assert counted(table, "lakewarden_transactions_total", "outcome") == {"aborted": 1}, "A has not ended"
    table.send("commit-completed", 0, grant=grant, version="v7")
    assert table.owner.checkpoint() == before, "the checkpoint doesn't move"
    assert table.log.ledger_entries() == []

    assert "planted" in refused_tables(table)[TABLE]

    table.start()

    assert table.owner.tables.stopped.reasons == {}
    assert refused_tables(table) == {}
    assert len(table.log.ledger_entries()) == 1
    table.send("commit-intent", 2, writer="w-A", batch_id=7)
    assert decisions(table)[-1][:2] == ("already-committed", "C")


def test_an_error_of_the_step_itself_aborts_what_it_had_decided_about(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed step had closed B already, so that the state alone would not name it."""
    for which in range(2):
        table.send("commit-intent", which)
    table.send("marker-created", 0, markers=MARKER)
    monkeypatch.setattr(machine, "_decide_outstanding", fails(machine._decide_outstanding, lambda *_: True))

    table.send("marker-created", 1, markers=MARKER)

    assert set(aborts_of_the_stop(table)) == {"A", "B"}
    assert ("abort", "B", "conflict") not in decisions(table)


def test_a_transaction_that_had_ended_before_the_failed_step_keeps_its_abort(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeated its request, and the failed step was about to repeat the answer."""
    for which in range(2):
        table.send("commit-intent", which)
    for which in range(2):
        table.send("marker-created", which, markers=MARKER)
    assert ("abort", "B", "conflict") in decisions(table)
    monkeypatch.setattr(OwnRecords, "of_effect", fails(OwnRecords.of_effect, lambda *_: True))

    table.send("commit-requested", 1, seq=1)
    table.send("writer-heartbeat", 1, seq=2)

    assert aborts_of_the_stop(table) == {"A": ("not-allowed", False)}


def test_a_record_that_is_too_large_for_kafka_stops_its_table(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published or not, it would come again in every session."""
    monkeypatch.setattr(wire_events, "MAX_RECORD_BYTES", 700)
    table.send("commit-intent", 0)

    assert aborts_of_the_stop(table) == {"A": ("not-allowed", False)}
    assert "bytes" in table.owner.tables.stopped.reasons[TABLE]


def test_a_table_that_fails_in_the_replay_is_stopped_and_its_writers_learn_of_it_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents would otherwise die of the same event one after the other."""
    table.send("commit-intent", 0)
    table.send("commit-intent", 1)
    table.send("commit-intent", 0, table=OTHER, transaction="X")
    broken_replay = fails(machine.replay_event, lambda _, event, *__: event.transaction == "B")
    with monkeypatch.context() as broken:
        broken.setattr(replay, "replay_event", broken_replay)
        table.start()
        assert aborts_of_the_stop(table) == {"A": ("not-allowed", False)}
        assert list(table.owner.tables.stopped.reasons) == [TABLE]

        table.start()
        assert list(aborts_of_the_stop(table)) == ["A"], "the log has its abort"

    table.start()
    assert table.owner.tables.stopped.reasons == {}


def test_an_unpublishable_table_is_stopped_after_the_next_replay(table: Table) -> None:
    """A broker accepts less than this agent sends. The same decision would end every session."""
    table.send("commit-intent", 0)
    (admitted,) = [each for each in table.log.records if b'"admitted"' in each.value]
    assert admitted.on_too_large is not None

    admitted.on_too_large(ValueError("too large"))
    assert table.owner.tables.stopped.reasons == {}, "this session ends"
    table.start()

    assert "max.message.bytes" in table.owner.tables.stopped.reasons[TABLE]
    assert aborts_of_the_stop(table) == {"A": ("not-allowed", False)}


@pytest.mark.parametrize("length", range(500, 513))
def test_a_transaction_with_a_long_name_is_granted(table: Table, length: int) -> None:
    """A grant that was named after its transaction had no room for it."""
    table.names = [("t" * length, "w")]
    table.send("commit-intent", 0)
    table.send("commit-requested", 0, seq=1)

    table.lock("confirmed")

    grant = table.grant_of(0)
    assert grant is not None
    assert len(grant) < 42


def test_an_unreadable_record_aborts_only_a_transaction_of_its_own_writer(table: Table) -> None:
    """Any client can send rubbish that bears the id of another's transaction."""
    table.send("commit-intent", 0)

    table.send("marker-created", 0, writer="other", markers="rubbish")
    assert [kind for kind, _, _ in decisions(table)] == ["admitted"]
    table.send("marker-created", 0, markers="rubbish")

    assert decisions(table)[-1] == ("abort", "A", "not-allowed")
    assert len(table.log.of(TOPICS.dead_letters)) == 2


def test_an_event_that_does_not_count_is_kept_among_the_dead_letters(table: Table) -> None:
    """Operators find out who sent it."""
    table.send("commit-intent", 0)
    table.send("commit-completed", 0, grant="x", batch_id=10**12)
    table.send("transaction-abandoned", 0, writer="other", reason="forged")
    table.send("commit-completed", 1, grant="x")

    letters = [record.value.decode() for record in table.log.of(TOPICS.dead_letters)]
    assert [letter.partition('"reason":"')[2].partition(":")[0] for letter in letters] == [
        "commit-without-grant",
        "event.another-writer",
        "commit-without-grant",
    ]
    assert table.log.ledger_entries() == []


def test_tables_that_only_a_refused_event_names_share_one_value_of_the_label(table: Table) -> None:
    """Otherwise a stranger could use up the values that real tables need."""
    for name in ("file:///etc", "gs://elsewhere/a"):
        table.send("commit-intent", 0, table=name, transaction=name)

    assert counted(table, "lakewarden_aborts_total", "table") == {"other": 2}


# A stranger uses the id and the writer of a running transaction on another table: nothing changes for the transaction.

FORBIDDEN = "gs://elsewhere/orders"


def all_aborts(table: Table) -> list[tuple[str, str, str]]:
    """Table, transaction and reason of each abort."""
    return [(each.table, each.transaction, each.reason) for each in table.log.published(Abort)]


def test_a_restart_keeps_what_the_transaction_has_touched(table: Table) -> None:
    """A replay drops the markers of aborted transactions. Without those of A, B would overwrite its data."""
    table.send("commit-intent", 0)
    table.send("marker-created", 0, markers=MARKER)
    table.send("marker-created", 0, table=FORBIDDEN, markers=MARKER)
    assert all_aborts(table) == [(FORBIDDEN, "A", "not-allowed")]

    table.start()
    table.send("commit-intent", 1)
    table.send("marker-created", 1, markers=MARKER)

    assert all_aborts(table)[1:] == [(TABLE, "B", "conflict")]


def test_its_writer_learns_in_a_restart_that_its_table_is_stopped(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction of a table that fails in the replay gets an abort, unless the log has one."""
    table.send("commit-intent", 0)
    table.send("marker-created", 0, table=FORBIDDEN, markers=MARKER)
    table.send("commit-intent", 1)
    assert all_aborts(table) == [(FORBIDDEN, "A", "not-allowed")]

    monkeypatch.setattr(
        replay, "replay_event", fails(machine.replay_event, lambda _, event, *__: event.transaction == "B")
    )
    table.start()

    assert all_aborts(table)[1:] == [(TABLE, "A", "not-allowed")]


def test_its_intent_on_a_stopped_table_is_answered(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(tables, "step", fails(machine.step, lambda *_: True))
        table.send("commit-intent", 1)
    assert all_aborts(table) == [(TABLE, "B", "not-allowed")]

    table.send("commit-intent", 0, table=FORBIDDEN)
    table.send("commit-intent", 0)

    assert all_aborts(table)[1:] == [(FORBIDDEN, "A", "not-allowed"), (TABLE, "A", "not-allowed")]
