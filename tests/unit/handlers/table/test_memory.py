"""What is aborted at the agent's memory budget (`handlers/table/memory.py`)."""

from __future__ import annotations

import pytest

from lakewarden.events import Marker
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.machine import Replayed
from lakewarden.handlers.table.memory import (
    TRANSACTION_BYTES,
    Excess,
    largest_index,
    largest_transaction,
    used_bytes,
)
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import World, m, world

LIMIT = 64_000_000


def without_index(w: World) -> World:
    """The memory budget takes the table's index during a replay."""
    drop_index(w.state)
    return w.apply(Replayed(w.now, w.offset, memory_limit=LIMIT))


STORIES = """

one that is refused has overtaken no other
    # A replay doesn't know what it touched. Found by the simulation, seed 2006741.
    world max_losses=2
    lock; intent A p/f; intent waits p/f q/f queued priority=-1; intent B q/f; over_budget B 64000000
    → Abort reason=not-allowed, waits overtaken=0

the abort names the setting and may be retried
    # The operator reads it in `explain`; the writer retries when others have ended.
    intent A; touch A p/1; over_budget A 64000000
    → Abort reason=not-allowed retriable=True detail~memory_mb detail~'64 MB', index is empty

the largest open transaction is chosen and never a granted one
    # The granted one may be publishing.
    intent A; intent B; intent C; lock; touch A many/1 many/2 many/3; touch B b/1 b/2; touch C c/1; request A → A is granted
    → largest is B

a transaction that was granted meanwhile is not aborted
    # It was chosen, and then granted by the abort of another one.
    intent A; lock; request A; over_budget A 64000000 → no abort

without an index no transaction begins before the granted one has landed
    # Its footprint is unknown: a transaction that began before could overwrite its commit.
    intent A; lock; touch A p/a; request A; over_budget None 64000000; intent B; touch A p/b → no admission, index is empty
    complete A → admitted B
    touch B p/a; commits B → no abort

after the aborts of a replay without an index the table detects conflicts again
    # Only the transactions of the replay are lost, not the table.
    intent A; drop_index; intent B; intent C; touch B p/1; touch C p/1 → aborted C conflict
"""


@pytest.mark.parametrize("story", stories(STORIES, drop_index=without_index), ids=str)
def test_the_memory_budget(story: Story) -> None:
    story.play()


def test_the_count_returns_to_zero_when_all_transactions_have_ended() -> None:
    """Otherwise the budget would shrink with each transaction."""
    w = world().intent("A", m("p/1")).intent("B", m("q/1")).lock()
    w.touch("A", m("p/1"), m("p/1", "delete"), m("p/22"), m("r/*")).touch("B", m("q/2"))
    assert used_bytes(w.state) > 2 * TRANSACTION_BYTES

    w.commits("A").abandon("B")

    assert used_bytes(w.state) == 0


def test_long_names_count_with_their_length() -> None:
    """A file group may have 1,024 characters: the number of markers alone would not bound the memory."""
    short, long = (used_bytes(world().intent("A").touch("A", m(f"p/{n * 'f'}")).state) for n in (1, 1_000))

    assert long - short == 999


def test_the_oldest_transaction_counts_with_the_landed_ones_that_are_kept_for_it() -> None:
    """Aborting the larger B would free less: A began before ten large commits, and each of them is kept until A ends."""
    w = world().intent("A").intent("B").lock().touch("B", *_many(20))
    for number in range(10):
        w.intent(f"K{number}").touch(f"K{number}", m(f"k/{number}")).commits(f"K{number}")

    chosen = largest_transaction(w.state)

    assert chosen is not None
    assert chosen.transaction == "A"
    before = used_bytes(w.state)
    w.over_budget("A", LIMIT).over_budget("B", LIMIT)
    assert before - used_bytes(w.state) >= chosen.freed


def test_a_table_that_loses_its_index_aborts_all_but_the_granted_transaction() -> None:
    """Running grants and landed transactions alone exceed the budget."""
    w = world().intent("A").intent("K").intent("B").lock().touch("K", m("p/k")).commits("K")
    w.touch("A", *_many(30)).request("A").touch("B", m("b/1"))
    assert largest_index(w.state) == Excess(w.state.footprints.bytes, None)

    w.over_budget(None, LIMIT)

    assert w.aborted == {"B": "not-allowed"}
    assert list(w.state.transactions) == ["A"]
    assert w.state.footprints.index == {}
    assert w.complete("A").aborted == {}


def test_a_replay_without_an_index_ends_with_aborts() -> None:
    """The partitions of two agents came to one, and their sum exceeds its budget in the middle of the replay."""
    w = world().intent("A").intent("B").intent("C").lock()
    w.touch("A", m("a/1")).request("A").touch("B", m("b/1")).intent("Q", m("b/1"), admission="queued")
    rebuilt = World(w.settings, now=w.now, offset=w.offset)
    for number, fact in enumerate(w.log):
        rebuilt.replay(fact)
        if number == len(w.log) // 2:
            drop_index(rebuilt.state)

    rebuilt.apply(Replayed(rebuilt.now, rebuilt.offset, memory_limit=LIMIT))

    assert rebuilt.aborted == dict.fromkeys(("B", "C", "Q"), "not-allowed")
    assert [each.id for each in rebuilt.state.open()] == ["A"]
    assert rebuilt.state.footprints.index == {}
    rebuilt.intent("D")
    assert rebuilt.admitted == []
    assert rebuilt.complete("A").admitted == ["D"]


def _many(count: int) -> list[Marker]:
    return [m(f"many/{number}") for number in range(count)]
