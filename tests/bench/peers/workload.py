"""The batches of the writers, and the rows that the table must have at the end.

The table has `days` partitions. Every batch updates rows that exist and inserts new ones, half and half, in the days of its
writer. With `overlap` all writers have the same days, and so the same files; otherwise each has days of its own. No two writers
update the same row, so the rows at the end don't depend on the order of the commits, and a lost commit shows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SCHEMA = "day int, id long, writer int, batch int, value double"
ARROW = pa.schema(
    [
        ("day", pa.int32()),
        ("id", pa.int64()),
        ("writer", pa.int32()),
        ("batch", pa.int32()),
        ("value", pa.float64()),
    ]
)
FIRST_ROWS = "first.parquet"
AT_THE_START = -1
"""Writer and batch of the rows that the table begins with."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The sizes of one run."""

    writers: int
    overlap: bool
    batches: int
    rows_per_day: int
    """That the table begins with."""
    rows_per_batch: int
    days_per_batch: int
    large: bool = False
    """Whether its batches are those of the large workloads, for their names only."""
    rest: bool = False
    """Whether the table is in a REST catalog: Iceberg's only."""
    small: bool = False
    """Whether its batches are small: what the gate costs each batch shows. Only the native way and `auto` write them."""
    append: bool = False
    """Whether rows are appended. The ids of those that an upsert would update are then there twice."""

    @property
    def name(self) -> str:
        """By which the command line selects it."""
        if self.small:
            return "small"
        suffix = f"{'-large' if self.large else ''}{'-rest' if self.rest else ''}"
        return f"{self.writers}-{'same' if self.overlap else 'different'}{suffix}"

    @property
    def days(self) -> int:
        """Number of partitions of the table."""
        return self.days_per_batch * (1 if self.overlap else self.writers)

    def first_rows(self) -> pa.Table:
        """Return the rows that the table begins with."""
        ids = pa.array(range(self.days * self.rows_per_day), pa.int64())
        days = pc.subtract(ids, pc.multiply(pc.divide(ids, self.days), self.days))
        return _table(days, ids, AT_THE_START, AT_THE_START)

    def batch(self, writer: int, number: int) -> pa.Table:
        """Return the rows of one batch. Those that it updates are the same in each batch of the writer."""
        days = self._days_of(writer)
        updated = (self._updated_id(days[each % len(days)], each, writer) for each in self._halves())
        inserted = (self._inserted_id(writer, number, each) for each in self._halves())
        rows = [(identity % self.days, identity) for identity in updated]
        rows += [(days[each % len(days)], identity) for each, identity in enumerate(inserted)]
        return _table([day for day, _ in rows], [identity for _, identity in rows], writer, number)

    def expected(self, committed: Sequence[int] | None = None) -> Counter[tuple[int, int]]:
        """Return the number of rows by writer and batch that wrote them last.

        `committed` has the number of committed batches of each writer; by default all are.
        """
        half = self.rows_per_batch // 2
        counts = Counter({(AT_THE_START, AT_THE_START): self.days * self.rows_per_day})
        for writer, batches in enumerate(committed or [self.batches] * self.writers):
            in_each = 2 * half if self.append else half
            counts.update({(writer, batch): in_each for batch in range(batches)})
            if batches and not self.append:
                counts[writer, batches - 1] += half
                counts[AT_THE_START, AT_THE_START] -= half
        return counts

    def write_files(self, folder: Path) -> None:
        """Write the first rows, and a file for each batch, `folder/<writer>/<batch>.parquet`, modified in the batches' order."""
        folder.mkdir(parents=True)
        pq.write_table(self.first_rows(), folder / FIRST_ROWS)
        for writer in range(self.writers):
            (folder / str(writer)).mkdir(parents=True)
            for number in range(self.batches):
                file = folder / str(writer) / f"{number:04}.parquet"
                pq.write_table(self.batch(writer, number), file)
                os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def _halves(self) -> range:
        return range(self.rows_per_batch // 2)

    def _days_of(self, writer: int) -> list[int]:
        first = 0 if self.overlap else writer * self.days_per_batch
        return list(range(first, first + self.days_per_batch))

    def _updated_id(self, day: int, number: int, writer: int) -> int:
        """The rows of a day are `day`, `day + days`, `day + 2 × days` and so on. The writers take turns in them."""
        turn = number // self.days_per_batch * self.writers + writer
        return day + turn * self.days

    def _inserted_id(self, writer: int, number: int, each: int) -> int:
        before = (writer * self.batches + number) * (self.rows_per_batch // 2)
        return self.days * self.rows_per_day + before + each


def _table(days: Any, ids: Any, writer: int, batch: int) -> pa.Table:
    ids = pa.array(ids, pa.int64())
    written_by = (pa.repeat(each, len(ids)) for each in (writer, batch))
    columns = [pa.array(days), ids, *written_by, ids]
    return pa.table(
        [column.cast(kind) for column, kind in zip(columns, ARROW.types, strict=True)], schema=ARROW
    )
