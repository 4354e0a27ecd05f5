"""The log is not what it was: its beginning was lost, its partitions were changed, a topic is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.new_partitions import NewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete

from lakewarden.agent.errors import PartitionsChangedError
from lakewarden.agent.serving import agent as agent_module
from lakewarden.agent.serving.agent import Agent
from lakewarden.events import Abort
from tests.kafka_fixture import KafkaServer
from tests.real.writers import World, world

pytestmark = [pytest.mark.real]


@pytest_asyncio.fixture
async def scene(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def admin(kafka: KafkaServer) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await client.start()
    yield client
    await client.close()


async def test_transactions_whose_intent_retention_has_removed_are_aborted_and_it_is_said(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """The agents were down for longer than the topic keeps its records."""
    with scene.process() as process:
        await process.ready()
        lost = scene.writer("lost")
        await lost.begin(heartbeat_seconds=100)
        await lost.touch("x")
        await scene.settle()
        with anyio.fail_after(30):
            while not await scene.committed():
                await anyio.sleep(0.2)
        process.kill()
    await _remove_all(scene, admin)

    with scene.process() as process:
        said = await process.logged("log.beginning-lost")
        await process.ready()
        await lost.heartbeat()
        abort = await lost.wait_for(Abort)
        again = scene.writer("again")
        await again.begin()
        await again.touch("x")
        await again.obtain_grant()

    assert said["beginning"] > said["committed"]
    assert (abort.reason, abort.retriable) == ("unknown-transaction", True)
    assert "older than the log" in str(abort.detail)


async def test_an_agent_does_not_start_where_tables_have_moved_between_partitions(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    with scene.process() as process:
        await process.ready()
        writer = scene.writer("before")
        await writer.begin(heartbeat_seconds=100)
        with anyio.fail_after(30):
            while not await scene.committed():
                await anyio.sleep(0.2)
        process.kill()
    await _add_partitions(scene, admin)

    with scene.process(log_level="error") as process:
        assert await process.ended() == 1

    [line] = process.log.read_text().splitlines()
    assert "has 5 partitions and had 2" in line
    assert "another topic prefix" in line
    assert scene.prefix in line


async def test_an_agent_stops_when_tables_move_while_it_runs(
    scene: World, admin: AIOKafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever went on would decide on half of a table's events."""
    monkeypatch.setattr(agent_module, "METADATA_SECONDS", 1)
    agent = Agent(scene.settings())
    ended: list[BaseException] = []

    async def run() -> None:
        try:
            await agent.run()
        except* PartitionsChangedError as problems:
            ended.append(problems)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await agent.ready.wait()
        writer = scene.writer("before")
        await writer.begin(heartbeat_seconds=100)
        assert scene.lock_object().exists()
        await _add_partitions(scene, admin)
        with anyio.fail_after(60):
            while not ended:
                await anyio.sleep(0.1)

    assert b'"expired":true' in scene.lock_object().read_bytes(), "its lock was given back"


async def test_an_agent_makes_the_topics_again_that_somebody_removed(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """Nothing is left of the log, and the agent serves what comes."""
    with scene.process() as process:
        await process.ready()
        await scene.writer("before").begin()
        process.kill()
    topics = scene.settings().topics
    await admin.delete_topics([topics.writers, topics.decisions])

    with scene.process() as process:
        await process.ready()

    assert {topics.writers, topics.decisions} <= set(await admin.list_topics())


async def _remove_all(scene: World, admin: AIOKafkaAdminClient) -> None:
    ends = await scene.consumer.end_offsets(
        [TopicPartition(scene.settings().topics.writers, number) for number in range(2)]
    )
    await admin.delete_records(
        {partition: RecordsToDelete(before_offset=end) for partition, end in ends.items() if end}
    )


async def _add_partitions(scene: World, admin: AIOKafkaAdminClient) -> None:
    topics = scene.settings().topics
    await admin.create_partitions(
        {name: NewPartitions(total_count=5) for name in (topics.writers, topics.decisions, topics.ledger)}
    )
