"""How a refused event is answered, by the state of its transaction."""

from __future__ import annotations

import pytest

from lakewarden.handlers.table.refused_events import answer_to_refused
from tests.unit.handlers.table.world import m, world


@pytest.mark.parametrize(
    ("transaction", "writer", "stopped", "answer"),
    [
        ("granted", "w-granted", False, "nothing"),
        ("open", "w-open", False, "abort"),
        ("open", "another", False, "nothing"),
        ("open", None, False, "nothing"),
        ("open", "w-open", True, "abort once"),
        ("ended", "w-ended", False, "nothing"),
        ("ended", "w-ended", True, "nothing"),
        ("unknown", "w-unknown", False, "abort once"),
    ],
)
def test_a_refused_event_aborts_only_an_open_transaction_of_its_own_writer(
    transaction: str, writer: str | None, stopped: bool, answer: str
) -> None:
    w = world().intent("granted").intent("open").intent("ended").touch("open", m("p/f"))
    w.touch("ended", m("p/f")).lock().request("granted")

    assert answer_to_refused(w.state, transaction, writer, stopped=stopped) == answer


def test_an_event_of_a_table_without_a_state_gets_one_abort() -> None:
    assert answer_to_refused(None, "T", None, stopped=False) == "abort once"
