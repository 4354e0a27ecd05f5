"""`lakewarden migrate`, against a real broker and agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from lakewarden.agent.errors import AgentError, SettingsError
from lakewarden.agent.kafka import partition_of, producer, start_client, stop_client
from lakewarden.agent.operators import migrate as module
from lakewarden.agent.operators.ledger import ledger
from lakewarden.agent.operators.migrate import Migration, migrate
from lakewarden.agent.operators.status import status
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    Abort,
    AlreadyCommitted,
    BatchCommitted,
    CommitGranted,
    ConflictsLost,
    encode,
    partition_name,
)
from tests.kafka_fixture import KafkaServer
from tests.real.writers import World, world
from tests.unit.events.building import made

pytestmark = [pytest.mark.real]

FEW, MANY = 3, 12
TABLES = 5


@pytest_asyncio.fixture
async def old(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path, partitions=FEW) as made:
        yield made


def scene_settings(scene: World, name: str) -> Settings:
    return scene.settings(topic_prefix=f"{scene.prefix}-{name}")


def target_of(scene: World) -> Settings:
    return scene_settings(scene, "new")


async def copied(scene: World, *, dry_run: bool = False) -> Migration:
    """What the command does."""
    return await migrate(scene.settings(), target_of(scene), MANY, dry_run=dry_run, report=lambda _: None)


def new_world(scene: World) -> Any:
    """The world of the new prefix. The agents keep their group."""
    return world(
        scene.bootstrap_servers, f"{scene.prefix}-new", scene.root, partitions=MANY, group=scene.prefix
    )


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


async def test_an_agent_of_the_new_prefix_knows_what_is_committed(old: World) -> None:
    async with old.agent():
        await commit_everywhere(old)

    plan = await copied(old, dry_run=True)
    done = await old.run(
        *("migrate", "--to-prefix", f"{old.prefix}-new", "--partitions", str(MANY)), replication=1
    )

    assert (plan.refusals, plan.complete) == ((), False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split() for line in lines if line.split()[0] == old.prefix] == [
        [old.prefix, str(FEW), str(TABLES), str(TABLES), "1"]
    ]
    assert lines[-1].startswith(f"complete: start agents and writers with topic prefix {old.prefix}-new")
    assert asdict(await copied(old)) == {
        "from_prefix": old.prefix,
        "from_partitions": FEW,
        "to_prefix": f"{old.prefix}-new",
        "to_partitions": MANY,
        "tables": TABLES,
        "batches": TABLES,
        "losses": 1,
        "already_there": TABLES + 1,
        "refusals": (),
        "complete": True,
        "left_behind": 0,
    }
    async with new_world(old) as new:
        entries = await ledger(new.settings())
        assert entries == await ledger(old.settings())
        assert [each.losses for each in entries if each.losses] == [1]
        async with new.agent():
            for number, table in enumerate(tables(old)):
                repeated = new.writer("w", table)
                await repeated.send_intent(batch_id=40 + number)
                answer = await repeated.wait_for(AlreadyCommitted)
                assert (answer.committed_batch_id, answer.version) == (40 + number, f"v{40 + number}")
            await commit(new, tables(old)[0], 41)
            await new.wait_for(BatchCommitted, lambda batch: batch.batch_id == 41 and batch.term != "")
        assert {each.partition for each in new.received if isinstance(each.event, AlreadyCommitted)} == {
            partition_of(table, MANY) for table in tables(old)
        }
        served = await copied(old, dry_run=True)

    assert [each.partition(";")[0] for each in served.refusals] == [
        f"prefix {old.prefix}-new is in use: an agent has served it"
    ]


async def test_while_anything_is_open_the_ledger_is_not_copied(old: World) -> None:
    """An agent serves; then it is gone, and a transaction is open; then a writer was still running when the agent stopped."""
    async with old.agent():
        hung = old.writer("hung")
        await hung.begin(batch_id=7)
        served = await copied(old, dry_run=True)
    with pytest.raises(AgentError) as left:
        await copied(old)
    async with old.agent():
        await hung.abandon()
        await old.settle()
    settled = await copied(old, dry_run=True)
    await old.writer("late").heartbeat()
    late = await copied(old, dry_run=True)

    assert f"agents serve prefix {old.prefix} (lakewarden-agent at " in served.refusals[0]
    still_open = f"transaction {hung.transaction} of writer hung, table {old.table}, active"
    assert still_open in served.refusals[1]
    assert still_open in str(left.value)
    assert "agents serve" not in str(left.value)
    assert settled.refusals == ()
    assert [each.partition(" (")[0] for each in late.refusals] == [
        f"no checkpoint covers the last events of {old.prefix}.writers"
    ]


async def test_an_interrupted_copy_is_noticed_and_completed(
    old: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends between two records. An agent that starts then refuses the partitions."""
    async with old.agent():
        await commit_everywhere(old)
    publish = module._publish

    async def interrupted(sender: Any, settings: Any, records: Any) -> None:
        every = list(records)
        await publish(sender, settings, every if len(every) == MANY else every[:2])
        if len(every) != MANY:
            raise AgentError("the connection is lost")

    with monkeypatch.context() as patched:
        patched.setattr(module, "_publish", interrupted)
        with pytest.raises(AgentError, match="the connection is lost"):
            await copied(old)
    shown = await status(target_of(old))
    of_one = await status(target_of(old), tables(old)[0])
    third = await migrate(
        target_of(old), scene_settings(old, "third"), MANY, dry_run=True, report=lambda _: None
    )
    plan = await copied(old, dry_run=True)
    done = await copied(old)
    shown_after = await status(target_of(old))

    assert [each.table for each in shown] == [partition_name(number) for number in range(MANY)]
    assert len(of_one) == 2
    assert all(f"incomplete copy of topic prefix {old.prefix};" in (each.refused or "") for each in shown)
    assert third.refusals == (
        f"the ledger of prefix {old.prefix}-new is an incomplete copy of prefix {old.prefix}; copy that one",
    )
    assert shown_after == []
    assert (plan.already_there, plan.complete, plan.refusals) == (2, False, ())
    assert (done.already_there, done.complete) == (2, True)
    assert await ledger(target_of(old)) == await ledger(old.settings())


async def _add_partitions(scene: World, *topics: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap_servers)
    await admin.start()
    try:
        names = [f"{scene.prefix}.{topic}" for topic in topics]
        answer = await admin.create_partitions({name: NewPartitions(MANY) for name in names})
        assert [code for _, code, *_ in answer.topic_errors] == [0] * len(names)
    finally:
        await admin.close()


async def _publish_grant(scene: World, table: str) -> None:
    grant = made(CommitGranted, table=table, transaction="unsettled", grant="g", lease_seconds=30.0, seq=1)
    client = producer(scene.settings())
    await start_client(client, scene.settings())
    try:
        await client.send_and_wait(f"{scene.prefix}.decisions", encode(grant), key=table.encode())
    finally:
        await stop_client(client)


async def test_events_since_partitions_were_added_are_left_behind_unless_one_was_granted(old: World) -> None:
    """An operator changed the topics. Agents refuse them from then on, so nothing that follows is ever decided."""
    async with old.agent():
        await commit(old, old.table, 40)
        await old.wait_for(BatchCommitted)
        await old.settle()
    await _add_partitions(old, "writers")
    with pytest.raises(SettingsError, match="add partitions to the smaller ones"):
        await copied(old, dry_run=True)
    await _add_partitions(old, "decisions", "ledger")
    await old.writer("late", tables(old)[1]).send_intent(batch_id=1)
    plan = await copied(old, dry_run=True)
    await _publish_grant(old, tables(old)[2])
    granted = await copied(old, dry_run=True)

    assert (plan.refusals, plan.left_behind, plan.batches) == ((), 1, 1)
    [refusal] = granted.refusals
    assert f"partitions were added to the topics of prefix {old.prefix} ({FEW}, now {MANY})" in refusal
    assert f"transaction unsettled of writer w, table {tables(old)[2]}, granted" in refusal
