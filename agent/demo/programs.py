"""The commands that the demo runs, and their flags.

The demo starts them as programs and does not import them, because the agent's packages must not import those of Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lakewarden.agent.demo.choices import FormatChoice
from lakewarden.agent.demo.flights import KEYS, PARTITION_KEYS
from lakewarden.agent.demo.table import COLUMNS, TablePlace

COMPACTION_SECONDS = 3.0
"""Between two rounds of the compactor. A contest takes about a minute."""

_KEPT = frozenset({"LAKEWARDEN_CACHE_DIR"})
"""The variables of lakewarden that the programs get. The others may configure another agent of the user's."""


def environment() -> dict[str, str]:
    """The environment of the programs: that of this process, without settings of lakewarden."""
    removed = {name for name in os.environ if name.startswith("LAKEWARDEN_") and name not in _KEPT}
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    return {**kept, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}


def _module(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *words)


@dataclass(frozen=True, slots=True)
class Programs:
    """The beginning of each command line. Tests use stand-ins with the same flags."""

    dev: tuple[str, ...] = _module("lakewarden.agent", "dev")
    """Kafka and the agent."""
    writer: tuple[str, ...] = _module("lakewarden.spark_jobs.jobs.demo_writer")
    """The streaming query of one feed."""
    table: tuple[str, ...] = _module("lakewarden.spark_jobs.jobs.demo_table")
    """Creates and reads the tables of the formats that need Spark for it."""
    compactor: tuple[str, ...] = _module("lakewarden.spark_jobs.jobs.compact")
    """Compacts a table with a primary key."""
    catalog: tuple[str, ...] = _module("lakewarden.agent.embedded.iceberg_rest")
    """The REST catalog of Iceberg's tables."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where a contest takes place: its table, and the folder of its events and checkpoints."""

    admission: str | None
    """None: without an agent."""
    place: TablePlace
    folder: Path

    @property
    def name(self) -> str:
        return self.admission or "without-agent"


@dataclass(frozen=True, slots=True)
class Commands:
    """The command lines of one run, with its folder and store."""

    programs: Programs
    folder: Path
    warehouse: str
    """The folder or bucket of the tables. A bucket also contains their locks."""
    s3_endpoint: str | None
    max_files_per_trigger: int
    form: FormatChoice = FormatChoice.PAIMON
    catalog: str | None = None
    """The URI of Iceberg's catalog."""

    def serve_catalog(self) -> list[str]:
        """Iceberg's catalog, with the tables below the warehouse."""
        return [*self.programs.catalog, "--data", str(self.folder), "--warehouse", self.warehouse]

    def dev(self, tables: Sequence[str]) -> list[str]:
        """Kafka and the agent, for these tables only."""
        allowed = [word for table in tables for word in ("--tables", table)]
        locks = ["--lock-root", self.warehouse] if self.s3_endpoint else []
        return [
            *self.programs.dev,
            "--output",
            "json",
            "--data",
            str(self.folder),
            *allowed,
            *locks,
            *self._store(),
        ]

    def create_tables(self, places: Sequence[TablePlace], rows: Path) -> list[str]:
        """Create the tables. `rows` has the keys of all rows."""
        keys = ["--partition-by", ",".join(PARTITION_KEYS), "--keys", ",".join(KEYS)]
        return [*self._tables(places), "create", "--columns", COLUMNS, *keys, "--rows", str(rows)]

    def read_tables(self, places: Sequence[TablePlace]) -> list[str]:
        """Write the rows of each table to `rows_folder`, numbered in this order."""
        return [*self._tables(places), "read", "--output", str(self.rows_folder)]

    @property
    def rows_folder(self) -> Path:
        return self.folder / "rows"

    def _tables(self, places: Sequence[TablePlace]) -> list[str]:
        tables = [word for place in places for word in ("--table", place.uri)]
        return [*self.programs.table, "--format", self.form.value, *self._catalog(), *tables]

    def _catalog(self) -> list[str]:
        return ["--catalog", self.catalog] if self.catalog else []

    def compactor(self, place: TablePlace, bootstrap_servers: str) -> list[str]:
        """The compaction of one table, every few seconds. Credentials of a store are in the environment."""
        return [
            *self.programs.compactor,
            *("--bootstrap-servers", bootstrap_servers, "--table", place.uri),
            *("--every", f"{COMPACTION_SECONDS:g}"),
            *(word for option in place.public_options for word in ("--catalog-option", option)),
        ]

    def writer(
        self, role: str, feed: Path, events: Path, arena: Arena, bootstrap_servers: str | None
    ) -> list[str]:
        """The query of one feed. Without `bootstrap_servers` it runs without an agent."""
        agent = ["--without-agent"]
        if bootstrap_servers and arena.admission:
            agent = ["--bootstrap-servers", bootstrap_servers, "--admission", arena.admission]
        form = ["--format", self.form.value] if self.form.on_spark else []
        return [
            *self.programs.writer,
            *("--role", role, "--input", str(feed), "--table", arena.place.uri, "--keys", ",".join(KEYS)),
            *form,
            *self._catalog(),
            *("--checkpoint", str(arena.folder / "checkpoints" / role), "--events", str(events)),
            *("--max-files-per-trigger", str(self.max_files_per_trigger)),
            *agent,
            *self._store(),
        ]

    def _store(self) -> list[str]:
        return ["--s3-endpoint", self.s3_endpoint] if self.s3_endpoint else []
