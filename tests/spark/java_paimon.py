"""Java Paimon in a JVM of its own, by py4j: what it reads, where it puts a key, and its compaction.

py4j finds no default method of an interface on an object whose class isn't public, so those are called by reflection.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lakewarden.agent.embedded.jars import cache_root, dependency, maven_context
from lakewarden.agent.embedded.jdk import find_java

BUNDLE = "org.apache.paimon:paimon-bundle:1.4.2"


@contextmanager
def java_paimon(
    folder: Path, *more_jars: str, options: Mapping[str, str] | None = None
) -> Iterator[JavaPaimon]:
    """Start a JVM. Hadoop and slf4j, which the bundle lacks, come from PySpark. `options` are those of the tables' store."""
    maven = maven_context(cache_root() / "m2")
    bundle = ":".join(str(dependency(maven, each).artifact.resolve()) for each in (BUNDLE, *more_jars))
    jars = Path(pyspark.__file__).parent / "jars"
    (py4j,) = jars.glob("py4j-*.jar")
    port = launch_gateway(
        jarpath=str(py4j),
        classpath=f"{bundle}:{jars}/*",
        javaopts=["-Xmx384m", "-Duser.timezone=Europe/Berlin"],  # what is read rightly in UTC only is wrong
        java_path=str(find_java()),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield JavaPaimon(gateway, folder, options or {})
    finally:
        gateway.shutdown()


@cache
def java_reader() -> JavaPaimon:
    """Start a JVM for the rest of the process, by which tables on a local disk are read."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(java_paimon(Path(stack.enter_context(TemporaryDirectory()))))


class JavaPaimon:
    """Tables by their path."""

    def __init__(self, gateway: JavaGateway, folder: Path, options: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._jvm: Any = gateway.jvm
        self._paimon: Any = gateway.jvm.org.apache.paimon
        self._folder = folder
        self._options = dict(options)

    @property
    def gateway(self) -> Any:
        """py4j's, as a Spark driver has one."""
        return self._gateway

    def rows(self, path: str) -> list[tuple[Any, ...]]:
        """Return all rows, sorted by their text. Values that aren't numbers or booleans are text."""
        table = self._table(path)
        types = list(table.rowType().getFieldTypes())
        return sorted((self._plain(row, types) for _bucket, row in self._read(table)), key=repr)

    def table(self, path: str) -> pa.Table:
        """Return all rows, in the Arrow types that pypaimon has for the table's columns."""
        from lakewarden.spark_jobs.sinks.paimon.table import address
        from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema

        table, schema = self._table(path), arrow_schema(address(path).open())
        types = list(table.rowType().getFieldTypes())
        found = [
            [self._value(self._field(row, at, kind), kind, schema.types[at]) for at, kind in enumerate(types)]
            for _bucket, row in self._read(table)
        ]
        columns = zip(*found, strict=True) if found else [[]] * len(types)
        arrays = (
            pa.array(list(values), _in_bytes(kind)).cast(kind, safe=False)
            for values, kind in zip(columns, schema.types, strict=True)
        )
        return pa.Table.from_arrays(list(arrays), schema=schema)

    def misplaced(self, path: str) -> list[tuple[Any, ...]]:
        """Return the rows that aren't in the bucket in which Java would put them."""
        table = self._table(path)
        write = table.newWrite("reader")
        try:
            return [
                self._plain(row, list(table.rowType().getFieldTypes()))
                for bucket, row in self._read(table)
                if int(write.getBucket(row)) != bucket
            ]
        finally:
            write.close()

    def compact(self, path: str, identifier: int) -> None:
        """Compact every bucket fully, as a dedicated compaction does."""
        table = self._table(path).copy({"write-only": "false"})
        write = table.newWrite("compactor")
        write.withIOManager(self._paimon.disk.IOManager.create(str(self._folder / "spill")))
        try:
            for entry in table.newSnapshotReader().bucketEntries():
                write.compact(entry.partition(), entry.bucket(), True)  # noqa: FBT003 - Java's
            messages = write.prepareCommit(True, identifier)  # noqa: FBT003 - Java's
            table.newCommit("compactor").commit(identifier, messages)
        finally:
            write.close()

    def delete_rows(self, path: str, deleted: Mapping[str, Iterable[int]]) -> None:
        """Delete rows by deletion vectors: by file, their positions. The files are of one partition, without buckets."""
        paimon, table = self._paimon, self._table(path)
        split = next(
            split
            for split in table.newSnapshotReader().read().dataSplits()
            if any(str(file.fileName()) in deleted for file in split.dataFiles())
        )
        handler, snapshot = table.store().newIndexFileHandler(), table.snapshotManager().latestSnapshot()
        vectors = paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer
        maintainer = vectors.forUnawareAppend(handler, snapshot, split.partition())
        for file, positions in deleted.items():
            vector = paimon.deletionvectors.BitmapDeletionVector()
            for position in positions:
                vector.delete(position)
            maintainer.notifyNewDeletionVector(file, vector)
        changes: dict[str, list[Any]] = {"ADD": [], "DELETE": []}
        for entry in maintainer.persist():
            changes[str(entry.kind().toString())].append(entry.indexFile())
        message = paimon.table.sink.CommitMessageImpl(
            split.partition(),
            split.bucket(),
            split.totalBuckets(),
            paimon.io.DataIncrement([], [], [], changes["ADD"], changes["DELETE"]),
            paimon.io.CompactIncrement.emptyIncrement(),
        )
        table.newCommit("deleter").commit(int(snapshot.id()), [message])

    def _table(self, path: str) -> Any:
        paimon = self._paimon
        at = paimon.fs.Path(path)
        context = paimon.catalog.CatalogContext.create(paimon.options.Options.fromMap(self._options))
        return paimon.table.FileStoreTableFactory.create(paimon.fs.FileIO.get(at, context), at)

    def _read(self, table: Any) -> Iterator[tuple[int, Any]]:
        """Yield the bucket of each row, and the row, which is valid until the next one."""
        read = table.newRead()
        for split in table.newSnapshotReader().read().dataSplits():
            reader = read.createReader(split)
            rows = self._call("org.apache.paimon.reader.RecordReader", "toCloseableIterator", reader)
            while rows.hasNext():
                yield int(split.bucket()), rows.next()
            rows.close()

    def _plain(self, row: Any, types: list[Any]) -> tuple[Any, ...]:
        found = (self._field(row, at, kind) for at, kind in enumerate(types))
        return tuple(
            each if each is None or isinstance(each, int | float | bool) else str(each.toString())
            for each in found
        )

    def _field(self, row: Any, at: int, kind: Any) -> Any:
        getter = self._paimon.data.InternalRow.createFieldGetter(kind, at)
        return self._call("org.apache.paimon.data.InternalRow$FieldGetter", "getFieldOrNull", getter, row)

    def _value(self, found: Any, kind: Any, arrow: pa.DataType) -> Any:
        """Return Java's value as `pa.array` takes it for the type. A moment is a number."""
        if found is None or isinstance(found, int | float | bool | bytes):
            return found
        if pa.types.is_timestamp(arrow):
            nanos = int(found.getMillisecond()) * 1_000_000 + int(found.getNanoOfMillisecond())
            count, rest = divmod(nanos, _NANOS[arrow.unit])
            assert not rest, f"{found.toString()} isn't a {arrow}"
            return count
        if pa.types.is_decimal(arrow):
            return found.toBigDecimal()
        if pa.types.is_string(arrow):
            return found.toBytes()
        if str(kind.getTypeRoot().toString()) == "VARIANT":
            return {"value": found.value(), "metadata": found.metadata()}
        if pa.types.is_struct(arrow):
            fields = zip(arrow, kind.getFieldTypes(), strict=True)
            return {
                field.name: self._value(self._field(found, at, each), each, field.type)
                for at, (field, each) in enumerate(fields)
            }
        if pa.types.is_map(arrow):
            keys = self._elements(found.keyArray(), kind.getKeyType(), arrow.key_type)
            items = self._elements(found.valueArray(), kind.getValueType(), arrow.item_type)
            return list(zip(keys, items, strict=True))
        return self._elements(found, kind.getElementType(), arrow.value_type)

    def _elements(self, array: Any, kind: Any, arrow: pa.DataType) -> list[Any]:
        interface = "org.apache.paimon.data.InternalArray$ElementGetter"
        getter = self._paimon.data.InternalArray.createElementGetter(kind)
        return [
            self._value(self._call(interface, "getElementOrNull", getter, array, at), kind, arrow)
            for at in range(int(array.size()))
        ]

    def _call(self, interface: str, name: str, target: Any, *arguments: Any) -> Any:
        (method,) = (
            each
            for each in self._jvm.java.lang.Class.forName(interface).getMethods()
            if each.getName() == name and each.getParameterCount() == len(arguments)
        )
        passed = self._gateway.new_array(self._jvm.java.lang.Object, len(arguments))
        for at, argument in enumerate(arguments):
            passed[at] = argument
        return method.invoke(target, passed)


_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _in_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes instead of texts: Java's need not be UTF-8."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_bytes(kind.key_type), kind.item_field.with_type(_in_bytes(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_bytes(kind.value_type)))
    return pa.binary() if pa.types.is_string(kind) else kind
