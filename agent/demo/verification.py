"""The finished table against the expected one, row by row and column by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.agent.demo.flights import FEEDS, KEYS


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What the comparison found. `present + missing == expected`."""

    expected: int
    """Flights that must be in the table."""
    present: int
    """Of those, the ones that are there at all."""
    missing: int
    """Of those, the ones that are not."""
    duplicated: int
    """Rows beyond the first of their flight."""
    wrong: int
    """Flights of which some row differs from the expected in some column, and flights that nobody brought."""
    wrong_by_feed: Mapping[str, int] = field(default_factory=dict)
    """Of the wrong flights, those that differ in a column that this feed brings."""

    @property
    def clean(self) -> bool:
        """Every flight once, and right."""
        return self.missing == self.duplicated == self.wrong == 0


def compare(actual: pa.Table, expected: pa.Table) -> TableCheck:
    """Compare by `flight_id`, vectorised; two nulls are equal, a null and a value are not."""
    wanted = expected["flight_id"].combine_chunks()
    distinct = pc.unique(actual["flight_id"])
    present = pc.sum(pc.is_in(wanted, value_set=distinct)).as_py() or 0

    position = pc.index_in(actual["flight_id"].combine_chunks(), value_set=wanted)
    counterpart = expected.take(position)
    stranger = pc.is_null(position)
    differs_by_feed = {
        name: _any_differs(actual, counterpart, [column for column in schema.names if column not in KEYS])
        for name, schema in FEEDS.items()
    }
    differs = pc.or_(stranger, _any_differs(actual, counterpart, expected.schema.names))

    def flights(mask: pa.Array) -> int:
        return pc.count_distinct(actual["flight_id"].filter(mask), mode="all").as_py() or 0

    known = pc.invert(stranger)
    return TableCheck(
        expected=expected.num_rows,
        present=present,
        missing=expected.num_rows - present,
        duplicated=actual.num_rows - len(distinct),
        wrong=flights(differs),
        wrong_by_feed={name: flights(pc.and_(known, mask)) for name, mask in differs_by_feed.items()},
    )


def _any_differs(left: pa.Table, right: pa.Table, columns: list[str]) -> pa.Array:
    """A mask, row by row: some of the columns differ."""
    mask = pa.chunked_array([pa.array([False] * left.num_rows, type=pa.bool_())])
    for name in columns:
        one, other = left[name], right[name]
        same = pc.or_(
            pc.fill_null(pc.equal(one, other), fill_value=False), pc.and_(pc.is_null(one), pc.is_null(other))
        )
        mask = pc.or_(mask, pc.invert(same))
    return mask
