"""Agents that join, leave and restart: which partitions move."""

import anyio
import pytest

from lakewarden.events import Abort, Admitted, CommitGranted, LockAcquired, PartitionTaken, partition_name
from tests.real.writers import World, Writer
from tests.waiting import PATIENCE_SECONDS

PARTITIONS = 6
pytestmark = [pytest.mark.real, pytest.mark.world(partitions=PARTITIONS)]

LONG = {"validity_seconds": 3_600.0}
"""On a busy machine, a rebalance takes longer than the leases of other tests, and the writers here send no heartbeats."""


def owners(scene: World) -> dict[str, str]:
    """The agent that took each partition over last."""
    return {each.table: each.agent for each in scene.events(PartitionTaken)}


def owned_by(scene: World, agent: str) -> set[str]:
    return {partition for partition, owner in owners(scene).items() if owner == agent}


async def wait_until_owned(scene: World, agent: str, count: int) -> set[str]:
    """Wait until the agent owns this many partitions. Return them."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while len(owned := owned_by(scene, agent)) < count:
            await scene.poll()
    return owned


@pytest.mark.wide
async def test_an_agent_that_restarts_under_its_instance_moves_no_partition_of_the_others(
    scene: World,
) -> None:
    """A rolling restart: Kafka gives the agent its partitions back, and the others don't notice."""
    async with scene.agent(agent_id="a", group_instance_id="i-a"):
        async with scene.agent(agent_id="b", group_instance_id="i-b"):
            moved = await wait_until_owned(scene, "b", PARTITIONS // 2)
            kept = await wait_until_owned(scene, "a", PARTITIONS // 2)
            before = len(scene.events(PartitionTaken, lambda taken: taken.agent == "a"))
        async with scene.agent(agent_id="b again", group_instance_id="i-b"):
            await wait_until_owned(scene, "b again", len(moved))

    assert (owned_by(scene, "a"), owned_by(scene, "b again")) == (kept, moved)
    assert len(scene.events(PartitionTaken, lambda taken: taken.agent == "a")) == before
    assert {each.instance for each in scene.events(PartitionTaken)} == {"i-a", "i-b"}


@pytest.mark.wide
async def test_of_two_agents_with_one_instance_the_first_ends_with_an_error_that_names_both(
    scene: World,
) -> None:
    """Two deployments were copied from each other."""
    with scene.process(agent_id="first", group_instance_id="the-one", log_level="error") as first:
        await wait_until_owned(scene, "first", PARTITIONS)
        async with scene.agent(agent_id="second", group_instance_id="the-one"):
            assert await first.ended() == 1

    [line] = first.log.read_text().splitlines()
    assert "agent second has the same group_instance_id as this agent, the-one" in line
    assert "LAKEWARDEN_GROUP_INSTANCE_ID" in line


@pytest.mark.wide
async def test_a_partition_that_stays_keeps_its_owner_its_state_and_its_lock(scene: World) -> None:
    """Another agent joins while a transaction is open: the table's lock is not released, and nothing is replayed."""
    tables = [scene.writer(f"w{number}", f"{scene.table}-{number}") for number in range(4 * PARTITIONS)]
    async with scene.agent(agent_id="a"):
        for each in tables:
            await each.begin(heartbeat_seconds=100)
        await scene.wait_for(LockAcquired, count=len(tables))
        async with scene.agent(agent_id="b"):
            moved = await wait_until_owned(scene, "b", PARTITIONS // 2)
            staying = [each for each in tables if partition_of(scene, each) not in moved]
            assert staying
            for each in staying:
                await each.complete((await each.obtain_grant()).grant)

    terms = {each.term for each in scene.events(PartitionTaken) if each.table not in moved}
    assert len(terms) == PARTITIONS - len(moved), "one term each: the owner was kept"
    for each in staying:
        acquired = scene.events(LockAcquired, lambda lock, table=each.table: lock.table == table)  # type: ignore[misc]
        assert len(acquired) == 1
        assert len(scene.events(CommitGranted, each.mine)) == 1


def partition_of(scene: World, writer: Writer) -> str:
    """The name of the partition in which the writer was admitted."""
    [number] = {
        each.partition
        for each in scene.received
        if isinstance(each.event, Admitted) and writer.mine(each.event)
    }
    return partition_name(number)


async def test_the_lock_of_a_running_grant_is_taken_over_when_an_agent_stops(scene: World) -> None:
    """The next agent adopts it, extends the grant and grants the next transaction, long before the former lease ends."""
    first, second = scene.writer("first"), scene.writer("second")
    async with scene.agent(agent_id="a", **LONG):
        await first.begin(heartbeat_seconds=100)
        await second.begin(heartbeat_seconds=100)
        granted = await first.obtain_grant()
        [held] = await scene.wait_for(LockAcquired)
    async with scene.agent(agent_id="b", **LONG):
        await scene.wait_for(LockAcquired, lambda lock: lock.fenced)
        await first.complete(granted.grant)
        await second.obtain_grant()

    [adopted] = scene.events(LockAcquired, lambda lock: lock.fenced)
    assert adopted.adopted == held.owner


@pytest.mark.wide
async def test_the_lock_of_a_running_grant_moves_with_its_partition(scene: World) -> None:
    """Another agent joins: it gets partitions whose tables have running grants, and grants there at once."""
    writers = [scene.writer(f"w{number}", f"{scene.table}-{number}") for number in range(4 * PARTITIONS)]
    following = [scene.writer(f"next-{each.table[-2:]}", each.table) for each in writers]
    async with scene.agent(agent_id="a", **LONG):
        grants = {}
        for each, after in zip(writers, following, strict=True):
            await each.begin(heartbeat_seconds=100)
            await after.begin(heartbeat_seconds=100)
            grants[each.table] = await each.obtain_grant()
        async with scene.agent(agent_id="b", **LONG):
            await wait_until_owned(scene, "b", PARTITIONS // 2)
            for each, after in zip(writers, following, strict=True):
                await each.complete(grants[each.table].grant)
                await after.obtain_grant()

    assert {each.agent for each in scene.events(CommitGranted)} == {"a", "b"}
    assert scene.events(Abort) == []
