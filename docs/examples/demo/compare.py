"""Compares the table that two jobs have written with the flights, row by row."""
# ruff: noqa: INP001 - a script's neighbour

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Check:
    """The result of the comparison."""

    expected: int
    """Flights that must be in the table."""
    missing: int
    """Expected flights without a row."""
    duplicated: int
    """Rows beyond the first row of their flight."""
    wrong: int
    """Flights with a row that differs from the expected row, and flights that are in no feed."""

    @property
    def lost(self) -> int:
        return self.missing + self.wrong

    @property
    def clean(self) -> bool:
        """Whether every flight is present exactly once and correct."""
        return self.lost == self.duplicated == 0


def compare(actual: pa.Table, expected: pa.Table) -> Check:
    """Compare the rows by `flight_id`. Two nulls are equal; a null and a value are not."""
    wanted = dict(_rows(expected))
    rows = list(_rows(actual.select(expected.schema.names)))
    present = {flight for flight, _ in rows}
    wrong = {flight for flight, row in rows if wanted.get(flight) != row}
    missing = len(wanted.keys() - present)
    return Check(len(wanted), missing, duplicated=len(rows) - len(present), wrong=len(wrong))


def _rows(table: pa.Table) -> Iterator[tuple[int, tuple[Any, ...]]]:
    columns = [column.to_pylist() for column in table.columns]
    return zip(table["flight_id"].to_pylist(), zip(*columns, strict=True), strict=True)
