"""What the queries of `client.py` write with, on the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakewarden.spark_jobs import PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction


def paimon(**arguments: Any) -> PaimonSink:
    return PaimonSink(**arguments)


def appending(folder: str, seconds: float = 0.0) -> Callable[[Any, Transaction], None]:
    """A plain function: it computes a batch's ids by a slow statement, and publishes them as a file."""

    def write(batch: Any, txn: Transaction) -> None:
        from pyspark.sql import functions as f

        def slow(number: int) -> int:
            end = time.monotonic() + (0.0 if Path(folder, "fast").exists() else seconds)
            while time.monotonic() < end:
                Path(folder, "computing").touch()
                time.sleep(0.02)
            return number

        Path(folder, f"worker-{txn.batch_id}").write_text(f"{os.getpid()}")
        txn.touch("day=1", "*", "merge")
        found = batch.select(f.udf(slow, "bigint")("id")).collect()
        with txn.commit():
            Path(folder, f"batch-{txn.batch_id}").write_text(f"{sorted(row[0] for row in found)}")

    return write
