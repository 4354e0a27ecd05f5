"""What is called the moment a transaction is aborted, on a thread of its own.

The body may be deep inside a Spark job, and the thread that heard of the abort has other transactions to serve: neither
can run them. One callback's failure doesn't keep the others from stopping their part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from lakewarden.spark_jobs.gate.errors import CommitAborted

log = structlog.get_logger("lakewarden.gate")


class AbortCallbacks:
    """The callbacks of one transaction. Safe to use from many threads."""

    def __init__(self, transaction: str) -> None:
        self._transaction = transaction
        self._lock = threading.Lock()
        self._waiting: list[Callable[[CommitAborted], None]] = []
        self._aborted: CommitAborted | None = None

    def add(self, callback: Callable[[CommitAborted], None]) -> None:
        """Call it when the abort comes, or at once if it has come."""
        with self._lock:
            if self._aborted is None:
                self._waiting.append(callback)
                return
            error = self._aborted
        self._start(error, [callback])

    def run(self, error: CommitAborted, *, callbacks: bool, first: Callable[[], None]) -> None:
        """Do `first`, then, if `callbacks`, call all of them, now and whichever are added later."""
        waiting: list[Callable[[CommitAborted], None]] = []
        if callbacks:
            with self._lock:
                self._aborted = error
                waiting, self._waiting = self._waiting, []
        self._start(error, [lambda _: first(), *waiting])

    def _start(self, error: CommitAborted, callbacks: list[Callable[[CommitAborted], None]]) -> None:
        def running() -> None:
            for callback in callbacks:
                try:
                    callback(error)
                except Exception as failure:  # the other callbacks still have to stop their part
                    log.exception(
                        "gate.abort-callback-failed", transaction=self._transaction, error=repr(failure)
                    )

        threading.Thread(
            target=running, name=f"lakewarden-abort-{self._transaction[:8]}", daemon=True
        ).start()
