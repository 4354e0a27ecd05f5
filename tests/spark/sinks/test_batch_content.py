"""What one query finds in a batch: its partitions, and whether keys repeat in one of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import RowsLost
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.sinks import partitions
from lakewarden.spark_jobs.sinks.partitions import (
    BatchContent,
    PartitionColumn,
    computed_once,
    content_of,
    require_computed_once,
)

pytestmark = [pytest.mark.real, pytest.mark.wide]

DAY = PartitionColumn("day", "int")
ROWS = "day int, id long, part string, note string"


@pytest.fixture(params=["not persisted", "grouped in one task", "grouped by shuffles"])
def persisted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "grouped by shuffles":
        monkeypatch.setattr(partitions, "ONE_TASK_ROWS", 1)
    return str(request.param) != "not persisted"


@pytest.mark.parametrize(
    ("rows", "keys", "repeat"),
    [
        ([(1, 7, "a", "x"), (2, 7, "a", "y"), (2, 8, "a", "y")], ["id"], False),
        ([(1, 7, "a", "x"), (1, 7, "b", "y")], ["id"], True),
        ([(1, 7, "a", "x"), (1, 7, "b", "y")], ["id", "part"], False),
        ([(1, None, "a", "x"), (1, None, "a", "x")], ["id"], True),
        ([(None, 7, "a", "x"), (None, 7, "a", "y")], ["id"], True),
        ([(None, 7, "a", "x"), (1, 7, "a", "y")], ["id", "day"], False),
        ([(1, 7, "a", "x"), (1, 7, "a", "x")], [], False),
        ([], ["id"], False),
    ],
)
def test_keys_repeat_only_within_one_partition(
    spark: SparkSession,
    persisted: bool,
    rows: list[tuple[int | None, int | None, str, str]],
    keys: list[str],
    repeat: bool,
) -> None:
    """NULL is a key and a partition like any other. Without keys nothing is asked."""
    found = content_of(spark.createDataFrame(rows, ROWS), [DAY], keys, "lake", persisted=persisted)

    assert set(found.partitions) == {(row[0],) for row in rows}
    assert len(found.partitions) == len(set(found.partitions))
    assert found.keys_repeat is repeat


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_a_table_without_partitions_has_one_if_there_are_rows(spark: SparkSession, keys: list[str]) -> None:
    rows = spark.createDataFrame([(1, 7, "a", "x"), (2, 7, "a", "y")], ROWS)

    assert content_of(rows, [], keys, "lake", persisted=True) == BatchContent(((),), keys_repeat=bool(keys))
    assert content_of(rows.limit(0), [], keys, "lake", persisted=True) == BatchContent(())


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_few_rows_are_computed_in_parallel_and_grouped_without_a_shuffle(
    spark: SparkSession, keys: list[str]
) -> None:
    context, jobs = spark.sparkContext, spark.sparkContext.statusTracker()
    rows = spark.range(90, numPartitions=3).selectExpr("id % 2 AS day", "id").persist()
    context.setJobGroup(f"content-{keys}", "")

    content_of(rows, [DAY], keys, "lake", persisted=True)

    context._jsc.clearJobGroup()
    rows.unpersist()
    found = [jobs.getJobInfo(job) for job in sorted(jobs.getJobIdsForGroup(f"content-{keys}"))]
    stages = [jobs.getStageInfo(stage) for job in found if job for stage in job.stageIds]
    # Spark 3.5 also reads what is persisted in a job of its own.
    assert [stage.numTasks for stage in stages if stage] in ([3, 1], [3, 3, 1])


def test_rows_that_are_persisted_stay_so_when_a_view_of_them_is_dropped(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 7, "a", "x")], ROWS).persist()
    cached = spark._jsparkSession.sharedState().cacheManager().lookupCachedData

    with engine_of(rows).as_view(rows, "persisted"):
        assert spark.table("persisted").count() == 1

    assert not spark.catalog.tableExists("persisted")
    assert cached(rows._jdf).isDefined()
    rows.unpersist()
    assert not cached(rows._jdf).isDefined()


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_too_many_partitions_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    monkeypatch.setattr(partitions, "MAX_PARTITIONS", 2)
    rows = spark.createDataFrame([(day, 7, "a", "x") for day in range(3)], ROWS)

    assert len(content_of(rows.where("day < 2"), [DAY], keys, "lake", persisted=False).partitions) == 2
    with pytest.raises(ValueError, match=r"more than 2 partitions.*table=lake"):
        content_of(rows, [DAY], keys, "lake", persisted=False)


def test_two_threads_keep_the_same_batch_each_for_itself(spark: SparkSession) -> None:
    """As two sinks in a thread pool: the one that ends first doesn't take the rows from the other one."""
    batch = spark.createDataFrame([(1, 7, "a", "x")], ROWS)
    with computed_once(batch, "table=one") as one:
        assert one.count() == 1
        with computed_once(batch, "table=two") as two:
            assert two.count() == 1
        batch.unpersist()
        require_computed_once(one, "table=one")
        spark.catalog.clearCache()
        with pytest.raises(RowsLost, match=r"clearCache.*must be computed again; table=one"):
            require_computed_once(one, "table=one")
