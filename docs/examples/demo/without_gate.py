"""The same job without lakewarden, as pypaimon alone does it: read the partitions of the batch, merge, overwrite them.

    python without_gate.py LAKE.json TABLE FEED DAYS

What another job has committed to these partitions in between is lost, without an error.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from flights import KEYS, TABLE_SCHEMA
from lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

place, name, feed, days = sys.argv[1:]
lake = Lake.read(place)
table = lake.paimon().get_table(f"demo.{name}")


def upsert(batch: DataFrame, _batch_id: int) -> None:
    """Write a batch."""
    new = _frame(batch.toArrow())
    days_of_batch = new.index.droplevel("flight_id").unique()
    builder = table.new_read_builder()
    splits = builder.new_scan().plan().splits()
    old = _frame(builder.new_read().to_arrow(splits) if splits else TABLE_SCHEMA.empty_table())
    old = old[old.index.droplevel("flight_id").isin(days_of_batch)]
    merged = new.combine_first(old).reset_index()
    rows = pa.Table.from_pandas(merged[TABLE_SCHEMA.names], schema=TABLE_SCHEMA, preserve_index=False)
    writing = table.new_batch_write_builder().overwrite()
    write, commit = writing.new_write(), writing.new_commit()
    write.write_arrow(rows)
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def _frame(rows: pa.Table) -> pd.DataFrame:
    """The rows by their keys. Whole numbers stay whole beside nulls."""
    frame = rows.to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    for column in TABLE_SCHEMA:
        if column.name not in frame:
            frame[column.name] = pd.Series(dtype="Int32" if column.type == pa.int32() else "object")
    return frame.set_index(list(KEYS))


spark = lake.session(feed)
query = (
    lake.feed(spark, feed, days=int(days))
    .writeStream.foreachBatch(upsert)
    .option("checkpointLocation", lake.checkpoint(name, feed))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
