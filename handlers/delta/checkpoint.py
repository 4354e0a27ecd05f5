"""Reads a table's metadata from a checkpoint of its log: JSON, or Parquet if pyarrow is installed."""

import io
from typing import Any, Final

from lakewarden.handlers import observations
from lakewarden.handlers.delta import log

MAX_ROWS: Final = 10_000_000
"""Files of a table, about. Only the columns of its metadata are read, which are empty in nearly all rows."""
MAX_COLUMN_BYTES: Final = 64 * 1024 * 1024


def read_checkpoint(body: bytes) -> log.PartitionLayout | None:
    """Return the layout in a part of a checkpoint, or None if it has none. Raises `UnreadableCommit`."""
    if not body.startswith(b"PAR1"):
        return log.layout_of(log.actions_of(body))
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise observations.UnreadableCommit(
            "its metadata is in a Parquet checkpoint, which needs pyarrow: pip install pyarrow where the watcher and assess run"
        ) from error
    with observations.reading("the checkpoint"):
        file = parquet.ParquetFile(io.BytesIO(body))
        names = [each for each in ("protocol", "metaData") if file.schema_arrow.get_field_index(each) >= 0]
        _require_small(file.metadata, names)
        actions = [
            (name, action)
            for batch in file.iter_batches(columns=names)
            for name in names
            for action in batch.column(name).drop_null().to_pylist()
        ]
        return log.layout_of(actions)


def _require_small(metadata: Any, names: list[str]) -> None:
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(group.num_columns))
    size = sum(
        each.total_uncompressed_size for each in columns if each.path_in_schema.partition(".")[0] in names
    )
    if metadata.num_rows > MAX_ROWS or size > MAX_COLUMN_BYTES:
        raise observations.UnreadableCommit(
            f"the checkpoint has more than {MAX_ROWS:,} rows, or {MAX_COLUMN_BYTES:,} bytes of metadata"
        )
