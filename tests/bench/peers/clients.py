"""Which attempt of a native write has requested an instant, by the class that the gate's writes use for that."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs.sinks.hudi.provider import CLIENTS, Provider
from tests.bench.peers.tables import NativeWrite


class Clients:
    """`LakewardenClients` in the JVM of the driver."""

    def __init__(self, spark: SparkSession) -> None:
        Provider(spark)  # defines the class
        self._clients: Any = spark.sparkContext._jvm
        for part in CLIENTS.split("."):
            self._clients = getattr(self._clients, part)

    def owns(self, attempt: str, instant: str) -> bool:
        """Whether a client of this attempt has requested the instant."""
        return bool(self._clients.owns(attempt, instant))

    def during(self, write: NativeWrite) -> NativeWrite:
        """Return the write, during which the JVM remembers its clients."""

        def upsert(batch: DataFrame, attempt: str) -> None:
            self._clients.register(attempt)
            try:
                write(batch, attempt)
            finally:
                self._clients.unregister(attempt)

        return upsert
