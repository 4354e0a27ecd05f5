"""`lock` in an intent is compared with the place of the table's lock, and changes nothing."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort, Admitted
from lakewarden.handlers.table.effects import ReleaseLock, Warn
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import World, m, world

PLACE = "s3://lake/orders/.hoodie/.locks/table_lock.json"
OTHERS = [
    "s3://lake/warehouse/air.db/OTHER/snapshot/snapshot-43",
    "s3://lake/orders/..%2f",
    "s3://lake/orders/../x",
    "s3://lake/locks/orders.json",
    "..",
    "s3://[/x",
    "\x01",
]


def placed() -> World:
    return world().locate_lock(PLACE)


@pytest.mark.parametrize("lock", OTHERS)
def test_an_intent_that_names_another_lock_gets_an_abort_with_both_places_and_changes_nothing_else(
    lock: str,
) -> None:
    """Neither the place of the lock, nor the writer's own older transaction, nor a later intent."""
    w = placed().intent("A").lock()
    owner = w.state.lock
    w.intent("B", writer="w-A", lock=lock)

    warning, abort = w.effects
    assert isinstance(abort, Abort)
    assert isinstance(warning, Warn)
    assert (abort.transaction, abort.reason, abort.retriable) == ("B", "not-allowed", False)
    assert lock in str(abort.detail)
    assert PLACE in str(abort.detail)
    assert warning.event == "lock.another-named"
    assert w.phase("A") is Phase.ACTIVE
    assert (w.state.lock_location, w.state.lock) == (PLACE, owner)
    assert w.intent("C").request("C").granted == ["C"]


@pytest.mark.parametrize("lock", [None, PLACE, "s3a" + PLACE.removeprefix("s3")])
def test_an_intent_that_names_no_lock_or_the_tables_own_is_admitted(lock: str | None) -> None:
    """Those who named Hudi's lock for their Hudi tables keep working."""
    w = placed().intent("A", lock=lock)

    assert [each.transaction for each in w.of(Admitted)] == ["A"]
    assert w.aborted == {}


def test_while_the_place_is_unknown_intents_are_admitted_and_judged_when_it_is_known() -> None:
    """A store that is down delays the lock, and no admission."""
    w = world().intent("A", lock=OTHERS[0]).intent("B", lock=PLACE).intent("C")
    assert w.aborted == {}

    w.locate_lock(PLACE)

    assert list(w.aborted) == ["A"]
    assert OTHERS[0] in str(w.one(Abort).detail)


def test_a_granted_transaction_is_not_aborted_for_the_lock_that_it_names() -> None:
    """It may be publishing. The grant was decided under another place of the lock."""
    w = world().intent("A", lock=OTHERS[0]).lock().request("A")
    assert w.granted == ["A"]

    w.locate_lock(PLACE)

    assert w.aborted == {}


def test_an_intent_that_a_replay_left_unanswered_is_judged_too() -> None:
    """The agent died between the intent and its abort. The next one knows the place from its configuration."""
    w = world().intent("A").touch("A", m("p/f")).intent("Z", m("p/f"), admission="queued", lock=OTHERS[0])
    assert w.of(Admitted) == []
    rebuilt = w.rebuilt()
    rebuilt.state.lock_location = PLACE

    rebuilt.replayed()

    assert [each.transaction for each in rebuilt.of(Abort)] == ["Z"]


def test_the_lock_is_released_when_the_last_open_transaction_named_another() -> None:
    w = world().intent("A", lock=OTHERS[0]).locate_lock(PLACE)

    assert w.of(ReleaseLock) == [ReleaseLock()]
