"""The sinks that the contract suite runs: for each a new table, its rows and files, and ways to disturb its publish."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pypaimon.index.index_file_handler import IndexFileHandler
from pypaimon.write.file_store_commit import FileStoreCommit
from pyspark.sql import DataFrame, SparkSession

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.hudi.metadata import decode
from lakewarden.spark_jobs import (
    DeltaSink,
    Grant,
    HudiSink,
    IcebergSink,
    OutcomeUnknown,
    PaimonSink,
    Sink,
)
from lakewarden.spark_jobs.engine.java import java_type
from lakewarden.spark_jobs.sinks.delta.connect import ServerStatement
from lakewarden.spark_jobs.sinks.delta.log import DELTA_LOG
from lakewarden.spark_jobs.sinks.delta.observer import CommitObserver
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.iceberg.driver import CheckedOperations, load, metadata_of
from lakewarden.spark_jobs.sinks.iceberg.metadata import BATCH, WRITER
from lakewarden.spark_jobs.sinks.paimon.commit import CommitRefused, FencedCommit
from lakewarden.spark_jobs.sinks.paimon.table import address
from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema
from tests.spark.cluster import ON_CLUSTER
from tests.spark.conftest import MakeTable, data_files_of, index_files_of, snapshots_of
from tests.spark.connect.server import ON_CONNECT
from tests.spark.formats import (
    HAS_DELTA,
    HAS_HUDI,
    HAS_ICEBERG,
    HUDI_TABLE_VERSION,
    ICEBERG_CATALOG,
    ICEBERG_FORMAT,
    iceberg_name,
    lists_newest_only,
    path_of,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"

COLUMNS = "month int, day int, flight long"

SCHEMA = pa.schema([("month", pa.int32()), ("day", pa.int32()), ("flight", pa.int64())])


def example(name: str) -> ModuleType:
    """Import a file of docs/examples."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch_of(spark: SparkSession, *flights: int) -> DataFrame:
    """A batch in one partition, `month=1/day=1`."""
    return spark.createDataFrame([(1, 1, flight) for flight in flights], COLUMNS)


HUDI_OPTIONS = {
    "hoodie.metadata.enable": "false",  # it doubles the time of a write
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.filesystem.expire": "1",  # of a driver that was killed
    # Without an ordering field, Hudi 0.15 looks for a column `ts`.
    **({"hoodie.datasource.write.precombine.field": "flight"} if HUDI_TABLE_VERSION == 6 else {}),
}

DEAD_AFTER_TEN_SECONDS = {
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "10",
}
"""For the single writer of a table, whose drivers are killed: Hudi takes a dead one for alive for two minutes."""


def make_sink(name: str, table: str) -> Sink:
    """Return the sink of this name for a table that exists, or for a folder."""
    if name == "hudi":
        options = HUDI_OPTIONS | DEAD_AFTER_TEN_SECONDS
        return HudiSink(table, keys=["flight"], partition_by=["month", "day"], options=options)
    if name == "parquet":
        sink: Sink = example("parquet_sink").ParquetSink(table)
        return sink
    table_format, _, named = name.partition("-")
    mode: Any = named
    keys = ["flight"] if mode == "upsert" else []
    if name in PAIMON_KEYED:
        return PaimonSink(table, mode="upsert")
    if table_format == "delta":
        return DeltaSink(table, mode=mode, keys=keys)
    if table_format == "iceberg":
        return IcebergSink(iceberg_name(SparkSession.active(), Path(table)), mode=mode, keys=keys)
    return PaimonSink(table, mode=mode, keys=keys)


PAIMON_KEYED: dict[str, dict[str, str]] = {
    "paimon-merge": {"bucket": "1"},
    "paimon-sums": {
        "bucket": "1",
        "merge-engine": "aggregation",
        "fields.passengers.aggregate-function": "sum",
    },
    "paimon-dynamic": {"bucket": "-1"},
}
"""The options of tables with a primary key, for upserts whose rules are `ordered`, `deleted-file` and `file-group`."""


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Let the next call of a function be one of `instead`, which gets the function and the arguments."""
    original = getattr(owner, name)

    def replaced(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        return instead(original, *arguments, **named)

    monkeypatch.setattr(owner, name, replaced)


class Killed(BaseException):
    """The end of a driver in a test: nothing that follows in its process may do something."""


def held_link(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[], object], owner: Any, name: str, target: int
) -> Callable[[], object]:
    """Hold a function that publishes by a hard link. `target`: the argument that is the new name."""
    held: list[Callable[[], object]] = []

    def hold(link: Callable[..., object], *arguments: Any, **named: Any) -> None:
        kept = Path(f"{arguments[target]}").parents[1] / f"kept-{uuid.uuid4()}"
        link(*arguments[:target], kept, *arguments[target + 1 :], **named)

        def carry_out() -> None:
            with suppress(FileExistsError):
                link(kept, arguments[target])

        held.append(carry_out)
        raise Killed

    once(monkeypatch, owner, name, hold)
    with pytest.raises(Killed):
        write()
    return held[0]


def publish_or_not(durable: bool, publish: Callable[..., object], *arguments: Any) -> None:
    """Raise, after the publish took effect or before."""
    if durable:
        publish(*arguments)
    raise OSError("connection reset")


class SinkCase(Protocol):
    """One sink on an empty table of its own."""

    sink: Any

    replaces: bool = False
    """Whether each batch replaces the rows of the batches before, as all of them are in one partition."""

    @property
    def last_check(self) -> tuple[Any, str]:
        """Owner and name of a function that a publish calls right before the sink checks its lease for the last time."""
        ...

    def flights(self) -> list[int]:
        """Return the key of every committed row, sorted."""
        ...

    def commits(self) -> list[tuple[str, int, str]]:
        """Return writer, batch id and transaction of every commit, the oldest first."""
        ...

    def orphans(self) -> set[str]:
        """Return the data files that no commit refers to."""
        ...

    def commit(self, flight: int, writer: str | None = None, batch_id: int | None = None) -> None:
        """Commit a row to the partition of `batch_of`, past the gate: as a foreign writer, or as the batch of one."""
        ...

    def before_the_last_check(self, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
        """Run `action` once in the next publish, before the sink checks its lease for the last time."""

        def acting(check: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            action()
            return check(*arguments, **named)

        once(monkeypatch, *self.last_check, acting)

    def fail_the_publish(self, monkeypatch: pytest.MonkeyPatch, *, durable: bool) -> None:
        """Let the next publish raise, after it took effect or before."""
        ...

    def hold_the_publish(
        self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]
    ) -> Callable[[], object]:
        """Let a driver die in its publish in `write`. Return what carries its last request out, as the store or catalog does."""
        ...

    def save(self) -> Callable[[], object]:
        """Return a function that rolls the table back to its present version, as often as it is called."""
        ...

    def expire(self) -> None:
        """Remove what the newest version doesn't need, as the format's own maintenance does without its grace period."""
        ...


class PaimonCase(SinkCase):
    def __init__(self, name: str, table: str) -> None:
        self._table = table
        self.sink: Any = make_sink(name, table)

    def flights(self) -> list[int]:
        """Rows that Paimon would merge count each: a batch that is in the table twice changes a sum."""
        opened = address(self._table).open()
        builder = opened.new_read_builder()
        splits = builder.new_scan().plan().splits()
        merged = {row["flight"] for row in builder.new_read().to_arrow(splits).to_pylist()}
        paths = [
            opened.file_io.to_filesystem_path(file.file_path) for split in splits for file in split.files
        ]
        files = [pq.ParquetFile(path) for path in paths]
        found = sorted(flight for file in files for flight in file.read(["flight"])["flight"].to_pylist())
        assert set(found) == merged, "readers find the rows"
        return found

    def commits(self) -> list[tuple[str, int, str]]:
        return [
            (snapshot.commit_user, snapshot.commit_identifier, snapshot.properties["lakewarden.transaction"])
            for snapshot in snapshots_of(self._table)
        ]

    def orphans(self) -> set[str]:
        opened = address(self._table).open()
        self.sink._sweep_leftovers(
            opened
        )  # as the next batch does: a worker of a cancelled task may have written since
        committed: set[str] = set()
        for snapshot in snapshots_of(self._table):
            scan = opened.copy({"scan.snapshot-id": str(snapshot.id)}).new_read_builder().new_scan()
            committed |= {file.file_name for split in scan.plan_for_write().splits() for file in split.files}
            committed |= {entry.index_file.file_name for entry in IndexFileHandler(opened).scan(snapshot)}
        return (data_files_of(self._table) | index_files_of(self._table)) - committed

    def commit(self, flight: int, writer: str | None = None, batch_id: int | None = None) -> None:
        opened = address(self._table).open()
        builder = opened.new_stream_write_builder()
        builder.commit_user = writer or f"{uuid.uuid4()}"
        write = builder.new_write()
        rows = pa.Table.from_pylist([{"month": 1, "day": 1, "flight": flight}], schema=arrow_schema(opened))
        write.write_arrow(rows)
        identifier = 1 if batch_id is None else batch_id
        builder.new_commit().commit(write.prepare_commit(identifier), identifier)

    def hold_the_publish(
        self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]
    ) -> Callable[[], object]:
        return held_link(monkeypatch, write, os, "link", 1)

    def save(self) -> Callable[[], object]:
        opened, newest = address(self._table).open(), snapshots_of(self._table)[-1].id
        return lambda: opened.rollback_to(newest)

    def expire(self) -> None:
        """pypaimon has no expiry. Files of old snapshots only cost space."""
        for snapshot in snapshots_of(self._table)[:-1]:
            (Path(self._table) / "snapshot" / f"snapshot-{snapshot.id}").unlink()

    @property
    def last_check(self) -> tuple[Any, str]:
        return FileStoreCommit, "_try_commit_once"

    def fail_the_publish(self, monkeypatch: pytest.MonkeyPatch, *, durable: bool) -> None:
        def failing(publish: Callable[..., bool], fenced: FencedCommit, *arguments: Any) -> bool:
            if durable:
                publish(fenced, *arguments)
            fenced.unanswered = True
            raise CommitRefused(OSError("connection reset"))

        once(monkeypatch, FencedCommit, "commit", failing)


class ParquetCase(SinkCase):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sink: Any = make_sink("parquet", str(folder))

    def flights(self) -> list[int]:
        commits = [self._folder / entry["data"] for _, entry in self.sink._commits()]
        return sorted(row["flight"] for data in commits for row in pq.read_table(data).to_pylist())

    def commits(self) -> list[tuple[str, int, str]]:
        return [
            (entry["writer"], entry["batch_id"], Path(entry["data"]).name)
            for _, entry in reversed(self.sink._commits())
        ]

    def orphans(self) -> set[str]:
        committed = {Path(entry["data"]).name for _, entry in self.sink._commits()}
        data = self._folder / "data"
        return {path.name for path in data.iterdir()} - committed if data.exists() else set()

    def commit(self, flight: int, writer: str | None = None, batch_id: int | None = None) -> None:
        data = self._folder / "data" / uuid.uuid4().hex
        data.mkdir(parents=True)
        pq.write_table(pa.table({"flight": [flight]}), data / "part-0.parquet")
        entry = {"writer": writer, "batch_id": batch_id, "data": str(data.relative_to(self._folder))}
        number = 1 + max((version for version, _ in self.sink._commits()), default=0)
        (self._folder / "manifests" / f"{number:08d}.json").write_text(json.dumps(entry))

    def hold_the_publish(
        self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]
    ) -> Callable[[], object]:
        return held_link(monkeypatch, write, os, "link", 1)

    def save(self) -> Callable[[], object]:
        manifests = self._folder / "manifests"
        kept = set(manifests.iterdir())

        def roll_back() -> None:
            for path in set(manifests.iterdir()) - kept:
                path.unlink()

        return roll_back

    def expire(self) -> None:
        """Every commit is needed."""

    @property
    def last_check(self) -> tuple[Any, str]:
        return self.sink, "_publish"

    def fail_the_publish(self, monkeypatch: pytest.MonkeyPatch, *, durable: bool) -> None:
        once(monkeypatch, self.sink, "_publish", partial(publish_or_not, durable))


class HudiCase(SinkCase):
    def __init__(self, folder: Path, spark: SparkSession | None) -> None:
        self._folder = folder
        self._spark = spark
        self._files = HudiFiles(f"file://{folder}")
        self.sink: Any = make_sink("hudi", str(folder))

    def flights(self) -> list[int]:
        slices: dict[str, tuple[str, str]] = {}
        for completion, metadata in self._completed():
            for stats in metadata["partitionToWriteStats"].values():
                slices.update({stat["fileId"]: (completion, stat["path"]) for stat in stats})
        files = [self._folder / path for _, path in slices.values() if path]
        return sorted(
            row
            for file in files
            for row in pq.ParquetFile(file).read(columns=["flight"])["flight"].to_pylist()
        )

    def commits(self) -> list[tuple[str, int, str]]:
        entries = [metadata["extraMetadata"].get("_lakewarden") for _, metadata in self._completed()]
        fields = [json.loads(entry) for entry in entries if entry is not None]
        return [(each["writer"], each["batch"], each["transaction"]) for each in fields]

    def orphans(self) -> set[str]:
        committed = {
            Path(stat["path"]).name
            for _, metadata in self._completed()
            for stats in metadata["partitionToWriteStats"].values()
            for stat in stats
            if stat["path"]
        }
        return {path.name for path in self._folder.rglob("*.parquet")} - committed

    def commit(self, flight: int, writer: str | None = None, batch_id: int | None = None) -> None:
        assert self._spark is not None, "only tests with a session write past the gate"
        options = dict(self.sink._options)
        if writer is not None:
            entry = {"writer": writer, "batch": batch_id, "transaction": "earlier"}
            options["_lakewarden"] = json.dumps(entry)
        batch = batch_of(self._spark, flight)
        batch.write.format("hudi").options(**options).mode("append").save(str(self._folder))

    def hold_the_publish(
        self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]
    ) -> Callable[[], object]:
        raise NotImplementedError("Hudi's timeline refuses no late instant")

    def save(self) -> Callable[[], object]:
        newest = max((each.completion or "", each.time) for each in self._files.instants() if each.writes)[1]
        with self._client() as client:
            client.savepoint(newest, "test", "")

        def roll_back() -> None:
            with self._client() as client:
                client.restoreToSavepoint(newest)

        return roll_back

    def expire(self) -> None:
        """The versions of files that the newest commit has replaced. Commits that go to the archive have a test of their own."""
        with self._client() as client:
            client.clean()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """Hudi's client for maintenance. Its SQL procedures need a table in a catalog, whose path may not have a `%`."""
        assert self._spark is not None, "only tests with a session maintain the table"
        hudi: Any = self._spark._jvm.org.apache.hudi  # type: ignore[union-attr]
        context = hudi.client.common.HoodieSparkEngineContext(self._spark.sparkContext._jsc)
        options = HUDI_OPTIONS | {"hoodie.clean.commits.retained": "1"}
        config = hudi.config.HoodieWriteConfig.newBuilder().withPath(str(self._folder)).withProps(options)
        client = hudi.client.SparkRDDWriteClient(context, config.build())
        try:
            yield client
        finally:
            client.close()

    @property
    def last_check(self) -> tuple[Any, str]:
        return Grant, "seconds_left"

    def fail_the_publish(self, monkeypatch: pytest.MonkeyPatch, *, durable: bool) -> None:
        from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite

        answer = HudiWrite.answer
        timeline = timeline_of(self._folder)
        away = timeline.with_name("away")

        def failing(write: HudiWrite, event: str, section: str) -> str:
            if event == "committed":
                monkeypatch.setattr(HudiWrite, "answer", answer)
                if durable:
                    raise OSError("connection reset")
                timeline.unlink()
                away.rename(timeline)
            said = answer(write, event, section)
            if event == "locked" and not durable:
                # Hudi can't write the completed instant where a file is in the way. It looks for conflicts there, too.
                timeline.rename(away)
                timeline.touch()
            return said

        monkeypatch.setattr(HudiWrite, "answer", failing)

    def _completed(self) -> list[tuple[str, dict[str, Any]]]:
        """Completion time and metadata of every commit, the oldest first."""
        found: list[tuple[str, Any]] = []
        for instant in self._files.instants():
            file = instant.file("completed")
            if file is not None and instant.writes:
                metadata = decode((timeline_of(self._folder) / file.name).read_bytes())
                found.append((instant.completion or instant.time, metadata))
        return sorted(found, key=lambda pair: pair[0])


def timeline_of(table: Path) -> Path:
    """Return the folder of a Hudi table's timeline."""
    layout_2 = table / ".hoodie" / "timeline"
    return layout_2 if HUDI_TABLE_VERSION > 6 else layout_2.parent


DELTA_STATEMENT = ServerStatement if ON_CONNECT else CommitObserver


class DeltaCase(SinkCase):
    """It reads the table without Spark: the log is JSON, and these tables have no checkpoint and no deletion vectors."""

    def __init__(self, name: str, table: Path) -> None:
        self._table = table
        self.replaces = name.endswith("overwrite")
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("month", "integer"), ("day", "integer"), ("flight", "long"))
        ]
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["month", "day"],
            "configuration": {},
        }
        actions: list[dict[str, Any]] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": metadata},
        ]
        (table / "_delta_log").mkdir(parents=True)
        first = table / "_delta_log" / f"{0:020d}.json"
        first.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
        self.sink = make_sink(name, str(table))

    def flights(self) -> list[int]:
        live: set[str] = set()
        for commit in self._log():
            live -= {action["path"] for kind, action in commit if kind == "remove"}
            live |= {action["path"] for kind, action in commit if kind == "add"}
        return sorted(
            flight
            for path in live
            for flight in pq.ParquetFile(self._table / path).read(["flight"])["flight"].to_pylist()
        )

    def commits(self) -> list[tuple[str, int, str]]:
        found = []
        for commit in self._log():
            actions = dict(commit)
            if "txn" in actions:
                label = json.loads(actions["commitInfo"].get("userMetadata", "{}"))
                found.append(
                    (
                        actions["txn"]["appId"],
                        actions["txn"]["version"],
                        label.get("lakewarden.transaction", ""),
                    )
                )
        return found

    def orphans(self) -> set[str]:
        committed = {action["path"] for commit in self._log() for kind, action in commit if kind == "add"}
        return {
            str(path.relative_to(self._table)) for path in self._table.rglob("part-*.parquet")
        } - committed

    def commit(self, flight: int, writer: str | None = None, batch_id: int | None = None) -> None:
        rows = batch_of(SparkSession.active(), flight).write.format("delta").mode("append")
        if writer is not None:
            rows = rows.option("txnAppId", writer).option("txnVersion", str(batch_id))
        # Delta allows one transaction at a time in a thread of the JVM, and this one may be in the middle of one.
        foreign = threading.Thread(target=rows.save, args=(str(self._table),))
        foreign.start()
        foreign.join()

    def hold_the_publish(
        self,
        monkeypatch: pytest.MonkeyPatch,
        write: Callable[[], object],
    ) -> Callable[[], object]:
        """The commit file is taken away after it was written."""
        write()
        newest = max((self._table / "_delta_log").glob("*.json"))
        kept = newest.replace(self._table / f"kept-{uuid.uuid4()}")
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        newest.with_suffix(".crc").unlink(missing_ok=True)
        java_type(SparkSession.active(), DELTA_LOG).clearCache()

        def carry_out() -> None:
            with suppress(FileExistsError):
                os.link(kept, newest)

        return carry_out

    def save(self) -> Callable[[], object]:
        newest = len(self._log()) - 1
        return lambda: self._sql(f"RESTORE TABLE TABLE_ TO VERSION AS OF {newest}")

    def expire(self) -> None:
        """Files that commits have removed. Those that no commit names may be a transaction's."""
        self._sql("VACUUM TABLE_ LITE RETAIN 0 HOURS")

    def _sql(self, statement: str) -> None:
        """In a thread of its own, for the same reason as in `commit`."""
        spark = SparkSession.active()
        unchecked = "spark.databricks.delta.retentionDurationCheck.enabled"

        def run() -> None:
            spark.conf.set(unchecked, "false")
            spark.sql(statement.replace("TABLE_", f"delta.`{self._table}`"))
            spark.conf.unset(unchecked)

        with ThreadPoolExecutor(1) as thread:
            thread.submit(run).result()

    @property
    def last_check(self) -> tuple[Any, str]:
        return DELTA_STATEMENT, "_last_check"

    def fail_the_publish(self, monkeypatch: pytest.MonkeyPatch, *, durable: bool) -> None:
        if ON_CONNECT and not durable:
            once(monkeypatch, ServerStatement, "_allow", _unanswered)
            return
        step = "_report" if durable else "_last_check"
        once(monkeypatch, DELTA_STATEMENT, step, partial(publish_or_not, False))  # noqa: FBT003 - it isn't called

    def _log(self) -> list[list[tuple[str, Any]]]:
        """Return the actions of every commit, the oldest first."""
        files = sorted((self._table / "_delta_log").glob("*.json"))
        return [
            [item for line in file.read_text().splitlines() for item in json.loads(line).items()]
            for file in files
        ]


def _unanswered(_allow: Callable[..., object], statement: Any) -> None:
    """The call that allows the commit is lost, and so is what the server answers later."""
    settle = statement._settle
    statement._settle = lambda _answer, error, beside: settle({}, error or statement._error, beside)
    statement._allowed = True
    raise OSError("connection reset")


class IcebergCase(SinkCase):
    def __init__(self, name: str, folder: Path, spark: SparkSession) -> None:
        self._spark = spark
        self.folder = folder
        self.replaces = name.endswith("overwrite")
        self._name = iceberg_name(self._spark, folder)
        location = f"LOCATION '{folder}' " if os.environ.get(ICEBERG_CATALOG) else ""
        self._spark.sql(
            f"CREATE TABLE {self._name} ({COLUMNS}) USING iceberg PARTITIONED BY (month, day) {location}"
            f"TBLPROPERTIES ('format-version'='{ICEBERG_FORMAT}')"
        )
        self.sink = make_sink(name, str(folder))
        self._files = Path(path_of(self.sink.table))

    def flights(self) -> list[int]:
        self._spark.sql(f"REFRESH TABLE {self._name}")
        return sorted(row.flight for row in self._spark.table(self._name).collect())

    def commits(self) -> list[tuple[str, int, str]]:
        metadata = metadata_of(self._spark, load(self._spark, self._name).operations().current())
        summaries = [snapshot.summary for snapshot in metadata.ancestors()]
        return [(one[WRITER], int(one[BATCH]), one[TRANSACTION]) for one in reversed(summaries)]

    def orphans(self) -> set[str]:
        """Metadata counts, too, but not the manifest lists of snapshots that aren't listed."""
        committed = {
            f"{file}" for kind in ("data", "delete") for file in self._paths(f"all_{kind}_files", "file_path")
        }
        committed |= self._paths("all_manifests", "path") | self._paths("snapshots", "manifest_list")
        files = {
            str(path)
            for path in self._files.rglob("*")
            if path.suffix in {".parquet", ".avro", ".puffin"}
            and not (lists_newest_only() and path.name.startswith("snap-"))
        }
        return files - committed

    def _paths(self, metadata: str, column: str) -> set[str]:
        rows = self._spark.sql(f"SELECT DISTINCT {column} FROM {self._name}.{metadata}").collect()  # noqa: S608
        return {path_of(row[0]) for row in rows}

    def commit(self, flight: int, writer: str | None = None, batch_id: int | None = None) -> None:
        rows = batch_of(self._spark, flight).writeTo(self._name)
        if writer is not None:
            rows = rows.option(f"snapshot-property.{WRITER}", writer)
            rows = rows.option(f"snapshot-property.{BATCH}", str(batch_id))
        rows.append()

    def hold_the_publish(
        self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]
    ) -> Callable[[], object]:
        """The request is that of a catalog which another session has: what this one reads doesn't change it."""
        held: list[Callable[[], object]] = []

        def hold(_swap: Callable[..., object], _: Any, _base: Any, metadata: Any) -> None:
            other = SparkSession(self._spark.sparkContext, self._spark._jsparkSession.cloneSession())
            operations = load(other, self._name).operations()
            base = operations.current()

            def carry_out() -> None:
                with suppress(Py4JJavaError):
                    operations.commit(base, metadata)

            held.append(carry_out)
            raise OSError("killed")  # Java calls this, and waits for an answer

        once(monkeypatch, CheckedOperations, "_swap", hold)
        with pytest.raises(OutcomeUnknown):
            write()
        return held[0]

    def save(self) -> Callable[[], object]:
        newest = load(self._spark, self._name).currentSnapshot().snapshotId()
        return lambda: self._call(f"rollback_to_snapshot('TABLE_', {newest})")

    def expire(self) -> None:
        if lists_newest_only():
            return
        self._call(
            "expire_snapshots(table => 'TABLE_', older_than => TIMESTAMP '9000-01-01 00:00:00', retain_last => 1)"
        )

    def _call(self, procedure: str) -> None:
        catalog, _, name = self._name.partition(".")
        self._spark.sql(f"CALL {catalog}.system.{procedure.replace('TABLE_', name)}").collect()

    @property
    def last_check(self) -> tuple[Any, str]:
        return CheckedOperations, "commit"

    def fail_the_publish(self, monkeypatch: pytest.MonkeyPatch, *, durable: bool) -> None:
        once(monkeypatch, CheckedOperations, "_swap", partial(publish_or_not, durable))


SINKS = [
    "paimon-append",
    "paimon-upsert",
    *PAIMON_KEYED,
    "parquet",
    *(["delta-append", "delta-upsert", "delta-overwrite"] if HAS_DELTA else []),
]

if HAS_HUDI:
    SINKS.append("hudi")
if HAS_ICEBERG:
    SINKS += ["iceberg-append", "iceberg-upsert", "iceberg-overwrite"]

IN_THE_MATRIX = {"delta-append", "delta-overwrite", "iceberg-append", "iceberg-overwrite", "paimon-sums"}
"""Upserts by the same sinks go through the same steps, and are in every run."""


CASES = [pytest.param(sink, marks=[pytest.mark.matrix] * (sink in IN_THE_MATRIX)) for sink in SINKS]


CATALOGS = ["rest", "nessie", "postgresql", "hive"] if HAS_ICEBERG and not ON_CLUSTER else []
"""Of Iceberg, besides Hadoop's."""


@pytest.fixture(
    params=[
        *CASES,
        *(pytest.param(f"iceberg-upsert@{catalog}", marks=pytest.mark.matrix) for catalog in CATALOGS),
    ]
)
def case(
    request: pytest.FixtureRequest,
    make_table: MakeTable,
    tmp_path: Path,
    spark: SparkSession,
    in_catalog: Callable[[str], None],
) -> SinkCase:
    """Each sink in turn, on a table in a folder whose name has what programs encode or decode.

    A sink for another format joins here, in `make_sink`, and in `mortal_driver.py`.
    """
    sink, _, catalog = request.param.partition("@")
    in_catalog(catalog)
    if ON_CLUSTER and sink.startswith(("paimon", "parquet")):
        request.getfixturevalue("monkeypatch").setattr(spark.sparkContext, "pythonExec", sys.executable)
    return make_case(sink, make_table, tmp_path / UNUSUAL_FOLDER, spark)


UNUSUAL_FOLDER = "50% a b+;=" if HUDI_TABLE_VERSION < 9 else "50% a b 中 u\u0308+;="
"""A legal part of a table's path. Hudi before 1.1 finds no file group in a folder with characters that aren't ASCII."""


def make_case(name: str, make_table: MakeTable, folder: Path, spark: SparkSession | None = None) -> SinkCase:
    """Return the sink of this name with an empty table."""
    if name == "hudi":
        return HudiCase(folder / "hudi", spark)
    if name == "parquet":
        return ParquetCase(folder / "parquet")
    if name.startswith("delta"):
        return DeltaCase(name, folder / "delta")
    if name.startswith("iceberg"):
        assert spark is not None, "Spark reads the table"
        return IcebergCase(name, folder / "warehouse" / "test" / "flights", spark)
    if name in PAIMON_KEYED:
        keyed = pa.schema([field.with_nullable(False) for field in SCHEMA])  # noqa: FBT003 - pyarrow's
        if name == "paimon-sums":
            keyed = keyed.append(pa.field("passengers", pa.int64()))
        table = make_table(
            folder=folder, schema=keyed, primary_keys=tuple(SCHEMA.names), **PAIMON_KEYED[name]
        )
        return PaimonCase(name, table)
    return PaimonCase(name, make_table(folder=folder, schema=SCHEMA))
