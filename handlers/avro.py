"""Reads files of records: Iceberg's and Paimon's manifests. They are Avro, but for Paimon tables that choose ORC."""

import io
from typing import Any, Final

import fastavro

from lakewarden.handlers.avro_blocks import MAX_RECORDS, uncompressed
from lakewarden.handlers.observations import UnreadableCommit
from lakewarden.handlers.unreadable import reading

MAX_ORC_ROWS: Final = MAX_RECORDS // 10
"""A row has 30 values, and may cost no byte."""


def read_avro(body: bytes) -> list[dict[str, Any]]:
    """Return all records. Dates and timestamps are numbers: Python's years end at 9999. Raises `UnreadableCommit`."""
    if body.startswith(b"ORC"):
        return _read_orc(body)
    if body.startswith(b"PAR1"):
        raise UnreadableCommit(
            "it is a Parquet file, which this version doesn't read here; Avro and ORC are read"
        )
    with reading("the Avro file", UnreadableCommit):
        found: list[Any] = list(fastavro.reader(io.BytesIO(uncompressed(body))))
        if not all(isinstance(each, dict) for each in found):
            raise UnreadableCommit("the Avro file has something other than records")
        return found


def _read_orc(body: bytes) -> list[dict[str, Any]]:
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
        found: list[dict[str, Any]] = file.read().to_pylist()
        return found
