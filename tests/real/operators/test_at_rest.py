"""`lakewarden ledger show --at-rest`, against a real broker and agents."""

from __future__ import annotations

import pytest
from aiokafka.admin import NewPartitions

from lakewarden.agent.errors import AgentError, SettingsError
from lakewarden.agent.operators.ledger import ledger, ledger_at_rest
from lakewarden.events import Abort, AlreadyCommitted, BatchCommitted, CommitGranted, ConflictsLost, encode
from lakewarden.events.access import partition_of
from tests.kafka_fixture import administering
from tests.real.writers import World, world
from tests.unit.events.building import made

FEW, MANY = 3, 12
TABLES = 5

pytestmark = [pytest.mark.real, pytest.mark.world(partitions=FEW)]


async def refusals(scene: World) -> list[str]:
    """Why the ledger is not printed."""
    with pytest.raises(AgentError) as refused:
        await ledger_at_rest(scene.settings())
    return str(refused.value).partition(" is not at rest: ")[2].split("; ")


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
    """The operator's steps of docs/kafka.md."""
    async with scene.agent():
        await commit_everywhere(scene)

    shown = await scene.run("ledger", "show", "--at-rest", "--output", "json", replication=1)

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


async def test_while_anything_is_open_the_ledger_is_not_printed(scene: World) -> None:
    """An agent serves; then it is gone, and a transaction is open; then a writer was still running when the agent stopped."""
    async with scene.agent():
        hung = scene.writer("hung")
        await hung.begin(batch_id=7)
        served = await refusals(scene)
    left = await refusals(scene)
    async with scene.agent():
        await hung.abandon()
        await scene.settle()
    assert await ledger_at_rest(scene.settings()) == (await ledger(scene.settings()), 0)
    await scene.writer("late").heartbeat()
    late = await refusals(scene)

    assert served[0].startswith(f"agents serve prefix {scene.prefix} (lakewarden-agent at ")
    still_open = f"transaction {hung.transaction} of writer hung, table {scene.table}, active"
    assert any(still_open in each for each in served)
    assert still_open in left[0]
    assert late[0].partition(" (")[0] == f"no checkpoint covers the last events of {scene.prefix}.writers"


async def _add_partitions(scene: World, *topics: str) -> None:
    async with administering(scene.bootstrap_servers) as admin:
        names = [f"{scene.prefix}.{topic}" for topic in topics]
        answer = await admin.create_partitions({name: NewPartitions(MANY) for name in names})
        assert [code for _, code, *_ in answer.topic_errors] == [0] * len(names)


async def _publish_grant(scene: World, table: str) -> None:
    grant = made(CommitGranted, table=table, transaction="unsettled", grant="g", lease_seconds=30.0, seq=1)
    await scene.producer.send_and_wait(f"{scene.prefix}.decisions", encode(grant), key=table.encode())


async def test_events_since_partitions_were_added_are_left_behind_unless_one_was_granted(
    scene: World,
) -> None:
    """An operator changed the topics. Agents refuse them from then on, so nothing that follows is ever decided."""
    async with scene.agent():
        await commit(scene, scene.table, 40)
        await scene.wait_for(BatchCommitted)
        await scene.settle()
    await _add_partitions(scene, "writers")
    with pytest.raises(SettingsError, match="add partitions to the smaller ones"):
        await ledger_at_rest(scene.settings())
    await _add_partitions(scene, "decisions", "ledger")
    await scene.writer("late", tables(scene)[1]).send_intent(batch_id=1)
    lines, left_behind = await ledger_at_rest(scene.settings())
    await _publish_grant(scene, tables(scene)[2])
    [refusal, *_] = await refusals(scene)

    assert ([each.batch_id for each in lines], left_behind) == ([40], 1)
    assert f"partitions were added to the topics of prefix {scene.prefix} ({FEW}, now {MANY})" in refusal
    assert f"transaction unsettled of writer w, table {tables(scene)[2]}, granted" in refusal
