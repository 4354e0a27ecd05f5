"""Kafka loses whole topics while an agent runs. Shorter losses: `test_agent_log_trouble.py`, and unit tests of the take-over."""

from typing import Any

import anyio
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.operators.requests import Requester, correct
from lakewarden.agent.operators.status import status
from lakewarden.events import AlreadyCommitted
from tests.real.writers import World, Writer
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.world(partitions=1)]


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


async def _create_again(scene: World, admin: AIOKafkaAdminClient, topic: str) -> None:
    settings = scene.settings()
    await admin.delete_topics([topic])
    with anyio.fail_after(PATIENCE_SECONDS):
        while topic in await admin.list_topics():
            await anyio.sleep(0.1)
    await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
