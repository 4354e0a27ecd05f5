"""`IcebergSink` on Spark Connect: tables, and a staged commit, by stored procedures.

The procedures (`sinks/connect/java`) load, stage and swap. What follows from what they answer is decided in `metadata.py` and
`staging.py`, as in the driver.

- *Staging is outside of the grant.* `stage` begins an Iceberg transaction on the server, and the batch's own statement writes to
  it through the staging catalog. No reader sees it. A statement that outlives its writer commits nothing: only `publish` does.
- *Python judges, Java compares.* `publish` names the metadata file that Python has judged (`StagedTable._replaced`, the writer's
  `LastCommit`). If the table has another one when Iceberg wants to swap, the answer is `moved`, and Python judges that.
- *The lease.* `publish` names a time of the server's clock. An answer that was received at `t` was written before `t`. So the
  server's clock shows at least the answer's time `c` then, and the lease, which ends `s` seconds after `t`, has not ended while
  that clock shows less than `c + s`. Neither a call that travels slowly nor a suspended writer or server prolongs it.
- *No answer.* `close` waits for a `publish` that runs, and refuses one that comes later. Only if the server doesn't answer that
  either, or if the catalog's answer was lost, the outcome is unknown, and the gate looks the batch up.
- *Untagged.* An abort interrupts the statement, and never a `publish` or a `close`: they run in threads of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.gate.errors import GateError, LeaseLost, UnsupportedSpark
from lakewarden.spark_jobs.gate.grant import Grant, monotonic_seconds
from lakewarden.spark_jobs.sinks.connect.procedures import Procedures, StatementFailed, as_facts
from lakewarden.spark_jobs.sinks.iceberg.metadata import BATCH, WRITER, LastCommit, Loaded, Metadata
from lakewarden.spark_jobs.sinks.iceberg.release import STAGING_CATALOG, know_staging_catalog
from lakewarden.spark_jobs.sinks.iceberg.staging import VALIDATION, Catalog, Check, StagedTable, Tries
from lakewarden.spark_jobs.sinks.iceberg.table import metadata_table, no_table, unwritable
from lakewarden.spark_jobs.sinks.releases import ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ABSENT = ("TABLE_OR_VIEW_NOT_FOUND", "NoSuchTableException", "not an Iceberg table")


class ServerTable(Loaded):
    """A table as the server has answered it."""

    def __init__(self, name: str, facts: Mapping[str, list[str]]) -> None:
        if not facts["file"]:
            raise metadata_table(name)
        self.metadata = _metadata(facts)
        self.name = facts["name"][0]
        self._catalog, self._part = facts["catalog"][0], facts["part"][0]
        self._columns, self._unwritable = facts["columns"], facts["unwritable"]
        self._specs = [int(each) for each in facts["spec"]]

    def place(self) -> tuple[str, str]:
        return self._catalog, self._part

    def columns(self) -> str:
        if self._unwritable:
            raise unwritable(self._unwritable[0], self.name, f"{self.metadata.schema}")
        return self._columns[0]

    def used_specs(self) -> Collection[int]:
        return self._specs


def _metadata(facts: Mapping[str, list[str]]) -> Metadata:
    return Metadata.parsed(facts["file"][0], facts["metadata"][0])


class ServerCatalog(Catalog):
    """A table of this name, in a catalog of a session on a server of Spark Connect."""

    def __init__(self, spark: SparkSession, name: str, *, untried: bool) -> None:
        """Raise `UnsupportedSpark` if the server doesn't have the procedures, or another Iceberg."""
        super().__init__(spark, name)
        try:
            self._call = Procedures(spark, "iceberg")
        except UnsupportedSpark as error:
            if "org/apache/iceberg" in str(error):  # a class of Iceberg's, which the server lacks
                raise ICEBERG.missing(spark.version) from error
            raise
        ICEBERG.require(self._call.release["iceberg"][0], spark.version, untried=untried)

    def load(self) -> ServerTable:
        try:
            return ServerTable(self.name, as_facts(self._call("table", self.name)))
        except ValueError:
            raise
        except Exception as error:
            text = java_text(error)
            if any(each in str(error) for each in _ABSENT):
                raise no_table(self.name, text) from error
            raise RuntimeError(f"the catalog of {self.name!r} didn't load the table: {text}") from error

    def stage(self, properties: Mapping[str, str], *, validated: bool) -> ServerStagedTable:
        about = (properties[TRANSACTION], self.name, properties[WRITER], properties.get(BATCH, ""))
        loaded = ServerTable(self.name, as_facts(self._call("stage", *about)))
        return ServerStagedTable(self._call, self.name, loaded, properties, validated=validated)

    def show(self, snapshot: str | None) -> None:
        """`publish` has removed the table from the catalog's cache."""

    def mergeable(self, rows: DataFrame) -> DataFrame:
        """They are a local checkpoint, whose plan reads and computes nothing."""
        return rows


class ServerStagedTable(StagedTable):
    """A transaction of the server."""

    def __init__(
        self,
        call: Procedures,
        asked_for: str,
        loaded: ServerTable,
        properties: Mapping[str, str],
        *,
        validated: bool,
    ) -> None:
        super().__init__(loaded, properties, Tries(), validated=validated)
        self._procedures = call
        self._asked_for = asked_for
        self._clock = (0, 0.0)
        """The server's milliseconds, and this process's seconds when the answer that has them was received."""
        self._recreated = False

    def _call(self, procedure: str, *arguments: str | int) -> list[str]:
        return self._procedures(procedure, self._gate_transaction, *arguments)

    def _call_untagged(self, procedure: str, *arguments: str | int) -> dict[str, list[str]]:
        with ThreadPoolExecutor(1) as thread:
            return as_facts(thread.submit(self._call, procedure, *arguments).result())

    @contextmanager
    def named(self, spark: SparkSession) -> Iterator[str]:
        know_staging_catalog(spark)
        yield f"{STAGING_CATALOG}.{quoted(self._gate_transaction)}"

    def _list(self) -> bool:
        facts = as_facts(self._call("staged"))
        self._clock = (int(facts["clock"][0]), monotonic_seconds())
        return bool(facts["snapshot"])

    def _commit(self, check: Check, grant: Grant) -> None:
        tries, judged = self._tries, self._now
        try:
            check(judged)
            deadline = monotonic_seconds() + grant.seconds_left()
        except GateError as error:
            tries.refusal = error
            raise
        clock, received = self._clock
        until = clock + int((deadline - received) * 1000)
        signature = (self._key, self._head, "\t".join(LastCommit.silent(judged)))
        tries.unanswered = True
        try:
            facts = self._call_untagged("publish", self._asked_for, judged.file, *signature, until)
        except Exception as error:
            tries.failure = error
            tries.unanswered = not self._is_closed()
            raise
        self._settle(facts)

    def _settle(self, facts: dict[str, list[str]]) -> None:
        """Note what became of a try. Raise unless it has published."""
        tries = self._tries
        tries.unanswered = facts["state"] == ["unknown"]
        if facts["state"] == ["published"]:
            tries.published = facts["published"][0]
            return
        tries.overtaken = facts["reason"] == ["moved"]
        if facts["reason"] == ["late"]:
            tries.refusal = LeaseLost(
                "the lease ended before the server of Spark Connect began the swap; nothing was published; begin a new "
                f"transaction with the same data; {self._facts} writer={self._writer}"
            )
        tries.failure = StatementFailed(facts["text"][0], facts["class"])
        raise tries.failure

    def _is_closed(self) -> bool:
        """Return whether nothing was published, and nothing can be any more."""
        with suppress(Exception):
            return self._call_untagged("close")["state"] == ["closed"]
        return False

    def _read(self) -> Metadata:
        facts = as_facts(self._call("now"))
        self._recreated = facts["recreated"] == ["true"]
        return _metadata(facts)

    def _is_recreated(self) -> bool:
        return self._recreated

    def _is_validation(self, error: Exception) -> bool:
        return isinstance(error, StatementFailed) and VALIDATION in error.kinds

    def _named_by(self, text: str) -> Collection[int]:
        base = -1 if self.base is None else self.base
        return {int(each) for each in self._call("named", text, base)}

    def discard(self) -> None:
        if self._has_files:
            super().discard()
        else:
            self._call("close")

    def _remove(self) -> None:
        self._call("discard")
