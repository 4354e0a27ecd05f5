from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord
from hypothesis import given, settings, strategies as st

from lakewarden.agent.operators import status
from lakewarden.agent.operators.log_replay import LogReplay
from lakewarden.agent.operators.status import LiveStatus, Locks, TableView, table_view
from lakewarden.agent.serving.takeover import Start
from lakewarden.handlers.table.replay import Position
from tests.unit.agent.serving.owner_in_memory import TOPICS, Table

URI = "s3://lake/t"
NAMES = [(f"T{number}", f"w{number % 3}") for number in range(7)]
KINDS = ("optimistic", "queued", "marker", "request", "lock", "complete", "abandon", "restart")
actions = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, len(NAMES) - 1), st.sampled_from(["p", "q"])),
    max_size=40,
)


def act(table: Table, kind: str, which: int, partition: str) -> None:
    """One event of a writer, or of the agent's surroundings."""
    marker = [{"partition": partition, "file_group": "f", "operation": "merge"}]
    table.now += 0.5
    name = f'"transaction": "{NAMES[which][0]}"'.encode()
    opened = any(name in event.value for event in table.events)
    if kind not in ("queued", "lock", "restart") and not opened:
        kind = "optimistic"  # a transaction's first event is its intent
    match kind:
        case "optimistic":
            table.send("commit-intent", which, heartbeat_seconds=100)
        case "queued":
            table.send("commit-intent", which, heartbeat_seconds=100, admission="queued", scope=marker)
        case "marker":
            table.send("marker-created", which, markers=marker)
        case "request":
            table.send("commit-requested", which, seq=1)
        case "lock":
            table.lock("confirmed")
        case "complete":
            table.send("commit-completed", which, grant=table.grant_of(which) or "none")
        case "abandon":
            table.send("transaction-abandoned", which, reason="r")
        case _:
            table.start()


def starts() -> dict[int, Start]:
    return {0: Start(None, 0, Position(0, None), ())}


def begun(events: Sequence[ConsumerRecord], decisions: Sequence[ConsumerRecord]) -> LiveStatus:
    """The live status after a replay of these records."""
    replay = LogReplay(starts())
    replay.add(0, events, decisions)
    return LiveStatus(replay, Locks())


def replayed(table: Table) -> TableView:
    """What `status --table` shows."""
    replay = LogReplay(starts())
    replay.add(0, table.events, table.log.of(TOPICS.decisions))
    replay.apply_ahead()
    return table_view(URI, replay, None, None)


@given(actions=actions, cuts=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_rounds_of_any_size_show_the_same_as_a_replay(
    actions: list[tuple[str, int, str]], cuts: Random
) -> None:
    """A round has all decisions that were published before its last event, and maybe later ones."""
    table = Table(URI, NAMES)
    known: list[int] = []
    """For each event: the decisions that were published before it."""
    for kind, which, partition in actions:
        published = len(table.log.of(TOPICS.decisions))
        act(table, kind, which, partition)
        known.extend([published] * (len(table.events) - len(known)))
    decisions = table.log.of(TOPICS.decisions)
    live: LiveStatus | None = None
    read = received = 0
    while read < len(table.events) or received < len(decisions) or live is None:
        end = min(len(table.events), read + cuts.randint(0, 4))
        least = max(received, known[end - 1] if end else 0)
        until = cuts.randint(least, len(decisions)) if end < len(table.events) else len(decisions)
        if live is None:
            live = begun(table.events[:end], decisions[:until])
        else:
            live.add(0, table.events[read:end], decisions[received:until])
        read, received = end, until

    assert live.view(URI) == replayed(table)


def test_a_decision_ahead_of_the_events_waits_for_its_event() -> None:
    """Kafka's client may return the grant before the request that it answers."""
    table = Table(URI, NAMES)
    table.send("commit-intent", 0)
    table.send("commit-requested", 0, seq=1)
    table.lock("confirmed")
    decisions = table.log.of(TOPICS.decisions)

    live = begun(table.events[:1], decisions)
    [before] = live.view(URI).transactions
    live.add(0, table.events[1:], [])
    [after] = live.view(URI).transactions

    assert (before.phase, after.phase) == ("active", "granted")


def test_of_tables_without_an_open_transaction_only_the_last_ones_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand tables may have been written since the page was opened."""
    monkeypatch.setattr(status, "MAX_IDLE", 0)
    table = Table(URI, NAMES)
    table.send("commit-intent", 0)
    live = begun(table.events, table.log.of(TOPICS.decisions))
    assert [each.table for each in live.views()] == [URI]

    read, received = len(table.events), len(table.log.of(TOPICS.decisions))
    table.send("transaction-abandoned", 0, reason="r")
    live.add(0, table.events[read:], table.log.of(TOPICS.decisions)[received:])

    assert live.views() == []
    assert live._replay.tables == {}


def test_at_the_memory_budget_a_table_shows_its_transactions_without_their_waits() -> None:
    table = Table(URI, NAMES)
    marker: list[dict[str, Any]] = [{"partition": "p", "file_group": "f" * 1000, "operation": "merge"}]
    table.send("commit-intent", 0)
    table.send("marker-created", 0, markers=marker)
    table.send("commit-intent", 1, admission="queued", scope=marker)
    live = begun(table.events, table.log.of(TOPICS.decisions))
    assert live.view(URI).transactions[1].waiting_on == "w0"

    live.limit_memory(1)

    assert [each.transaction for each in live.view(URI).transactions] == ["T0", "T1"]
    assert live.view(URI).transactions[1].blockers == ()
    assert not live.view(URI).waits_known


def test_a_take_over_asks_for_a_fresh_replay() -> None:
    """It may have found that the log is incomplete, which only a take-over's records show."""
    table = Table(URI, NAMES)
    live = begun(table.events, table.log.of(TOPICS.decisions))
    assert not live.taken_over
    received = len(table.log.of(TOPICS.decisions))

    table.start()
    live.add(0, [], table.log.of(TOPICS.decisions)[received:])

    assert live.taken_over
