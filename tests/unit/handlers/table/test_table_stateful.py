"""The table core against random writers. Hypothesis finds the histories and shrinks failures (`random_table.py`)."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings

from lakewarden.events import Marker
from lakewarden.handlers.table.verdicts import Admit
from tests.unit.handlers.table.random_table import Table

TestTable = Table.TestCase
TestTable.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_reservation_that_a_crash_left_as_the_last_decision_is_part_of_the_footprint() -> None:
    """The agent publishes the admission of a protected writer, and is killed before it publishes the abort that follows."""
    table = Table()
    table.start(
        early=True, policy="first-intent", hold="while-active", max_losses=1, format_records_batches=True
    )
    place = (Marker(partition="p", file_group="1", operation="merge"),)
    for writer in (0, 1):
        _begin(table, writer)
        table.touch(index=0, found=place)
        table.read_all()
    assert table.w.state.losses == {"w1": 1}
    _begin(table, 1, read=False)

    table.crash(published=1)

    assert [each.reserved for each in table.w.log if isinstance(each, Admit)][-1] != ()
    assert table.w.aborted == {"t0": "conflict"}
    table.teardown()


def _begin(table: Table, writer: int, *, read: bool = True) -> None:
    table.begin(
        writer=writer, admission="optimistic", conflict_rule="file-group", priority=0, scope=(), killed=True
    )
    if read:
        table.read_all()
        table.receive(index=0)
