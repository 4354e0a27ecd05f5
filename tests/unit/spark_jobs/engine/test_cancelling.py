"""The tagged jobs of a batch, on a Spark that consists of a status tracker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs.engine import cancelling
from lakewarden.spark_jobs.engine.cancelling import TaggedJobs

TAG = "lakewarden-t"


class Option:
    """Scala's, as py4j shows it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def isDefined(self) -> bool:  # noqa: N802 - Spark's name
        return self._value is not None

    def get(self) -> Any:
        return self._value


class Schedulable:
    """A stage's task set in a pool of the scheduler, with its tags, or a pool that has a queue of others."""

    def __init__(self, tags: str | None = None, queue: Sequence[Schedulable] | None = None) -> None:
        self._tags = tags
        self._queue = queue

    def schedulableQueue(self) -> Any:  # noqa: N802
        return None if self._queue is None else SimpleNamespace(toArray=lambda: self._queue)

    def taskSet(self) -> Any:  # noqa: N802
        properties = {"spark.job.tags": self._tags}
        return SimpleNamespace(properties=lambda: SimpleNamespace(getProperty=properties.get))


class Spark:
    """A context, its `SparkContext` in the JVM, status tracker and scheduler. Each job has one stage, with the same number."""

    def __init__(self, *pools: Sequence[Schedulable], **active_tasks: list[int]) -> None:
        """By job, how many tasks of it run, at each question about it. The last number stays.

        And what the scheduler's pool has, at each question. Then it has nothing.
        """
        self._active = {int(name.removeprefix("job")): numbers for name, numbers in active_tasks.items()}
        self._pools = list(pools)
        self.asked: Counter[int] = Counter()
        self.cancelled = 0
        self._jsc = self

    def sc(self) -> Spark:
        return self

    def statusTracker(self) -> Spark:  # noqa: N802
        return self

    def taskScheduler(self) -> Spark:  # noqa: N802
        return self

    def rootPool(self) -> Schedulable:  # noqa: N802
        return Schedulable(queue=self._pools.pop(0) if self._pools else ())

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        assert tag == TAG
        self.cancelled += 1

    def getJobIdsForTag(self, tag: str) -> list[int]:  # noqa: N802
        assert tag == TAG
        return list(self._active)

    def getJobInfo(self, job: int) -> Option:  # noqa: N802
        self.asked[job] += 1
        status = SimpleNamespace(toString=lambda: "FAILED")
        return Option(SimpleNamespace(status=lambda: status, stageIds=lambda: [job]))

    def getStageInfo(self, stage: int) -> Option:  # noqa: N802
        numbers = self._active[stage]
        active = numbers.pop(0) if len(numbers) > 1 else numbers[0]
        return Option(SimpleNamespace(numActiveTasks=lambda: active))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "STOPPED_POLL_SECONDS", 0.0)


def jobs_of(spark: Spark) -> TaggedJobs:
    return TaggedJobs(spark, TAG)  # type: ignore[arg-type]


def test_failed_jobs_are_waited_for_until_their_last_task_has_ended() -> None:
    """Jobs are cancelled all the while: another one may have begun."""
    spark = Spark(job1=[2, 1, 1, 0])

    assert jobs_of(spark).wait_until_gone()

    assert spark.cancelled == 3


@pytest.mark.parametrize(
    ("pool", "waited"),
    [
        pytest.param([Schedulable(TAG)], True, id="its own"),
        pytest.param([Schedulable(f"mine,{TAG}")], True, id="beside another tag"),
        pytest.param(
            [Schedulable(queue=[Schedulable(), Schedulable(TAG)])], True, id="in a pool of the fair scheduler"
        ),
        pytest.param([Schedulable(), Schedulable(f"{TAG}-2"), Schedulable(queue=[])], False, id="of others"),
    ],
)
def test_task_sets_that_the_status_does_not_count_are_waited_for(
    pool: list[Schedulable], *, waited: bool
) -> None:
    """A stage that was cancelled before the status learnt of a task's start counts as ended, and its task runs on."""
    spark = Spark(pool, pool, job1=[0])

    assert jobs_of(spark).wait_until_gone()

    assert spark.cancelled == (2 if waited else 0)


def test_a_job_that_has_ended_is_not_asked_about_again() -> None:
    """Each question is a call into the JVM, and a batch may have had dozens of jobs."""
    spark = Spark(job1=[0], job2=[0], job3=[1, 1, 1, 0])

    assert jobs_of(spark).wait_until_gone()

    assert spark.asked == {1: 1, 2: 1, 3: 4}


def test_a_task_that_never_ends_is_waited_for_no_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancelling, "STOPPED_TIMEOUT_SECONDS", 0.0)

    assert not jobs_of(Spark(job1=[1])).wait_until_gone()


def test_the_pauses_between_cancel_calls_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job starts soon, if the abort came between two jobs. A body that plans for minutes costs ten calls a second."""
    spark = Spark()
    jobs = jobs_of(spark)
    pauses: list[float] = []

    def ended_after_seven(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 7

    monkeypatch.setattr(jobs._ended, "wait", ended_after_seven)
    jobs.cancel_until_ended()

    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1]
    assert spark.cancelled == 7
