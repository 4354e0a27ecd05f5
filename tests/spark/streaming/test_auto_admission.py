"""`admission="auto"`: what a batch asks for, on real Spark and a real broker, and what it learns with the product's own agent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import Marker
from lakewarden.spark_jobs import CommitGate, GateEvent, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.spark.conftest import MakeTable
from tests.spark.fake_agent import PATIENCE_SECONDS, FakeAgent, aborted, admitted, grant_everything
from tests.spark.harness import Harness
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]

TABLE = "file:///lake/flights"
MINE = Marker(partition="month=1/day=3", file_group="f-1", operation="merge")


def test_a_known_scope_is_queued_unless_the_job_chooses_and_the_reason_is_observed(
    harness: Harness, spark: SparkSession, make_table: MakeTable, agent: FakeAgent
) -> None:
    upsert = PaimonSink(make_table(), mode="upsert", keys=["flight"])
    append = PaimonSink(make_table("appended"))
    batch = spark.sql("select 1 month, 1 day, 7L flight")

    for number, sink in enumerate((upsert, append)):
        harness.gate().foreach_batch(sink, writer="w")(batch, number)
    harness.gate().foreach_batch(upsert, writer="w", admission="optimistic")(batch, 2)

    intents = agent.wait_for("commit-intent", 3)
    found = [(each.admission, [marker.partition for marker in each.scope]) for each in intents]
    assert found == [("queued", ["month=1/day=1"]), ("optimistic", []), ("optimistic", [])]
    reasons = ["its scope is known", "its scope is unknown", "asked for by the job"]
    assert [event.detail["reason"] for event in harness.only("intent")] == reasons
    assert [each.admission_reason for each in intents] == reasons


@pytest.mark.wide
def test_a_writer_without_a_scope_declares_what_it_touched_until_it_is_undisturbed(
    harness: Harness, spark: SparkSession
) -> None:
    """Batch 0 loses once. Batch 1 declares what it touched, and waits. Batch 2 too, and doesn't wait. Batch 3 is optimistic."""
    waiting: list[object] = []

    def script(event, offset):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - a fake agent's script
        if event.type == "marker-created" and not waiting:
            waiting.append(event)
            return [aborted(event, *event.markers)]
        if event.type == "commit-intent" and event.batch_id == 1:
            return [admitted(event).model_copy(update={"cause_offset": offset + 1})]
        return grant_everything(event, offset)

    agent = harness.agent(script)

    def write(_batch: DataFrame, txn: Transaction) -> None:
        txn.touch_all([MINE])
        wait_until(lambda: txn.aborted or txn.intent.attempt > 1 or txn.batch_id)
        with txn.commit():
            pass

    gated = harness.gate().foreach_batch(write, table=TABLE, writer="w")
    for batch_id in range(4):
        gated(spark.range(1), batch_id)

    intents = agent.wait_for("commit-intent", 5)
    assert [(intent.batch_id, intent.admission, intent.scope) for intent in intents] == [
        (0, "optimistic", ()),
        (0, "queued", (MINE,)),
        (1, "queued", (MINE,)),
        (2, "queued", (MINE,)),
        (3, "optimistic", ()),
    ]


@pytest.mark.wide
def test_writers_of_one_partition_that_never_meet_stop_waiting_for_one_another(
    gate: CommitGate, spark: SparkSession
) -> None:
    """Each writer changes a file group of its own, and its scope is the partition. After a needless wait both start at once."""
    steps: list[GateEvent] = []
    started = {name: [threading.Event() for _ in range(3)] for name in ("a", "b")}
    release = [threading.Event() for _ in range(3)]

    def writing(name: str) -> Callable[[DataFrame, Transaction], None]:
        def write(_batch: DataFrame, txn: Transaction) -> None:
            number = txn.batch_id or 0
            started[name][number].set()
            txn.touch("day=1", f"f-{name}", "merge")
            if name == "a":
                assert release[number].wait(PATIENCE_SECONDS)
            with txn.commit():
                pass

        return write

    def began(name: str, batch_id: int) -> bool:
        """Whether the intent of the batch is in the log."""
        seen = [step.what for step in steps if (step.writer, step.batch_id) == (name, batch_id)]
        return "intent" in seen

    gate.observer = steps.append
    gated = {
        name: gate.foreach_batch(writing(name), table=TABLE, writer=name, scope=lambda _: ["day=1"])
        for name in ("a", "b")
    }
    for batch_id in range(3):
        threads = {
            name: threading.Thread(target=gated[name], args=(spark.range(1), batch_id)) for name in ("a", "b")
        }
        threads["a"].start()
        assert started["a"][batch_id].wait(PATIENCE_SECONDS)
        threads["b"].start()
        if batch_id < 2:
            wait_until(lambda number=batch_id: began("b", number))  # type: ignore[misc]
            release[batch_id].set()
        else:
            assert started["b"][batch_id].wait(PATIENCE_SECONDS), "it doesn't wait for `a`"
            release[batch_id].set()
        for thread in threads.values():
            thread.join(PATIENCE_SECONDS)

    chosen = {
        (step.writer, step.batch_id): (step.detail["admission"], step.detail["reason"])
        for step in steps
        if step.what == "intent" and step.writer in ("a", "b")
    }
    assert [chosen["b", number][0] for number in range(3)] == ["queued", "queued", "optimistic"]
    assert chosen["a", 2] == ("optimistic", "its scope is known, but waiting was needless")
    assert [step.what for step in steps].count("abort") == 0
