"""A Paimon table in the JVM of the Spark driver: what Java Paimon would compact, its compaction, and its commit.

Java prepares the commit: it looks for conflicts of files, merges manifests, and writes them. `FencedCatalog` stands in for
the table's catalog, which Java asks for the newest snapshot and to publish the next one. It publishes by the sink's own
`FencedCommit`, so the grant, the put if absent and the read-back are the same as for a batch (docs/decisions/0052).

- *Two objects of one table.* The compaction has `write-only=false`, or Java would compact nothing. The commit has
  `write-only=true`, so that it expires no snapshots or partitions under the grant, and no retries of Java's own.
- *A taken id* makes Java's commit fail. `commit` calls it again, and Java looks for conflicts with the commit that came first.
- *Removal.* Java's `abort` removes every file in `compactAfter`. A file that a compaction moves to another level without a
  rewrite is in `compactBefore`, too: it is in the table. `remove` leaves it.

py4j finds no default methods of an interface on an object whose class isn't public, so only methods of classes are called.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from lakewarden.events import ALL_FILE_GROUPS, Marker
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.paimon.compaction import may_compact, refusal, worth_merging
from lakewarden.handlers.paimon.publish import CommitName
from lakewarden.handlers.paimon.s3_options import java_options
from lakewarden.spark_jobs.engine.java import accept_callbacks, java_causes, java_text
from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.sinks.paimon.base import UNNUMBERED
from lakewarden.spark_jobs.sinks.paimon.commit import (
    FILES_CONFLICT,
    GRANT_TOKEN,
    CommitRefused,
    FencedCommit,
    PublishedSnapshot,
    before_the_put,
    run_fenced,
)
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, has_dynamic_buckets
from lakewarden.spark_jobs.sinks.paimon.values import partition_path

BUNDLE: Final = "org.apache.paimon:paimon-bundle:1.4.2"
"""Java Paimon without Hadoop and slf4j, which Spark has."""

S3_JAR: Final = "org.apache.paimon:paimon-s3:1.4.2"
"""Java Paimon's client for `s3://`, with all that it needs: 96 MB."""

MAX_TRIES: Final = 10
"""Tries to take a snapshot's id under one grant. Another commit takes it if its writer bypasses the gate or its grant lapsed."""

MAX_PLANS: Final = 1_000
"""Plans of Java's coordinator in one round. It plans some ten thousand files at a time."""

_UNAWARE: Final = "BUCKET_UNAWARE"


@dataclass(frozen=True, slots=True)
class Unit:
    """What Java compacts in one step."""

    java: Any
    markers: tuple[Marker, ...] = ()
    """Its files, if they are known before."""
    scope: tuple[Marker, ...] = ()
    """What it may conflict with a writer about. Empty: nothing, since upserts of fixed buckets never conflict with it."""


def packages(table: str) -> list[str]:
    """Return the Maven coordinates of what Java Paimon needs for a table with this canonical URI."""
    return [BUNDLE, S3_JAR] if _on_s3(table) else [BUNDLE]


def _on_s3(table: str) -> bool:
    return table.startswith("s3://")


class JavaTable:
    """One state of a table's schema. Open it again for each round."""

    def __init__(self, gateway: Any, address: TableAddress, *, user: str, spill: str) -> None:
        """`gateway` is py4j's, `spill` a local folder for what doesn't fit into memory."""
        self._gateway = gateway
        self._paimon = gateway.jvm.org.apache.paimon
        self._address = address
        self._user = user
        self._spill = spill
        self._python_table = address.open()
        options = self._python_table.table_schema.options
        keyed = bool(self._python_table.is_primary_key_table)
        refused = refusal(int(options.get("bucket", -1)), options, primary_key=keyed)
        if refused is not None:
            raise ValueError(f"this table can't be compacted: {refused}; table={address.uri}")
        self.write_only = options.get("write-only", "").lower() == "true"
        self._io, self._path, self._schema = self._located()
        self._table = self._made(self._paimon.table.CatalogEnvironment.empty(), {"write-only": "false"})

    def _located(self) -> tuple[Any, Any, Any]:
        paimon = self._paimon
        given = self._address.options
        if _on_s3(self._address.uri):
            given = java_options(given, os.environ)
        options = paimon.options.Options.fromMap(dict(given))
        path = paimon.fs.Path(self._address.uri)
        io = paimon.fs.FileIO.get(path, paimon.catalog.CatalogContext.create(options))
        return io, path, paimon.schema.SchemaManager(io, path).latest().get()

    def _made(self, environment: Any, options: dict[str, str]) -> Any:
        create = self._paimon.table.FileStoreTableFactory.create
        return create(self._io, self._path, self._schema, environment).copy(options)

    # computing

    def plan(self, *, full: bool) -> list[Unit]:
        if self._is_unaware():
            return [self._group(task) for task in self._groups()]
        trigger = int(self._table.coreOptions().numSortedRunCompactionTrigger())
        dynamic = has_dynamic_buckets(self._python_table)
        return [
            Unit(entry, scope=self._partition(entry.partition()) if dynamic else ())
            for entry in self._table.newSnapshotReader().bucketEntries()
            if may_compact(int(entry.fileCount()), trigger, full=full)
        ]

    def compute(
        self, units: Iterable[Unit], messages: list[Any], check: Callable[[], None], *, full: bool
    ) -> None:
        """Write the compacted files, which no reader sees, and add their commit messages. `check` raises to end it."""
        write = (self._table.store() if self._is_unaware() else self._table).newWrite(self._user)
        try:
            if self._is_unaware():
                for unit in units:
                    check()
                    messages.append(unit.java.doCompact(self._table, write))
                return
            write.withIOManager(self._paimon.disk.IOManager.create(self._spill))
            for unit in units:
                check()
                write.compact(unit.java.partition(), unit.java.bucket(), full)
            check()
            prepared = write.prepareCommit(True, UNNUMBERED)  # noqa: FBT003 - Java has no keyword arguments
            messages.extend(message for message in prepared if not message.isEmpty())
        finally:
            write.close()

    def _is_unaware(self) -> bool:
        return str(self._table.bucketMode().toString()) == _UNAWARE

    def _groups(self) -> Iterator[Any]:
        coordinator = self._paimon.append.AppendCompactCoordinator(self._table, False)  # noqa: FBT003 - Java's
        for _ in range(MAX_PLANS):
            yield from coordinator.run()
            if not coordinator.batchRemainFiles():
                return

    def _group(self, task: Any) -> Unit:
        markers = tuple(self._deletes(task.partition(), task.compactBefore()))
        return Unit(task, markers, markers)

    def _partition(self, partition: Any) -> tuple[Marker, ...]:
        path = self._partition_path(partition)
        return (Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="delete"),)

    def markers(self, messages: Iterable[Any]) -> tuple[Marker, ...]:
        """Return the files that the messages remove from the table."""
        return tuple(
            marker
            for message in messages
            for marker in self._deletes(message.partition(), message.compactIncrement().compactBefore())
        )

    def _partition_path(self, partition: Any) -> str:
        from pypaimon.table.row.generic_row import GenericRowDeserializer

        table = self._python_table
        row = bytes(self._paimon.utils.SerializationUtils.serializeBinaryRow(partition))
        values = GenericRowDeserializer.from_bytes(row, table.partition_keys_fields).values
        return partition_path(table, tuple(values))

    def _deletes(self, partition: Any, files: Iterable[Any]) -> Iterator[Marker]:
        path = self._partition_path(partition)
        for file in files:
            yield Marker(partition=path, file_group=str(file.fileName()), operation="delete")

    def remove(self, messages: Iterable[Any]) -> None:
        """Delete the files of messages that are not committed and never will be."""
        paths = self._table.store().pathFactory()
        for message in messages:
            factory = paths.createDataFilePathFactory(message.partition(), message.bucket())
            indexes = paths.indexFileFactory(message.partition(), message.bucket())
            change = message.compactIncrement()
            for index in change.newIndexFiles():
                self._io.deleteQuietly(indexes.toPath(str(index.fileName())))
            kept = {str(file.fileName()) for file in change.compactBefore()}
            for file in (*change.compactAfter(), *change.changelogFiles()):
                if str(file.fileName()) not in kept:
                    for path in file.collectFiles(factory):
                        self._io.deleteQuietly(path)

    # committing

    def small_manifests(self) -> bool:
        """Return whether the newest snapshot has so many small manifests that they should be merged."""
        from pypaimon.manifest.manifest_list_manager import ManifestListManager

        table = self._python_table
        snapshot = table.snapshot_manager().get_latest_snapshot()
        if snapshot is None:
            return False
        options = self._table.coreOptions()
        sizes = [int(manifest.file_size) for manifest in ManifestListManager(table).read_all(snapshot)]
        return worth_merging(
            sizes,
            target=int(options.manifestTargetSize().getBytes()),
            least=int(options.manifestMergeMinCount()),
        )

    def commit(
        self, messages: list[Any] | None, *, transaction: str, token: int, check: Callable[[], None]
    ) -> PublishedSnapshot | None:
        """Commit the messages, or, if there are none (`None`), the merge of all small manifests, as one snapshot.

        Return None if there was nothing to merge. Raise `NothingPublished`; any other error leaves the outcome unknown.
        `check` raises to refuse, before each put.
        """
        with before_the_put():
            accept_callbacks(self._gateway)
            name = CommitName(self._user, UNNUMBERED, transaction)
            labels = {TRANSACTION: transaction, GRANT_TOKEN: str(token)}
            fenced = FencedCommit(self._python_table, name, check, body=_with_java_fields)
            catalog = FencedCatalog(self._gateway.jvm, self._table, fenced, labels)
            paimon = self._paimon
            identifier = paimon.catalog.Identifier.create("default", "table")
            environment = paimon.table.CatalogEnvironment(
                identifier,
                None,
                catalog,
                None,
                None,
                None,
                True,  # noqa: FBT003 - it manages the versions
                False,  # noqa: FBT003 - and no partitions
            )
            table = self._made(environment, {"write-only": "true", "commit.max-retries": "0"})
            committer = table.newCommit(self._user)

        def publish() -> None:
            if messages is None:
                committer.compactManifests()
            else:
                committer.commit(UNNUMBERED, messages)

        try:
            return run_fenced(fenced, lambda: catalog.until_decided(publish), _files_gone)
        finally:
            committer.close()


class FencedCatalog:
    """Java's `Catalog` for one commit, and its `CatalogLoader`: it publishes by `FencedCommit`."""

    def __init__(self, jvm: Any, table: Any, fenced: FencedCommit, labels: dict[str, str]) -> None:
        self._jvm = jvm
        self._table = table
        self._fenced = fenced
        self._labels = labels
        self._taken = False
        self._refused: CommitRefused | None = None

    def until_decided(self, publish: Callable[[], None]) -> None:
        """Run Java's commit, again as long as another commit has taken the snapshot's id. Raise what refused it."""
        for _ in range(MAX_TRIES):
            self._taken = False
            try:
                publish()
            except Exception:
                if self._refused is not None:
                    raise self._refused from None
                if not self._taken:
                    raise
            else:
                return
        raise RuntimeError(f"other commits took the id of the snapshot {MAX_TRIES} times")

    # what Java calls

    def load(self) -> FencedCatalog:
        return self

    def commitSnapshot(self, identifier: Any, uuid: Any, snapshot: Any, statistics: Any) -> bool:  # noqa: ARG002
        """Publish a snapshot. Return whether it is in the table. If not, Java removes the manifests that it merged for it."""
        from pypaimon.common.json_util import JSON
        from pypaimon.snapshot.snapshot import Snapshot

        text = str(snapshot.toJson())
        python_snapshot = JSON.from_json(text, Snapshot)
        python_snapshot.java_text = text
        python_snapshot.properties = {**(python_snapshot.properties or {}), **self._labels}
        try:
            published = self._fenced.commit(None, python_snapshot, None)
        except CommitRefused as refused:
            self._refused = refused
            if self._fenced.unanswered:
                raise RuntimeError(str(refused)) from None
            return False
        self._taken = not published
        return published

    def loadSnapshot(self, identifier: Any) -> Any:  # noqa: ARG002 - there is one table
        """Return the newest snapshot, read from the store."""
        found = self._table.snapshotManager().latestSnapshotFromFileSystem()
        optional = self._jvm.java.util.Optional
        if found is None:
            return optional.empty()
        return optional.of(self._jvm.org.apache.paimon.table.TableSnapshot(found, 0, 0, 0, 0))

    def close(self) -> None:
        """There is nothing to close."""

    def toString(self) -> str:
        return "lakewarden"

    class Java:
        """Read by py4j."""

        implements = ("org.apache.paimon.catalog.Catalog", "org.apache.paimon.catalog.CatalogLoader")


def _with_java_fields(snapshot: Any) -> bytes:
    """Return Java's own JSON of the snapshot with the properties of pypaimon's: one of both may not know all fields."""
    return json.dumps(
        {**json.loads(snapshot.java_text), "properties": snapshot.properties}, indent=2
    ).encode()


def _files_gone(error: Exception) -> BaseChanged | None:
    """Return the error for files that aren't in the table any more, or None if Java's commit failed for another reason."""
    texts = [str(each.getMessage()) for each in java_causes(error)]
    if not any(FILES_CONFLICT in text for text in texts):
        return None
    return BaseChanged(
        f"files of this compaction are gone: another commit rewrote them; nothing was published; {java_text(error)}"
    )
