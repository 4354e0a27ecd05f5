"""Java Paimon in a JVM of its own, by py4j: what it reads, where it puts a key, and its compaction.

py4j finds no default method of an interface on an object whose class isn't public, so those are called by reflection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
        javaopts=["-Xmx384m"],
        java_path=str(find_java()),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield JavaPaimon(gateway, folder, options or {})
    finally:
        gateway.shutdown()


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
        found = [values for _bucket, values, _row in self._read(self._table(path))]
        return sorted(found, key=repr)

    def misplaced(self, path: str) -> list[tuple[Any, ...]]:
        """Return the rows that aren't in the bucket in which Java would put them."""
        table = self._table(path)
        write = table.newWrite("reader")
        try:
            return [
                values for bucket, values, row in self._read(table) if int(write.getBucket(row)) != bucket
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

    def _read(self, table: Any) -> Iterator[tuple[int, tuple[Any, ...], Any]]:
        types = table.rowType().getFieldTypes()
        getters = [self._paimon.data.InternalRow.createFieldGetter(kind, at) for at, kind in enumerate(types)]
        read = table.newRead()
        for split in table.newSnapshotReader().read().dataSplits():
            reader = read.createReader(split)
            rows = self._call("org.apache.paimon.reader.RecordReader", "toCloseableIterator", reader)
            while rows.hasNext():
                row = rows.next()
                values = (
                    self._call("org.apache.paimon.data.InternalRow$FieldGetter", "getFieldOrNull", each, row)
                    for each in getters
                )
                yield int(split.bucket()), tuple(_plain(value) for value in values), row
            rows.close()

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


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | bool) else str(value.toString())
