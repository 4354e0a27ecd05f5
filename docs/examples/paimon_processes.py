"""Four processes without Spark add to the same rows of one Paimon table on S3, and no addition is lost.

    pip install . 'pypaimon>=2.1,<2.2'
    export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_ENDPOINT_URL=http://localhost:7070
    python paimon_processes.py kafka:9092 s3://bucket/warehouse

An agent that allows the warehouse must run. Each batch reads two days, adds a trip to every row, and replaces the days'
files. Without the gate, two processes would read the same rows, and the later overwrite would remove the earlier one's trip.

- *The scope is declared.* A batch waits for the transactions that overlap its days, so no compute is wasted.
- *Each batch once.* The snapshot that publishes the rows names the batch in its properties, where `committed` finds it.
- *Retries* open a new transaction, because the first one may have lost its lease or its agent.
"""
# ruff: noqa: INP001, T201 - a script, whose output is read

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from lakewarden.spark_jobs import AlreadyCommitted, CommitGate, GateError, Marker, Transaction

PROCESSES, BATCHES, DAYS, ATTEMPTS = 4, 3, 3, 5
NAME = "city.trips"
BATCH_PROPERTY = "lakewarden.batch"
SCHEMA = pa.schema([("day", pa.int32()), ("zone", pa.string()), ("trips", pa.int64())])


def open_catalog(warehouse: str) -> Any:
    """Return the catalog. pypaimon has option names of its own for what the AWS variables say."""
    options = {
        "s3.access-key": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL", "https://s3.amazonaws.com"),
        "s3.region": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
        "s3.path-style-access": "true",
    }
    return CatalogFactory.create({"warehouse": warehouse, **options})


def table_uri(warehouse: str) -> str:
    """Return the table's URI: all writers must name it in the same way."""
    return f"{warehouse}/{NAME.replace('.', '.db/')}"


def read(table: Any, days: list[int]) -> pa.Table:
    """Return the rows of these days in the newest snapshot."""
    builder = table.new_read_builder()
    builder = builder.with_filter(builder.new_predicate_builder().is_in("day", days))
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def create_table(warehouse: str) -> None:
    """Create the table with a row for each day, without trips."""
    catalog = open_catalog(warehouse)
    catalog.create_database(NAME.partition(".")[0], ignore_if_exists=True)
    catalog.create_table(
        NAME, Schema.from_pyarrow_schema(SCHEMA, partition_keys=["day"]), ignore_if_exists=False
    )
    builder = catalog.get_table(NAME).new_batch_write_builder()
    write = builder.new_write()
    write.write_arrow(
        pa.Table.from_pylist([{"day": day, "zone": "centre", "trips": 0} for day in range(DAYS)], SCHEMA)
    )
    builder.new_commit().commit(write.prepare_commit())


def add_trips(table: Any, days: list[int], txn: Transaction) -> None:
    """Read the days, add a trip to each row, and replace the days' files under the grant."""
    rows = read(table, days)
    txn.check()
    added = pa.array([trips + 1 for trips in rows["trips"].to_pylist()], pa.int64())
    builder = table.new_batch_write_builder().overwrite()
    write = builder.new_write()
    write.write_arrow(rows.set_column(rows.schema.get_field_index("trips"), "trips", added).cast(SCHEMA))
    messages = write.prepare_commit()
    txn.on_discard(lambda: builder.new_commit().abort(messages))
    properties = {BATCH_PROPERTY: f"{txn.writer}:{txn.batch_id}"}
    with txn.commit() as grant:
        grant.check()  # right before the last step
        builder.new_commit().commit(messages, snapshot_properties=properties)
        grant.version = str(table.snapshot_manager().get_latest_snapshot().id)


def write_batches(brokers: str, warehouse: str, number: int) -> None:
    """One process: write its batches, each in a transaction of its own."""
    table, writer = open_catalog(warehouse).get_table(NAME), f"process-{number}"
    topic_prefix = os.environ.get("LAKEWARDEN_TOPIC_PREFIX", "lakewarden")

    def committed(writer: str, batch_id: int) -> str | None:
        for snapshot in table.snapshot_manager().list_snapshots():
            if (snapshot.properties or {}).get(BATCH_PROPERTY) == f"{writer}:{batch_id}":
                return str(snapshot.id)
        return None

    with CommitGate(brokers, topic_prefix=topic_prefix) as gate:
        for batch_id in range(BATCHES):
            days = sorted({(number + batch_id) % DAYS, (number + batch_id + 1) % DAYS})
            scope = [Marker(partition=f"day={day}", file_group="*", operation="merge") for day in days]
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    with gate.transaction(
                        table=table_uri(warehouse),
                        writer=writer,
                        batch_id=batch_id,
                        admission="queued",
                        scope=scope,
                        attempt=attempt,
                    ) as txn:
                        txn.recognise(committed)
                        add_trips(table, days, txn)
                    print(f"{writer} batch {batch_id}: added a trip to the rows of days {days}")
                    break
                except AlreadyCommitted:
                    break
                except GateError as error:
                    if not error.retriable or attempt == ATTEMPTS:
                        raise
                    print(f"{writer} batch {batch_id}: {error}")


def main(brokers: str, warehouse: str) -> int:
    """Create the table, run the processes, and compare the rows with what they added."""
    create_table(warehouse)
    commands = [[sys.executable, __file__, brokers, warehouse, str(number)] for number in range(PROCESSES)]
    processes = [subprocess.Popen(command) for command in commands]
    failed = sum(process.wait() != 0 for process in processes)
    expected = dict.fromkeys(range(DAYS), 0)
    for number in range(PROCESSES):
        for batch_id in range(BATCHES):
            for day in {(number + batch_id) % DAYS, (number + batch_id + 1) % DAYS}:
                expected[day] += 1
    rows = read(open_catalog(warehouse).get_table(NAME), list(range(DAYS))).to_pylist()
    found = {row["day"]: row["trips"] for row in rows}
    print(f"trips by day: {dict(sorted(found.items()))}, expected: {expected}")
    return int(bool(failed) or found != expected or len(rows) != DAYS)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        write_batches(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1], sys.argv[2]))
