"""What the log of a Delta table says: its metadata, the batches that it has, and what was committed since a version.

All reading is done by Delta's own log store in the JVM, so it has the session's credentials, and sees what is durable now.
No Spark job runs, but for the first look at a long log. It relies on these facts about Delta 4.0:

- A batch is `txn` (`SetTransaction`) in the commit of its data: `appId` is the writer, `version` the batch id. The table
  keeps the last one of each writer. A writer's batch ids rise, so a smaller one is committed too.
- A commit names its transaction: `commitInfo.txnId`, a UUID that is new for each statement.
- `txn` survives RESTORE and CREATE OR REPLACE TABLE, although the rows don't. So the history of a version goes on at the target
  of a RESTORE, and begins at a replacement (`TableLog.history`).
- Commits are never changed. A version that has another file time or length is of another table at the same place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import transaction_of_delta
from lakewarden.handlers.maker import Winner, of_delta, winner_of
from lakewarden.spark_jobs.engine.java import elements, java_type
from lakewarden.spark_jobs.gate.errors import GateError
from lakewarden.spark_jobs.gate.outcome import EXPIRED
from lakewarden.spark_jobs.sinks.assignment import DEFAULT
from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
from lakewarden.spark_jobs.sinks.partitions import Partition, PartitionColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

DELTA_LOG = "org.apache.spark.sql.delta.DeltaLog"

GENERATED, NUMBERED = "delta.generationExpression", "delta.identity.start"
"""In the metadata of a column that a batch may lack. Numbered ones are identity columns."""

REACHED = "delta.identity.highWaterMark"
"""In the metadata of an identity column, the last number."""

FILLED_IN = {GENERATED: "which Delta generates as {}", DEFAULT: "for which Delta fills in the default {}"}
"""In the metadata of a column: what Delta stores in it if a batch lacks it."""

SQL_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
"""Types that a schema in JSON names otherwise than a DataFrame does. A column of the same type isn't cast."""

MOST_READ = 100
"""Commits that are read for the one to which a batch was lost, the newest."""

_STATUS = re.compile(
    r"\w+\{path=[^\n]*?/([^/;]+); isDirectory=(?:true|(?:false; length=(\d+); replication=\d+; blocksize=\d+)); "
    r"modification_time=(\d+);"
)
"""The text of a `FileStatus`. A line for each file is one call into the JVM, instead of eight for each."""

SHORT_LOG = 20
"""Commits up to which a log is read from its first one. A longer one is summed up by Delta, once per process."""


@dataclass(frozen=True, slots=True)
class CommitFile:
    """One JSON file of the log."""

    version: int
    modified: int
    length: int


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit says of a writer's batches."""

    batch: int | None
    """The one that it has."""
    rewinds: bool
    """Whether it removes commits from the table's history: a RESTORE, or a replacement of the table."""
    target: int | None
    """The version at which the history goes on then, -1 for a replacement."""


RESTORE = "RESTORE"
REPLACEMENTS = re.compile(r"(CREATE OR )?REPLACE TABLE.*|CLONE")
"""Values of `commitInfo.operation`, like `RESTORE`."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the sink needs of a table's metadata."""

    table_id: str
    """A UUID that is another one after the table was dropped and created again, or replaced."""
    fields: tuple[PartitionColumn, ...]
    """Its partition columns."""
    physical_names: dict[str, str]
    """Names of the partition columns in files, by their own names. They differ in tables with column mapping."""
    columns: StructType
    required: frozenset[str]
    """Columns that are NOT NULL."""
    filled_in: dict[str, str]
    """What Delta stores in each column that a batch lacks, as text."""
    numbered: frozenset[str]
    """Identity columns, in lower case."""
    configuration: dict[str, str]
    log: TableLog = field(compare=False)
    """Where it was read."""

    def paths_of(self, partitions: Iterable[Partition]) -> list[str]:
        """Return partitions as Delta spells them. Raise `ValueError` for a type or a value without a single spelling."""
        paths = PartitionPaths("delta", {field.column: field.value_type for field in self.fields})
        return [paths.path(partition) for partition in partitions]


@contextmanager
def _commits_in_the_log(location: str) -> Iterator[None]:
    """Raise `ValueError` if Delta refuses the table because a catalog keeps its commits.

    A release without the feature refuses its name. Others refuse access by path, which is the sink's, whatever the user gave.
    """
    try:
        yield
    except Exception as error:
        if re.search("CATALOG_MANAGED_TABLE|catalogManaged", str(error)) is None:
            raise
        raise ValueError(
            "the table's commits are kept by a catalog (feature catalogManaged), and this sink reads them in _delta_log; "
            f"write it without the gate; table={location}"
        ) from None


def commit_files(listed: Iterable[Sequence[Any]]) -> list[CommitFile]:
    """Return the commits among the files of a log, in order. Of each: name, length, time."""
    found = []
    for name, length, modified in listed:
        stem, _, suffix = str(name).partition(".")
        if suffix == "json" and stem.isdigit():
            found.append(CommitFile(int(stem), int(modified), int(length)))
    return sorted(found, key=lambda file: file.version)


class TableLog:
    """The log of the table at one location, for one Spark session."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Raise `ValueError` if there is no Delta table, or if a catalog keeps its commits."""
        self._spark = spark._jsparkSession
        self._new_path = java_type(spark, "org.apache.hadoop.fs.Path")
        self._new_uri = java_type(spark, "java.net.URI")
        self._delta_log = java_type(spark, DELTA_LOG)
        self._timestamp = java_type(spark, "java.sql.Timestamp")
        self._time_zone = java_type(spark, "java.util.TimeZone")
        self._path = self._new_path(location)
        with _commits_in_the_log(location):
            self.java = self._delta_log.forTable(self._spark, self._path)
            exists = self.java.tableExists()
        if not exists:
            raise ValueError(f"no Delta table: create it before the query starts; table={location}")
        self._conf = self.java.newDeltaHadoopConf()
        self._folder, self._store = self.java.logPath(), self.java.store()
        self._context = spark.sparkContext
        self.known: Metadata | None = None
        self._text = ""
        """What it was read from."""

    @property
    def is_current(self) -> bool:
        """Whether the Spark that it was read by still runs."""
        from pyspark import SparkContext

        return self._context is SparkContext._active_spark_context

    @property
    def jvm_zone(self) -> str:
        """The time zone of the JVM."""
        return str(self._time_zone.getDefault().getID())

    @property
    def data_path(self) -> str:
        """The table's folder, as Delta spells it."""
        return str(self.java.dataPath().toString())

    def snapshot(self) -> Any:
        with _commits_in_the_log(self._path.toString()):
            return self._delta_log.forTableWithSnapshot(self._spark, self._path)._2()

    def newest(self) -> int:
        """Return the newest version."""
        return int(self.snapshot().version())

    def summed_up(self, writer: str) -> int | None:
        """Return the writer's last batch by Delta's own summary of the log, which may take a Spark job."""
        found = self.snapshot().transactions().get(writer)
        return int(found.get()) if found.isDefined() else None

    def writers(self) -> list[str]:
        """Return the writers in Delta's summary."""
        return list(map(str, elements(self.snapshot().transactions().keys())))

    def metadata(self) -> Metadata:
        """Return the metadata of the newest version, and keep it as what is `known`."""
        return self._known_as(str(self.snapshot().metadata().json()))

    def _known_as(self, text: str) -> Metadata:
        self.known, self._text = self.parsed(text), text
        return self.known

    def parsed(self, text: str) -> Metadata:
        """Return what an action of Delta says, which is its JSON."""
        from pyspark.sql.types import StructType

        if self.known is not None and text == self._text:
            return self.known
        action = json.loads(text)["metaData"]
        schema = json.loads(action["schemaString"])
        for column in schema["fields"]:
            # Each commit that numbers rows changes it, and nothing else.
            column["metadata"].pop(REACHED, None)
        fields = {field["name"]: field for field in schema["fields"]}
        partitioned_by = action["partitionColumns"]
        types = {name: fields[name]["type"] for name in partitioned_by}
        return Metadata(
            table_id=action["id"],
            fields=tuple(
                PartitionColumn(name, SQL_NAMES.get(kind, kind), empty_is_null=True)
                for name, kind in types.items()
            ),
            physical_names={
                name: fields[name]["metadata"].get("delta.columnMapping.physicalName", name)
                for name in partitioned_by
            },
            columns=StructType.fromJson(schema),
            required=frozenset(name for name, field in fields.items() if not field["nullable"]),
            filled_in={
                name: text.format(field["metadata"][key])
                for name, field in fields.items()
                for key, text in FILLED_IN.items()
                if key in field["metadata"]
            },
            numbered=frozenset(
                name.lower() for name, field in fields.items() if NUMBERED in field["metadata"]
            ),
            configuration=action["configuration"],
            log=self,
        )

    def commits(self, since: int) -> list[CommitFile]:
        """Return the commits from version `since` on, in order."""
        first = self._new_path(self._folder, f"{since:020d}.json")
        lines = str(self._store.listFrom(first, self._conf).mkString("\n")).splitlines()
        listed = [match.groups() for match in map(_STATUS.match, lines) if match is not None]
        if len(listed) < len(lines):  # a file system with statuses of its own
            statuses = elements(self._store.listFrom(first, self._conf).toList())
            listed = [
                (each.getPath().getName(), each.getLen(), each.getModificationTime()) for each in statuses
            ]
        return commit_files(listed)

    def actions(self, version: int, kinds: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the actions of these kinds (`txn`, `add`, `commitInfo`, …) in a commit."""
        path = self._new_path(self._folder, f"{version:020d}.json")
        wanted = tuple(f'{{"{kind}"' for kind in kinds)
        for line in str(self._store.read(path, self._conf).mkString("\n")).split("\n"):
            if line.startswith(wanted):
                yield from json.loads(line).items()

    def version_of(self, transaction: str, since: int) -> int | None:
        """Return the version after `since` that this transaction of Delta committed, or None."""
        for file in reversed(self.commits(since + 1)):
            for _, action in self.actions(file.version, ["commitInfo"]):
                if action.get("txnId") == transaction:
                    return file.version
        return None

    def winner(self, since: int, own: str, error: str) -> Winner | None:
        """Return which commit after `since` an error of Delta's conflict check names by its id or version, else `winner_of` all.

        One with the label of transaction `own`, which has committed nothing, is another statement's of the same session.
        """
        found: list[Winner] = []
        files = self.commits(since + 1)
        for file in reversed(files[-MOST_READ:]):
            actions = list(self.actions(file.version, ["txn", "commitInfo"]))
            info = next((action for kind, action in actions if kind == "commitInfo"), {})
            commit = of_delta(info, actions).of_commit(f"version {file.version}", info.get("operation"))
            transaction = transaction_of_delta(info)
            found.append(Winner(commit, None if transaction == own else transaction))
            if f"at version {file.version}." in error or (info.get("txnId") or error + "?") in error:
                return found[-1]
        return winner_of(found) if len(found) == len(files) else None

    def files_since(self, version: int) -> set[str]:
        """Return the paths of all files that commits after `version` add."""
        return {
            action["path"]
            for file in self.commits(version + 1)
            for _, action in self.actions(file.version, ["add", "cdc"])
        }

    def delete(self, files: Iterable[str]) -> None:
        """Delete files of the table, by their paths in the log. One that is absent is no error."""
        folder = self.java.dataPath()
        file_system = folder.getFileSystem(self._conf)
        for file in files:
            relative = self._new_uri(file)
            if not relative.isAbsolute():  # a shallow clone refers to another table's files
                file_system.delete(self._new_path(folder, self._new_path(relative)), False)  # noqa: FBT003 - of Java

    def look(self, version: int, writer: str) -> Commit:
        batch, rewinds, target = None, False, None
        for kind, action in self.actions(version, ["txn", "commitInfo"]):
            if kind == "txn":
                batch = int(action["version"]) if action["appId"] == writer else batch
            elif action.get("operation") == RESTORE:
                rewinds, target = True, self._restored(version, action)
            elif REPLACEMENTS.fullmatch(str(action.get("operation"))):
                rewinds, target = True, -1
        return Commit(batch, rewinds, target)

    def history(self, writer: str) -> Iterator[tuple[int | None, str]]:
        """Yield the writer's batches in the history of the newest version, with their versions, the newest first.

        Last comes `EXPIRED` if older commits were removed. Delta's own summary has the last batch of them.
        """
        files = {file.version for file in self.commits(0)}
        version = max(files, default=-1)
        seen = rewound = False
        while version in files:
            commit = self.look(version, writer)
            if commit.batch is not None:
                seen = True
                yield commit.batch, str(version)
            rewound = rewound or commit.rewinds
            version = version - 1 if commit.target is None else commit.target
        if version < 0:
            return
        if rewound:
            raise GateError(
                "the table was restored, and its log no longer shows which batches it had before version "
                f"{version + 1}: it is unknown whether this one is among them; run `lakewarden ledger correct` with this batch "
                f"to skip it, and then with the batch before it if it is to be written; table={self.data_path} writer={writer}"
            )
        last = self.summed_up(writer)
        if not seen and last is not None:
            yield last, f"unknown, with batch {last} of the writer"
        yield EXPIRED, ""

    def _millis(self, moment: str) -> int:
        """Return the milliseconds of a time as Delta writes it, in the time zone of the JVM."""
        return int(self._timestamp.valueOf(moment).getTime())

    def _restored(self, version: int, commit: Mapping[str, Any]) -> int:
        """Return the version whose files the RESTORE in `version` has brought back. By a time, it is the newest one then.

        If the log no longer shows that one, it is older than the first one that the log shows.
        """
        parameters = commit["operationParameters"]
        if parameters.get("version") is not None:
            return int(parameters["version"])
        moment = self._millis(parameters["timestamp"])
        files = [file for file in self.commits(0) if file.version < version]
        for file in reversed(files):
            infos = [action for _, action in self.actions(file.version, ["commitInfo"])]
            times = [info["inCommitTimestamp"] for info in infos if "inCommitTimestamp" in info]
            if max(times or [file.modified]) <= moment:
                return file.version
        return files[0].version - 1 if files else version - 1


@dataclass(frozen=True, slots=True)
class _CommitSeen:
    file: CommitFile
    last_batch: int | None


class LastBatches:
    """Finds the last batch of a writer in the table. It remembers up to which commit it has looked, and reads only newer ones.

    Of a log that is long at the first look, only the last `SHORT_LOG` commits are searched for a RESTORE.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _CommitSeen] = {}
        self._own: dict[str, tuple[int, int]] = {}

    def note(self, writer: str, batch: int, version: str | None) -> None:
        """Remember the version in which this process has committed a batch: its file isn't read."""
        if version is not None:
            self._own[writer] = (int(version), batch)

    def last_batch(self, log: TableLog, writer: str) -> int | None:
        seen = self._seen.get(writer)
        if seen is not None:
            files = log.commits(seen.file.version)
            if files and files[0] == seen.file:
                return self._read(log, writer, files[1:], seen)
        return self._first_look(log, writer)

    def _first_look(self, log: TableLog, writer: str) -> int | None:
        version = log.newest()
        if version < SHORT_LOG:
            files = log.commits(0)
            if files and files[0].version == 0:
                return self._read(log, writer, files[1:], _CommitSeen(files[0], log.look(0, writer).batch))
        last = log.summed_up(writer)
        if last is not None and any(
            log.look(file.version, writer).rewinds for file in log.commits(version - SHORT_LOG)
        ):
            last = _newest(log, writer, last)
        files = log.commits(version)
        if not files or files[0].version != version:
            return last
        return self._read(log, writer, files[1:], _CommitSeen(files[0], last))

    def _read(self, log: TableLog, writer: str, files: list[CommitFile], seen: _CommitSeen) -> int | None:
        for file in files:
            own, batch = self._own.get(writer, (-1, None))
            known = own == file.version
            commit = Commit(batch, rewinds=False, target=None) if known else log.look(file.version, writer)
            last = seen.last_batch if commit.batch is None else commit.batch
            seen = _CommitSeen(file, _newest(log, writer, last) if commit.rewinds else last)
        self._seen[writer] = seen
        return seen.last_batch


def _newest(log: TableLog, writer: str, otherwise: int | None) -> int | None:
    """Return the writer's newest batch in the history of the newest version, if the log still shows it."""
    try:
        return next((batch for batch, _ in log.history(writer)), None)
    except GateError:
        return otherwise
