"""Calls of stored procedures, by which a sink reaches a table format's Java on a server of Spark Connect.

- A call is one statement, `CALL lakewarden.<format>.<procedure>(…)`. Its answer is rows of text.
- The session knows the catalog by one setting, which this module sets.
- If the server was started without the jar, the session adds it as an artifact. Platforms that allow neither are refused.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.sinks.connect.jar import write_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lakewarden"
_SETTING = f"spark.sql.catalog.{CATALOG}"
_CLASS = "lakewarden.Procedures"

VERSION = 2
"""Version of the calls between Python and Java."""

RECIPE = (
    "start the server with lakewarden's jar (`python -m lakewarden.spark_jobs.sinks.connect.jar` prints the option); where that "
    "isn't possible, as on Databricks, write whole statements under the grant (docs/recipes.md, A MERGE of your own)"
)


class Procedures:
    """The procedures of one table format, for one session."""

    def __init__(self, spark: SparkSession, namespace: str) -> None:
        """Raise `UnsupportedSpark` if the server can't have them."""
        self._spark = spark
        self._namespace = namespace
        spark.conf.set(_SETTING, _CLASS)
        try:
            self.release = self._release()
        except Exception as absent:  # noqa: BLE001 - the server says in its own words that it doesn't have the class
            self.release = self._added(absent)
        found = self.release["version"]
        if found != [str(VERSION)]:
            raise UnsupportedSpark(
                f"the server has another lakewarden-connect.jar, of version {', '.join(found)}; this lakewarden needs version "
                f"{VERSION}: write it again and restart the server; {RECIPE}"
            )

    def __call__(self, procedure: str, *arguments: str | int) -> list[str]:
        values = ", ".join(map(_literal, arguments))
        rows = self._spark.sql(f"CALL {CATALOG}.{self._namespace}.{procedure}({values})").collect()
        return [str(row[0]) for row in rows]

    def _release(self) -> dict[str, list[str]]:
        return as_facts(self("release"))

    def _added(self, absent: Exception) -> dict[str, list[str]]:
        """Add the jar to the session."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._spark.addArtifact(str(write_jar(folder)))
            return self._release()
        except Exception as error:
            raise UnsupportedSpark(
                f"the server of Spark Connect doesn't run lakewarden's procedures for {self._namespace}: {java_text(error)} "
                f"(before the jar was added as an artifact: {java_text(absent)}); {RECIPE}"
            ) from error


class StatementFailed(Exception):
    """What Java raised, as a procedure has answered it."""

    def __init__(self, text: str, kinds: Iterable[str]) -> None:
        super().__init__(text)
        self.kinds = tuple(kinds)
        """The classes of the exception and of its causes."""


def as_facts(answer: Iterable[str]) -> dict[str, list[str]]:
    """Return an answer whose rows are a name and a value, separated by a tab. A name may come more than once, or not at all."""
    found = defaultdict(list)
    for row in answer:
        name, _, value = row.partition("\t")
        found[name].append(value)
    return found


def _literal(value: str | int) -> str:
    """Return SQL. A text is written in hexadecimal: it needs no escapes."""
    return f"{value}L" if isinstance(value, int) else f"CAST(X'{value.encode().hex()}' AS string)"
