"""The run-books of docs/disasters.md, followed against real failures with the commands that they name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.events import AlreadyCommitted
from tests.kafka_fixture import TAKES_KAFKA_AWAY
from tests.real.writers import World, world

pytestmark = [pytest.mark.real, pytest.mark.matrix, *TAKES_KAFKA_AWAY]


async def test_kafka_is_lost(tmp_path: Path, topic_prefix: str) -> None:
    """The first Kafka's folder is deleted after batch 8; the backup of the ledger has batch 7."""
    root, backup = tmp_path / "lake", tmp_path / "ledger.json"
    root.mkdir()
    with EmbeddedKafka(tmp_path / "kafka") as first:
        async with world(first.bootstrap_servers, topic_prefix, root) as scene, scene.agent():
            await commit(scene, 7)
            backup.write_text(await scene.answer(*SHOW))
            await commit(scene, 8)
    shutil.rmtree(tmp_path / "kafka")

    with EmbeddedKafka(tmp_path / "another-kafka") as second:
        async with world(second.bootstrap_servers, topic_prefix, root) as scene, scene.agent():
            await restore(scene, backup, "Kafka was lost")

            repeated = scene.writer("orders")
            await repeated.send_intent(batch_id=7)
            skipped = await repeated.wait_for(AlreadyCommitted)
            assert skipped.committed_batch_id == 7

            # Step 4: a sink that can't ask its table repeats batch 8, unless an operator corrects it.
            correction = ("--table", scene.table, "--batch-id", "8", "--reason", "it is in the table")
            await scene.answer("ledger", "correct", "--writer", "orders", *correction)
            late = scene.writer("orders")
            await late.send_intent(batch_id=8)
            await late.wait_for(AlreadyCommitted)

            await commit(scene, 9)


async def test_a_bucket_is_restored_from_yesterday(scene: World, tmp_path: Path) -> None:
    """Yesterday the table had batch 1. Today's batches 2 and 3 are lost with the restore, and the ledger has them."""
    yesterday, backup = tmp_path / "yesterday", tmp_path / "ledger.json"
    async with scene.agent():
        await commit(scene, 1)
        backup.write_text(await scene.answer(*SHOW))
        shutil.copytree(scene.locks, yesterday)
        await commit(scene, 2)
        await commit(scene, 3)
    shutil.rmtree(scene.locks)
    shutil.copytree(yesterday, scene.locks)

    async with scene.agent():
        lost = scene.writer("orders")
        await lost.send_intent(batch_id=2)
        assert (await lost.wait_for(AlreadyCommitted)).committed_batch_id == 3

        refused = await scene.run(*RESTORE, str(backup), "--reason", "by mistake")
        assert refused.returncode == 1
        assert "batch 3 instead of 1; their batches would be written again" in refused.stderr
        await restore(scene, backup, "bucket restored from yesterday", "--lower")
        for batch_id in (2, 3):
            await commit(scene, batch_id)

        shown = json.loads(await scene.answer(*SHOW))
        assert [(each["writer"], each["batch_id"]) for each in shown] == [("orders", 3)]


SHOW = ("ledger", "show", "--output", "json")
RESTORE = ("ledger", "restore")


async def commit(scene: World, batch_id: int) -> None:
    """Commit a batch, and wait until it is in the ledger."""
    writer = scene.writer("orders")
    await writer.begin(batch_id=batch_id)
    await writer.touch(f"f{batch_id}")
    await writer.obtain_grant()
    await writer.complete()
    await scene.settle()


async def restore(scene: World, backup: Path, reason: str, *more: str) -> None:
    """Follow step 3 of both run-books."""
    printed = await scene.answer(*RESTORE, str(backup), "--reason", reason, *more)
    assert printed.splitlines()[-1] == f"1 writers are restored from {backup}"
