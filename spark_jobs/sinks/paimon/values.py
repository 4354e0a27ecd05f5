"""The values of a Paimon table: its columns in Arrow's types, what of them a reader misreads, and how partitions are spelled."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeAlias

from lakewarden.handlers.paimon.partitions import PartitionSpelling
from lakewarden.handlers.partition_spelling import is_blank_in_java

Partition: TypeAlias = tuple[Any, ...]
"""Values of the partition columns, in the table's order. Empty for an unpartitioned table."""


def format_of(table: Any) -> str:
    """Return the format of the table's data files, in lower case."""
    return str(table.options.file_format()).lower()


def types_of(table: Any) -> list[Any]:
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
    return format_of(table) == "parquet" and any(_digits(kind) > 6 for kind in types_of(table))


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
    in_python = schema.primary_keys or format_of(table) == "avro"
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

    orc = format_of(table) == "orc"
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
