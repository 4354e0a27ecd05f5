"""The compactor of one contest on a table with a primary key: when it is ready, and its last commit.

Spark needs seconds to start, and minutes on a busy machine, so a short contest could end before the compactor's first commit. The
demo reads the compactor's output, and waits twice:

- before the queries start, until the compactor says that it is ready;
- after the queries have ended, until it has committed once. Each day of flights has files of both queries by then, so the next
  round has something to compact.
"""

from __future__ import annotations

from lakewarden.agent.demo.processes import Child, stop_all, wait_for, wait_until_ready

READY_SECONDS = 900.0
"""Limit for the start, which takes half a minute, and longer the first time, when Spark downloads Java Paimon."""

COMMIT_SECONDS = 300.0
"""Limit for the first commit after the queries have ended. On a busy machine a round takes a minute."""


class Compactor:
    """The process, and what its output says of its table."""

    def __init__(self, child: Child, table: str) -> None:
        self._child = child
        self._table = table

    def wait_until_ready(self) -> None:
        """Return when Spark has started. Raises `DemoError` if it doesn't."""
        wait_until_ready(self._child, lambda: self._said("ready"), READY_SECONDS, "the compactor")

    def stop(self, commit_seconds: float = COMMIT_SECONDS) -> str | None:
        """End the process after its first commit. Return what went wrong, or None."""
        committed = wait_for(self._child, lambda: self._said("snapshot"), commit_seconds)
        ended = self._child.exit_code() is not None
        stop_all([self._child])
        if ended:
            return f"the compactor has ended: {self._child.last_log_line()}"
        if not committed:
            return f"the compactor committed nothing: {self._child.last_log_line()}"
        return None

    def _said(self, word: str) -> bool | None:
        lines = self._child.out.read_text(errors="replace").splitlines()
        return any(line.startswith(f"{self._table} {word}") for line in lines) or None
