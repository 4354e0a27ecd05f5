"""Records in `decisions` that can't be decoded: agents and writers log and count them. A take-over refuses what is newer."""

from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from lakewarden.agent.operators.status import status
from lakewarden.events import CommitGranted, canonical_table, partition_name
from lakewarden.events.access import partition_of
from lakewarden.spark_jobs import CommitGate
from tests.real.writers import World
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.wide]

FROM_A_LATER_VERSION = b'{"type":"commit-granted","protocol":2}'


async def publish_undecodable(scene: World, value: bytes = FROM_A_LATER_VERSION) -> dict[str, Any]:
    """Publish a decision, of another protocol version, in the table's partition. Return its topic, partition and offset.

    The consumer of `scene` skips the record, because it raises an error for undecodable ones.
    """
    topic = scene.settings().topics.decisions
    done = await scene.producer.send_and_wait(topic, value, key=scene.table.encode())
    scene.consumer.seek(TopicPartition(topic, done.partition), done.offset + 1)
    return {"topic": topic, "partition": done.partition, "offset": done.offset}


def logged(lines: list[Any]) -> list[dict[str, Any]]:
    """The undecodable records that these log lines name."""
    return [
        {name: line[name] for name in ("topic", "partition", "offset")}
        for line in lines
        if line["event"] == "record.undecodable" and line["log_level"] == "warning"
    ]


async def test_an_agent_logs_and_counts_an_undecodable_decision_in_its_partition(scene: World) -> None:
    with capture_logs() as lines:
        async with scene.agent() as agent:
            where = await publish_undecodable(scene)
            await until(lambda: agent.undecodable.total)
            writer = scene.writer("ingest")
            await writer.begin()
            await writer.touch("x")
            await writer.obtain_grant()

    assert agent.undecodable.by_topic == {where["topic"]: 1}
    assert logged(lines) == [where]


async def test_an_agent_refuses_a_partition_in_which_a_newer_agent_has_decided(scene: World) -> None:
    """After a rollback, an older agent would forget the decision. Its other partition is served."""
    async with scene.agent():
        writer = scene.writer("ingest")
        await writer.begin(heartbeat_seconds=100)
        where = await publish_undecodable(scene)

    with capture_logs() as lines:
        async with scene.agent():
            refused = where["partition"]
            other = scene.writer("other", table_in_another_partition(scene, refused))
            await other.begin()
            await other.complete((await other.obtain_grant()).grant)
            await writer.request_commit()
            shown = await status(scene.settings())

    [line] = [each for each in lines if each["event"] == "partition.refused"]
    assert (line["log_level"], line["partition"]) == ("error", refused)
    assert f"at offset {where['offset']} of {where['topic']}" in line["reason"]
    assert scene.events(CommitGranted, writer.mine) == []
    assert [each.table for each in shown if each.refused] == [partition_name(refused)]


async def test_a_record_that_is_no_event_of_any_version_is_logged_counted_and_skipped(scene: World) -> None:
    """A test message was published to the topic."""
    async with scene.agent():
        writer = scene.writer("ingest")
        await writer.begin(heartbeat_seconds=100)
        where = await publish_undecodable(scene, b"hello")

    with capture_logs() as lines:
        async with scene.agent() as agent:
            await writer.touch("x")
            await writer.obtain_grant()

    assert agent.undecodable.by_topic == {where["topic"]: 1}
    assert logged(lines) == [where]


def table_in_another_partition(scene: World, partition: int) -> str:
    tables = (f"{scene.table}{number}" for number in range(100))
    return next(each for each in tables if partition_of(each, scene.settings().partitions) != partition)


async def test_a_writer_logs_and_counts_an_undecodable_decision_and_still_commits(
    scene: World, caplog: pytest.LogCaptureFixture
) -> None:
    where: list[dict[str, Any]] = []

    def commit() -> None:
        with gate.transaction(table=scene.table, writer="ingest") as transaction:
            where.append(anyio.from_thread.run(publish_undecodable, scene))
            transaction.touch("", "x", "append")
            with transaction.commit() as grant:
                grant.version = "1"

    assert canonical_table(scene.table) == scene.table
    with capture_logs() as lines:
        async with scene.agent():
            with CommitGate(scene.bootstrap_servers, topic_prefix=scene.prefix) as gate:
                await anyio.to_thread.run_sync(commit)
                counted = gate._channel.undecodable.by_topic

    assert counted == {where[0]["topic"]: 1}
    written = [vars(record) for record in caplog.records if record.name == "lakewarden.channel"]
    by_writer = [{"event": line["event"], "log_level": "warning", **line["fields"]} for line in written]
    assert (logged(lines), logged(by_writer)) == ([where[0]], [where[0]])
