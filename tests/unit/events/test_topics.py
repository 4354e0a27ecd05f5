from __future__ import annotations

from hypothesis import given

from lakewarden.events import Topics, ledger_key
from tests.unit.events.building import names, tables


def test_topics_have_the_settings_of_the_protocol() -> None:
    """The agent creates the topics with these settings on an empty broker."""
    day = 86_400_000

    settings = {each.name: (each.partitions, each.config) for each in Topics().settings()}

    assert settings == {
        "lakewarden.writers": (12, {"cleanup.policy": "delete", "retention.ms": str(7 * day)}),
        "lakewarden.decisions": (12, {"cleanup.policy": "delete", "retention.ms": str(7 * day)}),
        "lakewarden.conflicts": (12, {"cleanup.policy": "delete", "retention.ms": str(30 * day)}),
        "lakewarden.audit": (12, {"cleanup.policy": "delete", "retention.ms": str(30 * day)}),
        "lakewarden.ledger": (12, {"cleanup.policy": "compact"}),
        "lakewarden.dead-letters": (1, {"cleanup.policy": "delete", "retention.ms": str(30 * day)}),
    }


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
