"""Reads files of Avro records: Iceberg's and Paimon's manifests."""

import io
from typing import Any

import fastavro

from lakewarden.handlers.avro_blocks import uncompressed
from lakewarden.handlers.observations import UnreadableCommit


def read_avro(body: bytes) -> list[dict[str, Any]]:
    """Return all records. Dates and timestamps are numbers: Python's years end at 9999. Raises `UnreadableCommit`."""
    try:
        reader = fastavro.reader(io.BytesIO(uncompressed(body)))
        _keep_numbers(reader.writer_schema)
        return [each for each in reader if isinstance(each, dict)]
    except Exception as error:  # fastavro raises whatever the bytes provoke in it: there is no common class
        raise UnreadableCommit(f"not an Avro file: {error!r:.200}") from error


def _keep_numbers(schema: Any) -> None:
    """Remove the logical types of dates and timestamps from a schema, with which nothing was read yet."""
    if isinstance(schema, dict):
        if str(schema.get("logicalType")).startswith(("date", "time", "local-time")):
            del schema["logicalType"]
        schema = schema.values()
    if not isinstance(schema, str | int):
        for each in schema or ():
            _keep_numbers(each)
