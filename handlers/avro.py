"""Reads files of Avro records: Iceberg's and Paimon's manifests."""

import io
from typing import Any

import fastavro

from lakewarden.handlers.avro_blocks import uncompressed
from lakewarden.handlers.observations import UnreadableCommit
from lakewarden.handlers.unreadable import reading

_OTHERS = {b"ORC": "ORC", b"PAR1": "Parquet"}


def read_avro(body: bytes) -> list[dict[str, Any]]:
    """Return all records. Dates and timestamps are numbers: Python's years end at 9999. Raises `UnreadableCommit`."""
    for magic, name in _OTHERS.items():
        if body.startswith(magic):
            raise UnreadableCommit(f"it is a file of {name}, of which this version reads none; Avro is read")
    with reading("the Avro file", UnreadableCommit):
        found: list[Any] = list(fastavro.reader(io.BytesIO(uncompressed(body))))
        if not all(isinstance(each, dict) for each in found):
            raise UnreadableCommit("the Avro file has something other than records")
        return found
