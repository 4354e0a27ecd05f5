"""`lakewarden watch` with a real broker, a real agent, and files that Hudi wrote, on a local disk and on an S3 server."""

import signal

import pytest

from lakewarden.agent.operators.status import status
from lakewarden.events import Abort, Admitted, CommitCompleted, CommitIntent, ConflictDetected, MarkerCreated
from tests.processes import AgentProcess
from tests.real.lock_places import Place
from tests.real.watching.scene import FIRST, OBSERVED, TIME, HudiScene
from tests.real.writers import World

pytestmark = [pytest.mark.real]


@pytest.fixture
def scene(scene: World, place: Place) -> HudiScene:
    return HudiScene(scene, place).created()


async def test_a_writer_of_hudi_stops_a_writer_of_the_gate_that_touches_the_same(scene: HudiScene) -> None:
    """The gate's writer is stopped by the inflight file, the next one by the commit. A queued one waits until then."""
    w = scene.world
    async with w.agent(**scene.settings()), scene.watched():
        early, late = w.writer("early", scene.place.table), w.writer("late", scene.place.table)
        await early.begin()
        await late.begin()
        await early.touch(FIRST, partition="p=d1")

        scene.request()
        scene.start()
        abort = await early.wait_for(Abort)
        (shown,) = [each for table in await status(w.settings(**scene.settings())) for each in table.transactions
                    if each.transaction == OBSERVED]  # fmt: skip
        queued = w.writer("queued", scene.place.table)
        await queued.send_intent(
            admission="queued", scope=({"partition": "p=d1", "file_group": FIRST, "operation": "merge"},)
        )

        scene.complete()
        await queued.wait_for(Admitted)
        await late.touch(FIRST, partition="p=d1")
        after_commit = await late.wait_for(Abort)
        conflicts = await w.wait_for(ConflictDetected, count=2)

    assert abort.reason == "conflict"
    (entry,) = abort.conflicts
    assert (entry.other_transaction, entry.other_writer) == (OBSERVED, OBSERVED)
    assert (entry.partition, entry.file_group, entry.kind) == ("p=d1", FIRST, "marker")
    assert shown.phase == "observed"
    assert after_commit.conflicts[0].kind == "commit"
    assert {each.winner for each in conflicts} == {OBSERVED}


@pytest.mark.wide
@pytest.mark.parametrize("place", ["on_google", "on_azure"], indirect=True)
async def test_a_writer_of_hudi_on_a_cloud_store_stops_a_writer_of_the_gate(scene: HudiScene) -> None:
    w = scene.world
    async with w.agent(**scene.settings()), scene.watched():
        writer = w.writer("writer", scene.place.table)
        await writer.begin()
        await writer.touch(FIRST, partition="p=d1")

        scene.request()
        scene.start()
        abort = await writer.wait_for(Abort)
        scene.complete()
        (completed,) = await scene.reported(CommitCompleted)

    assert [entry.other_transaction for entry in abort.conflicts] == [OBSERVED]
    assert completed.version == TIME


@pytest.mark.wide
async def test_a_watcher_that_is_restarted_repeats_nothing_wrongly(scene: HudiScene) -> None:
    """The second one finds a commit that happened while no watcher ran. The third one has nothing new to say."""
    w = scene.world
    async with w.agent(**scene.settings()):
        first = w.writer("first", scene.place.table)
        await first.begin()
        await first.touch(FIRST, partition="p=d1")
        async with scene.watched():
            scene.request()
            await scene.reported(CommitIntent)
        scene.complete()
        async with scene.watched():
            abort = await first.wait_for(Abort)
        second = w.writer("second", scene.place.table)
        await second.begin()
        await second.touch(FIRST, partition="p=d1")
        async with scene.watched():
            completions = await scene.reported(CommitCompleted, count=2)
            await w.settle(scene.place.table)
        assert not [each for each in w.events(Abort) if each.transaction == second.transaction]

    assert abort.conflicts[0].kind == "commit"
    assert len({each.event_id for each in completions}) == 1


@pytest.mark.wide
async def test_the_gates_own_instant_is_left_alone(scene: HudiScene) -> None:
    w = scene.world
    async with w.agent(**scene.settings()), scene.watched():
        gate = w.writer("gate", scene.place.table)
        await gate.begin()
        markers = ({"partition": "p=d1", "file_group": FIRST, "operation": "merge"},)
        await w.send(gate.event(MarkerCreated, markers=markers, instant=TIME))

        scene.request()
        scene.start()
        await scene.reported(MarkerCreated)
        grant = await gate.obtain_grant()
        scene.complete()
        await gate.complete(grant.grant, TIME)
        await scene.reported(CommitCompleted)
        await w.settle(scene.place.table)

    assert not w.events(ConflictDetected)


class WatchProcess(AgentProcess):
    command = "watch"


async def test_the_command_watches_and_stops_on_a_signal(scene: HudiScene) -> None:
    """What an operator starts as a service."""
    w, table = scene.world, ("--table", scene.place.table)
    async with w.agent(**scene.settings()):
        process = WatchProcess(
            w.values(**scene.settings()), w.root / "watch.log", launched=lambda command: [*command, *table]
        )
        try:
            await process.logged("watch.table")
            scene.request()
            scene.start()
            await scene.reported(CommitIntent)
            process.popen.send_signal(signal.SIGTERM)
            code = await process.ended()
        finally:
            process.kill()

    assert code == 0, process.text()
    assert process.lines()[-1]["event"] == "watch.stopped"
