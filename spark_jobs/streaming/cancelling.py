"""The Spark jobs of one batch: tagged, so that they can be cancelled from another thread, and only they.

- A *tag* and not a job group: the streaming query has a job group of its own, by which `query.stop()` cancels, and a
  thread has only one. Tags add up.
- The tag is a local property of the thread. Threads that the body starts inherit it if they are
  `pyspark.InheritableThread`s (or wrapped by `pyspark.inheritable_thread_target`); plain ones don't, and their jobs
  aren't cancelled.
- Cancelling covers the jobs that run at that moment. So it is repeated until the body has ended and no tagged job is
  left: a job submitted right after the first cancel dies too.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import structlog

if TYPE_CHECKING:
    from pyspark import SparkContext

CANCEL_AGAIN_SECONDS = 0.1
"""Between two cancels: what a job that was submitted in between can run at most."""

STOPPED_POLL_SECONDS = 0.02
"""Between two looks whether all tagged jobs are gone."""

STOPPED_TIMEOUT_SECONDS = 15.0
"""For cancelled jobs to be gone: Spark needs milliseconds, and a retry must not wait for a broken scheduler."""

log = structlog.get_logger("lakewarden.jobs")


class TaggedJobs:
    """All jobs that the current thread, and the inheritable threads it starts, submit in this block."""

    def __init__(self, spark_context: SparkContext, tag: str) -> None:
        self._context = spark_context
        self.tag = tag
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._context.addJobTag(self.tag)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        try:
            self._context.removeJobTag(self.tag)
        except Exception as failed:
            if error is None:
                raise
            log.warning("jobs.untag-failed", tag=self.tag, error=repr(failed))

    def cancel_until_ended(self) -> None:
        """Cancel, and again, until the block has been left. For another thread than the block's."""
        while True:
            if not self._cancel() or self._ended.wait(CANCEL_AGAIN_SECONDS):
                return

    def wait_until_gone(self) -> bool:
        """Cancel until no tagged job is left; False if some still ran after `STOPPED_TIMEOUT_SECONDS`."""
        deadline = time.monotonic() + STOPPED_TIMEOUT_SECONDS
        while self.running():
            if time.monotonic() >= deadline:
                log.warning("jobs.still-running", tag=self.tag, seconds=STOPPED_TIMEOUT_SECONDS)
                return False
            if not self._cancel():
                return False
            time.sleep(STOPPED_POLL_SECONDS)
        return True

    def running(self) -> int:
        """How many tagged jobs have not ended."""
        # PySpark's own tracker doesn't know tags.
        tracker: Any = self._context._jsc.sc().statusTracker()  # noqa: SLF001
        ended = {"SUCCEEDED", "FAILED"}
        count = 0
        for job in tracker.getJobIdsForTag(self.tag):
            info = tracker.getJobInfo(job)
            count += info.isDefined() and info.get().status().toString() not in ended
        return count

    def _cancel(self) -> bool:
        try:
            self._context.cancelJobsWithTag(self.tag)
        except Exception as error:  # noqa: BLE001 - a stopped context has no jobs, and says so in many ways
            log.warning("jobs.cancel-failed", tag=self.tag, error=repr(error))
            return False
        return True
