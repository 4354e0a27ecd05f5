"""The product's commands that the demo runs, with the flags that it gives them.

They are started as programs, never imported: the agent's side and the Spark side know nothing of each other.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lakewarden.agent.demo.flights import KEYS

_KEPT = frozenset({"LAKEWARDEN_CACHE_DIR"})
"""Of our own variables: where downloads are. The others configure some agent of yours, which the demo's must not be."""


def environment() -> dict[str, str]:
    """What the programs get: this process's environment without its lakewarden settings."""
    ours = {name for name in os.environ if name.startswith("LAKEWARDEN_") and name not in _KEPT}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}


def _module(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *words)


@dataclass(frozen=True, slots=True)
class Programs:
    """How each program is called; tests put stand-ins here that take the same flags."""

    dev: tuple[str, ...] = _module("lakewarden.agent", "dev")
    """Kafka and the agent."""
    writer: tuple[str, ...] = _module("lakewarden.spark_jobs.jobs.demo_writer")
    """One feed's streaming query."""
    third: tuple[str, ...] = _module("lakewarden.spark_jobs.conflicts_job")
    """The operators' streaming query: conflicts to Parquet."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines for one run: its folder, its table, its store."""

    programs: Programs
    folder: Path
    table: str
    warehouse: str
    """Where the table is, and its lock too if that is a bucket."""
    s3_endpoint: str | None
    max_files_per_trigger: int

    def dev(self) -> list[str]:
        """Kafka and the agent, for this table alone."""
        locks = ["--lock-root", self.warehouse] if self.s3_endpoint else []
        return [*self.programs.dev, "--data", str(self.folder), "--allow", self.table, *locks, *self._store()]

    def third(self, bootstrap_servers: str) -> list[str]:
        """The third query, into `conflicts/`."""
        places = ["--output", str(self.folder / "conflicts"), "--checkpoint", self._checkpoint("conflicts")]
        return [*self.programs.third, "--bootstrap-servers", bootstrap_servers, *places]

    def writer(self, role: str, feed: Path, events: Path, bootstrap_servers: str | None) -> list[str]:
        """A feed's query; without Kafka it runs without the agent."""
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
