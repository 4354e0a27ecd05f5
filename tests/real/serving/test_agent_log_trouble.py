"""A log that has lost its beginning, got more partitions, or lost a topic."""

import anyio
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.new_partitions import NewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete

from lakewarden.agent.errors import PartitionsChangedError
from lakewarden.agent.serving import session
from lakewarden.agent.serving.agent import Agent
from lakewarden.events import Abort, LockAcquired
from tests.real.writers import World
from tests.waiting import until

pytestmark = [pytest.mark.real]


async def test_transactions_whose_intents_were_removed_by_retention_are_aborted_and_logged(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """The agents were down for longer than the topic's retention."""
    async with scene.running() as process:
        lost = scene.writer("lost")
        await lost.begin(heartbeat_seconds=100)
        await lost.touch("x")
        await scene.settle()
        await scene.wait_for_checkpoint()
        process.kill()
    await _remove_all(scene, admin)

    with scene.process() as process:
        lost_line = await process.logged("log.incomplete")
        await process.ready()
        await lost.heartbeat()
        abort = await lost.wait_for(Abort)
        again = scene.writer("again")
        await again.begin()
        await again.touch("x")
        await again.obtain_grant()

    assert (lost_line["problem"], lost_line["found"] > lost_line["expected"]) == ("beginning-lost", True)
    assert (abort.reason, abort.retriable) == ("unknown-transaction", True)
    assert "no longer contains its intent" in str(abort.detail)


@pytest.mark.wide
async def test_an_agent_does_not_start_after_the_number_of_partitions_has_changed(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    async with scene.running() as process:
        writer = scene.writer("before")
        await writer.begin(heartbeat_seconds=100)
        await scene.wait_for_checkpoint()
        process.kill()
    await _add_partitions(scene, admin)

    with scene.process(log_level="error") as process:
        assert await process.ended() == 1

    [line] = process.log.read_text().splitlines()
    assert "has 5 partitions and had 2" in line
    assert "another topic prefix" in line
    assert scene.prefix in line


async def test_an_agent_stops_when_the_number_of_partitions_changes_while_it_runs(
    scene: World, admin: AIOKafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would decide on a part of a table's events."""
    monkeypatch.setattr(session, "METADATA_SECONDS", 1)
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
        await scene.wait_for(LockAcquired)
        await _add_partitions(scene, admin)
        await until(lambda: ended)

    assert b'"expired":true' in scene.lock_object().read_bytes(), "its lock was released"


@pytest.mark.wide
async def test_an_agent_creates_missing_topics_again(scene: World, admin: AIOKafkaAdminClient) -> None:
    """An operator has deleted them. The agent starts with an empty log."""
    async with scene.running() as process:
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
