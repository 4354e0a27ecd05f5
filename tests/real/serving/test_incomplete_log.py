"""Kafka loses records that the agent needs: it is noticed, logged, shown, and no transaction of before is granted."""

from typing import Any

import anyio
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.operators.requests import Requester, correct
from lakewarden.agent.operators.status import status
from lakewarden.events import Abort, AlreadyCommitted, CommitGranted, partition_name
from tests.real.writers import World, Writer
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.world(partitions=1)]


def has_read(_: int, metadata: dict[str, Any]) -> bool:
    """Whether a checkpoint names an event that was read."""
    return metadata["read"] is not None


async def test_an_agent_aborts_what_is_open_if_decisions_lost_their_beginning(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """Retention by size: the admission of `early`, and what committed since, are gone."""
    early, other = scene.writer("early"), scene.writer("other")
    async with scene.running() as process:
        await early.begin()
        await other.begin()
        await other.touch("x")
        granted = await other.obtain_grant()
        await other.complete(granted.grant)
        await scene.settle()
        await scene.wait_for_checkpoint(has_read)
        process.kill()
    await _remove(scene, admin, scene.settings().topics.decisions)
    before = await status(scene.settings())

    with scene.process() as process:
        line = await process.logged("log.incomplete")
        await process.ready()
        abort = await early.wait_for(Abort)
        await early.touch("x")
        await early.request_commit()
        await _commits(scene.writer("later"))

    assert (line["problem"], line["topic"]) == ("beginning-lost", scene.settings().topics.decisions)
    assert (abort.reason, abort.retriable) == ("unknown-transaction", True)
    assert scene.events(CommitGranted, early.mine) == []
    assert "is needed from" in before[0].incomplete[0]
    assert before[0].table == partition_name(0)


async def test_an_agent_serves_writers_after_their_topic_was_created_again(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """Before, it ignored every event below the committed offset, without a line in the log."""
    async with scene.running() as process:
        await scene.writer("before").begin()
        await scene.wait_for_checkpoint(has_read)
        process.kill()
    await _create_again(scene, admin)

    with scene.process(validity_seconds=5.0) as process:
        line = await process.logged("log.incomplete")
        await process.ready()
        await _commits(scene.writer("after"))
        with anyio.fail_after(PATIENCE_SECONDS):
            while not any(each.incomplete for each in await status(scene.settings())):
                await anyio.sleep(0.2)
            shown = await status(scene.settings())

    assert (line["problem"], line["topic"]) == ("end-lost", scene.settings().topics.writers)
    assert "found 20" in shown[0].incomplete[-1]


async def test_a_running_agent_notices_that_its_topic_was_created_again(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    async with scene.running() as process:
        await scene.writer("before").begin()
        await scene.wait_for_checkpoint(has_read)
        await _create_again(scene, admin)
        await process.logged("log.incomplete")
        await _commits(scene.writer("after"))


async def test_running_agents_create_deleted_topics_again_and_a_corrected_writer_commits_once(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """Kafka drops the group's checkpoints with the topic; only the ledger still names an offset of it."""
    topics = [scene.settings().topics.writers, scene.settings().topics.decisions]
    async with scene.running() as process:
        for number in range(20):
            await scene.writer(f"other-{number}").send_intent()
        await _commits(scene.writer("once"), batch_id=2)
        operator = Requester("tests", "the batch is written again", PATIENCE_SECONDS)
        await correct(scene.settings(), scene.table, "once", 1, operator)
        await admin.delete_topics(topics)
        cut = await process.logged("kafka.waiting")
        line = await process.logged("log.incomplete")
        await process.logged("partitions.live", count=2)
        await _commits(scene.writer("once"), batch_id=2)
        again = scene.writer("once")
        await again.send_intent(batch_id=2)
        await again.wait_for(AlreadyCommitted)

    assert "no longer exists" in cut["problem"] or "lost" in cut["problem"]
    assert (line["topic"], line["problem"]) == (topics[0], "end-lost")


async def test_a_running_agent_records_a_lost_ledger_again(scene: World, admin: AIOKafkaAdminClient) -> None:
    """Before, nothing noticed it until the next agent took over, and that one admitted the batch again."""
    ledger, first = scene.settings().topics.ledger, scene.writer("once")
    async with scene.running() as process:
        await first.begin(batch_id=7)
        completed = await first.complete((await first.obtain_grant()).grant)
        await scene.settle()
        await scene.wait_for_checkpoint(lambda offset, _: offset > completed)
        await _create_again(scene, admin, ledger)
        restored = await process.logged("ledger.restored")
        await process.logged("partitions.live", count=2)
        process.kill()
    shown = await status(scene.settings())
    async with scene.running() as process:
        again = scene.writer("once")
        await again.send_intent(batch_id=7)
        skipped = await again.wait_for(AlreadyCommitted)

    assert restored["batches"] == 1
    assert any(ledger in each for each in shown[0].incomplete)
    assert skipped.committed_transaction == first.transaction


async def _commits(writer: Writer, **fields: Any) -> None:
    await writer.begin(**fields)
    await writer.touch("x")
    await writer.complete((await writer.obtain_grant()).grant)


async def _remove(scene: World, admin: AIOKafkaAdminClient, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    end = (await scene.consumer.end_offsets([partition]))[partition]
    await admin.delete_records({partition: RecordsToDelete(before_offset=end)})


async def _create_again(scene: World, admin: AIOKafkaAdminClient, topic: str | None = None) -> None:
    settings = scene.settings()
    topic = topic or settings.topics.writers
    await admin.delete_topics([topic])
    with anyio.fail_after(PATIENCE_SECONDS):
        while topic in await admin.list_topics():
            await anyio.sleep(0.1)
    await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
