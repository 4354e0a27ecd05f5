"""Agents with the setting `watch`, as processes, and files that Hudi wrote, on a local disk and on an S3 server (decision 54)."""

import anyio
import psutil
import pytest

from lakewarden.events import Abort, CommitCompleted, CommitIntent
from lakewarden.events.access import partition_of
from tests.processes import AgentProcess
from tests.real.lock_places import Place, runs
from tests.real.watching.scene import FIRST, OBSERVED, HudiScene
from tests.real.writers import World
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.real]


@pytest.fixture
def scene(scene: World, place: Place) -> HudiScene:
    return HudiScene(scene, place).created()


def watcher_of(agent: AgentProcess) -> psutil.Process:
    """The only child process of an agent."""
    [found] = psutil.Process(agent.popen.pid).children()
    return found


def watches(agent: AgentProcess) -> bool:
    """Whether the agent's watcher has begun with the table, and not left it since."""
    names = [line["event"] for line in agent.lines()]
    return names.count("watch.table") > names.count("watch.table-left")


async def until_one_watches(scene: HudiScene, *agents: AgentProcess) -> tuple[AgentProcess, AgentProcess]:
    """Wait until each of two agents has one partition, and only the one with the table's watches. Return it, then the other."""
    number = partition_of(scene.place.table, scene.world.settings().partitions)
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            await anyio.sleep(0.1)
            live = [[line for line in each.lines() if line["event"] == "partitions.live"] for each in agents]
            if not all(live):
                continue
            owned = [lines[-1]["partitions"] for lines in live]
            owners = [agent for agent, own in zip(agents, owned, strict=True) if own == [number]]
            if (
                sorted(map(len, owned)) == [1, 1]
                and [each for each in agents if watches(each)] == owners != []
            ):
                [owner] = owners
                [other] = [each for each in agents if each is not owner]
                return owner, other


async def test_a_writer_of_hudi_stops_a_writer_of_the_gate_without_another_process(scene: HudiScene) -> None:
    w = scene.world
    with w.process(**scene.watching()) as agent:
        await agent.logged("watch.table")
        early = w.writer("early", scene.place.table)
        await early.begin()
        await early.touch(FIRST, partition="p=d1")

        scene.request()
        scene.start()
        abort = await early.wait_for(Abort)

    [entry] = abort.conflicts
    assert (entry.other_transaction, entry.other_writer) == (OBSERVED, OBSERVED)
    assert (entry.partition, entry.file_group, entry.kind) == ("p=d1", FIRST, "marker")


@pytest.mark.wide
@pytest.mark.parametrize("place", ["local"], indirect=True)
async def test_a_watcher_that_is_killed_is_started_again_and_its_agent_goes_on(scene: HudiScene) -> None:
    """As the kernel does when memory runs out. The agent serves in one session."""
    w = scene.world
    with w.process(**scene.watching()) as agent:
        await agent.logged("watch.table")
        writer = w.writer("writer", scene.place.table)
        await writer.begin()
        watcher_of(agent).kill()
        ended = await agent.logged("watch.ended")
        await agent.logged("watch.table", count=2)
        await writer.obtain_grant()
        await writer.complete()
        scene.request()
        await scene.reported(CommitIntent)
        names = [line["event"] for line in agent.lines()]

    assert (ended["level"], ended["why"]) == ("warning", "signal 9")
    assert names.count("kafka.connected") == 1


@pytest.mark.wide
@pytest.mark.parametrize("place", ["local"], indirect=True)
async def test_one_of_two_agents_watches_and_after_its_death_the_other_one(scene: HudiScene) -> None:
    """The commit of what the dead agent's watcher has opened is reported. What is repeated has the same ids."""
    w = scene.world
    with w.process(**scene.watching()) as one, w.process(**scene.watching()) as another:
        owner, other = await until_one_watches(scene, one, another)
        watcher = watcher_of(owner)
        before = w.writer("before", scene.place.table)
        await before.begin()
        await before.touch(FIRST, partition="p=d1")
        scene.request()
        await scene.reported(CommitIntent)
        owner.kill()
        await until(lambda: watches(other))
        scene.complete()
        abort = await before.wait_for(Abort)
        after = w.writer("after", scene.place.table)
        await after.begin()
        await after.touch(FIRST, partition="p=d1")
        await after.obtain_grant()
        intents = await scene.reported(CommitIntent)
        completions = await scene.reported(CommitCompleted)

    assert {each.other_transaction for each in abort.conflicts} == {OBSERVED}
    assert [len({each.event_id for each in found}) for found in (intents, completions)] == [1, 1]
    assert not [each for each in w.events(Abort) if each.transaction == after.transaction]
    assert not runs(watcher.pid)
