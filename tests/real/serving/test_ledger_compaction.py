"""Kafka's compaction of the ledger removes entries, also the first one and the last one that a checkpoint knows.

No agent takes it for a loss (docs/decisions/0050-a-lost-ledger.md): compaction doesn't move the beginning of the topic.
"""

from contextlib import suppress

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from lakewarden.agent.operators.ledger import ledger
from lakewarden.agent.operators.status import status
from lakewarden.agent.serving.periodic_check import LEDGER_BEGINNING_SECONDS
from lakewarden.events import AlreadyCommitted
from tests.kafka_fixture import committed_offsets, read_to_end
from tests.real.writers import World
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.real,
    pytest.mark.wide,
    pytest.mark.world(partitions=1, session_timeout_seconds=30.0),
]

COMPACTED_IN_SECONDS = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "max.compaction.lag.ms": "200",
    "min.cleanable.dirty.ratio": "0.001",
    "file.delete.delay.ms": "200",
}
"""The agent's own settings let the same happen within hours."""
LOSSES = {"log.incomplete", "ledger.restored", "ledger.not-restored"}


async def test_no_agent_takes_compaction_of_the_ledger_for_a_loss(
    scene: World, admin: AIOKafkaAdminClient
) -> None:
    """One agent runs while entries disappear. The next one takes over from a checkpoint whose last entry has disappeared."""
    topic = scene.settings().topics.ledger
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, COMPACTED_IN_SECONDS)])
    async with scene.running() as process:
        await _commit(scene, 1)
        checkpoint, known = await _checkpoint_with_an_entry(scene)
        await process.stop()

    async with scene.running() as running:
        last = await _commit_until_removed(scene, known)
        await anyio.sleep(LEDGER_BEGINNING_SECONDS + 1)  # by then it has asked Kafka where the ledger begins
        await scene.settle()
        await running.stop()
    partition = TopicPartition(topic, 0)
    beginning = (await scene.consumer.beginning_offsets([partition]))[partition]
    await _restore_checkpoint(scene, checkpoint)

    async with scene.running() as next_one:
        again = scene.writer("once")
        await again.send_intent(batch_id=last)
        await again.wait_for(AlreadyCommitted)
        shown = await status(scene.settings())

    assert beginning == 0
    lines = [*running.lines(), *next_one.lines()]
    assert not [each for each in lines if each["event"] in LOSSES]
    assert not [each for each in lines if topic in each.get("problem", "")]
    assert not [each.incomplete for each in shown if each.incomplete]


async def _commit(scene: World, batch_id: int) -> None:
    writer = scene.writer("once")
    await writer.begin(batch_id=batch_id)
    await writer.complete((await writer.obtain_grant()).grant)
    await scene.settle()


async def _checkpoint_with_an_entry(scene: World) -> tuple[OffsetAndMetadata, int]:
    """The first checkpoint that knows an entry beyond the agent's own `partition-taken`, and that entry's offset."""
    settings = scene.settings()
    _, metadata = await scene.wait_for_checkpoint(lambda _, each: each["entry"] and each["entry"][0] > 0)
    return (await committed_offsets(settings))[TopicPartition(settings.topics.writers, 0)], metadata["entry"][
        0
    ]


async def _commit_until_removed(scene: World, known: int) -> int:
    """Commit batches until the ledger's entries up to this offset are removed. Return the last batch."""
    settings = scene.settings()
    partition = TopicPartition(settings.topics.ledger, 0)
    batch_id = 1
    with anyio.fail_after(PATIENCE_SECONDS):
        while (await read_to_end(settings, {partition: None}))[partition][0].offset <= known:
            batch_id += 1
            await _commit(scene, batch_id)
            [shown] = await ledger(settings)
            assert shown.batch_id == batch_id, "a command that reads during the compaction misses an entry"
            await anyio.sleep(0.5)
    return batch_id


async def _restore_checkpoint(scene: World, checkpoint: OffsetAndMetadata) -> None:
    """As if the agent had committed none since."""
    settings = scene.settings()
    where = TopicPartition(settings.topics.writers, 0)
    group = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group,
        client_id="test",
        enable_auto_commit=False,
    )
    await group.start()
    try:
        group.assign([where])
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await committed_offsets(settings))[where] != checkpoint:
                with suppress(CommitFailedError):  # a member of the group may still be there
                    await group.commit({where: checkpoint})
                await anyio.sleep(0.2)
    finally:
        await group.stop()
