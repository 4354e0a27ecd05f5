"""Reads files of Avro records: Iceberg's and Paimon's manifests."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from lakewarden.handlers.avro_blocks import uncompressed
from lakewarden.handlers.observations import UnreadableCommit


def read_avro(body: bytes) -> list[dict[str, Any]]:
    """Return all records. Raises `UnreadableCommit`."""
    try:
        return [each for each in fastavro.reader(io.BytesIO(uncompressed(body))) if isinstance(each, dict)]
    except Exception as error:  # fastavro raises whatever the bytes provoke in it: there is no common class
        raise UnreadableCommit(f"not an Avro file: {error!r:.200}") from error
