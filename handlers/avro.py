"""Reads files of records: Iceberg's and Paimon's manifests. They are Avro, but for Paimon tables that choose ORC."""

import io
from typing import Any, Final

from lakewarden.handlers.avro_blocks import MAX_RECORDS, Wanted, records_of
from lakewarden.handlers.observations import UnreadableCommit
from lakewarden.handlers.unreadable import MAX_VALUES, reading

MAX_ORC_ROWS: Final = MAX_RECORDS // 10
"""A row has 30 values, and may cost no byte."""


def read_avro(body: bytes, wanted: Wanted | None = None) -> list[dict[str, Any]]:
    """Return all records, with at least the wanted fields. Raises `UnreadableCommit`.

    Dates and timestamps are numbers: Python's years end at 9999.
    """
    if body.startswith(b"ORC"):
        return _read_orc(body, wanted)
    if body.startswith(b"PAR1"):
        raise UnreadableCommit(
            "it is a Parquet file, which this version doesn't read here; Avro and ORC are read"
        )
    with reading("the Avro file", UnreadableCommit):
        found: list[Any] = list(records_of(body, wanted))
        if not all(isinstance(each, dict) for each in found):
            raise UnreadableCommit("the Avro file has something other than records")
        return found


def _read_orc(body: bytes, wanted: Wanted | None) -> list[dict[str, Any]]:
    try:
        from pyarrow import orc
    except ImportError as error:
        raise UnreadableCommit(
            "it is an ORC file, which needs pyarrow: pip install pyarrow where the watcher and assess run"
        ) from error
    with reading("the ORC file", UnreadableCommit):
        file = orc.ORCFile(io.BytesIO(body))
        if file.nrows > MAX_ORC_ROWS:
            raise UnreadableCommit(f"the ORC file has more than {MAX_ORC_ROWS:,} rows")
        columns = None if wanted is None else [each for each in file.schema.names if each in wanted]
        table = file.read(columns)
        if sum(map(_values_in, table.columns)) > MAX_VALUES:
            raise UnreadableCommit(f"the ORC file has more than {MAX_VALUES:,} values")
        found: list[dict[str, Any]] = table.to_pylist()
        return found


def _values_in(column: Any) -> int:
    """Return how many values an array of pyarrow has, with those in its lists, maps and structs."""
    if hasattr(column, "chunks"):
        return sum(map(_values_in, column.chunks))
    if hasattr(column, "values"):
        return len(column) + _values_in(column.values)
    below = (column.field(at) for at in range(column.type.num_fields))
    return len(column) + sum(map(_values_in, below))
