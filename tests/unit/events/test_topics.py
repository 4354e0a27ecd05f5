from __future__ import annotations

import pytest
from hypothesis import given

from lakewarden.events import Topics, ledger_key
from tests.unit.events.building import names, tables

DAY = 86_400_000
ANY = {"max.message.bytes": "1048588", "message.timestamp.type": "LogAppendTime"}
LOG = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * DAY),
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    **ANY,
}
LEDGER = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "max.compaction.lag.ms": "3600000",
    "unclean.leader.election.enable": "false",
    **ANY,
}


def test_topics_have_the_settings_of_the_protocol() -> None:
    """The agent creates the topics with these settings on an empty broker."""
    reports = {"cleanup.policy": "delete", "retention.ms": str(30 * DAY), **ANY}

    settings = {each.name: (each.partitions, each.config) for each in Topics().settings()}

    assert settings == {
        "lakewarden.writers": (12, LOG),
        "lakewarden.decisions": (12, LOG),
        "lakewarden.conflicts": (12, reports),
        "lakewarden.audit": (12, reports),
        "lakewarden.ledger": (12, LEDGER),
        "lakewarden.dead-letters": (1, reports),
    }


@pytest.mark.parametrize(("replicas", "expected"), [(1, None), (2, None), (3, "2"), (5, "2")])
def test_two_replicas_acknowledge_a_record_where_one_broker_may_still_fail(
    replicas: int, expected: str | None
) -> None:
    """With two replicas, every restart of a broker would stop the agents."""
    topics = Topics()

    found = {each.name: each.config.get("min.insync.replicas") for each in topics.settings(replicas=replicas)}

    assert found[topics.writers] == found[topics.decisions] == found[topics.ledger] == expected
    assert found[topics.audit] is None


def test_all_topic_names_begin_with_the_prefix() -> None:
    """Two installations share a broker."""
    topics = Topics("staging")

    assert all(each.name.startswith("staging.") for each in topics.settings())
    assert topics.writers == "staging.writers"
    assert topics.dead_letters == "staging.dead-letters"


def test_writers_decisions_and_ledger_always_have_the_same_number_of_partitions() -> None:
    """One agent owns everything that concerns a table only if all its records have the same partition number."""
    topics = Topics()

    partitions = {each.name: each.partitions for each in topics.settings(partitions=5)}

    assert partitions[topics.writers] == partitions[topics.decisions] == partitions[topics.ledger] == 5


@given(tables, names, tables, names)
def test_every_writer_of_a_table_has_its_own_ledger_key(
    table: str, writer: str, other: str, other_writer: str
) -> None:
    """A compacted topic keeps one record for each key. A shared key would lose a commit."""
    same = (table, writer) == (other, other_writer)

    assert (ledger_key(table, writer) == ledger_key(other, other_writer)) == same
    assert ledger_key(table, writer).decode().split("\n") == [table, writer]
    assert ledger_key(table, writer, "losses").decode().split("\n") == [table, writer, "losses"]
