"""The gate on a real broker, with an agent that follows a script."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.events import (
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    DecisionRecord,
    Marker,
    TransactionAbandoned,
    WriterEventUnion,
    encode,
)
from lakewarden.spark_jobs import (
    AgentUnreachable,
    AlreadyCommitted,
    CommitAborted,
    CommitGate,
    GrantTimeout,
    LeaseLost,
    OutcomeUnknown,
)
from lakewarden.spark_jobs.gate.observer import EMPTY
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.kafka_fixture import KafkaServer, administering
from tests.spark.fake_agent import (
    PATIENCE_SECONDS,
    At,
    FakeAgent,
    aborted,
    admitted,
    already_committed,
    answer_nothing,
    grant_everything,
    granted,
    in_edition,
    partition_taken,
    renewed,
)
from tests.spark.harness import Harness
from tests.waiting import wait_until

pytestmark = pytest.mark.real

TABLE = "file:///lake/flights"
MINE = Marker(partition="month=1/day=3", file_group="*", operation="merge")


class ManualClock:
    """The clock on which a gate counts its leases. Only the test moves it, so a slow machine makes no lease expire."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_transaction_from_intent_to_completion(harness: Harness) -> None:
    agent, gate = harness.agent(grant_everything), harness.gate()

    with gate.transaction(table="/lake/flights", writer="departures", batch_id=3) as txn:
        assert agent.types() == ["commit-intent"], "the agent has the intent before the body starts"
        txn.touch("month=1/day=3", "*", "merge")
        with txn.commit() as grant:
            grant.check()
            grant.version = "12"

    completed = agent.wait_for("commit-completed")[0]
    assert agent.types() == ["commit-intent", "marker-created", "commit-requested", "commit-completed"]
    assert (completed.version, completed.grant) == ("12", f"g-{txn.id[:6]}")
    intent = agent.wait_for("commit-intent")[0]
    assert (intent.table, intent.writer, intent.batch_id) == (TABLE, "departures", 3)
    assert harness.steps() == ["intent", "admitted", "markers", "requested", "granted", "completed"]


def test_the_fencing_token_is_the_offset_of_the_grant_and_rises(harness: Harness) -> None:
    harness.agent(grant_everything)
    gate, tokens = harness.gate(), []

    for number in range(3):
        with gate.transaction(table=TABLE, writer="w", batch_id=number) as txn, txn.commit() as grant:
            tokens.append(grant.token)

    assert tokens == [1, 3, 5], "an `admitted` precedes each"


def test_the_body_does_not_start_before_its_admission(harness: Harness) -> None:
    agent, gate = harness.agent(answer_nothing), harness.gate()
    ran = threading.Event()

    def body() -> None:
        with gate.transaction(table=TABLE, writer="w"):
            ran.set()

    thread = threading.Thread(target=body)
    thread.start()
    intent = agent.wait_for("commit-intent")[0]

    assert not ran.wait(0.5)
    agent.publish(admitted(intent))
    assert ran.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)
    assert agent.wait_for("transaction-abandoned")[0].reason == EMPTY


def test_without_an_answer_the_body_does_not_start(harness: Harness) -> None:
    agent, gate = harness.agent(answer_nothing), harness.gate(admission_timeout_seconds=3)

    with (
        pytest.raises(AgentUnreachable, match="no agent answered the commit-intent within 3 s") as caught,
        gate.transaction(table=TABLE, writer="w"),
    ):
        pytest.fail("the body ran")

    assert TABLE in str(caught.value)
    assert "lakewarden agent" in str(caught.value)
    agent.wait_for("transaction-abandoned")


def test_a_writer_that_lost_a_conflict_waits_for_its_admission_as_long_as_a_queued_one(
    harness: Harness,
) -> None:
    """The agent reserves what such a writer lost on, and may queue its next transaction. Its commit ends this."""
    agent = harness.agent(lambda event, _: [aborted(event)] if isinstance(event, CommitIntent) else [])
    gate = harness.gate(queue_timeout_seconds=PATIENCE_SECONDS)
    with pytest.raises(CommitAborted), gate.transaction(table=TABLE, writer="w"):
        pytest.fail("the body ran")

    gate._timing = replace(gate._timing, admission_timeout_seconds=0.5)
    agent.script = lambda event, _: [granted(event)] if isinstance(event, CommitRequested) else []
    admission = threading.Timer(1.5, lambda: agent.publish(admitted(agent.wait_for("commit-intent", 2)[-1])))
    admission.start()
    with gate.transaction(table=TABLE, writer="w") as txn, txn.commit() as grant:
        grant.check()
    admission.join()

    with pytest.raises(AgentUnreachable, match=r"within 0\.5 s"), gate.transaction(table=TABLE, writer="w"):
        pytest.fail("the body ran")


def test_an_unreachable_kafka_is_named() -> None:
    with (
        CommitGate("127.0.0.1:1") as gate,
        pytest.raises(
            AgentUnreachable, match=rf"brokers=127\.0\.0\.1:1 table={TABLE} writer=w transaction=\w+$"
        ),
        gate.transaction(table=TABLE, writer="w"),
    ):
        pytest.fail("the body ran")


def test_missing_topics_are_named(harness: Harness) -> None:
    with (
        pytest.raises(
            AgentUnreachable,
            match=rf"topics don't exist, or Kafka hides them: .*\.writers.*start an agent.* table={TABLE} writer=w",
        ),
        harness.gate().transaction(table=TABLE, writer="w"),
    ):
        pytest.fail("the body ran")


def test_kafka_hangs_in_the_middle_of_a_transaction(harness: Harness, tmp_path: Path) -> None:
    """It is suspended, as if the network had failed. Nothing is published, and the same gate works when Kafka resumes."""
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        own = Harness(KafkaServer(broker.bootstrap_servers, "its own"), harness.prefix)
        with own:
            agent = own.agent(grant_everything)
            gate = own.gate()
            facts = rf"table={TABLE} writer=w transaction=\w+$"
            with pytest.raises(AgentUnreachable, match=rf"publishing commit-requested failed.*{facts}"):  # noqa: SIM117
                with gate.transaction(table=TABLE, writer="w", batch_id=0) as txn:
                    timeout, gate._channel.timeout = gate._channel.timeout, 1.0
                    os.kill(broker.pid or 0, signal.SIGSTOP)
                    try:
                        with pytest.raises(
                            AgentUnreachable, match=rf"publishing marker-created failed: no answer.*{facts}"
                        ):
                            while True:  # until the last of its threads is suspended
                                txn.touch("month=1/day=3", "*", "merge")
                        with txn.commit():
                            pytest.fail("it published")
                    finally:
                        os.kill(broker.pid or 0, signal.SIGCONT)
                        gate._channel.timeout = timeout
            assert txn.discardable

            with gate.transaction(table=TABLE, writer="w", batch_id=0) as again, again.commit() as grant:
                grant.version = "1"
            assert agent.wait_for("commit-completed")[0].transaction == again.id


def test_a_committed_batch_is_not_computed_again(harness: Harness) -> None:
    harness.agent(lambda event, _: [already_committed(event)] if isinstance(event, CommitIntent) else [])

    with (
        pytest.raises(AlreadyCommitted, match="batch 4 of writer 'w' is already committed"),
        harness.gate().transaction(table=TABLE, writer="w", batch_id=4),
    ):
        pytest.fail("the body ran")

    assert harness.steps() == ["intent", "already-committed"]


def test_a_grant_that_arrives_after_its_lease_is_refused(harness: Harness) -> None:
    """The agent was suspended during the lease: on this writer's clock the grant has expired."""
    clock = ManualClock()

    def suspended(event: WriterEventUnion, _offset: int) -> list[DecisionEventUnion]:
        if isinstance(event, CommitRequested):
            clock.now += 21.0
            return [granted(event, lease_seconds=20.0)]
        return grant_everything(event)

    agent, gate = harness.agent(suspended), harness.gate(clock=clock)

    with pytest.raises(LeaseLost, match=r"its lease of 20 s expired 2\.0 s ago") as caught:  # noqa: SIM117
        with gate.transaction(table=TABLE, writer="w") as txn:
            with txn.commit():
                pytest.fail("it published")

    assert caught.value.retriable
    assert "nothing was published" in str(caught.value)
    assert "LeaseLost" in agent.wait_for("transaction-abandoned")[0].reason


def test_a_fresh_writer_knows_the_term_in_force(harness: Harness) -> None:
    """It starts after the take-over, and before the replaced agent publishes."""

    def two_agents(event: WriterEventUnion, _offset: int) -> list[DecisionRecord]:
        if event.writer == "first":
            return [partition_taken("two", 0), *grant_everything(event)]
        outdated = [aborted(event, MINE).model_copy(update={"term": "one"})]
        return [*outdated, *(each.model_copy(update={"term": "two"}) for each in grant_everything(event))]

    harness.agent(two_agents, partitions=1)
    with (
        pytest.raises(AgentUnreachable),
        harness.gate(admission_timeout_seconds=2.0).transaction(table=TABLE, writer="first"),
    ):
        pytest.fail("the body ran")

    with harness.gate().transaction(table=TABLE, writer="fresh") as txn, txn.commit() as grant:
        grant.check()


def test_a_grant_that_names_a_seq_never_sent_is_refused(harness: Harness) -> None:
    def confused(event: WriterEventUnion, _offset: int) -> list[DecisionEventUnion]:
        return [granted(event, seq=99)] if isinstance(event, CommitRequested) else grant_everything(event)

    harness.agent(confused)
    with pytest.raises(LeaseLost, match="seq 99, which this writer never sent"):  # noqa: SIM117
        with harness.gate().transaction(table=TABLE, writer="w") as txn:
            with txn.commit():
                pytest.fail("it published")


def grant_for_20_seconds(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
    if isinstance(event, CommitRequested):
        return [granted(event, lease_seconds=20.0)]
    return grant_everything(event, offset)


def test_heartbeats_extend_the_grant_lease(harness: Harness) -> None:
    """The grant's deadline is 19 s after the request. A heartbeat sent after 15 s extends it to 34 s."""

    def renewing(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if event.type == "writer-heartbeat":
            return [renewed(event, lease_seconds=20.0)]
        return grant_for_20_seconds(event, offset)

    harness.agent(renewing)
    clock = ManualClock()
    begin = clock.now
    with harness.gate(clock=clock).transaction(table=TABLE, writer="w") as txn, txn.commit() as grant:
        clock.now = begin + 15.0
        wait_until(lambda: deadline_of(txn) == begin + 34.0)
        clock.now = begin + 33.0

        grant.check()


def deadline_of(txn: Transaction) -> float | None:
    lease = txn._progress.lease
    return None if lease is None else lease.deadline


def test_a_grant_lease_that_is_not_renewed_expires(harness: Harness) -> None:
    """The agent no longer reads this writer's heartbeats."""
    agent, clock = harness.agent(grant_for_20_seconds), ManualClock()
    begin = clock.now
    entered = False
    with pytest.raises(LeaseLost, match=r"expired 0\.5 s ago"):  # noqa: SIM117
        with harness.gate(clock=clock).transaction(table=TABLE, writer="w") as txn:
            with txn.commit() as grant:
                clock.now = begin + 18.9
                grant.check()
                clock.now = begin + 19.5
                entered = True
                try:
                    grant.check()
                except LeaseLost:
                    grant.not_published()
                    raise

    assert entered
    agent.wait_for("transaction-abandoned")


def test_a_grant_that_does_not_come_in_time(harness: Harness) -> None:
    agent = harness.agent(lambda event, _: [admitted(event)] if isinstance(event, CommitIntent) else [])
    with pytest.raises(GrantTimeout, match=r"no grant within 0\.3 s"):  # noqa: SIM117
        with harness.gate(grant_timeout_seconds=0.3).transaction(table=TABLE, writer="w") as txn:
            with txn.commit():
                pytest.fail("it published")
    assert "GrantTimeout" in agent.wait_for("transaction-abandoned")[0].reason


def abort_at_the_marker() -> At:
    return At("marker-created", lambda event: [aborted(event, MINE)])


def test_an_abort_in_the_middle_of_the_body(harness: Harness) -> None:
    """Callbacks run at once on another thread. The next call of the gate raises, and names the other writer."""
    agent, gate = harness.agent(abort_at_the_marker()), harness.gate()
    called: list[tuple[str, str]] = []
    with pytest.raises(CommitAborted) as caught, gate.transaction(table=TABLE, writer="w") as txn:
        txn.on_abort(lambda error: called.append((threading.current_thread().name, error.reason)))
        txn._publisher.publish_markers((MINE,))
        wait_until(lambda: called)
        assert txn.aborted
        # registered after the abort, called nevertheless
        txn.on_abort(lambda error: called.append(("late", error.reason)))
        wait_until(lambda: len(called) == 2)
        with pytest.raises(CommitAborted):
            txn.check()
        with pytest.raises(CommitAborted), txn.commit():
            pytest.fail("it published")
        txn.touch("month=1/day=4", "*", "merge")

    error = caught.value
    assert called[0][0].startswith("lakewarden-abort-")
    assert (error.table, error.other_writers, error.retriable) == (TABLE, ("arrivals:q2",), True)
    assert "partition month=1/day=3 also written by writer 'arrivals:q2'" in str(error)
    assert "begin a new transaction with the same data" in str(error)
    assert agent.types() == ["commit-intent", "marker-created"], "it publishes nothing after the abort"


def test_an_error_that_the_abort_caused_in_the_body_becomes_its_cause(harness: Harness) -> None:
    harness.agent(abort_at_the_marker())
    with pytest.raises(CommitAborted) as caught, harness.gate().transaction(table=TABLE, writer="w") as txn:
        txn._publisher.publish_markers((MINE,))
        wait_until(lambda: txn.aborted)
        raise RuntimeError("job 7 cancelled")

    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_abort_that_the_body_suppressed_is_raised_at_its_end(harness: Harness) -> None:
    harness.agent(abort_at_the_marker())
    with pytest.raises(CommitAborted), harness.gate().transaction(table=TABLE, writer="w") as txn:
        txn._publisher.publish_markers((MINE,))
        wait_until(lambda: txn.aborted)


def test_a_body_that_fails_abandons_its_transaction(harness: Harness, agent: FakeAgent) -> None:
    with pytest.raises(ValueError, match="bad data"), harness.gate().transaction(table=TABLE, writer="w"):
        raise ValueError("bad data")
    assert agent.wait_for("transaction-abandoned")[0].reason == "ValueError: bad data"


def test_an_abort_after_the_publish_began_only_fails_the_check(harness: Harness) -> None:
    agent, gate = harness.agent(grant_everything), harness.gate()
    with gate.transaction(table=TABLE, writer="w") as txn, txn.commit() as grant:
        request = agent.wait_for("commit-requested")[0]
        agent.publish(aborted(request, reason="lease-lost"))
        wait_until(lambda: txn._progress.late_abort)
        with pytest.raises(CommitAborted):
            grant.check()
        assert not txn.aborted
        grant.version = "5"  # the publish took effect before

    assert agent.wait_for("commit-completed")[0].version == "5"


def test_a_publish_that_failed_is_not_reported(harness: Harness, agent: FakeAgent) -> None:
    with pytest.raises(OutcomeUnknown, match=r"may have reached the table: connection reset; ") as caught:  # noqa: SIM117
        with harness.gate().transaction(table=TABLE, writer="w") as txn:
            with txn.commit():
                raise OSError("connection reset")

    assert not caught.value.retriable, "this table can't be looked up"
    assert not txn.discardable
    assert agent.types() == ["commit-intent", "commit-requested"]
    assert harness.events[-1].what == "failed"
    assert harness.events[-1].detail["outcome"] == "unknown"


def test_a_failed_publish_that_the_sink_read_back_is_completed(harness: Harness, agent: FakeAgent) -> None:
    with pytest.raises(OSError, match="reset"):  # noqa: SIM117
        with harness.gate().transaction(table=TABLE, writer="w") as txn:
            with txn.commit() as grant:
                grant.published("9")
                raise OSError("connection reset")

    assert agent.wait_for("commit-completed")[0].version == "9"


def fields_of(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of every log line with this event name."""
    return [vars(record)["fields"] for record in caplog.records if vars(record).get("event") == event]


class CommitTable:
    """A table that can be looked up. It returns `answers` in turn, the last one repeatedly."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.answers = list(answers)
        self.lookups: list[tuple[str, int]] = []

    def committed(self, writer: str, batch_id: int) -> str | None:
        self.lookups.append((writer, batch_id))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_batch_that_the_table_has_is_reported_and_not_computed(harness: Harness) -> None:
    agent, table = harness.agent(grant_everything), CommitTable("12")
    with (
        pytest.raises(
            AlreadyCommitted,
            match=r"batch 3 of writer 'w' is already committed, found in the table: skip it; "
            r"if the table lacks its rows, stop the query, run `lakewarden ledger correct .* --batch-id 2 .* version=12",
        ) as caught,
        harness.gate().transaction(table=TABLE, writer="w", batch_id=3) as txn,
    ):
        txn.recognise(table.committed)
        pytest.fail("it computed")

    assert caught.value.version == "12"
    assert agent.wait_for("commit-completed")[0].version == "12"
    assert agent.types() == ["commit-intent", "commit-requested", "commit-completed"]
    assert table.lookups == [("w", 3), ("w", 3)], "before the body, and again under the grant"


def test_a_writer_with_an_edition_is_looked_up_under_its_new_name(harness: Harness) -> None:
    """The name on the wire, and in what the error says to run, stays the same."""

    def admit_second(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        return in_edition("second", grant_everything(event, offset))

    agent, table = harness.agent(admit_second), CommitTable(None, "12")
    with (
        pytest.raises(AlreadyCommitted, match="--writer w --batch-id 2") as caught,
        harness.gate().transaction(table=TABLE, writer="w", batch_id=3) as txn,
    ):
        txn.recognise(table.committed)
        assert txn.writer == "w~second"
        txn.request_grant()

    assert caught.value.writer == "w"
    assert table.lookups == [("w~second", 3)] * 2
    assert {event.writer for event in agent.events} == {"w"}


def test_the_table_is_looked_up_again_under_the_grant(harness: Harness) -> None:
    """An older process of this writer published while this one computed. What this one staged may be removed."""
    agent, table = harness.agent(grant_everything), CommitTable(None, "12")
    with pytest.raises(AlreadyCommitted):  # noqa: SIM117
        with harness.gate().transaction(table=TABLE, writer="w", batch_id=3) as txn:
            txn.recognise(table.committed)
            txn.recognise(table.committed)  # as a sink that wraps another: one lookup
            with txn.commit():
                pytest.fail("it published twice")

    assert txn.discardable
    assert agent.wait_for("commit-completed")[0].version == "12"
    assert len(table.lookups) == 2


def test_a_publish_that_failed_is_looked_up_in_the_table(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    agent, table = harness.agent(grant_everything), CommitTable(None, None, "13")
    with harness.gate().transaction(table=TABLE, writer="w", batch_id=3) as txn:
        txn.recognise(table.committed)
        with txn.commit():
            raise OSError("connection reset")

    assert agent.wait_for("commit-completed")[0].version == "13"
    assert not txn.discardable
    assert [line["version"] for line in fields_of(caplog, "gate.published-after-all")] == ["13"]


@pytest.mark.parametrize("answer", [None, OSError("no route to the table")])
def test_a_publish_that_the_table_does_not_confirm_stays_unknown(
    harness: Harness, answer: Exception | None
) -> None:
    """It may still take effect. A new transaction waits until the grant has lapsed, and looks again."""
    agent, table = harness.agent(grant_everything), CommitTable(None, None, answer)
    with pytest.raises(OutcomeUnknown, match="a new transaction looks the batch up") as caught:  # noqa: SIM117
        with harness.gate().transaction(table=TABLE, writer="w", batch_id=3) as txn:
            txn.recognise(table.committed)
            with txn.commit():
                raise OSError("connection reset")

    assert caught.value.retriable
    assert not txn.discardable
    assert isinstance(caught.value.__cause__, OSError)
    assert agent.types() == ["commit-intent", "commit-requested"]


def test_a_table_that_cannot_be_looked_up_stops_the_batch_before_it_is_computed(harness: Harness) -> None:
    agent, table = harness.agent(grant_everything), CommitTable(OSError("no route to the table"))
    with (
        pytest.raises(OSError, match="no route"),
        harness.gate().transaction(table=TABLE, writer="w", batch_id=3) as txn,
    ):
        txn.recognise(table.committed)
        pytest.fail("it computed")

    assert txn.discardable
    assert "no route" in agent.wait_for("transaction-abandoned")[0].reason


def test_a_completion_that_cannot_be_published_is_a_warning(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.agent(grant_everything)
    gate = harness.gate()
    with gate.transaction(table=TABLE, writer="w") as txn, txn.commit() as grant:
        grant.version = "3"

        def unreachable(event: WriterEventUnion) -> int:
            raise AgentUnreachable(f"no {event.type} today")

        monkeypatch.setattr(gate._channel, "send", unreachable)

    assert [line["version"] for line in fields_of(caplog, "gate.completed-not-published")] == ["3"]
    assert harness.steps()[-1] == "completed"


def test_topics_with_different_numbers_of_partitions_are_refused(harness: Harness) -> None:
    """The answers would arrive in a partition that the writer doesn't read."""
    harness.agent(answer_nothing, partitions=2)
    gate = harness.gate()

    async def widen() -> None:
        async with administering(harness.kafka.bootstrap_servers) as admin:
            decisions = f"{harness.prefix}.decisions"
            await admin.create_partitions({decisions: NewPartitions(4)})
            while len((await admin.describe_topics([decisions]))[0]["partitions"]) < 4:
                await asyncio.sleep(0.05)

    asyncio.run(widen())
    with (
        pytest.raises(AgentUnreachable, match="different numbers of partitions"),
        gate.transaction(table=TABLE, writer="w"),
    ):
        pytest.fail("the body ran")


def test_the_footprint_is_read_back_from_kafka(harness: Harness) -> None:
    """It includes the markers of executors, which the driver doesn't know."""
    harness.agent(grant_everything)
    with harness.gate().transaction(table=TABLE, writer="w") as txn:
        txn.touch("p=1", "*", "merge")
        txn.executor_channel().touch("p=2", "bucket-0", "create")

        found = txn.footprint(10)

    assert {(marker.partition, marker.file_group) for marker in found} == {("p=1", "*"), ("p=2", "bucket-0")}


def test_an_immediate_answer_is_not_missed(harness: Harness) -> None:
    """The consumer is at the end of its partition before the intent is published. Every gate here is a first use."""
    harness.agent(grant_everything)
    for number in range(10):
        with harness.gate().transaction(table=f"{TABLE}{number}", writer="w") as txn, txn.commit():
            pass


def test_a_log_that_ends_with_the_marker_of_a_kafka_transaction_is_read_back_to_its_end(
    harness: Harness,
) -> None:
    """No consumer gets that marker, which a client in another language may have written."""
    harness.agent(grant_everything)
    gate = harness.gate()
    with gate.transaction(table=TABLE, writer="w", batch_id=1) as txn:
        txn.touch(MINE.partition, MINE.file_group, MINE.operation)
        with txn.commit():
            pass
    ended = TransactionAbandoned(
        event_id="e", table=TABLE, transaction="t", writer="other", at=datetime.now(UTC), reason="it failed"
    )

    async def send() -> None:
        """Return once Kafka has written the marker."""
        servers = {"bootstrap_servers": harness.kafka.bootstrap_servers}
        async with (
            AIOKafkaConsumer(**servers) as consumer,
            AIOKafkaProducer(**servers, transactional_id=harness.prefix) as producer,
        ):
            async with producer.transaction():
                sent = await producer.send_and_wait(
                    f"{harness.prefix}.writers", encode(ended), key=TABLE.encode()
                )
            where = TopicPartition(sent.topic, sent.partition)
            while (await consumer.end_offsets([where]))[where] < sent.offset + 2:
                await asyncio.sleep(0.05)

    asyncio.run(send())

    assert gate._channel.read_back(TABLE, 0, PATIENCE_SECONDS)[-1] == ended


def test_a_function_of_kafka_options_that_hangs_delays_its_own_call_only(
    harness: Harness, agent: FakeAgent
) -> None:
    """A vault that answers slowly kept all transactions of the driver from sending heartbeats."""
    hanging, called, answered = False, threading.Event(), threading.Event()

    def options() -> dict[str, Any]:
        if hanging:
            called.set()
            assert answered.wait(PATIENCE_SECONDS)
        return {}

    gate = harness.gate(kafka=options, send_timeout_seconds=PATIENCE_SECONDS)

    def write(table: str) -> None:
        with gate.transaction(table=table, writer="other") as txn, txn.commit():
            pass

    with gate.transaction(table=TABLE, writer="w") as txn:
        hanging = True
        # In another partition, so it needs a consumer of its own.
        partition = gate._channel._partition
        names = (f"file:///lake/x{number}" for number in range(100))
        other = next(name for name in names if partition(name) != partition(TABLE))
        thread = threading.Thread(target=write, args=(other,))
        thread.start()
        assert called.wait(PATIENCE_SECONDS)
        sent = agent.types(heartbeats=True).count("writer-heartbeat")
        agent.wait_for("writer-heartbeat", sent + 2)
        txn.touch("p", "f", "merge")
        answered.set()
        thread.join()
        with txn.commit():
            pass

    assert len(agent.wait_for("commit-completed", 2)) == 2
