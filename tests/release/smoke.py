"""Tries an installed lakewarden, alone in an empty folder: `python smoke.py EXTRA KAFKA PAGE TABLES`. Prints what it tried.

It imports nothing of the clone, and runs once in the environment of each extra.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import lakewarden.events
from lakewarden.spark_jobs import CommitGate

EXTRA, KAFKA, PAGE, TABLES = sys.argv[1:]
NEEDED = {
    "metrics": "lakewarden.spark_jobs.gate.metrics",
    "otel": "lakewarden.spark_jobs.gate.metrics",
    "google": "lakewarden.events.access.google",
    "catalogs": "pyiceberg.catalog.sql",
}


# Spark starts its workers as `python3`, which is another Python where no environment is active.
os.environ["PYSPARK_PYTHON"] = sys.executable


def main() -> None:
    """One commit by the gate with every extra, then what the extra is for."""
    origin = Path(lakewarden.events.__file__)
    if not origin.is_relative_to(sys.prefix):
        raise SystemExit(f"lakewarden is not the installed one: {origin}")
    table = Path(TABLES).resolve().as_uri() + f"/{EXTRA or 'nothing'}"
    tried = [commit(table)]
    if module := NEEDED.get(EXTRA):
        importlib.import_module(module)
        tried.append(f"import {module}")
    if EXTRA == "spark":
        tried.append(stream(table))
    if EXTRA == "paimon":
        tried.append(paimon())
    if EXTRA == "hudi":
        tried.append(hudi())
    if EXTRA in ("agent", "dev"):
        tried += commands(table)
    else:
        tried.append(command_line_is_missing())
    sys.stdout.write(", ".join(tried) + "\n")


def commit(table: str) -> str:
    """Commit one batch by the gate of plain Python."""
    with CommitGate(KAFKA) as gate, gate.transaction(table=table, writer="smoke", batch_id=0) as txn:
        txn.touch("day=1", "file", "create")
        with txn.commit() as grant:
            grant.version = "1"
    return "a commit by the gate"


def stream(table: str) -> str:
    """Run a streaming query of one batch."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").getOrCreate()
    seen: list[int] = []
    with CommitGate(KAFKA) as gate:
        write = gate.foreach_batch(lambda batch, _: seen.append(batch.count()), writer="stream", table=table)
        Path("in").mkdir()
        Path("in/1.txt").write_text("a\nb\n")
        query = spark.readStream.text("in").writeStream.foreachBatch(write)
        query.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    if seen != [2]:
        raise SystemExit(f"the batch was seen as {seen}")
    return "a streaming query"


def paimon() -> str:
    """Write one batch of rows to a Paimon table."""
    import pyarrow as pa
    from pypaimon import CatalogFactory, Schema
    from pyspark.sql import SparkSession

    from lakewarden.spark_jobs import PaimonSink

    catalog = CatalogFactory.create({"warehouse": TABLES})
    catalog.create_database("lake", ignore_if_exists=True)
    catalog.create_table(
        "lake.rows", Schema.from_pyarrow_schema(pa.schema([("id", pa.int64())])), ignore_if_exists=False
    )
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    with CommitGate(KAFKA) as gate:
        write = gate.foreach_batch(PaimonSink(f"{TABLES}/lake.db/rows", mode="append"), writer="smoke")
        write(spark.range(3), 0)
    spark.stop()
    rows = catalog.get_table("lake.rows").new_read_builder()
    count = rows.new_read().to_arrow(rows.new_scan().plan().splits()).num_rows
    if count != 3:
        raise SystemExit(f"the Paimon table has {count} rows of 3")
    return "a batch by PaimonSink"


def hudi() -> str:
    """Import what HudiSink needs; its tables need Hudi's jar, which tests of the clone have."""
    from lakewarden.spark_jobs import HudiSink

    HudiSink(f"{TABLES}/hudi", keys=["id"])
    return "HudiSink without a table"


def commands(table: str) -> list[str]:
    """Run the commands that a new user runs."""
    version = run("--version").split()[-1]
    written = Path("delta/_delta_log/00000000000000000000.json")
    written.parent.mkdir(parents=True)
    schema = json.dumps({"type": "struct", "fields": []})
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationMetrics": {}}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "a",
                "format": {"provider": "parquet"},
                "schemaString": schema,
                "partitionColumns": [],
            }
        },
    ]
    written.write_text("".join(json.dumps(each) + "\n" for each in actions))
    assessed = run("assess", Path("delta").resolve().as_uri(), accept=(0, 3))
    if "delta" not in assessed:
        raise SystemExit(f"assess printed: {assessed}")
    status = run("status", "--bootstrap-servers", KAFKA)
    if table not in status:
        raise SystemExit(f"status has no {table}: {status}")
    checked = run(
        "doctor", "--bootstrap-servers", KAFKA, "--lock-root", f"{TABLES}/.lakewarden", accept=(0, 1)
    )
    with urllib.request.urlopen(PAGE) as page:  # noqa: S310 - of this machine
        if table not in page.read().decode():
            raise SystemExit(f"the page has no {table}")
    return [
        f"lakewarden {version}",
        "assess",
        "status",
        f"doctor ({len(checked.splitlines())} lines)",
        "the page",
    ]


def command_line_is_missing() -> str:
    """Without the extra `agent`, the command says what to install."""
    done = subprocess.run([command(), "status"], capture_output=True, text=True, check=False)
    if done.returncode != 1 or "pip install 'lakewarden[agent]'" not in done.stderr:
        raise SystemExit(f"the command without its extra printed: {done.stdout}{done.stderr}")
    return "the command names the extra agent"


def run(*words: str, accept: tuple[int, ...] = (0,)) -> str:
    """Run `lakewarden`, and return what it prints."""
    done = subprocess.run([command(), *words], capture_output=True, text=True, check=False)
    if done.returncode not in accept:
        raise SystemExit(
            f"lakewarden {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout


def command() -> str:
    """The program of this environment."""
    return shutil.which("lakewarden", path=str(Path(sys.executable).parent)) or "lakewarden"


main()
