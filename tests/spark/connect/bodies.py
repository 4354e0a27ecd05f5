"""What the queries of `client.py` write with, on the server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakewarden.spark_jobs import DeltaSink, IcebergSink, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.connect.procedures import Procedures
from lakewarden.spark_jobs.sinks.contract import Plan
from lakewarden.spark_jobs.sinks.spark_sink import SparkSink
from tests.spark.formats import iceberg_name


def paimon(**arguments: Any) -> PaimonSink:
    return PaimonSink(**arguments)


def delta(**arguments: Any) -> DeltaSink:
    return DeltaSink(**arguments)


def _named(folder: str) -> str:
    """The table in this folder, and its catalog in the client's session."""
    return iceberg_name(SparkSession.active(), Path(folder))


def iceberg(folder: str, **arguments: Any) -> IcebergSink:
    return IcebergSink(_named(folder), **arguments)


class Mortal(SparkSink[Any]):
    """Its process is killed once, before or after a call of one of the server's procedures."""

    def __init__(self, *arguments: Any, when: str, call: str, flag: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._when, self._call, self._flag = when, call, Path(flag)

    def plan(self, batch: Any, /) -> Plan:
        """In the server's process, where the batch is written."""
        called = Procedures.__call__

        def mortal(procedures: Procedures, procedure: str, *given: Any) -> list[str]:
            dies = procedure == self._call and not self._flag.exists()
            if dies and self._when == "before":
                self._die()
            answer = called(procedures, procedure, *given)
            if dies:
                self._die()
            return answer

        if not self._flag.exists():
            setattr(Procedures, "__call__", mortal)  # noqa: B010 - of another type
        return super().plan(batch)

    def _die(self) -> None:
        self._flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class MortalDelta(Mortal, DeltaSink):
    pass


class MortalIceberg(Mortal, IcebergSink):
    pass


def mortal_delta(**arguments: Any) -> MortalDelta:
    return MortalDelta(**arguments)


def mortal_iceberg(folder: str, **arguments: Any) -> MortalIceberg:
    return MortalIceberg(_named(folder), **arguments)


class Slow(SparkSink[Any]):
    """Its statement computes for so long, unless the file `fast` is in the folder."""

    def __init__(self, *arguments: Any, folder: str, seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._folder, self._seconds = folder, seconds

    def plan(self, batch: Any, /) -> Plan:
        from pyspark.sql import functions as f

        slow = f.udf(_slow(self._folder, self._seconds), "bigint")
        return super().plan(batch.withColumn("flight", slow("flight")))


class SlowDelta(Slow, DeltaSink):
    pass


class SlowIceberg(Slow, IcebergSink):
    pass


def slow_delta(**arguments: Any) -> SlowDelta:
    return SlowDelta(**arguments)


def slow_iceberg(table: str, **arguments: Any) -> SlowIceberg:
    return SlowIceberg(_named(table), **arguments)


def _slow(folder: str, seconds: float) -> Callable[[int], int]:
    def slow(number: int) -> int:
        end = time.monotonic() + (0.0 if Path(folder, "fast").exists() else seconds)
        while time.monotonic() < end:
            Path(folder, "computing").touch()
            time.sleep(0.02)
        return number

    return slow


def in_a_thread(function: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """A body that lets a thread of its own write the batch."""

    def write(batch: Any, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(function, batch, batch_id).result()

    return write


def appending(folder: str, seconds: float = 0.0) -> Callable[[Any, Transaction], None]:
    """A plain function: it computes a batch's ids by a slow statement, and publishes them as a file."""

    def write(batch: Any, txn: Transaction) -> None:
        from pyspark.sql import functions as f

        Path(folder, f"worker-{txn.batch_id}").write_text(f"{os.getpid()}")
        txn.touch("day=1", "*", "merge")
        found = batch.select(f.udf(_slow(folder, seconds), "bigint")("id")).collect()
        with txn.commit():
            Path(folder, f"batch-{txn.batch_id}").write_text(f"{sorted(row[0] for row in found)}")

    return write
