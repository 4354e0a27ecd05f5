"""Lets S3 refuse a commit of Delta whose version is taken: the commit file is put if absent.

Delta's commit N takes effect when `_delta_log/N.json` exists. On S3, Delta's own log store checks whether the file exists, then
writes it without a condition. A writer that is suspended in between, beyond its lease, replaces the commit of another writer.

1. *The class.* `LakewardenS3LogStore` (`java/`) is Delta's log store for S3 with one change: it puts a new file with
   `If-None-Match: *`. If the version is taken, Delta checks the new commits for conflicts and tries the next version, as on every
   other store.
2. *No jar.* The compiled class is part of the package. It is defined at run time, in the class loader of Delta's log store.
3. *The user's choice stays.* If the Spark configuration names a log store for the scheme, or for all schemes, the sink changes
   nothing and doesn't warn.
4. *One table.* A `DeltaLog` reads the name of its log store from the Spark configuration when it first uses a scheme, and keeps
   it. So the name is in the configuration only while the sink opens its table. Executors that start later must not read it: they
   don't have the class.
5. *A cached `DeltaLog`* may have another log store already. Then the sink removes it from Delta's cache, and opens the table
   again.
6. *The transaction's own `DeltaLog` decides.* The sink looks at its log store when the transaction starts, before the grant. It
   doesn't change after that.
7. *Where the class can't be used, Delta's own log store stays*, and the sink warns once: `delta.not-fenced`, with the obstacle
   (`gap`). The class calls S3A's `S3AInternals`, and compares what is stored with what was put.

A store that ignores the condition isn't noticed here; each agent probes the store of its lock. A writer without the class can
still replace a commit, also one of this sink.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine.java import defined_class, is_instance, java_class, java_text, java_type
from lakewarden.spark_jobs.sinks.delta.log import DELTA_LOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_STORE = "io.delta.storage.LakewardenS3LogStore"
INNER = ("Put", "Fenced", "FencedPath")
"""Its inner classes, each before those that use it."""
NEIGHBOUR = "io.delta.storage.S3SingleDriverLogStore"
"""Delta's class of the same package. The class is defined in its loader."""

SOURCES = Path(__file__).parent / "java"
CLASSES = Path(__file__).parent / "classes"

VERSION = 1
"""Version of the calls between Python and the class."""

SCHEMES = frozenset({"s3", "s3a", "s3n"})
"""Those for which Delta uses its log store for S3. Its log stores for other object stores put if absent."""

S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
INTERNALS = "org.apache.hadoop.fs.s3a.S3AInternals"
"""Hadoop 3.4 has it, 3.3 doesn't."""

RISK = (
    "a writer of this table that is suspended in the middle of its commit, beyond its lease, can replace the commit of another "
    "writer"
)
REMEDY = (
    "use Hadoop's S3A 3.4 (hadoop-aws with Delta's jars), or choose a log store that excludes other drivers, for example "
    "Delta's for DynamoDB, by spark.delta.logStore.s3a.impl"
)


class Fence:
    """How the commits of one table are fenced, in the driver of one session."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Define the class, if the table is on S3 and nothing is in the way."""
        self._session = spark
        self._spark = spark._jsparkSession
        self._path = java_type(spark, "org.apache.hadoop.fs.Path")(location)
        file_system = self._path.getFileSystem(self._spark.sessionState().newHadoopConf())
        self.scheme = str(file_system.makeQualified(self._path).toUri().getScheme()).lower()
        settings = dict(spark.sparkContext.getConf().getAll())
        self._needed = self.scheme in SCHEMES and not chosen_log_store(settings, self.scheme)
        self._class: Any = None
        self._bucket = ""
        self._obstacle: str | None = None
        if self._needed:
            self._obstacle = _obstacle(spark, file_system) or self._define(spark)
            if self._obstacle is None:
                self._bucket = str(file_system.getBucket())

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Let Delta choose the class for a `DeltaLog` that is opened in the block."""
        if not self._needed or self._obstacle is not None:
            yield
            return
        conf = java_type(self._session, "org.apache.spark.SparkEnv").get().conf()
        with _SELECTION.of(conf, setting_of(self.scheme)):
            yield

    def forget(self) -> None:
        """Remove the table from Delta's cache, so that opening it creates another `DeltaLog`."""
        java_type(self._session, DELTA_LOG).invalidateCache(self._spark, self._path)

    def is_kept(self, delta_log: Any) -> bool:
        """Return whether to keep this `DeltaLog`: it has the class, or another one wouldn't have it either."""
        return not self._needed or self._obstacle is not None or log_store_of(delta_log) in {LOG_STORE, None}

    def gap(self, delta_log: Any) -> str | None:
        """Return why commits by this `DeltaLog` aren't fenced. None if they are, or if the sink has nothing to do."""
        if not self._needed:
            return None
        if self._obstacle is not None:
            return self._obstacle
        used = log_store_of(delta_log)
        if used is None:
            return "this release of Delta doesn't show which log store it uses"
        if used != LOG_STORE:
            return f"Delta has opened the table with another log store, {used}"
        if self._class.isUnconditional(self._bucket):
            return "the store, or this release of Hadoop, has no conditional put"
        return None

    def _define(self, spark: SparkSession) -> str | None:
        try:
            self._class = defined_class(spark, LOG_STORE, NEIGHBOUR, CLASSES, INNER, version=VERSION)
        except Exception as error:  # noqa: BLE001 - whatever it is, the commits stay as they were
            return f"{LOG_STORE} can't be defined: {java_text(error)}"
        return None


def chosen_log_store(settings: Mapping[str, str], scheme: str) -> str | None:
    """Return the log store that the user has chosen for tables of this scheme, or None."""
    for key in ("delta.logStore.class", f"delta.logStore.{scheme}.impl"):
        for name in (f"spark.{key}", key):
            chosen = settings.get(name)
            if chosen and chosen != LOG_STORE:
                return chosen
    return None


def setting_of(scheme: str) -> str:
    """Return the name of the setting by which Delta finds the log store of a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


class Selection:
    """Sets a setting of the Spark configuration while at least one block needs it. Queries open their tables side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: Counter[str] = Counter()

    @contextmanager
    def of(self, conf: Any, setting: str) -> Iterator[None]:
        """Set the setting to the class during the block."""
        with self._lock:
            self._blocks[setting] += 1
            conf.set(setting, LOG_STORE)
        try:
            yield
        finally:
            with self._lock:
                self._blocks[setting] -= 1
                if not self._blocks[setting]:
                    conf.remove(setting)


_SELECTION = Selection()


def log_store_of(delta_log: Any) -> str | None:
    """Return the name of the class by which a `DeltaLog` writes its commits. None if this release of Delta doesn't show it."""
    try:
        store = delta_log.store()
        if is_instance(store, ".DelegatingLogStore"):
            store = store.getDelegate(delta_log.logPath())
        if is_instance(store, ".LogStoreAdaptor"):
            store = store.logStoreImpl()
        return str(store.getClass().getName())
    except Exception:  # noqa: BLE001 - py4j raises what Java throws for a missing method
        return None


def _obstacle(spark: SparkSession, file_system: Any) -> str | None:
    """Return why the class can't put to this file system, or None."""
    if not is_instance(file_system, S3A):
        return f"the file system is {file_system.getClass().getName()}, and not Hadoop's S3A"
    loader = java_class(spark, NEIGHBOUR).getClassLoader()
    try:
        java_type(spark, "java.lang.Class").forName(INTERNALS, False, loader)  # noqa: FBT003 - of Java
    except Exception:  # noqa: BLE001 - py4j raises what Java throws for a missing class
        release = java_type(spark, "org.apache.hadoop.util.VersionInfo").getVersion()
        return f"Delta's class loader finds no {INTERNALS}, which Hadoop's S3A has from 3.4 on; this is Hadoop {release}"
    if file_system.isCSEEnabled():
        return "S3A encrypts on the client's side"
    return None
