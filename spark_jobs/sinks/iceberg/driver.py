"""Iceberg in the driver's JVM, reached by py4j: tables, staged tables, and whole statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.java import (
    accept_callbacks,
    elements,
    gateway_of,
    is_instance,
    java_causes,
    java_class,
    java_exception,
    java_map,
    java_text,
    java_type,
)
from lakewarden.spark_jobs.gate.errors import GateError, UnsupportedSpark
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.gate.jvm_errors import CallbackErrors
from lakewarden.spark_jobs.sinks.iceberg.metadata import LastCommit, Loaded, Metadata
from lakewarden.spark_jobs.sinks.iceberg.release import (
    STAGED_TABLE,
    STAGING_CATALOG,
    require_release,
    table_cache,
)
from lakewarden.spark_jobs.sinks.iceberg.staging import (
    COMMIT_FAILED,
    VALIDATION,
    Catalog,
    Check,
    StagedTable,
    Tries,
)
from lakewarden.spark_jobs.sinks.iceberg.table import metadata_table, no_table, unwritable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ICEBERG = "org.apache.iceberg.spark"

HADOOP = "org.apache.iceberg.hadoop.HadoopTableOperations"
REST = "org.apache.iceberg.rest.RESTTableOperations"


class DriverTable(Loaded):
    """`java`: `org.apache.iceberg.Table`. Spark's catalog may share the object: it then shows newer versions, too."""

    def __init__(self, spark: SparkSession, name: str, java: Any) -> None:
        self._spark = spark
        self._asked_for = name
        self.java = java
        self.metadata = metadata_of(spark, java.operations().current())
        self.name = str(java.name())

    def place(self) -> tuple[str, str]:
        found = _catalog_and_identifier(self._spark, self._asked_for)
        return str(found.catalog().name()), str(found.identifier().name())

    def columns(self) -> str:
        schema = self.java.schema()
        try:
            return str(java_type(self._spark, f"{_ICEBERG}.SparkSchemaUtil").convert(schema).json())
        except Exception as error:
            raise unwritable(java_text(error), self.name, str(schema.asStruct().toString())) from error

    def used_specs(self) -> Collection[int]:
        return {
            int(manifest.partitionSpecId())
            for manifest in elements(self.java.currentSnapshot().dataManifests(self.java.io()))
            if manifest.hasAddedFiles() or manifest.hasExistingFiles()
        }


class DriverCatalog(Catalog):
    """A table of this name, in a catalog of the driver's session."""

    def __init__(self, spark: SparkSession, name: str, *, untried: bool) -> None:
        super().__init__(spark, name)
        self.unhooked = require_release(spark, untried=untried)
        if self.unhooked is not None and is_instance(load(spark, name).operations(), REST):
            raise UnsupportedSpark(
                f"{self.unhooked}, so Iceberg itself would commit each statement; where a REST catalog answers 409 "
                "to a request that it has carried out, Iceberg commits the rows again or removes their files; "
                f"use a release of Iceberg that was tried; table={name}"
            )

    def load(self) -> DriverTable:
        return DriverTable(self.spark, self.name, load(self.spark, self.name))

    def stage(self, properties: Mapping[str, str], *, validated: bool) -> DriverStagedTable:
        return DriverStagedTable(self.spark, self.load(), properties, validated=validated)

    def show(self, snapshot: str | None) -> None:
        """`snapshot`: its own, which the catalog's table may have from the swap."""
        table = _loaded(self.spark, self.name)
        current = None if is_instance(table.operations(), HADOOP) else table.currentSnapshot()
        if current is None or str(current.snapshotId()) != snapshot:
            load(self.spark, self.name)

    def mergeable(self, rows: DataFrame) -> DataFrame:
        """Compute them if they are read from a table, or random. Those of a stream are neither.

        Spark 4.1 plans no MERGE whose source is a view that reads a table of a catalog (apache/spark#56515), and no release one
        with random values.
        """
        from pyspark.sql import DataFrame

        jdf: Any = rows._jdf
        plan = jdf.queryExecution().analyzed()
        leaves = plan.collectLeaves()
        read = (leaves.apply(at).getClass().getSimpleName() for at in range(leaves.size()))
        if plan.deterministic() and not any("DataSourceV2" in name for name in read):
            return rows
        session = rows.sparkSession._jsparkSession
        computed = session.internalCreateDataFrame(jdf.queryExecution().toRdd(), jdf.schema(), False)  # noqa: FBT003 - of Java
        return DataFrame(computed, rows.sparkSession)


def metadata_of(spark: SparkSession, java: Any) -> Metadata:
    """Read `org.apache.iceberg.TableMetadata`."""
    text = java_type(spark, "org.apache.iceberg.TableMetadataParser").toJson(java)
    return Metadata.parsed(str(java.metadataFileLocation()), str(text))


def load(spark: SparkSession, name: str) -> Any:
    """Return `org.apache.iceberg.Table` at its newest version, past the catalog's cache.

    A cached table can't be refreshed if another process dropped it and created it again. One of a Hadoop catalog can't be
    trusted: if it once failed to read the newest metadata, it takes the former for the newest, without an error, and its next
    commit would remove all commits since.
    """
    table = _loaded(spark, name)
    if not is_instance(table.operations(), HADOOP):
        # An error of the store, of the catalog, or Iceberg's own for another table at this place.
        with suppress(Exception):
            table.refresh()
            return table
    found = _catalog_and_identifier(spark, name)
    found.catalog().invalidateTable(found.identifier())
    table = _loaded(spark, name)
    table.refresh()
    return table


def _loaded(spark: SparkSession, name: str) -> Any:
    try:
        table = java_type(spark, f"{_ICEBERG}.Spark3Util").loadIcebergTable(spark._jsparkSession, name)
    except Exception as error:  # py4j's, or PySpark's own
        if any(is_instance(each, "exceptions.RESTException") for each in java_causes(error)):
            raise RuntimeError(
                f"the catalog of {name!r} didn't load the table: {java_text(error)}"
            ) from error
        raise no_table(name, java_text(error)) from error
    if is_instance(table, "BaseMetadataTable"):
        raise metadata_table(name)
    return table


def _catalog_and_identifier(spark: SparkSession, name: str) -> Any:
    return java_type(spark, f"{_ICEBERG}.Spark3Util").catalogAndIdentifier(spark._jsparkSession, name)


class CheckedOperations(Tries):
    """`TableOperations` whose `commit` runs a check first, and remembers what became of each try."""

    def __init__(
        self, operations: Any, seen: Callable[[Any], None], signed: Callable[[Any, Any], Any]
    ) -> None:
        """`operations` were just refreshed. `seen` gets each try's snapshot. `signed` adds the writer's `LastCommit`."""
        super().__init__()
        self._operations = operations
        self._fresh = True
        self._seen = seen
        self._signed = signed
        self.check: Callable[[Any], None] | None = None
        """Gets the metadata on which a try is based."""

    def refresh(self) -> Any:
        """Look for newer metadata; not for a transaction that begins on what was just loaded."""
        fresh, self._fresh = self._fresh, False
        return self._operations.current() if fresh else self._operations.refresh()

    def commit(self, base: Any, metadata: Any) -> None:
        """Check, then let Iceberg publish `metadata`."""
        snapshot = metadata.currentSnapshot()
        self._seen(snapshot)
        assert self.check is not None, "Iceberg published outside of `publish`"
        try:
            self.check(base)
        except GateError as error:
            self.refusal = error
            raise
        signed, published = self._signed(base, metadata), str(snapshot.snapshotId())
        before, self.unanswered = self.unanswered, True
        try:
            self._swap(base, signed)
        except Exception as error:
            self.failure = error
            self.overtaken = _is(error, COMMIT_FAILED)
            raise
        # No call into the JVM comes between the answer and this: the JVM may have ended.
        self.published, self.unanswered = published, before

    def _swap(self, base: Any, metadata: Any) -> None:
        self._operations.commit(base, metadata)

    def requireStrictCleanup(self) -> bool:
        """Keep Iceberg from removing files after an error that it doesn't know, such as a refusal."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._operations, name)

    class Java:
        """Read by py4j."""

        implements = ("org.apache.iceberg.TableOperations",)


class DriverStagedTable(StagedTable):
    """`require_release` must have found that statements can be staged: it defines the class of the table."""

    def __init__(
        self, spark: SparkSession, loaded: DriverTable, properties: Mapping[str, str], *, validated: bool
    ) -> None:
        accept_callbacks(gateway_of(spark))
        self._spark = spark
        self._table = table = loaded.java
        self._files: dict[str, None] = {}
        self._operations = CheckedOperations(table.operations(), self._list_files, self._signed)
        super().__init__(loaded, properties, self._operations, validated=validated)
        begin = java_type(spark, "org.apache.iceberg.Transactions").newTransaction
        self._transaction = begin(table.name(), self._operations)
        operations = self._transaction.table().operations()
        self._pinned = java_type(spark, "org.apache.iceberg.BaseTable")(operations, table.name())
        self._staged_table = java_type(spark, STAGED_TABLE)
        self.java = self._staged_table.of(self._pinned, self._transaction, java_map(spark, properties))
        """`org.apache.iceberg.Table`, for the statement."""

    @contextmanager
    def named(self, spark: SparkSession) -> Iterator[str]:
        cache = table_cache(spark)
        cache.add(self._gate_transaction, self.java)
        try:
            yield f"{STAGING_CATALOG}.{quoted(self._gate_transaction)}"
        finally:
            cache.remove(self._gate_transaction)

    def _list(self) -> bool:
        self._list_files(self._pinned.currentSnapshot())
        return bool(self._files)

    def _list_files(self, snapshot: Any) -> None:
        if snapshot is None or snapshot.summary().get(TRANSACTION) != self._gate_transaction:
            return
        if str(snapshot.manifestListLocation()) in self._files:
            return
        parent = snapshot.parentId()
        before = None if parent is None else (self._pinned.snapshot(parent) or self._table.snapshot(parent))
        added = self._staged_table.files(snapshot, before, self._pinned.io())
        self._files |= {str(path): None for path in elements(added)}

    def _commit(self, check: Check, grant: Grant) -> None:  # noqa: ARG002 - of the lease, which is checked
        self._operations.check = lambda base: check(self._metadata_of(base))
        self._transaction.commitTransaction()

    def _metadata_of(self, java: Any) -> Metadata:
        known = str(java.metadataFileLocation()) == self._now.file
        return self._now if known else metadata_of(self._spark, java)

    def _signed(self, base: Any, metadata: Any) -> Any:
        others = java_type(self._spark, "java.util.HashSet")()
        for key in LastCommit.silent(self._metadata_of(base)):
            others.add(key)
        return self._staged_table.signed(metadata, self._key, self._head, others)

    def _read(self) -> Metadata:
        self._table.refresh()
        return self._metadata_of(self._table.operations().current())

    def _is_recreated(self) -> bool:
        """Compare with the file.

        A Hadoop catalog numbers its metadata files. If both tables have come to the same number, refreshing doesn't show the new
        one, and a commit would write the metadata of the old one. Other catalogs give each metadata file a name of its own.
        """
        operations = self._table.operations()
        if not is_instance(operations, HADOOP):
            return False
        known = operations.current()
        read = java_type(self._spark, "org.apache.iceberg.TableMetadataParser").read
        return bool(read(operations.io(), known.metadataFileLocation()).uuid() != known.uuid())

    def _is_validation(self, error: Exception) -> bool:
        return _is(error, VALIDATION)

    def _named_by(self, text: str) -> Collection[int]:
        io, table = self._table.io(), self._table
        since = takewhile(lambda each: each.id != self.base, self._now.ancestors())
        named = self._staged_table.isNamed
        return {each.id for each in since if named(table.snapshot(each.id), io, text)}

    def _remove(self) -> None:
        paths = java_type(self._spark, "java.util.ArrayList")()
        for path in self._files:
            paths.add(path)
        io = self._table.io()
        try:
            io.deleteFiles(paths)
        except Exception:  # noqa: BLE001 - not every one can delete many at once, and a catalog may not sign that request
            for path in self._files:
                io.deleteFile(path)


def _is(error: Exception, name: str) -> bool:
    """Return whether this is an exception of Iceberg's class. Not whether it is caused by one: that says less."""
    java = java_exception(error)
    return java is not None and is_instance(java, name)


# whole statements


def with_properties(spark: SparkSession, properties: Mapping[str, str], write: Callable[[], object]) -> None:
    """Run a write whose snapshot gets these properties, and no other write of the session does.

    Iceberg knows the write by the JVM's thread, so PySpark must pin its threads.
    """
    accept_callbacks(gateway_of(spark))
    with CallbackErrors() as errors:
        call = java_type(spark, "org.apache.iceberg.spark.CommitMetadata").withCommitProperties
        call(
            java_map(spark, properties),
            _JavaCallable(errors.keep(write)),
            java_class(spark, "java.lang.RuntimeException"),
        )


class _JavaCallable:
    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def call(self) -> None:
        self._function()

    class Java:
        """Read by py4j."""

        implements = ("java.util.concurrent.Callable",)


def is_conflict(error: Exception) -> bool:
    """Return whether Iceberg refused a commit because of another one. Spark wraps what Iceberg throws."""
    return any(is_instance(java, name) for java in java_causes(error) for name in (COMMIT_FAILED, VALIDATION))
