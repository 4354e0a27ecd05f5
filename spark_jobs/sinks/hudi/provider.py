"""The driver's JVM: the two Java classes that Hudi calls, how they come into it, and rollbacks by Hudi's own write client.

| class | Hudi's interface | what it does |
| --- | --- | --- |
| `LakewardenLockProvider` | `LockProvider` | lets the commit section of a write wait for the grant |
| `LakewardenClients` | `HoodieClientInitCallback` | knows which pending instant is this transaction's own |

Their sources are in `java/`, and the compiled classes (Java 8 byte code) are part of the package. They are defined at run time in
Hudi's own class loader (`defined_class`), so a job needs no jar of lakewarden. Where Hudi finds the classes on its class path,
those are used.

`python -m tests.servers.java_classes` compiles them; a test compares what is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine import java
from lakewarden.spark_jobs.sinks.releases import HUDI

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = "org.apache.hudi.client.transaction.lock"
LOCK_PROVIDER = f"{PACKAGE}.LakewardenLockProvider"
CLIENTS = f"{PACKAGE}.LakewardenClients"
NEIGHBOUR = f"{PACKAGE}.LockManager"
"""Hudi's class of the same package. The classes are defined in its loader."""

ENTRY = "org.apache.hudi.DataSourceUtils"
"""A class of every release."""

META_CLIENT = "org.apache.hudi.common.table.HoodieTableMetaClient"

PAYLOAD = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
"""A client needs one, although a rollback merges no rows."""

SOURCES = Path(__file__).parent / "java"
CLASSES = Path(__file__).parent / "classes"

VERSION = 1
"""Version of the calls between Python and the classes."""


class Provider:
    """The classes in the JVM of one driver."""

    def __init__(self, spark: SparkSession) -> None:
        """Raise `UnsupportedSpark` if Hudi is missing, is a release that isn't known, or brings other classes."""
        self.release = release_of(spark)
        HUDI.require(self.release, spark.version)
        self._locks = java.defined_class(spark, LOCK_PROVIDER, NEIGHBOUR, CLASSES, version=VERSION)
        self._clients = java.defined_class(spark, CLIENTS, NEIGHBOUR, CLASSES)
        java.accept_callbacks(java.gateway_of(spark))

    def register(self, transaction: str, answer: Any) -> None:
        """Let `answer`, a `java.util.function.BiFunction`, decide about the sections of this transaction."""
        self._clients.register(transaction)
        self._locks.register(transaction, answer)

    def unregister(self, transaction: str) -> None:
        """Refuse every further section of this transaction."""
        self._locks.unregister(transaction)
        self._clients.unregister(transaction)

    def allow(self, transaction: str, seconds: float) -> None:
        """Let the transaction's commit go on for so long from now. The thread that commits is interrupted after that."""
        self._locks.allow(transaction, int(seconds * 1000))

    def owns(self, transaction: str, instant: str) -> bool:
        """Whether a client of this transaction has requested the instant."""
        return bool(self._clients.owns(transaction, instant))


def release_of(spark: SparkSession) -> str:
    """Return the release of Hudi. 1.2 has it in a class, earlier ones in the manifest of their jar."""
    from py4j.protocol import Py4JError

    try:
        return str(java.java_type(spark, "org.apache.hudi.HoodieVersion").get())
    except Py4JError:  # the class isn't there
        pass
    try:
        entry = java.java_class(spark, ENTRY)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise HUDI.missing(spark.version) from error
    return str(entry.getPackage().getImplementationVersion())


def is_before_1(release: str) -> bool:
    """Whether the release writes tables of version 6."""
    return release.startswith("0.")


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
            table = java.java_type(self._spark, META_CLIENT).builder()
            storage = client.getEngineContext().getStorageConf()
            client.rollbackFailedWrites(table.setConf(storage).setBasePath(self._path).build())

    @contextmanager
    def _client(self) -> Iterator[Any]:
        utils, name = java.java_type(self._spark, ENTRY), self._settings["hoodie.table.name"]
        client = utils.createHoodieClient(self._java_context, "", self._path, name, self._settings)
        try:
            yield client
        finally:
            client.close()
