"""Merging a batch into existing rows, as functions of DataFrames.

Rows with equal keys are one row. A column that the batch has takes the batch's value, null included; any other column keeps
its value. Of equal keys within one batch one row remains. It is chosen by its values and not by its position, so a replayed
batch gives the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGED = "_lakewarden_changed"


def latest(changes: DataFrame, keys: Sequence[str], order_by: str | None = None) -> DataFrame:
    """Return one row per key: the greatest by `order_by`, then by all columns from left to right."""
    from pyspark.sql import functions as f

    others = [name for name in changes.columns if name not in keys]
    ordered = [order_by, *(name for name in others if name != order_by)] if order_by in others else others
    if not ordered:
        return changes.dropDuplicates(list(keys))
    greatest = f.max(f.struct(*(f.col(f"`{name}`") for name in ordered))).alias("row")
    reduced = changes.groupBy(*(f.col(f"`{key}`") for key in keys)).agg(greatest)
    return reduced.select(
        *(
            f.col(f"`{name}`") if name in keys else f.col(f"row.`{name}`").alias(name)
            for name in changes.columns
        )
    )


def merge(base: DataFrame, changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return `base` with `changes` merged into it. `changes` has the keys and any of the other columns of `base`."""
    from pyspark.sql import functions as f

    old, new = base.alias("old"), changes.withColumn(_CHANGED, f.lit(True)).alias("new")  # noqa: FBT003 - a literal value
    same = reduce(and_, (f.col(f"old.`{key}`").eqNullSafe(f.col(f"new.`{key}`")) for key in keys))
    changed = f.col(f"new.{_CHANGED}").isNotNull()
    brought = set(changes.columns)
    return old.join(new, same, "full_outer").select(
        *(
            (
                f.when(changed, f.col(f"new.`{name}`")).otherwise(f.col(f"old.`{name}`"))
                if name in brought
                else f.col(f"old.`{name}`")
            ).alias(name)
            for name in base.columns
        )
    )
