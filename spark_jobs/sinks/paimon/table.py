"""A Paimon table for writers: opening it by path, naming its partitions, looking up its snapshots and files.

The module uses only pypaimon, no Spark, so drivers and executors both import it. These facts about pypaimon 2.1.0 must hold:

- A table opens by its path alone (`FileStoreTable.from_path`), with the options `s3.endpoint`, `s3.access-key`,
  `s3.secret-key`, `s3.region`, `s3.session-token`, `s3.path-style-access`.
- A snapshot contains its commit user and identifier, by which a batch is found. pypaimon has no `filterCommitted`: committing
  the same messages twice writes the rows twice.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

from lakewarden.events import ConflictRule, canonical_table
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner
from lakewarden.handlers.paimon.partitions import PartitionSpelling
from lakewarden.handlers.paimon.primary_key import PrimaryKeyTable, conflict_rule, refusal
from lakewarden.handlers.partition_spelling import is_blank_in_java
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import HINT, FolderStore, folder_store, snapshot_store

Partition: TypeAlias = tuple[Any, ...]
"""Values of the partition columns, in the table's order. Empty for an unpartitioned table."""

OWN_COLUMNS = ("_lakewarden_group", "_lakewarden_file")
"""Columns that the sink adds on the way."""

UNNUMBERED = 0x7FFF_FFFF_FFFF_FFFF
"""Commit identifier of a batch without a number, the same as of Paimon's batch writers. Such a batch can't be found again."""

MAX_CHANGES_TRACED = 50
"""Snapshots searched for the writers that changed a base. Each is a scan, and only for an error message."""


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
    codec, kind = options.get("file.compression", "zstd"), _file_format(table)
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


def _file_format(table: Any) -> str:
    return str(table.options.file_format()).lower()


def _types_of(table: Any) -> list[Any]:
    """Return the types of the table's columns, and those nested in them."""
    from pypaimon.schema import data_types as paimon

    def within(kind: Any) -> Iterator[Any]:
        yield kind
        match kind:
            case paimon.RowType():
                inner = [field.type for field in kind.fields]
            case paimon.MapType():
                inner = [kind.key, kind.value]
            case paimon.ArrayType():
                inner = [kind.element]
            case _:
                inner = []
        for each in inner:
            yield from within(each)

    return [each for field in table.table_schema.fields for each in within(field.type)]


def _digits(kind: Any) -> int:
    """Return the digits of a second that a timestamp has, 0 for any other type."""
    base, digits = type_parameter(kind, 6) if hasattr(kind, "type") else ("", 0)
    return digits if base.startswith("TIMESTAMP") else 0


def needs_int96(table: Any) -> bool:
    """Return whether a timestamp has more than 6 digits of a second: Java Paimon reads those from Parquet as INT96 only."""
    return _file_format(table) == "parquet" and any(_digits(kind) > 6 for kind in _types_of(table))


def _require_format(table: Any, where: str) -> None:
    from pypaimon.schema.data_types import PyarrowFieldParser, RowType

    file_format, types = _file_format(table), _types_of(table)
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


def arrow_schema(table: Any) -> Any:
    """Return the table's columns as an Arrow schema."""
    from pypaimon.schema.data_types import PyarrowFieldParser

    return PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)


def spark_arrow_schema(table: Any) -> Any:
    """Return the table's columns as Spark takes them from Arrow: it knows no timestamps but those of microseconds."""
    import pyarrow as pa

    return pa.schema([field.with_type(_in_microseconds(field.type)) for field in arrow_schema(table)])


def _in_microseconds(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_in_microseconds(key.type)), value.with_type(_in_microseconds(value.type))
        )
    return kind


def in_types(rows: Any, schema: Any, table: Any) -> Any:
    """Return the columns of `schema` from an Arrow table, in its types. Raise `ValueError` for a value that doesn't fit.

    pyarrow's own cast of nested types refuses a NULL struct with a field that is NOT NULL, and keeps empty arrays without
    offsets, as Java makes them for maps in an empty array: pypaimon's question for their size ends the process.
    """
    import pyarrow as pa

    columns = []
    for column in schema:
        try:
            chunks = [
                _in_type(chunk, column.type, nullable=True) for chunk in rows.column(column.name).chunks
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ValueError(
                f"a value of column {column.name!r} can't be stored as {column.type}: {error}; table={table.table_path}"
            ) from None
        columns.append(pa.chunked_array(chunks, column.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _in_type(values: Any, kind: Any, *, nullable: bool, struct: Any = None) -> Any:
    """Return an array in another type. Unless `nullable`, its NULLs below a NULL `struct` become any value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not nullable and values.null_count:
        null = values.is_null() if struct is None else pc.and_(values.is_null(), struct.is_valid())
        if pc.any(null).as_py():
            raise pa.ArrowInvalid("it is NULL where the table has NOT NULL")
    if not len(values):
        return pa.array([], kind)  # Java's has no offsets, on which pyarrow's `nbytes` crashes
    if not pa.types.is_nested(kind):
        cast = values.cast(kind)
        if nullable or not cast.null_count:
            return cast
        return pa.Array.from_buffers(kind, len(cast), [None, *cast.buffers()[1:]], 0, cast.offset)
    mask = values.is_null() if nullable and values.null_count else None
    if pa.types.is_struct(kind):
        fields = [
            _in_type(values.field(number), field.type, nullable=field.nullable, struct=values)
            for number, field in enumerate(kind)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    offsets = pa.array(values.offsets.to_numpy())  # of a slice, too
    if pa.types.is_map(kind):
        keys = _in_type(values.keys, kind.key_type, nullable=False)
        items = _in_type(values.items, kind.item_type, nullable=kind.item_field.nullable)
        return pa.MapArray.from_arrays(offsets, keys, items, kind, mask=mask)
    elements = _in_type(values.values, kind.value_type, nullable=kind.value_field.nullable)
    return pa.ListArray.from_arrays(offsets, elements, kind, mask=mask)


def type_parameter(kind: Any, default: int) -> tuple[str, int]:
    """Return an atomic type of Paimon without its parameters, and the first of these: `TIMESTAMP`, `VARCHAR`."""
    base, _, parameters = str(kind.type).upper().partition("(")
    first = parameters.partition(")")[0].partition(",")[0].strip()
    return base.split()[0], int(first) if first.isdigit() else default


def partition_spelling(table: Any) -> PartitionSpelling:
    """Return how the table spells its partitions."""
    columns = ((field.name, str(field.type)) for field in table.partition_keys_fields)
    return PartitionSpelling.of(columns, table.table_schema.options)


def partition_path(table: Any, partition: Partition) -> str:
    """Return the partition as Paimon spells it: `month=1/day=3`. Empty for an unpartitioned table.

    Raises `ValueError` for a value that pypaimon spells in another way than Java.
    """
    for value in partition:
        if isinstance(value, str) and value.isspace() and not is_blank_in_java(value):
            raise ValueError(
                f"a partition column has the value {value!r}: pypaimon takes it for blank and Java Paimon doesn't, so they "
                f"look for its files in two folders; replace the space; table={table.table_path}"
            )
    return partition_spelling(table).path([_as_number(value) for value in partition])


def _as_number(value: Any) -> Any:
    """Return a date as its days since 1970, a timestamp as its nanoseconds, and any other value as it is."""
    if isinstance(value, datetime):
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        micros = (plain - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001 - both are without a zone
        return micros * 1_000 + int(getattr(value, "nanosecond", 0))  # a pandas.Timestamp has it
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def out_of_years(name: str, table: Any) -> ValueError:
    """Return the error for a date that pypaimon can't handle."""
    return ValueError(
        f"the batch has a value before the year 1 or after 9999 in column {name!r}, and pypaimon needs keys, partitions and "
        "all columns of a table with a primary key or in Avro as Python's dates, which end there; correct or drop the row; "
        f"table={table.table_path}"
    )


def require_python_values(rows: Any, table: Any) -> None:
    """Raise `ValueError` if an Arrow table has a date, or a nested text, that Python lacks, where pypaimon needs it.

    Needed are partition columns, bucket keys, all columns of a table in Avro, and those of a table with a primary key: pypaimon
    merges its rows in Python.
    A text that is not nested is an error only where it is compared, and Python's own. A key that Python doesn't order as Java is
    one, too: the merge then loses and doubles other rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = table.table_schema
    for name in schema.primary_keys:
        keys = rows.column(name)
        if pa.types.is_floating(keys.type):
            negative_zero = pc.equal(pc.divide(1.0, keys), float("-inf"))
            if pc.any(pc.or_(pc.is_nan(keys), negative_zero)).as_py():
                raise ValueError(
                    f"the key column {name!r} has the value NaN or -0.0, beside which pypaimon loses and doubles rows: "
                    f"correct or drop the row; table={table.table_path}"
                )
    in_python = schema.primary_keys or _file_format(table) == "avro"
    for name in rows.column_names if in_python else {*schema.partition_keys, *schema.bucket_keys}:
        for values, nested in (leaf for chunk in rows.column(name).chunks for leaf in _leaves(chunk)):
            try:
                if pa.types.is_temporal(values.type):
                    for bound in pc.min_max(values).values():
                        bound.as_py()
                elif nested and pa.types.is_string(values.type):
                    values.validate(full=True)
            except pa.ArrowInvalid:
                raise ValueError(
                    f"column {name!r} has a text that is not UTF-8, and Python, which writes this table, has no such text: "
                    f"correct or drop the row; table={table.table_path}"
                ) from None
            except (OverflowError, ValueError):
                raise out_of_years(name, table) from None


def require_readable(rows: Any, table: Any) -> None:
    """Raise `ValueError` for a timestamp that pypaimon or Java Paimon reads as another one, or can't read.

    - pypaimon counts 64-bit nanoseconds in ORC, and in Parquet's INT96 (`needs_int96`). An upsert would store another value
      when it rewrites the file.
    - Java's reader of ORC ends with an error before 1970 at a fraction of a millisecond. Its writer, in a compaction, changes the
      fraction of the last second of 1969.
    """
    import pyarrow as pa

    orc = _file_format(table) == "orc"
    if not orc and not needs_int96(table):
        return
    for name in rows.column_names:
        for values, _ in (leaf for chunk in rows.column(name).chunks for leaf in _leaves(chunk)):
            found = _misread(values, orc=orc) if pa.types.is_timestamp(values.type) else None
            if found is not None:
                remedy = "file.format=parquet" if orc else "TIMESTAMP(6) in place of TIMESTAMP(7) to (9)"
                raise ValueError(
                    f"the batch has a timestamp {found} in column {name!r}: correct or drop the row, or create the table with "
                    f"{remedy}; table={table.table_path}"
                )


def _misread(values: Any, *, orc: bool) -> str | None:
    """Return which timestamps some reader doesn't read as they are, or None."""
    import pyarrow as pa

    try:
        values.cast(pa.timestamp("ns", values.type.tz))
    except pa.ArrowInvalid:
        return "before 1677 or after 2262, which pypaimon reads as another one"
    micros = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).drop_null().to_numpy()
    if orc and ((micros < 0) & ((micros % 1_000 != 0) | (micros > -1_000_000))).any():
        return "before 1970 with a fraction of a millisecond, or in the last second of 1969, which Java Paimon can't keep in ORC"
    return None


def _leaves(values: Any, *, nested: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield the arrays of an Arrow array's innermost values, and whether they are nested."""
    import pyarrow as pa

    match values.type:
        case pa.StructType():
            inner = values.flatten()
        case pa.MapType():
            inner = [values.keys, values.items]
        case pa.ListType():
            inner = [values.flatten()]
        case _:
            yield values, nested
            return
    for each in inner:
        yield from _leaves(each, nested=True)


def partition_folder(table: Any, path: str) -> str:
    """Return where the buckets of a partition are, as pypaimon's file IO takes it: it decodes `%2F` in a URI only."""
    root = table.path_factory().data_file_path().rstrip("/")
    if root.startswith("file:") and "%" in path:
        root = table.file_io.to_filesystem_path(root)
    return "/".join(part for part in (root, path) if part)


def is_same_table(table: Any) -> bool:
    """Return whether the schema with which the table was opened is still there, by one request.

    A table that was dropped and created again has another one, under the same id. Files of the old one must not come into it.
    """
    schema = table.table_schema
    found = folder_store(table, table.schema_manager.schema_path).read(f"schema-{schema.id}")
    return found is not None and json.loads(found.body).get("timeMillis") == schema.time_millis


def snapshot_manager(table: Any, store: FolderStore | None = None) -> Any:
    """Return pypaimon's manager of the table's snapshots, which finds the newest one by 3 requests on S3 instead of 10.

    If the hint isn't right, it searches as pypaimon does. `store` is that of the snapshots, if there is an open one.
    """
    snapshots = store or snapshot_store(table)
    manager = table.snapshot_manager()
    search = manager._get_latest_snapshot_from_filesystem  # noqa: SLF001 - pypaimon's version is pinned
    manager._get_latest_snapshot_from_filesystem = lambda: _hinted_snapshot(snapshots) or search()  # noqa: SLF001
    return manager


def _hinted_snapshot(store: FolderStore) -> Any | None:
    """Return the snapshot that the hint names, if it is the newest one. None: the hint isn't right, or can't be read."""
    from pypaimon.common.json_util import JSON
    from pypaimon.snapshot.snapshot import Snapshot

    if not store.fenced:  # it has no cheaper requests than pypaimon
        return None
    try:
        hint = store.read(HINT)
        if hint is None or not hint.body.strip().isdigit():
            return None
        found = store.read(f"snapshot-{int(hint.body)}")
        if found is None or store.version(f"snapshot-{int(hint.body) + 1}") is not None:
            return None
    except OSError:  # pypaimon's client repeats its requests
        return None
    return JSON.from_json(found.body.decode(), Snapshot)


def find_commit(table: Any, user: str, identifier: int) -> int | None:
    """Return the retained snapshot that `user` committed under `identifier`, or None. The search starts at the newest one."""
    manager = snapshot_manager(table)
    snapshot = manager.get_latest_snapshot()
    while snapshot is not None:
        if snapshot.commit_user == user:
            if snapshot.commit_identifier == identifier:
                return int(snapshot.id)
            if snapshot.commit_identifier < identifier:
                return None
        snapshot = manager.get_snapshot_by_id(snapshot.id - 1) if snapshot.id > 1 else None
    return None


@dataclass(frozen=True, slots=True)
class Base:
    """What a batch is computed from, in one snapshot.

    For a rewrite, the files of some partitions, which it reads and replaces. For dynamic buckets, their index files.
    """

    snapshot_id: int
    identity: str
    """Identity of the snapshot. After a rollback another one may have the id."""
    splits: tuple[Any, ...]
    """Splits of data files."""
    files: frozenset[str]
    """Relative paths: `month=1/day=3/bucket-0/data-….parquet`."""


def latest_snapshot_id(table: Any) -> int:
    """Return the id of the newest snapshot, 0 for a table without snapshots."""
    return newest_snapshot(table)[0]


def newest_snapshot(table: Any) -> tuple[int, str]:
    """Return the id and the identity of the newest snapshot, 0 and a blank for a table without snapshots."""
    snapshot = snapshot_manager(table).get_latest_snapshot()
    return (0, "") if snapshot is None else (int(snapshot.id), str(snapshot.delta_manifest_list))


def read_base(table: Any, partitions: Collection[Partition], snapshot: tuple[int, str] | None = None) -> Base:
    """Return what a batch of these partitions is computed from, in the newest snapshot or in the given one."""
    at, identity = newest_snapshot(table) if snapshot is None else snapshot
    if at == 0:
        return Base(0, "", (), frozenset())
    if has_dynamic_buckets(table):
        return Base(
            at, identity, (), _index_files(table, {partition_path(table, each) for each in partitions}, at)
        )
    pinned = table.copy({"scan.snapshot-id": str(at)})
    builder = pinned.new_read_builder()
    if table.partition_keys:
        builder = builder.with_filter(
            _is_one_of(builder.new_predicate_builder(), table.partition_keys, partitions)
        )
    splits = tuple(builder.new_scan().plan().splits())
    return Base(at, identity, splits, frozenset(_file_names(table, splits)))


def _index_files(table: Any, paths: Collection[str], snapshot_id: int) -> frozenset[str]:
    from pypaimon.index.dynamic_bucket import HASH_INDEX
    from pypaimon.index.index_file_handler import IndexFileHandler

    snapshot = table.snapshot_manager().get_snapshot_by_id(snapshot_id)
    entries = IndexFileHandler(table).scan(snapshot) if snapshot is not None else ()
    found = (
        (partition_path(table, tuple(entry.partition.values)), entry.bucket, entry.index_file)
        for entry in entries
        if entry.index_file.index_type == HASH_INDEX
    )
    return frozenset(
        "/".join(part for part in (path, f"bucket-{bucket}", file.file_name) if part)
        for path, bucket, file in found
        if path in paths
    )


def _file_names(table: Any, splits: Iterable[Any]) -> Iterable[str]:
    for split in splits:
        partition = partition_path(table, tuple(split.partition.values))
        folder = "/".join(part for part in (partition, f"bucket-{split.bucket}") if part)
        for file in split.files:
            yield f"{folder}/{file.file_name}"


def changed_by(
    table: Any, partitions: Collection[Partition], base: Base, now: Base
) -> dict[Winner, list[str]]:
    """Return the files that were added or removed in these partitions between two snapshots, by commit user and transaction.

    Changes of expired snapshots, and of those before the last `MAX_CHANGES_TRACED`, count for the next snapshot.
    """
    manager = table.snapshot_manager()
    changes: dict[Winner, list[str]] = {}
    before, traced = base.files, base.snapshot_id
    for number in range(
        max(base.snapshot_id + 1, now.snapshot_id - MAX_CHANGES_TRACED + 1), now.snapshot_id + 1
    ):
        snapshot = manager.get_snapshot_by_id(number)
        if snapshot is None:
            continue
        files = now.files if number == now.snapshot_id else read_base(table, partitions, (number, "")).files
        if files != before:
            also = "" if traced == number - 1 else " or an earlier one"
            changes.setdefault(winner_in(snapshot, also), []).extend(sorted(files ^ before))
        before, traced = files, number
    return changes


def winner_in(snapshot: Any, also: str = "") -> Winner:
    """Return the commit that wrote a snapshot. `also`: which others it may have been."""
    label = (snapshot.properties or {}).get(TRANSACTION)
    return Winner(f"commit user {snapshot.commit_user!r}{also}", None if also else label, is_known=not also)


def _is_one_of(predicates: Any, keys: Iterable[str], partitions: Collection[Partition]) -> Any:
    def is_partition(partition: Partition) -> Any:
        return predicates.and_predicates(
            [
                predicates.is_null(key) if value is None else predicates.equal(key, value)
                for key, value in zip(keys, partition, strict=True)
            ]
        )

    return predicates.or_predicates([is_partition(partition) for partition in partitions])


def deletions_of(base: Base) -> list[Any]:
    """Return commit messages that remove exactly the files of `base` from the table.

    Committed together with the new files, they make one OVERWRITE snapshot over any number of partitions. It removes the
    files by name: a file that was never read stays, and a file that is already gone fails the commit. pypaimon's partition
    overwrite would remove whatever the partitions contain when it commits.
    """
    from pypaimon.write.commit_message import CommitMessage

    return [
        CommitMessage(
            partition=tuple(split.partition.values),
            bucket=split.bucket,
            new_files=[],
            deleted_files=list(split.files),
            total_buckets=split.total_buckets,
        )
        for split in base.splits
    ]
