"""What Hudi's commit depends on stops in the middle of it: the agent is suspended, with the product's own agent."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import CommitGate, LeaseLost
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.spark.sinks.cases import HudiCase, batch_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(1500)]

LEASE_SECONDS = "9"


@pytest.mark.parametrize("lapsed", [False, True], ids=["within-the-lease", "beyond-the-lease"])
def test_an_agent_that_is_suspended_during_the_commit_leaves_the_batch_once(
    *,
    kafka: KafkaServer,
    topic_prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    lapsed: bool,
) -> None:
    """Within the lease the commit needs no agent. Beyond it the commit is interrupted, and the batch is looked up or repeated."""
    case = HudiCase(tmp_path / "hudi", spark)
    answer, end = HudiWrite.answer, HudiWrite.end
    suspended: list[str] = []

    with running_agent(kafka, topic_prefix, tmp_path, VALIDITY_SECONDS=LEASE_SECONDS) as agent:

        def suspending(write: HudiWrite, event: str, section: str) -> str:
            said = answer(write, event, section)
            if event == "locked" and not suspended:
                suspended.append(write._txn.id)
                agent.popen.send_signal(signal.SIGSTOP)
                if lapsed:
                    wait_until(lambda: not has_lease(write))
            return said

        def resuming(write: HudiWrite) -> None:
            end(write)
            agent.popen.send_signal(signal.SIGCONT)

        monkeypatch.setattr(HudiWrite, "answer", suspending)
        monkeypatch.setattr(HudiWrite, "end", resuming)
        with CommitGate(
            kafka.bootstrap_servers,
            topic_prefix=topic_prefix,
            heartbeat_seconds=2.0,
            admission_timeout_seconds=120.0,
            grant_timeout_seconds=120.0,
        ) as gate:
            body = gate.foreach_batch(case.sink, writer="w")
            for _ in range(2):  # a replay: what the suspended commit left must not be written again
                body(batch_of(spark, 1), 0)

    assert case.flights() == [1]
    ((writer, batch, transaction),) = case.commits()
    assert (writer, batch) == ("w", 0)
    assert len(suspended) == 1, "the agent was suspended within the commit section"
    assert lapsed or [transaction] == suspended
    assert case.orphans() == set()


def has_lease(write: HudiWrite) -> bool:
    """Whether the grant still counts."""
    assert write._grant is not None
    try:
        return write._grant.seconds_left() > 0
    except LeaseLost:
        return False
