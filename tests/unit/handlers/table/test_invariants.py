"""The periodic check finds states that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakewarden.handlers.table.invariants import InvariantBrokenError, check_invariants
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Grant, Phase, Touch, Transaction
from tests.unit.handlers.table.world import m, world


def remove_touch(state: TableState) -> None:
    del state.footprints.index["p"]["f"]


def changed(**fields: Any) -> Callable[[TableState], object]:
    """The transaction C has these fields."""

    def change(state: TableState) -> None:
        for name, value in fields.items():
            setattr(state.transactions["C"], name, value)

    return change


GRANT = Grant("g", 0.0, 0.0, None, 0)
CONTRADICTIONS: dict[str, Callable[[TableState], object]] = {
    "a touch is missing": remove_touch,
    "a touch is left of a removed transaction": lambda state: state.transactions.pop("C"),
    "a touch too many": lambda state: state.footprints.index["p"].update(leaked=touch(state, "A")),
    "a touch of another": lambda state: state.footprints.index["p"].update(f=touch(state, "C")),
    "two grants": changed(phase=Phase.GRANTED, grant=GRANT),
    "a grant without its phase": changed(grant=GRANT),
    "aborted and kept": changed(phase=Phase.ABORTED),
    "landed without a moment": changed(phase=Phase.COMMITTED),
    "waits without a request": changed(phase=Phase.WAITING),
    "its writer is forgotten": lambda state: state.of_writer.clear(),
}


def touch(state: TableState, transaction: str) -> tuple[Touch, ...]:
    return (Touch(state.transactions[transaction], "merge"),)


@pytest.mark.parametrize("corrupt", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradictory_state_raises(corrupt: Callable[[TableState], None]) -> None:
    """A bug in lakewarden: the agent must stop the table before it publishes a wrong decision."""
    w = world().intent("A").touch("A", m("p/f")).lock().request("A").intent("C").touch("C", m("p/c"))
    check_invariants(w.state)

    corrupt(w.state)

    with pytest.raises(InvariantBrokenError, match="s3://lake/orders"):
        check_invariants(w.state)


def test_the_periodic_check_checks_the_invariants() -> None:
    """The agent's check, once a second."""
    w = world().intent("A").touch("A", m("p/f"))
    remove_touch(w.state)

    with pytest.raises(InvariantBrokenError):
        w.tick()


def test_a_large_index_is_checked_in_parts() -> None:
    """A million markers can't be checked in one tick. Each tick continues where the last one ended."""
    w = world(entries_per_check=10).intent("A").touch("A", *(m(f"p/{n}") for n in range(25)))
    del w.state.footprints.index["p"]["24"]

    w.tick().tick()
    with pytest.raises(InvariantBrokenError, match="'24'"):
        w.tick()


def test_the_check_starts_again_after_the_last_part() -> None:
    """An entry that breaks after it was checked is found in the next round."""
    w = world(entries_per_check=10).intent("A").touch("A", *(m(f"p/{n}") for n in range(25)))
    w.tick().tick().tick()
    del w.state.footprints.index["p"]["0"]

    with pytest.raises(InvariantBrokenError, match="'0'"):
        w.tick()


def test_places_that_share_their_touches_are_checked_once() -> None:
    """A thousand transactions in a thousand places would be a million touches in each check."""
    w = world()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        w.intent(name, conflict_rule="deleted-file")
        w.touch(name, *(m(f"p/{number}", "append") for number in range(100)))
    w.state.transactions = looked_up = LookedUp(w.state.transactions)

    check_invariants(w.state)

    assert looked_up.count == len(names)


class LookedUp(dict[str, Transaction]):
    """Counts the look-ups of transactions by id."""

    count = 0

    def get(self, *arguments: Any) -> Any:
        self.count += 1
        return super().get(*arguments)
