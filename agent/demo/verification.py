"""Compares the table with the expected one, row by row and column by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.agent.demo.flights import FEEDS, KEYS


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The result of the comparison. `present + missing == expected`."""

    expected: int
    """Flights that must be in the table."""
    present: int
    """Expected flights with at least one row."""
    missing: int
    """Expected flights without a row."""
    duplicated: int
    """Rows beyond the first row of their flight."""
    wrong: int
    """Flights with a row that differs from the expected row, and flights that are in no feed."""
    wrong_by_feed: Mapping[str, int] = field(default_factory=dict)
    """Wrong flights that differ in a column of this feed."""

    @property
    def lost(self) -> int:
        """Flights that are missing or wrong."""
        return self.missing + self.wrong

    @property
    def clean(self) -> bool:
        """Whether every flight is present exactly once and correct."""
        return self.missing == self.duplicated == self.wrong == 0


def compare(actual: pa.Table, expected: pa.Table) -> TableCheck:
    """Compare the rows by `flight_id`. Two nulls are equal; a null and a value are not."""
    expected_ids = expected["flight_id"].combine_chunks()
    distinct = pc.unique(actual["flight_id"])
    present = pc.sum(pc.is_in(expected_ids, value_set=distinct)).as_py() or 0

    position = pc.index_in(actual["flight_id"].combine_chunks(), value_set=expected_ids)
    counterpart = expected.take(position)
    unexpected = pc.is_null(position)
    differs_by_feed = {
        name: _any_differs(actual, counterpart, [column for column in schema.names if column not in KEYS])
        for name, schema in FEEDS.items()
    }
    differs = pc.or_(unexpected, _any_differs(actual, counterpart, expected.schema.names))

    def flights(mask: pa.Array) -> int:
        return pc.count_distinct(actual["flight_id"].filter(mask), mode="all").as_py() or 0

    known = pc.invert(unexpected)
    return TableCheck(
        expected=expected.num_rows,
        present=present,
        missing=expected.num_rows - present,
        duplicated=actual.num_rows - len(distinct),
        wrong=flights(differs),
        wrong_by_feed={name: flights(pc.and_(known, mask)) for name, mask in differs_by_feed.items()},
    )


def _any_differs(left: pa.Table, right: pa.Table, columns: list[str]) -> pa.Array:
    """A mask of the rows in which at least one of the columns differs."""
    mask = pa.chunked_array([pa.array([False] * left.num_rows, type=pa.bool_())])
    for name in columns:
        one, other = left[name], right[name]
        same = pc.or_(
            pc.fill_null(pc.equal(one, other), fill_value=False), pc.and_(pc.is_null(one), pc.is_null(other))
        )
        mask = pc.or_(mask, pc.invert(same))
    return mask
