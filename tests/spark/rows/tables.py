"""Each format's two tables of a situation: one is written by the sink, its twin by the format alone.

| format | the native write | its rows and partitions are read from |
| --- | --- | --- |
| Delta, Iceberg | `writeTo(…).append()`, `overwritePartitions()`, MERGE of the batch's own columns | files in log or metadata |
| Paimon | Spark's INSERT by name into a Parquet table, merged by SQL; pypaimon writes the result | pypaimon, and Java Paimon |
| Hudi | `write.format("hudi")` with the sink's options | Spark |

Partitions are spelled as the format spells them in its folders or metadata, and never by the sink's own code. The watcher must
spell those of Delta and Iceberg alike.
"""
# ruff: noqa: S608 - the statements consist of a situation's own texts

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, types as t
from pyspark.sql.types import _parse_datatype_string

from lakewarden.handlers.delta.log import layout_of
from lakewarden.handlers.iceberg.metadata import foreign_snapshot, manifests_of, read_metadata
from lakewarden.spark_jobs import DeltaSink, HudiSink, IcebergSink, PaimonSink, Sink
from lakewarden.spark_jobs.engine.java import elements, java_type
from lakewarden.spark_jobs.sinks.assignment import DEFAULT
from lakewarden.spark_jobs.sinks.iceberg.metadata import VOID
from lakewarden.spark_jobs.sinks.upsert import has_order
from tests.spark.formats import HAS_DELTA, HAS_HUDI, HAS_ICEBERG, ICEBERG_FORMAT, iceberg_name
from tests.spark.java_paimon import java_reader
from tests.spark.rows.values import Rows, counted, difference, file_rows, rendered

PARTITIONED_BY = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """A table, and the batches that are written to it one after the other. All of it is SQL, so that it can be read."""

    columns: str
    """Of the table, as in CREATE TABLE."""
    batches: tuple[str, ...]
    """Each a SELECT, or an ALTER TABLE {table} of Delta's and Iceberg's tables."""
    partitioned_by: PARTITIONED_BY = ()
    """Columns, or transforms of Iceberg: `days(at)`."""
    keys: tuple[str, ...] = ("id",)
    order_by: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """Of the session."""
    declared: bool = True
    """Whether batches find their scope before, and are persisted for it."""
    formats: tuple[str, ...] = ()
    """None: all."""
    modes: tuple[str, ...] = ()
    """None: all."""
    properties: tuple[tuple[str, str], ...] = ()
    """Of Delta's and Iceberg's tables."""
    generated: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Columns that Delta computes, with what their metadata says of it: SQL of Spark can't create them."""
    paimon: tuple[tuple[str, str], ...] = ()
    """Types of Paimon's columns that Spark doesn't have."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def view(rows: DataFrame) -> Iterator[str]:
    """Give the rows a name in SQL."""
    name = f"rows_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession._jsparkSession.sessionState().catalog().dropTempView(name)


class Tables:
    """Two equal tables. `native` and `sink` are their places."""

    format: ClassVar[str]
    modes: ClassVar[tuple[str, ...]]

    def __init__(self, spark: SparkSession, folder: Path, situation: Situation, mode: str) -> None:
        self.spark, self.folder, self.situation, self.mode = spark, folder, situation, mode
        self.folder.mkdir(parents=True)
        self.create()

    def create(self) -> None:
        raise NotImplementedError

    def make_sink(self) -> Sink:
        raise NotImplementedError

    def write_natively(self, batch: DataFrame) -> None:
        raise NotImplementedError

    def alter(self, statement: str) -> None:
        """Change both tables: the statement has `{table}` for their names."""
        raise NotImplementedError

    def rows(self, table: str) -> Rows:
        """Return the rows of a table, `native` or `sink`, with their partitions."""
        raise NotImplementedError

    def changed(self) -> set[str]:
        """Return the partitions that the sink's commits have changed since the last call, as markers spell them."""
        raise NotImplementedError

    def difference(self) -> str:
        """Return how the two tables differ, or an empty text."""
        return difference(self.rows("native"), self.rows("sink"))

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # for the formats that Spark writes

    def _spark_sink(self, kind: type[DeltaSink | IcebergSink], table: str) -> Sink:
        mode: Any = self.mode
        if mode != "upsert":
            return kind(table, mode=mode)
        return kind(table, mode=mode, keys=self.situation.keys, order_by=self.situation.order_by)

    def _write(self, batch: DataFrame, target: str) -> None:
        if self.mode == "append":
            batch.writeTo(target).append()
        elif self.mode == "overwrite":
            batch.writeTo(target).overwritePartitions()
        else:
            self._merge(batch, target)

    def _merge(self, batch: DataFrame, target: str) -> None:
        """MERGE with the batch's own columns, of one row per key."""
        situation, types = self.situation, dict(self.spark.table(target).dtypes)
        keys = [key for key in situation.keys if key not in situation.partitioned_by]
        same = {f"t.{quoted(key)}": f"s.{quoted(key)}" for key in keys}
        same |= {
            self._field("t", name, types): self._field("s", name, types) for name in situation.partitioned_by
        }
        columns = [quoted(name) for name in batch.columns]
        numbered = {quoted(name) for name, said in situation.generated if "delta.identity.start" in said}
        updated = [name for name in columns if name not in numbered & set(map(quoted, keys))]
        stored = {
            f"s.{quoted(key)}": types.get(key, "")
            for key in keys
            if types.get(key) != dict(batch.dtypes).get(key)
        }
        identity = [
            each
            if each not in stored
            else f"coalesce(try_cast({each} AS {stored[each]}) || '', 'not ' || {each})"
            for each in same.values()
        ]
        with view(self._one_row_per_key(batch, identity)) as source:
            self.spark.sql(
                f"MERGE INTO {target} t USING {source} s ON {' AND '.join(f'{old} <=> {new}' for old, new in same.items())} "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in updated)} "
                f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) "
                f"VALUES ({', '.join(f's.{name}' for name in columns)})"
            )

    def _one_row_per_key(self, rows: DataFrame, identity: list[str]) -> DataFrame:
        """Return the greatest row of each key, by `order_by` and then by all columns. `identity` is SQL of a row `s`."""
        columns = ", ".join(map(quoted, rows.columns))
        order = [self.situation.order_by] if self.situation.order_by else []
        order += [quoted(field.name) for field in rows.schema.fields if has_order(field.dataType)]
        with view(rows) as every:
            return self.spark.sql(
                f"SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {', '.join(identity)} "
                f"ORDER BY {', '.join(f'{each} DESC' for each in order)}) rows_rank FROM {every} s) WHERE rows_rank = 1"
            )

    def _field(self, alias: str, name: str, types: dict[str, str]) -> str:
        """Return the value of a partition field, as the table stores it. `types` are those of its columns."""
        function, bracket, argument = name.partition("(")
        *width, column = argument.removesuffix(")").split(",") if bracket else [name]
        value = f"{alias}.{quoted(column.strip())}"
        value = f"CAST({value} AS {types[column.strip()]})" if alias == "s" else value
        return f"{self._catalog()}.system.{function}({', '.join([*width, value])})" if bracket else value

    def _catalog(self) -> str:
        raise NotImplementedError

    def _create_statement(self, target: str, provider: str, properties: dict[str, str]) -> str:
        fields = [name if "(" in name else quoted(name) for name in self.situation.partitioned_by]
        listed = ", ".join(
            f"'{key}'='{value}'" for key, value in (properties | dict(self.situation.properties)).items()
        )
        return (
            f"CREATE TABLE {target} ({self.situation.columns}) USING {provider}"
            + (f" PARTITIONED BY ({', '.join(fields)})" if fields else "")
            + (f" TBLPROPERTIES ({listed})" if listed else "")
        )


class DeltaTables(Tables):
    format = "delta"
    modes = ("append", "upsert", "overwrite")

    def create(self) -> None:
        native = self.folder / "native"
        if self.situation.generated:
            self._build(native)
        else:
            self.spark.sql(self._create_statement(f"delta.{quoted(str(native))}", "delta", {}))
        shutil.copytree(native, self.folder / "sink")
        self._seen = 1

    def _build(self, table: Path) -> None:
        """Create the table by Delta's own builder."""
        jvm: Any = self.spark._jvm
        computed = dict(self.situation.generated)
        schema = _parse_datatype_string(self.situation.columns)
        assert isinstance(schema, t.StructType)
        for field in schema.fields:
            field.metadata = dict(computed.get(field.name, {}))
        builder = jvm.io.delta.tables.DeltaTable.create(self.spark._jsparkSession).location(str(table))
        builder.addColumns(jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()))
        fields = self.spark.sparkContext._gateway.new_array(jvm.String, len(self.situation.partitioned_by))  # type: ignore[union-attr]
        for number, name in enumerate(self.situation.partitioned_by):
            fields[number] = name
        builder.partitionedBy(fields).execute()

    def make_sink(self) -> Sink:
        return self._spark_sink(DeltaSink, str(self.folder / "sink"))

    def write_natively(self, batch: DataFrame) -> None:
        self._write(batch, f"delta.{quoted(str(self.folder / 'native'))}")

    def alter(self, statement: str) -> None:
        for table in ("native", "sink"):
            self.spark.sql(statement.format(table=f"delta.{quoted(str(self.folder / table))}"))

    def _field(self, alias: str, name: str, types: dict[str, str]) -> str:
        """An empty text is stored as NULL."""
        value = super()._field(alias, name, types)
        return f"nullif({value}, '')" if alias == "s" and types[name] == "string" else value

    def rows(self, table: str) -> Rows:
        live: dict[str, dict[str, str | None]] = {}
        for commit in self._log(table):
            for kind, action in commit:
                if kind == "remove":
                    live.pop(action["path"], None)
            for kind, action in commit:
                if kind == "add":
                    assert not action.get("deletionVector"), action
                    live[action["path"]] = action["partitionValues"]
        names = self._names(table)
        files = ((values, file_rows(_decoded(self.folder / table, path))) for path, values in live.items())
        return counted(
            (
                json.dumps(list(values.values())),
                rows.rename_columns([names.get(each, each) for each in rows.column_names]),
            )
            for values, rows in files
        )

    def changed(self) -> set[str]:
        log = self._log("sink")
        new, self._seen = log[self._seen :], len(log)
        values = [
            action["partitionValues"]
            for commit in new
            for kind, action in commit
            if kind in {"add", "remove"}
        ]
        layout = layout_of(action for commit in log for action in commit)
        assert layout is not None
        assert [layout.path(each) for each in values] == [self._spelled(each) for each in values]
        return {self._spelled(each) for each in values}

    def _spelled(self, values: dict[str, str | None]) -> str:
        """Return the partition as Spark's own function spells its folder."""
        utilities = java_type(self.spark, "org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils")
        stored = {name: physical for physical, name in self._names("sink").items()}
        return "/".join(
            utilities.getPartitionPathString(name, values.get(stored[name]))
            for name in self._metadata("sink")["partitionColumns"]
        )

    def _names(self, table: str) -> dict[str, str]:
        """Return the columns' names by their names in files, which Delta invents for each table that maps them."""
        fields = json.loads(self._metadata(table)["schemaString"])["fields"]
        physical = "delta.columnMapping.physicalName"
        return {each["metadata"].get(physical, each["name"]): each["name"] for each in fields}

    def _metadata(self, table: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = [
            action for commit in self._log(table) for kind, action in commit if kind == "metaData"
        ]
        return found[-1]

    def _log(self, table: str) -> list[list[tuple[str, Any]]]:
        files = sorted((self.folder / table / "_delta_log").glob("*.json"))
        return [
            [item for line in file.read_bytes().splitlines() for item in json.loads(line).items()]
            for file in files
        ]


def _decoded(folder: Path, path: str) -> str:
    """Return the file that a log names by a URI."""
    return str(folder / unquote(path))


class IcebergTables(Tables):
    format = "iceberg"
    modes = ("append", "upsert", "overwrite")

    def create(self) -> None:
        self._names = {
            table: iceberg_name(self.spark, self.folder / "db" / table) for table in ("native", "sink")
        }
        for name in self._names.values():
            self.spark.sql(self._create_statement(name, "iceberg", {"format-version": ICEBERG_FORMAT}))

    def _catalog(self) -> str:
        return self._names["native"].partition(".")[0]

    def _field(self, alias: str, name: str, types: dict[str, str]) -> str:
        """Spark's `=` takes -0.0 for 0.0. Iceberg doesn't, where it prunes files by what the batch has."""
        value, kind = super()._field(alias, name, types), types.get(name)
        return f"{value} + CAST(0 AS {kind})" if kind in {"float", "double"} else value

    def make_sink(self) -> Sink:
        return self._spark_sink(IcebergSink, self._names["sink"])

    def write_natively(self, batch: DataFrame) -> None:
        # An upsert gets rows, as a stream has them: Spark compares a literal in another type.
        batch = batch.localCheckpoint() if self.mode == "upsert" else self._all_columns(batch)
        self._write(batch, self._names["native"])

    def _all_columns(self, batch: DataFrame) -> DataFrame:
        """Columns that the batch lacks and that have no default are NULL, as in a MERGE and in INSERT with a list of columns."""
        sensitive = self.spark.conf.get("spark.sql.caseSensitive") == "true"
        given = {name if sensitive else name.lower() for name in batch.columns}
        for column in self.spark.table(self._names["native"]).schema.fields:
            known = (column.name if sensitive else column.name.lower()) in given
            if not known and DEFAULT not in column.metadata:
                batch = batch.selectExpr(
                    "*", f"CAST(NULL AS {column.dataType.simpleString()}) AS {quoted(column.name)}"
                )
        return batch

    def alter(self, statement: str) -> None:
        for name in self._names.values():
            self.spark.sql(statement.format(table=name))

    def rows(self, table: str) -> Rows:
        """Iceberg reads a column that is a partition field from the metadata, where a text that is no UTF-8 has other bytes."""
        if "variant" in self.situation.columns:  # pyarrow can't read its annotation
            texts = self.spark.table(self._names[table]).selectExpr(
                "to_json(struct(*))", "schema_of_variant(v)"
            )
            return Rows((str(kind), str(text)) for text, kind in texts.collect())
        found = []
        java = self._load(table)
        tasks = java.newScan().planFiles()
        try:
            iterator = tasks.iterator()
            while iterator.hasNext():
                file = iterator.next().file()
                rows = file_rows(str(file.path()).removeprefix("file:"))
                identities = java.specs().get(file.specId()).identitySourceIds()
                names = {java.schema().findColumnName(each) for each in identities}
                rows = rows.drop_columns([*names.intersection(rows.column_names)])
                found.append((self._path(java, file), rows))
        finally:
            tasks.close()
        return counted(found)

    def changed(self) -> set[str]:
        java = self._load("sink")
        snapshot = java.currentSnapshot()
        if snapshot is None or snapshot.snapshotId() == getattr(self, "_last", None):
            return set()
        self._last = snapshot.snapshotId()
        files = [*snapshot.addedDataFiles(java.io()), *snapshot.removedDataFiles(java.io())]
        paths = {self._path(java, file) for file in files}
        if ICEBERG_FORMAT != "3":
            assert self._watched(java.operations().current().metadataFileLocation()) == paths
        return paths

    def _watched(self, file: str) -> set[str]:
        """Return the partitions that a watcher reports of the newest snapshot."""

        def read(path: str) -> bytes:
            return Path(path.removeprefix("file:")).read_bytes()

        metadata = read_metadata(read(file))
        snapshot = metadata.snapshots[0]
        manifests = manifests_of(read(snapshot.manifests), snapshot.id)
        found = foreign_snapshot(snapshot, [(each.spec, read(each.path)) for each in manifests], metadata)
        return {marker.partition for marker in found.markers} if found else set()

    def _path(self, java: Any, file: Any) -> str:
        """Return the partition without the fields that tables of version 1 keep, as `void`, when they are dropped."""
        spec = java.specs().get(file.specId())
        parts = str(spec.partitionToPath(file.partition())).split("/")
        dropped = [field.transform().toString() == VOID for field in elements(spec.fields())] or [False]
        return "/".join(part for part, void in zip(parts, dropped, strict=True) if not void)

    def _load(self, table: str) -> Any:
        utilities = java_type(self.spark, "org.apache.iceberg.spark.Spark3Util")
        java = utilities.loadIcebergTable(self.spark._jsparkSession, self._names[table])
        java.refresh()
        return java


class PaimonTables(Tables):
    format = "paimon"
    modes = ("append", "upsert", "key")

    def create(self) -> None:
        from pypaimon import CatalogFactory

        self._paimon = CatalogFactory.create({"warehouse": str(self.folder / "warehouse")})
        self._paimon.create_database("test", ignore_if_exists=True)
        schema: Any = _parse_datatype_string(self.situation.columns)
        self._schema: t.StructType = schema
        self._create_paimon("sink")
        self._name = f"rows_{uuid.uuid4().hex}"
        for kind in ("batch", "state"):
            self.spark.sql(
                f"CREATE TABLE {self._name}_{kind} ({self.situation.columns}) USING parquet "
                f"LOCATION '{self.folder / kind}'"
            )
        self._native: str | None = None
        self._files: set[str] = set()

    def drop(self) -> None:
        for kind in ("batch", "state"):
            self.spark.sql(f"DROP TABLE IF EXISTS {self._name}_{kind}")
        super().drop()

    def _create_paimon(self, name: str, *, required: bool = True) -> None:
        """Create a table. `required`: columns and fields that are NOT NULL are so."""
        from pypaimon import Schema
        from pypaimon.schema.data_types import AtomicType, DataField

        overridden = dict(self.situation.paimon)
        numbers = count()
        fields = [
            DataField(
                next(numbers),
                each.name,
                AtomicType(overridden[each.name], each.nullable)
                if each.name in overridden
                else paimon_type(each.dataType, numbers, nullable=each.nullable),
            )
            for each in (self._schema if required else _nullable(self._schema)).fields
        ]
        keyed = self.mode == "key"
        made = Schema(
            fields,
            partition_keys=list(self.situation.partitioned_by),
            primary_keys=list(dict.fromkeys((*self.situation.partitioned_by, *self.situation.keys)))
            if keyed
            else [],
            options={"bucket": "1"} if keyed else {},
        )
        self._paimon.create_table(f"test.{name}", made, ignore_if_exists=False)

    def _location(self, name: str) -> str:
        return str(self.folder / "warehouse" / "test.db" / name)

    def make_sink(self) -> Sink:
        if self.mode == "append":
            return PaimonSink(self._location("sink"))
        keys = self.situation.keys if self.mode == "upsert" else ()
        return PaimonSink(self._location("sink"), mode="upsert", keys=keys, order_by=self.situation.order_by)

    def write_natively(self, batch: DataFrame) -> None:
        """Spark assigns the batch's columns; SQL merges them into the rows before; pypaimon writes the result."""
        if self.spark.conf.get("spark.sql.storeAssignmentPolicy") == "LEGACY":
            raise ValueError("Spark refuses this policy for every table but its own")
        with view(batch) as source:
            self.spark.sql(f"INSERT OVERWRITE {self._name}_batch BY NAME SELECT * FROM {source}")
        assigned, state = self.spark.table(f"{self._name}_batch"), self.spark.table(f"{self._name}_state")
        merged = assigned if self.mode == "append" else self._merged(assigned, batch)
        name = f"native_{uuid.uuid4().hex}"
        (state.unionByName(merged) if self.mode == "append" else merged).write.parquet(
            str(self.folder / name)
        )
        files = sorted((self.folder / name).glob("part-*.parquet"))
        rows = pa.concat_tables([file_rows(str(file)) for file in files])
        for field in self._schema.fields:
            _require_values(rows.column(field.name), field)
        self._create_paimon(name, required=False)
        self._write_plainly(name, rows)
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        shutil.move(self.folder / name, self.folder / "state")
        self.spark.catalog.refreshTable(f"{self._name}_state")
        self._native = name

    def _merged(self, assigned: DataFrame, batch: DataFrame) -> DataFrame:
        identity = list(dict.fromkeys((*self.situation.partitioned_by, *self.situation.keys)))
        same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in identity)
        given = {name.lower() for name in batch.columns}
        keyed = self.mode == "key"
        values = ", ".join(
            f"s.{quoted(name)}" if keyed or name.lower() in given else f"t.{quoted(name)}"
            for name in assigned.columns
        )
        assigned = self._one_row_per_key(assigned, [f"s.{quoted(name)}" for name in identity])
        with view(assigned) as source:
            return self.spark.sql(
                f"SELECT {values} FROM {source} s LEFT JOIN {self._name}_state t ON {same} "
                f"UNION ALL SELECT t.* FROM {self._name}_state t LEFT ANTI JOIN {source} s ON {same}"
            )

    def _write_plainly(self, name: str, rows: pa.Table) -> None:
        table = self._paimon.get_table(f"test.{name}")
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        try:
            write.write_arrow(_as(rows, _arrow_schema(table)))
            commit.commit(write.prepare_commit())
        finally:
            write.close()
            commit.close()

    def rows(self, table: str) -> Rows:
        name = self._native if table == "native" else table
        if name is None:
            return Rows()
        opened = self._paimon.get_table(f"test.{name}")
        builder = opened.new_read_builder()
        read = builder.new_read()
        return counted(
            (self._partition(split.files[0].file_path), read.to_arrow([split]))
            for split in self._splits(opened)
        )

    def changed(self) -> set[str]:
        opened = self._paimon.get_table("test.sink")
        files = {file.file_path for split in self._splits(opened) for file in split.files}
        before, self._files = self._files, files
        return {self._partition(path) for path in files ^ before}

    def difference(self) -> str:
        """Return, too, what Java Paimon reads of the sink's table otherwise than pypaimon."""
        found = super().difference()
        if found:
            return found
        ours = Counter(text for _, text in self.rows("sink").elements())
        java = Counter(rendered(java_reader().table(self._location("sink"))))
        return "" if java == ours else f"only Java: {java - ours}; only pypaimon: {ours - java}"

    def _splits(self, opened: Any) -> list[Any]:
        return list(opened.new_read_builder().new_scan().plan().splits())

    def _partition(self, path: str) -> str:
        """Return the folder of a file, below the table's and above the bucket's."""
        return "/".join(path.partition("/test.db/")[2].split("/")[1:-2])


def _arrow_schema(table: Any) -> pa.Schema:
    from pypaimon.schema.data_types import PyarrowFieldParser

    return PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the types of Paimon's columns. What a column is too short for is cut off."""
    return rows.select(schema.names).cast(schema, safe=False)


def _nullable(kind: Any) -> Any:
    """Return a type without NOT NULL: Arrow casts no column to one that has it."""
    match kind:
        case t.StructType():
            return t.StructType([t.StructField(each.name, _nullable(each.dataType)) for each in kind.fields])
        case t.ArrayType():
            return t.ArrayType(_nullable(kind.elementType))
        case t.MapType():
            return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case _:
            return kind


def _require_values(column: Any, field: t.StructField) -> None:
    """Raise `ValueError` for NULL in a column, or in a field of one, that is NOT NULL."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not field.nullable and column.null_count:
        raise ValueError(f"NULL in {field.name!r}, which is NOT NULL")
    column = column.drop_null()
    match field.dataType:
        case t.StructType():
            for inner, values in zip(field.dataType.fields, column.flatten(), strict=True):
                _require_values(values, inner)
        case t.ArrayType():
            _require_values(
                column.flatten(),
                t.StructField("element", field.dataType.elementType, field.dataType.containsNull),
            )
        case t.MapType():
            _require_values(
                column.items,
                t.StructField("value", field.dataType.valueType, field.dataType.valueContainsNull),
            )
        case _:
            pass


def paimon_type(kind: t.DataType, numbers: Iterator[int], *, nullable: bool) -> Any:
    """Return the type of Paimon that stands for a type of Spark. `numbers` are for the fields in it."""
    from pypaimon.schema import data_types as p

    match kind:
        case t.StructType():
            return p.RowType(
                nullable,
                [
                    p.DataField(
                        next(numbers), each.name, paimon_type(each.dataType, numbers, nullable=each.nullable)
                    )
                    for each in kind.fields
                ],
            )
        case t.ArrayType():
            return p.ArrayType(nullable, paimon_type(kind.elementType, numbers, nullable=kind.containsNull))
        case t.MapType():
            return p.MapType(
                nullable,
                paimon_type(kind.keyType, numbers, nullable=False),
                paimon_type(kind.valueType, numbers, nullable=kind.valueContainsNull),
            )
        case t.DecimalType():
            name = f"DECIMAL({kind.precision}, {kind.scale})"
        case t.CharType() | t.VarcharType():
            name = kind.simpleString().upper()
        case t.TimestampType():
            name = "TIMESTAMP(6) WITH LOCAL TIME ZONE"
        case t.TimestampNTZType():
            name = "TIMESTAMP(6)"
        case _:
            name = {
                "byte": "TINYINT",
                "short": "SMALLINT",
                "integer": "INT",
                "long": "BIGINT",
                "binary": "BYTES",
            }.get(kind.typeName(), kind.typeName().upper())
    return p.AtomicType(name, nullable)


class HudiTables(Tables):
    """Before a `delete` both tables have the rows of all batches."""

    format = "hudi"
    modes = ("upsert", "insert", "insert_overwrite", "delete")

    def create(self) -> None:
        self._files: set[Path] = set()
        if self.mode == "delete":
            for sql in self.situation.batches:
                for table in ("native", "sink"):
                    with suppress(Exception):  # then neither table has these rows
                        self._write_hudi(self.spark.sql(sql), table, "upsert")
            self.changed()

    def make_sink(self) -> HudiSink:
        return self._sink_of("sink", self.mode)

    def _sink_of(self, table: str, operation: Any) -> HudiSink:
        return HudiSink(
            str(self.folder / table),
            keys=self.situation.keys,
            partition_by=self.situation.partitioned_by,
            order_by=self.situation.order_by,
            operation=operation,
            options=HUDI_OPTIONS,
        )

    def write_natively(self, batch: DataFrame) -> None:
        self._write_hudi(batch, "native", self.mode)

    def _write_hudi(self, batch: DataFrame, table: str, operation: str) -> None:
        options = self._sink_of(table, operation)._options
        batch.write.format("hudi").options(**options).mode("append").save(str(self.folder / table))

    def rows(self, table: str) -> Rows:
        place = self.folder / table
        if not (place / ".hoodie").exists():
            return Rows()
        try:
            files = self.spark.read.format("hudi").load(str(place)).inputFiles()
        except Exception as error:  # noqa: BLE001 - Hudi writes tables that it can't read
            return Rows({("", f"no rows can be read: {type(error).__name__}"): 1})
        return counted(
            (str(file.parent.relative_to(place)), file_rows(str(file)).drop_columns(OF_A_WRITE))
            for file in (Path(unquote(urlsplit(each).path)) for each in files)
        )

    def changed(self) -> set[str]:
        place = self.folder / "sink"
        files = {file for file in place.rglob("*.parquet") if ".hoodie" not in file.parts}
        new, self._files = files - self._files, files
        return {str(file.parent.relative_to(place)).removeprefix(".") for file in new}


OF_A_WRITE = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"]
"""Columns of Hudi that differ between two writes of the same rows."""

HUDI_OPTIONS = {
    "hoodie.metadata.enable": "false",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.insert.shuffle.parallelism": "1",
    "hoodie.write.lock.wait_time_ms_between_retry": "50",
}

FORMATS: dict[str, type[Tables]] = {"paimon": PaimonTables}
if HAS_DELTA:
    FORMATS["delta"] = DeltaTables
if HAS_ICEBERG:
    FORMATS["iceberg"] = IcebergTables
if HAS_HUDI:
    FORMATS["hudi"] = HudiTables

MODES = {name: tables.modes for name, tables in FORMATS.items()}
