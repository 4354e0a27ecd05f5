"""The move to a topic prefix with more partitions, by the steps of docs/kafka.md."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort, AlreadyCommitted, BatchCommitted, ConflictsLost
from lakewarden.events.access import partition_of
from tests.real.writers import World, world

FEW, MANY = 3, 12
TABLES = 5

pytestmark = [pytest.mark.real, pytest.mark.world(partitions=FEW)]


async def commit(scene: World, table: str, batch_id: int) -> None:
    writer = scene.writer("w", table)
    await writer.begin(batch_id=batch_id)
    await writer.complete((await writer.obtain_grant()).grant, version=f"v{batch_id}")


def tables(scene: World) -> list[str]:
    return [f"{scene.table}-{number}" for number in range(TABLES)]


async def commit_everywhere(scene: World) -> None:
    """Five tables have a committed batch, and a writer of the first one has lost a conflict."""
    for number, table in enumerate(tables(scene)):
        await commit(scene, table, 40 + number)
    first, second = scene.writer("winner", tables(scene)[0]), scene.writer("loser", tables(scene)[0])
    await first.begin()
    await second.begin()
    await first.touch("f")
    await second.touch("f")
    await second.wait_for(Abort)
    await first.abandon()
    await scene.wait_for(BatchCommitted, count=TABLES)
    await scene.wait_for(ConflictsLost, lambda lost: lost.writer == "loser")
    await scene.settle(tables(scene)[0])


async def test_an_agent_of_the_new_prefix_knows_what_is_committed(scene: World) -> None:
    async with scene.agent():
        await commit_everywhere(scene)

    shown = await scene.run("ledger", "show", "--output", "json", replication=1)

    assert (shown.returncode, shown.stderr) == (0, "")
    backup = scene.root / "ledger.json"
    backup.write_text(shown.stdout)
    async with world(scene.bootstrap_servers, f"{scene.prefix}-new", scene.root, partitions=MANY) as new:
        async with new.agent():
            restored = await new.run(
                "ledger", "restore", str(backup), "--reason", "more partitions", replication=1
            )
            assert (restored.returncode, restored.stderr) == (0, "")
            for number, table in enumerate(tables(scene)):
                repeated = new.writer("w", table)
                await repeated.send_intent(batch_id=40 + number)
                assert (await repeated.wait_for(AlreadyCommitted)).committed_batch_id == 40 + number
            await commit(new, tables(scene)[0], 41)
            await new.wait_for(BatchCommitted, lambda batch: batch.batch_id == 41)
        assert {each.partition for each in new.received if isinstance(each.event, AlreadyCommitted)} == {
            partition_of(table, MANY) for table in tables(scene)
        }
