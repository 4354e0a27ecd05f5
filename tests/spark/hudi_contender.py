"""One party of those that write one Hudi table on S3 at the same time, each in a process and a JVM of its own.

| role | what it does |
| --- | --- |
| `create` | creates the table, merge on read, with its first rows, and ends |
| `gate` | a streaming query through the gate, started again when it dies |
| `plain` | upserts batch after batch with Hudi alone, and repeats what Hudi refused |
| `compact` | compacts again and again, by Hudi's procedure |
| `check` | writes what the table has, and ends |

The batches are those of `tests/bench/peers/workload.py`: every party updates rows in the same file groups, but none that another
one updates. `gate`, `plain` and `compact` work until the file `stop` exists, then finish what they have begun. Each may be killed
or suspended at any time, and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs import CommitGate, HudiSink
from tests.bench.peers.workload import FIRST_ROWS, SCHEMA
from tests.spark.hudi_s3 import LOCK, PLAIN, SHARED, filesystem_on_s3, session_on_s3
from tests.spark.sinks.cases import HUDI_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_FILES = {"hoodie.parquet.small.file.limit": "0"}
"""By default, Hudi puts inserts into a small file group and writes its base file again, so there is nothing to compact."""

KEYS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.compact.inline": "false",  # by default, Hudi's DataSource compacts after five commits of its own
} | LOG_FILES
COMPACTION = {"hoodie.compact.inline.max.delta.commits": "3"}
PAUSE_SECONDS = (4.0, 12.0)
"""Between two batches of `plain`, and between two compactions: they know no queue, and would leave the others no time."""


class Stopped(Exception):
    """The test asked the parties to end."""


class Party:
    """What the roles share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(options.folder)
        self.table = f"s3a://{options.bucket}/trips"
        self.endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
        self.spark: SparkSession = session_on_s3(
            f"contender-{options.name}",
            options.jars,
            self.endpoint,
            **{
                "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
            },
        )

    def stopping(self) -> bool:
        return (self.folder / "stop").exists()

    def pause(self) -> None:
        deadline = time.monotonic() + random.uniform(*PAUSE_SECONDS)
        while time.monotonic() < deadline and not self.stopping():
            time.sleep(0.2)

    def count(self, what: str) -> None:
        """Record that something happened, for the test."""
        with (self.folder / f"{self.options.name}.{what}").open("a") as file:
            file.write(f"{time.time():.1f}\n")

    def log(self, text: str) -> None:
        print(f"{time.strftime('%T')} {self.options.name}: {text[:600]}", file=sys.stderr, flush=True)

    def sink(self) -> HudiSink:
        options = HUDI_OPTIONS | LOCK | LOG_FILES
        return HudiSink(self.table, options=options, filesystem=filesystem_on_s3(self.endpoint))

    def write_plainly(self, rows: DataFrame, options: dict[str, str]) -> None:
        rows.write.format("hudi").options(**options | KEYS).mode("append").save(self.table)


def create(party: Party) -> None:
    party.write_plainly(party.spark.read.parquet(str(party.folder / "source" / FIRST_ROWS)), PLAIN)


def gate(party: Party) -> None:
    options = party.options
    source = party.folder / "source" / options.number
    with CommitGate(
        options.bootstrap_servers,
        topic_prefix=options.topic_prefix,
        heartbeat_seconds=2.0,
        admission_timeout_seconds=600.0,
        grant_timeout_seconds=600.0,
        observer=lambda event: party.count(event.what),
    ) as gate:
        body = gate.foreach_batch(party.sink(), writer=options.name, max_attempts=100)

        def write(batch: DataFrame, number: int) -> None:
            if party.stopping():
                raise Stopped
            body(batch, number)

        stream = party.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        while not party.stopping():
            query = (
                stream.writeStream.foreachBatch(write)
                .option("checkpointLocation", str(party.folder / f"checkpoint-{options.name}"))
                .start()
            )
            try:
                query.awaitTermination()
            except Exception as error:  # noqa: BLE001 - whatever ended the query, its supervisor starts it again
                if not party.stopping():
                    party.count("died")
                    party.log(f"the query died: {error}")


def plain(party: Party) -> None:
    progress = party.folder / f"{party.options.name}.progress"
    while not party.stopping():
        number = int(progress.read_text()) if progress.exists() else 0
        source = party.folder / "source" / party.options.number / f"{number:04}.parquet"
        try:
            party.write_plainly(party.spark.read.schema(SCHEMA).parquet(str(source)), SHARED)
        except Exception as error:  # noqa: BLE001 - Hudi refused it, or the store failed: it writes it again
            party.count("refused")
            party.log(f"batch {number} was refused: {error}")
            continue
        new = progress.with_suffix(".new")
        new.write_text(str(number + 1))
        new.rename(progress)
        party.pause()


def compact(party: Party) -> None:
    options = ",".join(f"{key}={value}" for key, value in (SHARED | KEYS | COMPACTION).items())
    statement = (
        f"CALL run_compaction(op => 'scheduleAndExecute', path => '{party.table}', options => '{options}')"
    )
    while not party.stopping():
        try:
            rows = party.spark.sql(statement).collect()
            party.log(f"compactions: {rows}")
            for _ in rows:
                party.count("compacted")
        except Exception as error:  # noqa: BLE001 - as above
            party.count("refused")
            party.log(f"compaction was refused: {error}")
        party.pause()


def check(party: Party) -> None:
    counts = party.spark.read.format("hudi").load(party.table).groupBy("writer", "batch").count().collect()
    files: Any = party.sink()._files
    table = files._table()
    found = {
        "rows": [(row["writer"], row["batch"], row["count"]) for row in counts],
        "commits": [(each.writer, each.batch, each.transaction) for each in files._newest_first(table)],
        "pending": [(each.time, each.action) for each in files.instants() if each.state != "completed"],
        "lock": party.sink().lock,
    }
    (party.folder / "found.json").write_text(json.dumps(found))


ROLES: dict[str, Callable[[Party], None]] = {
    "create": create,
    "gate": gate,
    "plain": plain,
    "compact": compact,
    "check": check,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    for name in ("name", "number", "bucket", "jars", "folder", "bootstrap-servers", "topic-prefix"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    party = Party(options)
    party.count("started")
    ROLES[options.role](party)
    party.spark.stop()


if __name__ == "__main__":
    main()
