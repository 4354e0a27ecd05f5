"""Several sinks in the threads of one driver: nothing that belongs to a batch reaches the commit of another one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import MakeTable
from tests.spark.fake_agent import PATIENCE_SECONDS, grant_everything
from tests.spark.formats import HAS_DELTA
from tests.spark.harness import Harness
from tests.spark.sinks.cases import COLUMNS, SINKS, SinkCase, batch_of, make_case

pytestmark = [pytest.mark.real]

DELTA = [name for name in ("delta-upsert", "delta-append", "delta-overwrite") if HAS_DELTA]

CROWDS = {
    "two": [*DELTA[:1] * 2] or SINKS[:2],
    "two-clones": [*DELTA[:1] * 2] or SINKS[:2],
    "two-formats": SINKS[:1] + SINKS[-1:],
    "eight": [*DELTA * 2, *SINKS][:8],
}


@pytest.mark.parametrize(
    "crowd",
    [
        "two",
        *(pytest.param(each, marks=pytest.mark.wide) for each in ("two-clones", "two-formats", "eight")),
    ],
)
def test_each_commit_has_the_label_and_the_version_of_its_own_transaction(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path, crowd: str
) -> None:
    """Each thread has a sink and a table of its own; all have one session, or clones of it, as streaming queries have."""
    agent = harness.agent(grant_everything)
    gate = harness.gate()
    cases = [
        make_case(name, make_table, tmp_path / f"{number}", spark)
        for number, name in enumerate(CROWDS[crowd])
    ]
    together = Barrier(len(cases), timeout=PATIENCE_SECONDS)
    batches = 3

    def write(number: int, case: SinkCase) -> None:
        session = spark
        if crowd == "two-clones":
            session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        body = gate.foreach_batch(case.sink, writer=f"w{number}")
        for batch_id in range(batches):
            together.wait()
            body(batch_of(session, batch_id), batch_id)

    with ThreadPoolExecutor(len(cases)) as pool:
        for ended in [pool.submit(write, *each) for each in enumerate(cases)]:
            ended.result()

    completed = agent.wait_for("commit-completed", batches * len(cases))
    for number, case in enumerate(cases):
        own = [event for event in completed if event.writer == f"w{number}"]
        transactions = [event.transaction for event in own]
        assert case.commits() == [(f"w{number}", each, transactions[each]) for each in range(batches)]
        assert [event.version for event in own] == [
            case.sink.committed(f"w{number}", each) for each in range(batches)
        ]


@pytest.mark.skipif(not HAS_DELTA, reason="the label is Delta's")
@pytest.mark.parametrize(
    "own_label", [None, pytest.param("the user's", marks=pytest.mark.wide)], ids=["", "own"]
)
def test_the_users_own_statement_beside_a_sink_gets_no_label(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path, own_label: str | None
) -> None:
    """It commits in the same session, in another thread, before the sink's statement and in the middle of its commit."""
    case = make_case("delta-upsert", make_table, tmp_path)
    table = tmp_path / "own"
    spark.sql(f"CREATE TABLE delta.`{table}` ({COLUMNS}) USING delta")

    def write_own() -> None:
        batch_of(spark, 7).writeTo(f"delta.`{table}`").append()

    def beside(event: Any, offset: int) -> Any:
        if event.type in {"commit-intent", "commit-requested"}:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(write_own).result()
        return grant_everything(event, offset)

    agent = harness.agent(beside)
    label = "spark.databricks.delta.commitInfo.userMetadata"
    if own_label:
        spark.conf.set(label, own_label)
    try:
        harness.gate().foreach_batch(case.sink, writer="w")(batch_of(spark, 1), 0)
        assert spark.conf.get(label, None) == own_label
    finally:
        spark.conf.unset(label)

    history = [row.userMetadata for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()]
    assert history[:-1] == [own_label] * 2
    (commit,) = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/delta` LIMIT 1").collect()
    completed = agent.wait_for("commit-completed")[0]
    assert completed.version == str(commit.version)
    assert commit.userMetadata == (own_label or json.dumps({"lakewarden.transaction": completed.transaction}))
