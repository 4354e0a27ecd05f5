"""The commands that the demo runs, and their flags.

The demo starts them as programs and does not import them, because the agent's packages must not import those of Spark.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lakewarden.agent.demo.flights import KEYS

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
    conflicts_job: tuple[str, ...] = _module("lakewarden.spark_jobs.conflicts_job")
    """The streaming query for operators, which writes conflicts to Parquet."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The command lines of one run, with its folder, table and store."""

    programs: Programs
    folder: Path
    table: str
    warehouse: str
    """The folder or bucket of the table. A bucket also contains the table's lock."""
    s3_endpoint: str | None
    max_files_per_trigger: int

    def dev(self) -> list[str]:
        """Kafka and the agent, for this table only."""
        locks = ["--lock-root", self.warehouse] if self.s3_endpoint else []
        return [*self.programs.dev, "--data", str(self.folder), "--allow", self.table, *locks, *self._store()]

    def conflicts_job(self, bootstrap_servers: str) -> list[str]:
        """The conflicts job, which writes to `conflicts/`."""
        folders = ["--output", str(self.folder / "conflicts"), "--checkpoint", self._checkpoint("conflicts")]
        return [*self.programs.conflicts_job, "--bootstrap-servers", bootstrap_servers, *folders]

    def writer(self, role: str, feed: Path, events: Path, bootstrap_servers: str | None) -> list[str]:
        """The query of one feed. Without `bootstrap_servers` it runs without an agent."""
        agent = ["--bootstrap-servers", bootstrap_servers] if bootstrap_servers else ["--without-agent"]
        return [
            *self.programs.writer,
            *("--role", role, "--input", str(feed), "--table", self.table, "--keys", ",".join(KEYS)),
            *("--checkpoint", self._checkpoint(role), "--events", str(events)),
            *("--max-files-per-trigger", str(self.max_files_per_trigger)),
            *agent,
            *self._store(),
        ]

    def _checkpoint(self, query: str) -> str:
        return str(self.folder / "checkpoints" / query)

    def _store(self) -> list[str]:
        return ["--s3-endpoint", self.s3_endpoint] if self.s3_endpoint else []
