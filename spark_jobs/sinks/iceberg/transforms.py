"""The fields of an Iceberg partition spec: columns, and transforms of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakewarden.handlers.partition_spelling import transformed
from lakewarden.spark_jobs.engine.engine import quoted

_FUNCTIONS = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
_RESULTS = {"year": "int", "month": "int", "day": "date", "hour": "int", "bucket": "int"}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the table's partition spec: a column, or a transform of one."""

    name: str
    column: str
    transform: str
    """`identity`, `year`, `month`, `day`, `hour`, `bucket` or `truncate`."""
    width: int | None
    """Argument of `bucket` and `truncate`."""
    column_type: str
    """Spark type of the column."""
    functions: str
    """Catalog with Iceberg's functions."""

    @property
    def value_type(self) -> str:
        """Spark type of the field's values."""
        return _RESULTS.get(self.transform, self.column_type)

    @property
    def path_type(self) -> str:
        """Type of the field's values in partition paths, where Iceberg spells some of them as text."""
        return "string" if self.transform in {"year", "month", "hour"} else self.value_type

    def expression(self) -> str:
        return self.computed(f"t.{quoted(self.column)}")

    def computed(self, column: str) -> str:
        """Return the SQL that computes the field from a value."""
        if self.transform == "identity":
            return column
        arguments = column if self.width is None else f"{self.width}, {column}"
        function = _FUNCTIONS.get(self.transform, self.transform)
        return f"{quoted(self.functions)}.system.{function}({arguments})"

    def spelled(self, value: Any) -> Any:
        """Return the value as it is spelled in Iceberg's partition paths."""
        return value if value is None else transformed(self.transform, value)
