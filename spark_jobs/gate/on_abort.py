"""Callbacks that run the moment a transaction is aborted, on a thread of their own.

Neither of the two threads involved can run them: the body may be waiting for a Spark job, and the channel's thread, which
reads the abort, serves all transactions. If a callback raises, the others still run.
"""

import threading
from collections.abc import Callable

from lakewarden.spark_jobs.gate.errors import CommitAborted
from lakewarden.spark_jobs.gate.logs import EventLogger

log = EventLogger("lakewarden.gate")


class AbortCallbacks:
    """The callbacks of one transaction. Thread-safe."""

    def __init__(self, transaction: str, clock: Callable[[], float]) -> None:
        self._transaction = transaction
        self._clock = clock
        self._aborted_at: float | None = None
        self._lock = threading.Lock()
        self._pending: list[Callable[[CommitAborted], None]] = []
        self._aborted: CommitAborted | None = None
        self._told = threading.Event()

    def add(self, callback: Callable[[CommitAborted], None]) -> None:
        """Call `callback` when the abort arrives, or at once if it has arrived."""
        with self._lock:
            if self._aborted is None:
                self._pending.append(callback)
                return
            error = self._aborted
        self._start(error, [callback])

    def run(self, error: CommitAborted, *, callbacks: bool, first: Callable[[], None]) -> None:
        """Call `first`. Then, if `callbacks`, call the callbacks, those that are added later included."""
        self._aborted_at = self._aborted_at or self._clock()
        pending: list[Callable[[CommitAborted], None]] = []
        if callbacks:
            with self._lock:
                self._aborted = error
                pending, self._pending = self._pending, []

        def tell(_: CommitAborted) -> None:
            first()
            self._told.set()

        self._start(error, [tell, *pending])

    def await_first(self, seconds: float) -> None:
        """After an abort: wait until `first` was called, for so long at most."""
        self._told.wait(seconds)

    def seconds_since_abort(self) -> float | None:
        return None if self._aborted_at is None else self._clock() - self._aborted_at

    def _start(self, error: CommitAborted, callbacks: list[Callable[[CommitAborted], None]]) -> None:
        def run_callbacks() -> None:
            for callback in callbacks:
                try:
                    callback(error)
                except Exception as failure:  # the other callbacks must still run
                    log.exception(
                        "gate.abort-callback-failed", transaction=self._transaction, error=repr(failure)
                    )

        threading.Thread(
            target=run_callbacks, name=f"lakewarden-abort-{self._transaction[:8]}", daemon=True
        ).start()
