"""What the demo runs on Spark: creates its tables, writes them by streaming queries, and reads them.

    python -m lakewarden.spark_jobs.jobs.demo PLAN ACTION

`lakewarden demo` starts it as processes and never imports it. PLAN is a JSON file of the demo, in the folder of its feeds.

| ACTION | what it does |
| --- | --- |
| `create` | creates each table in its first state |
| `<contest>-<feed>-<start>` | runs the query of a feed until its input is used up; prints the steps of its gate as JSON |
| `read` | writes the rows of each table, read by the format itself, as Parquet files to `rows/<contest>` |

Without an agent a query writes as pypaimon alone does, and prints the steps that it has. What the formats' own writers do is in
`make bench PEERS=…`.

| format | a table is | its first state |
| --- | --- | --- |
| Paimon | a folder of pypaimon's warehouse; no Spark to create or read it | empty |
| Delta Lake | a folder | empty |
| Iceberg | a table in a REST catalog | empty |
| Hudi | a folder | a row for each flight, with its keys only |

Both queries insert each flight. Two inserts of one new key into a Hudi table make two rows, in two file groups, with or without
the gate (docs/hudi.md). With the keys in the table, both queries are updates, and conflict by file groups.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.gate.observer import GateEvent, Step
from lakewarden.spark_jobs.jobs.options import log_warnings_to_stderr
from lakewarden.spark_jobs.jobs.spark_session import run_until_stopped, spark_session
from lakewarden.spark_jobs.jobs.table_formats import session_settings
from lakewarden.spark_jobs.sinks.contract import Sink
from lakewarden.spark_jobs.sinks.delta.sink import DeltaSink
from lakewarden.spark_jobs.sinks.hudi.sink import HudiSink
from lakewarden.spark_jobs.sinks.iceberg.sink import IcebergSink
from lakewarden.spark_jobs.sinks.paimon.sink import PaimonSink
from lakewarden.spark_jobs.sinks.releases import DELTA, HUDI, ICEBERG, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HEARTBEAT_SECONDS: Final = 2.0
"""Shorter than the default, because the demo's batches take seconds."""
ICEBERG_CATALOG: Final = "lake"
HUDI_OPTIONS: Final = {
    "hoodie.metadata.enable": "false",  # it doubles the time of these small writes
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteNonDefaultsWithLatestAvroPayload",
}
_MERGED: Final = {
    "bucket": "1",
    "file.format": "parquet",
    "merge-engine": "partial-update",  # each query has columns of its own
    "num-sorted-run.compaction-trigger": "2",  # 5 by default; a day gets about four files
    "write-only": "true",  # so that only the compactor compacts
}
"""Options of a Paimon table with a primary key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the demo has decided."""

    folder: Path
    """It has `feeds/<feed>`, and the tables below `warehouse`."""
    form: str
    primary_key: bool
    """Whether the tables have one. Only Paimon's."""
    columns: dict[str, str]
    """Types as in SQL."""
    keys: Sequence[str]
    partition_by: Sequence[str]
    files_per_batch: int
    tables: dict[str, str]
    """URI by contest, which is named like its admission."""
    bootstrap_servers: str | None
    """None: without an agent."""
    catalog: str | None
    """URI of Iceberg's REST catalog."""


class DemoFormat(ABC):
    """What the actions need of one format."""

    def __init__(self, plan: Plan, *, downloaded: bool = True) -> None:
        """`downloaded`: an earlier session has downloaded the jars."""
        self.plan, self._downloaded = plan, downloaded

    @cached_property
    def spark(self) -> SparkSession:
        """A session that writes the tables. Raises `UnsupportedSpark` if this environment can't have one."""
        return spark_session("lakewarden-demo")

    @abstractmethod
    def create(self, table: str, /) -> None:
        """Create the table in its first state."""

    @abstractmethod
    def export(self, table: str, folder: Path, /) -> None:
        """Write the rows of the table, read by the format itself, as Parquet files."""

    @abstractmethod
    def sink(self, table: str, /) -> Sink:
        """The sink of a query."""

    def stream(self, rows: DataFrame, /) -> DataFrame:
        return rows


class Paimon(DemoFormat):
    """Paimon, by pypaimon."""

    @cached_property
    def _catalog(self) -> Any:
        from pypaimon import CatalogFactory

        return CatalogFactory.create({"warehouse": f"file://{self.plan.folder}/warehouse"})

    @cached_property
    def _schema(self) -> Any:
        import pyarrow as pa

        types, keys = {"int": pa.int32(), "string": pa.string()}, self.plan.keys
        nullable = {name: not (self.plan.primary_key and name in keys) for name in self.plan.columns}
        return pa.schema(
            [pa.field(each, types[kind], nullable[each]) for each, kind in self.plan.columns.items()]
        )

    def create(self, table: str, /) -> None:
        from pypaimon import Schema

        keyed = self.plan.primary_key
        schema = Schema.from_pyarrow_schema(
            self._schema,
            partition_keys=list(self.plan.partition_by),
            primary_keys=list(self.plan.keys) if keyed else None,
            # Without keys, the queries upsert by rewriting whole partitions, which causes their conflicts.
            options=_MERGED if keyed else {"bucket": "-1", "file.format": "parquet"},
        )
        self._catalog.create_database("demo", ignore_if_exists=True)
        self._catalog.create_table(f"demo.{_name(table)}", schema, ignore_if_exists=False)

    def export(self, table: str, folder: Path, /) -> None:
        from pyarrow import parquet

        builder = self._catalog.get_table(f"demo.{_name(table)}").new_read_builder()
        splits = builder.new_scan().plan().splits()
        rows = builder.new_read().to_arrow(splits) if splits else self._schema.empty_table()
        folder.mkdir(parents=True)
        parquet.write_table(rows, folder / "rows.parquet")

    def sink(self, table: str, /) -> PaimonSink:
        return PaimonSink(table, mode="upsert", keys=self.plan.keys)


class OnSpark(DemoFormat):
    """A format that Spark creates and reads."""

    releases: TableFormat
    memory = "512m"

    @cached_property
    def spark(self) -> SparkSession:
        import pyspark
        from pyspark.errors import PySparkException

        jar = self.releases.jar(pyspark.__version__)
        if jar is None:
            raise self.releases.missing(pyspark.__version__)
        settings: dict[str, Any] = dict(self.settings())
        try:
            return spark_session(
                "lakewarden-demo", memory=self.memory, packages=[jar], downloaded=self._downloaded, **settings
            )
        except PySparkException as error:
            raise UnsupportedSpark(
                f"Spark did not start with {jar}: without a copy in ~/.ivy2 (Spark 4: ~/.ivy2.5.2) it comes from Maven "
                "Central, which must be reachable; the lines above have Ivy's and the JVM's own errors"
            ) from error

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The settings of the session."""

    @abstractmethod
    def name(self, table: str, /) -> str:
        """The table's name in SQL."""

    def location(self, _table: str, /) -> str:
        return ""

    def create(self, table: str, /) -> None:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.plan.columns.items())
        partitions = ", ".join(self.plan.partition_by)
        self.spark.sql(
            f"CREATE TABLE {self.name(table)} ({columns}) USING {self.plan.form} PARTITIONED BY ({partitions})"
            f"{self.location(table)}"
        )

    def read(self, table: str, /) -> DataFrame:
        return self.spark.table(self.name(table))

    def export(self, table: str, folder: Path, /) -> None:
        self.read(table).write.parquet(str(folder))


class Delta(OnSpark):
    """Delta Lake, by path."""

    releases = DELTA

    def settings(self) -> dict[str, str]:
        # Of the jobs that compute a table's state: 50 tasks by default.
        return session_settings("delta") | {"spark.databricks.delta.snapshotPartitions": "2"}

    def name(self, table: str, /) -> str:
        return f"delta.`{table}`"

    def sink(self, table: str, /) -> Sink:
        return DeltaSink(table, mode="upsert", keys=self.plan.keys)


class Iceberg(OnSpark):
    """Iceberg, in a REST catalog."""

    releases = ICEBERG

    def settings(self) -> dict[str, str]:
        catalog = f"spark.sql.catalog.{ICEBERG_CATALOG}"
        return session_settings("iceberg") | {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "rest",
            f"{catalog}.uri": str(self.plan.catalog),
        }

    def name(self, table: str, /) -> str:
        return f"{ICEBERG_CATALOG}.demo.{_name(table)}"

    def location(self, table: str, /) -> str:
        return f" LOCATION '{table}'"

    def create(self, table: str, /) -> None:
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {ICEBERG_CATALOG}.demo")
        super().create(table)

    def sink(self, table: str, /) -> Sink:
        return IcebergSink(self.name(table), mode="upsert", keys=self.plan.keys)


class Hudi(OnSpark):
    """Hudi, by path: copy on write. A NULL of a batch leaves the value that the table has."""

    releases = HUDI
    memory = "1g"

    def settings(self) -> dict[str, str]:
        return {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}

    def name(self, table: str, /) -> str:
        return f"hudi.`{table}`"

    def create(self, table: str, /) -> None:
        plan = self.plan
        keys = self.spark.read.parquet(str(plan.folder / "feeds" / "departures")).select(*plan.keys)
        options = HUDI_OPTIONS | {
            "hoodie.table.name": _name(table),
            "hoodie.datasource.write.operation": "insert",
            "hoodie.datasource.write.recordkey.field": ",".join(
                key for key in plan.keys if key not in plan.partition_by
            ),
            "hoodie.datasource.write.partitionpath.field": ",".join(plan.partition_by),
            "hoodie.datasource.write.hive_style_partitioning": "true",
        }
        rows = _with_all_columns(keys, plan.columns)
        rows.write.format("hudi").options(**options).mode("append").save(table)

    def read(self, table: str, /) -> DataFrame:
        return self.spark.read.format("hudi").load(table)

    def sink(self, table: str, /) -> Sink:
        return HudiSink(table, options=HUDI_OPTIONS)

    def stream(self, rows: DataFrame, /) -> DataFrame:
        """Hudi writes whole records: the columns of the other query are NULL."""
        return _with_all_columns(rows, self.plan.columns)


FORMATS: Final[dict[str, type[DemoFormat]]] = {
    "paimon": Paimon,
    "delta": Delta,
    "hudi": Hudi,
    "iceberg": Iceberg,
}


def _name(table: str) -> str:
    return table.rpartition("/")[2]


def _with_all_columns(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Return the rows with these columns, NULL where they have none."""
    from pyspark.sql import functions as f

    given = set(rows.columns)
    return rows.select(
        *(
            f.col(name) if name in given else f.lit(None).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )


def _print_step(event: GateEvent) -> None:
    sys.stdout.write(json.dumps(asdict(event), default=str) + "\n")
    sys.stdout.flush()


def _without_agent(sink: PaimonSink, writer: str) -> Callable[[DataFrame, int], None]:
    """A batch function that uses no agent. It prints its steps as the gate would."""

    def write(batch: DataFrame, batch_id: int) -> None:
        transaction = uuid.uuid4().hex

        def note(what: Step, **detail: Any) -> None:
            _print_step(GateEvent(time.time(), what, sink.table, writer, transaction, batch_id, 1, detail))

        note("intent")
        try:
            version = sink.write(batch, batch_id)
        except Exception as error:
            note("failed", error=str(error)[:500])
            raise
        note("completed", version=version)

    return write


def start(form: DemoFormat, contest: str, feed: str) -> StreamingQuery:
    """Start the query of a feed."""
    plan, spark, table = form.plan, form.spark, form.plan.tables[contest]
    sink = form.sink(table)
    if plan.bootstrap_servers is None:
        assert isinstance(sink, PaimonSink)
        write = _without_agent(sink, feed)
    else:
        gate = CommitGate(plan.bootstrap_servers, heartbeat_seconds=HEARTBEAT_SECONDS, observer=_print_step)
        admission: Any = contest
        write = gate.foreach_batch(sink, writer=feed, admission=admission)
    files = str(plan.folder / "feeds" / feed)
    source = (
        spark.readStream.schema(spark.read.parquet(files).schema)
        .option("maxFilesPerTrigger", plan.files_per_batch)
        .parquet(files)
    )
    return (
        form.stream(source)
        .writeStream.queryName(feed)
        .foreachBatch(write)
        .option("checkpointLocation", str(plan.folder / "checkpoints" / f"{contest}-{feed}"))
        .trigger(availableNow=True)
        .start()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one action. The last line on stderr says why, if it fails."""
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.jobs.demo", description=__doc__.split("\n")[0]
    )
    parser.add_argument("plan", type=Path, help="JSON file of the demo")
    parser.add_argument("action", help="create, read, or <contest>-<feed>-<start>")
    options = parser.parse_args(argv)
    log_warnings_to_stderr()
    plan = Plan(folder=options.plan.parent, **json.loads(options.plan.read_text()))
    form = FORMATS[plan.form](plan, downloaded=options.action != "create")
    if options.action not in ("create", "read"):
        contest, feed, _ = options.action.split("-")
        return run_until_stopped(lambda: start(form, contest, feed), name=f"the {feed} query")
    try:
        for contest, table in plan.tables.items():
            if options.action == "create":
                form.create(table)
            else:
                form.export(table, plan.folder / "rows" / contest)
    except UnsupportedSpark as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is the program's output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
