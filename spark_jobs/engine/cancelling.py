"""The Spark jobs of one batch: tagged, so that another thread can cancel them and no others.

- *A tag, not a job group.* A streaming query has a job group already, by which `query.stop()` cancels its jobs, and a thread
  has only one group. It may have many tags.
- *Threads of the body.* The tag is a local property of the thread. A `pyspark.InheritableThread`, or a function wrapped by
  `pyspark.inheritable_thread_target`, inherits it. Other threads don't, and their jobs aren't cancelled.
- *Cancelling is repeated.* One call cancels the jobs that run at that moment. It is repeated until the body has ended and no
  tagged job is left, so a job that starts right after the first call is cancelled too. The pauses grow, because the next job
  starts soon, if the abort came between two jobs, or after a long step of the driver.
- *A job ends before its tasks.* Spark calls a failed or cancelled job failed at once; its other tasks end when they notice.
  Until then a task may write a file, after what was staged has been discarded. So a job is gone when its tasks have ended.
  Spark's status doesn't count a task whose start it learns after the stage has ended; the scheduler, which keeps a stage's
  task set until the last task has ended, does.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from lakewarden.spark_jobs.gate.logs import EventLogger

if TYPE_CHECKING:
    from pyspark import SparkContext

FIRST_PAUSE_SECONDS = 0.01
CANCEL_AGAIN_SECONDS = 0.1
"""Between two cancel calls at first, and at most: the longest run of a job that starts in between."""

STOPPED_POLL_SECONDS = 0.01
"""Between two checks whether a tagged job is left."""

STOPPED_TIMEOUT_SECONDS = 15.0
"""For cancelled jobs and their tasks to end. Most need milliseconds; a retry must not wait for a task that never notices."""

JOB_TAGS = "spark.job.tags"
"""The local property that has a thread's tags, separated by commas."""

log = EventLogger("lakewarden.jobs")


class Tagged(ABC):
    """What the current thread, and the inheritable threads that it starts, let Spark do in this block."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._set_tag()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        # A stopped Spark raises various errors. No other transaction has this tag.
        with suppress(Exception):
            self._remove_tag()

    def cancel_until_ended(self) -> None:
        """Cancel it repeatedly until the block ends. Call it from another thread."""
        pause = FIRST_PAUSE_SECONDS
        while self._cancel() and not self._ended.wait(pause):
            pause = min(2 * pause, CANCEL_AGAIN_SECONDS)

    def wait_until_gone(self) -> bool:
        """Cancel until nothing with the tag is left. Return False if something still runs after `STOPPED_TIMEOUT_SECONDS`."""
        deadline = time.monotonic() + STOPPED_TIMEOUT_SECONDS
        while self.running():
            if time.monotonic() >= deadline:
                log.warning("jobs.still-running", tag=self.tag, seconds=STOPPED_TIMEOUT_SECONDS)
                return False
            if not self._cancel():
                return False
            time.sleep(STOPPED_POLL_SECONDS)
        return True

    @abstractmethod
    def running(self) -> int:
        """Return how much with the tag still runs."""

    @abstractmethod
    def _set_tag(self) -> None: ...

    @abstractmethod
    def _remove_tag(self) -> None: ...

    @abstractmethod
    def _cancel_all(self) -> None:
        """Cancel what runs with the tag now."""

    def _cancel(self) -> bool:
        try:
            self._cancel_all()
        except Exception as error:  # noqa: BLE001 - a stopped Spark runs nothing, and raises various errors
            log.warning("jobs.cancel-failed", tag=self.tag, error=repr(error))
            return False
        return True


class TaggedJobs(Tagged):
    """The Spark jobs of the driver's own JVM."""

    def __init__(self, spark_context: SparkContext, tag: str) -> None:
        super().__init__(tag)
        self._context = spark_context
        self._gone: set[int] = set()
        """Jobs that have ended, with their tasks. A batch may have many, and each question about one is a call into the JVM."""

    def running(self) -> int:
        """Return the number of tagged jobs, or of their stages, that have not ended or have a task that has not."""
        # PySpark's tracker has no tags; the JVM's has.
        tracker: Any = self._context._jsc.sc().statusTracker()
        jobs = set(tracker.getJobIdsForTag(self.tag)) - self._gone
        self._gone.update(job for job in jobs if not _runs(tracker, job))
        return len(jobs - self._gone) or self._task_sets()

    def _task_sets(self) -> int:
        """Return how many of the scheduler's task sets are tagged. 0 where a platform's scheduler doesn't show them."""
        found = 0
        with suppress(Exception):
            waiting = [self._context._jsc.sc().taskScheduler().rootPool()]
            while waiting:
                for each in waiting.pop().schedulableQueue().toArray():
                    if each.schedulableQueue() is not None:  # a pool of the fair scheduler
                        waiting.append(each)
                    elif self.tag in (each.taskSet().properties().getProperty(JOB_TAGS) or "").split(","):
                        found += 1
        return found

    def _set_tag(self) -> None:
        self._context.addJobTag(self.tag)

    def _remove_tag(self) -> None:
        self._context.removeJobTag(self.tag)

    def _cancel_all(self) -> None:
        self._context.cancelJobsWithTag(self.tag)


def _runs(tracker: Any, job: int) -> bool:
    info = tracker.getJobInfo(job)
    if not info.isDefined():
        return False
    if info.get().status().toString() not in ("SUCCEEDED", "FAILED"):
        return True
    stages = map(tracker.getStageInfo, info.get().stageIds())
    return any(stage.isDefined() and stage.get().numActiveTasks() for stage in stages)
