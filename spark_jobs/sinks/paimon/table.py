"""A Paimon table for writers: opening it by its path, and what they can't write.

It stands on `values.py`, and `base.py` on both. None of them uses Spark, so drivers and executors import all.

These facts about pypaimon 2.1.0 must hold:

- A table opens by its path alone (`FileStoreTable.from_path`), with the options `s3.endpoint`, `s3.access-key`,
  `s3.secret-key`, `s3.region`, `s3.session-token`, `s3.path-style-access`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lakewarden.events import ConflictRule, canonical_table
from lakewarden.handlers.paimon.primary_key import PrimaryKeyTable, conflict_rule, refusal
from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema, format_of, partition_spelling, types_of

OWN_COLUMNS = ("_lakewarden_group", "_lakewarden_file")
"""Columns that the sink adds on the way."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where the table is, and the options that pypaimon needs. Pickles into a Spark closure."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self, dynamic: dict[str, str] | None = None) -> Any:
        from pypaimon.table.file_store_table import FileStoreTable

        table = FileStoreTable.from_path(self.uri, dict(self.options))
        return table.copy(dynamic) if dynamic else table


def address(table: str, options: Mapping[str, str] | None = None) -> TableAddress:
    """Return the address of a table, from its URI or absolute path. Raise `ValueError` if a catalog keeps its snapshots."""
    uri, given = canonical_table(table), dict(options or {})
    if given.get("metastore", "filesystem") != "filesystem":
        raise ValueError(
            f"catalog_options have metastore={given['metastore']!r}: a catalog may keep the table's snapshots, and this sink "
            f"publishes them in the table's folder; write it without the gate, or leave metastore out; table={uri}"
        )
    return TableAddress(uri, given)


def require_supported(table: Any, *, upsert: bool, keys: Collection[str]) -> None:
    """Raise `ValueError` for tables that this sink can't write correctly, and for keys that aren't the table's."""
    where = f"table={table.table_path}"
    refused = partition_spelling(table).refusal
    if refused is not None:
        raise ValueError(f"{refused}; partition by a column of another type; {where}")
    _require_columns(table, where)
    _require_options(table, upsert=upsert, where=where)
    _require_format(table, where)
    if table.is_primary_key_table:
        if not upsert:
            raise ValueError(
                f"the table has a primary key, so Paimon merges its rows: write it with mode='upsert'; {where}"
            )
        if keys and set(keys) | set(table.partition_keys) != set(table.primary_keys):
            raise ValueError(
                f"keys={list(keys)} aren't the table's primary key {list(table.primary_keys)}: leave out `keys`; {where}"
            )
        _require_merging(table, where)
    elif upsert and not keys:
        raise ValueError(f"the table has no primary key: give `keys` for upsert; {where}")
    elif upsert and (table.options.deletion_vectors_enabled() or table.options.row_tracking_enabled()):
        raise ValueError(
            "an upsert rewrites whole files, which loses the deletion vectors, or changes the ids of rows in a table with row "
            f"tracking or data evolution: append to it, or give it a primary key; {where}"
        )


def _require_columns(table: Any, where: str) -> None:
    own = [name for name in table.field_names if name.lower() in OWN_COLUMNS]
    if own:
        raise ValueError(f"the names of the columns {own} are kept for the sink: rename them; {where}")
    defaults = [field.name for field in table.table_schema.fields if field.default_value is not None]
    if defaults:
        raise ValueError(
            f"the columns {defaults} have default values, which Java Paimon stores for NULL, and not pypaimon: drop them; {where}"
        )


_AVRO_CODECS: Final = frozenset({"bzip2", "deflate", "null", "snappy", "xz", "zstd"})


COMPRESSIONS: Final = {
    "parquet": frozenset({"none", "snappy", "gzip", "lz4", "zstd"}),
    "orc": frozenset({"snappy", "zlib", "lz4", "zstd"}),
    "avro": _AVRO_CODECS | {"zstandard"},
}
"""The codecs that pypaimon writes and Java Paimon reads, by the format of files."""


OPTIONS: Final[Mapping[str, tuple[Collection[str], str]]] = {
    "manifest.format": (
        {"avro"},
        "pypaimon writes manifests in Avro, and Java Paimon reads them in this format",
    ),
    "manifest.compression": (_AVRO_CODECS, "pypaimon has no other codecs for manifests"),
    "file.format": (COMPRESSIONS, "other formats are not written by pypaimon, or not read by Java Paimon"),
    "bucket-function.type": (
        {"default"},
        "pypaimon computes the default bucket, where Java Paimon doesn't look",
    ),
    "branch": ({"main"}, "pypaimon writes the main branch, which Java Paimon doesn't read then"),
    "chain-table.enabled": ({"false"}, "pypaimon reads and writes the main branch only"),
    "pk-clustering-override": ({"false"}, "pypaimon sorts files by the primary key"),
    "ignore-update-before": ({"false"}, "pypaimon stores rows of the kind -U"),
    "map.storage-layout": ({"default"}, "Java Paimon 1.4.2 doesn't read other layouts"),
    "metadata.iceberg.storage": ({"disabled"}, "pypaimon writes no metadata for readers by Iceberg"),
}
"""Options that change what readers expect: the values that pypaimon honours, and why others are refused.

A column may have one of its own: `fields.<column>.map.storage-layout`.
"""


def _require_options(table: Any, *, upsert: bool, where: str) -> None:
    options: Mapping[str, str] = table.table_schema.options
    for name, value in options.items():
        column = name.startswith("fields.")
        option = next(
            (each for each in OPTIONS if name == each or (column and name.endswith(f".{each}"))), ""
        )
        accepted, why = OPTIONS.get(option, ((value.lower(),), ""))
        if value.strip().lower() not in accepted:
            raise ValueError(
                f"the table has the option {name}={value}, and {why}: set one of {sorted(accepted)}, or write the table by Java "
                f"Paimon; {where}"
            )
    codec, kind = options.get("file.compression", "zstd"), format_of(table)
    if codec.lower() not in COMPRESSIONS[kind]:
        raise ValueError(
            f"the table has file.compression={codec}, which pypaimon doesn't write in {kind}, or Java Paimon doesn't read: set "
            f"one of {sorted(COMPRESSIONS[kind])}; {where}"
        )
    if "upsert-key" in options and not upsert:
        raise ValueError(
            f"the table has the option upsert-key={options['upsert-key']}, by which Spark's INSERT updates rows, and an append "
            f"repeats them: use mode='upsert' with these keys, or remove the option; {where}"
        )
    if "scan.fallback-branch" in options and upsert and not table.is_primary_key_table:
        raise ValueError(
            "the table has the option scan.fallback-branch: an upsert doesn't find the rows of that branch, and hides them when "
            f"it writes their partition; append, or remove the option; {where}"
        )


def _require_format(table: Any, where: str) -> None:
    from pypaimon.schema.data_types import PyarrowFieldParser, RowType

    file_format, types = format_of(table), types_of(table)
    options, texts = table.table_schema.options, [str(kind).upper() for kind in types]
    unread = None
    if file_format != "parquet" and any(text.startswith("VARIANT") for text in texts):
        unread = "a VARIANT"
    elif file_format == "orc":
        rows = [kind for kind in types if isinstance(kind, RowType)]
        if any(not field.type.nullable for row in rows for field in row.fields):
            unread = "a ROW with a field that is NOT NULL"
        elif str(options.get("orc.timestamp-ltz.legacy.type")).lower() != "false" and any(
            text.startswith("TIMESTAMP") and ("LOCAL" in text or "LTZ" in text) for text in texts
        ):
            unread = "a TIMESTAMP WITH LOCAL TIME ZONE without orc.timestamp-ltz.legacy.type=false"
    elif file_format == "avro":
        try:
            PyarrowFieldParser.to_avro_schema(arrow_schema(table))
        except ValueError as error:
            unread = f"a column that pypaimon doesn't write ({error})"
    if unread is not None:
        raise ValueError(
            f"the table has file.format={file_format} and {unread}, which pypaimon or Java Paimon can't read rightly: create the "
            f"table with file.format=parquet; {where}"
        )


def primary_key_table(table: Any) -> PrimaryKeyTable:
    """Return what decides how a table with a primary key is written."""
    types = {field.name: str(field.type) for field in table.table_schema.fields}
    return PrimaryKeyTable(table.primary_keys, table.partition_keys, table.table_schema.options, types)


def upsert_rule(table: Any) -> ConflictRule:
    """Return the conflict rule of upserts into the table."""
    return conflict_rule(primary_key_table(table)) if table.is_primary_key_table else "file-group"


def has_dynamic_buckets(table: Any) -> bool:
    """Return whether the table has a primary key and an index that says which bucket has a key."""
    return bool(table.is_primary_key_table) and primary_key_table(table).dynamic_buckets


def _require_merging(table: Any, where: str) -> None:
    from pypaimon.read.merge_engine_support import check_supported

    refused = refusal(primary_key_table(table))
    if refused is not None:
        raise ValueError(f"this table with a primary key can't be written: {refused}; {where}")
    try:
        check_supported(table)
    except NotImplementedError as error:
        raise ValueError(f"pypaimon can't write this table with a primary key: {error}; {where}") from error
