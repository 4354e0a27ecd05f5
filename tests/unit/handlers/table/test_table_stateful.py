"""The table core against random writers. Hypothesis finds the histories and shrinks failures (`random_table.py`)."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings

from tests.unit.handlers.table.random_table import Table

TestTable = Table.TestCase
TestTable.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)
