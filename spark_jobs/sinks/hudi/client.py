"""Rollbacks by Hudi's own write client, with the user's own lock provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.sinks.hudi.provider import ENTRY
from lakewarden.spark_jobs.sinks.java import java_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

META_CLIENT = "org.apache.hudi.common.table.HoodieTableMetaClient"

PAYLOAD = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
"""A client needs one, although a rollback merges no rows."""


class HudiClient:
    """Rolls back instants of one table. Each call makes a client of its own, which ends with the call."""

    def __init__(self, spark: SparkSession, path: str, options: Mapping[str, str], *, before_1: bool) -> None:
        """`options`: of the sink. `path`: of the table, as Spark has it. `before_1`: whether Hudi is older than 1.0."""
        self._spark = spark
        self._before_1 = before_1
        self._java_context = spark.sparkContext._jsc  # noqa: SLF001
        self._path = path
        settings = {key: value for key, value in options.items() if key.startswith("hoodie.")}
        self._settings = {"hoodie.datasource.write.payload.class": PAYLOAD} | settings

    def roll_back(self, instant: str) -> bool:
        """Remove an instant and its files. False: Hudi did nothing."""
        with self._client() as client:
            return bool(client.rollback(instant))

    def roll_back_dead(self) -> None:
        """Roll back the writes whose heartbeat is too old, as Hudi's cleaning does after a commit."""
        with self._client() as client:
            if self._before_1:
                client.rollbackFailedWrites()
                return
            table = java_type(self._spark, META_CLIENT).builder()
            storage = client.getEngineContext().getStorageConf()
            client.rollbackFailedWrites(table.setConf(storage).setBasePath(self._path).build())

    @contextmanager
    def _client(self) -> Iterator[Any]:
        utils, name = java_type(self._spark, ENTRY), self._settings["hoodie.table.name"]
        client = utils.createHoodieClient(self._java_context, "", self._path, name, self._settings)
        try:
            yield client
        finally:
            client.close()
