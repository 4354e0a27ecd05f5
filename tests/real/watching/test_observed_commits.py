"""`lakewarden watch` with a real agent, and tables that show commits only, on a local disk and on an S3 server."""

import pytest

from lakewarden.agent.operators.explain import explain
from lakewarden.events import Abort, ConflictDetected
from tests.real.lock_places import Place
from tests.real.watching.scene import WatchedScene
from tests.real.writers import World
from tests.recorded_delta import commit

pytestmark = [pytest.mark.real]

MERGED = "region=a b%2Fc/day=2026-11-23"
OPTIMIZED = "region=__HIVE_DEFAULT_PARTITION__/day=2026-11-24"


@pytest.fixture
def scene(scene: World, place: Place) -> WatchedScene:
    return WatchedScene(scene, place)


def delta_commit(version: int) -> tuple[str, bytes]:
    return f"_delta_log/{version:020d}.json", commit("days", version)


async def test_a_merge_of_delta_stops_a_rewrite_of_its_partition_and_no_append(scene: WatchedScene) -> None:
    """Version 3 is a MERGE, version 4 an OPTIMIZE of the append's partition. A writer that begins later is not stopped."""
    w, place = scene.world, scene.place
    for version in range(3):
        scene.put(*delta_commit(version))
    settings = scene.settings()
    async with w.agent(**settings), scene.watched():
        upsert, append = w.writer("upsert", place.table), w.writer("append", place.table)
        await upsert.begin()
        await upsert.touch("*", partition=MERGED)
        await append.begin(conflict_rule="deleted-file")
        await append.touch("*", partition=OPTIMIZED, operation="create")

        scene.put(*delta_commit(3))
        abort = await upsert.wait_for(Abort)
        scene.put(*delta_commit(4))
        after = w.writer("after", place.table)
        await after.begin()
        await after.touch("*", partition=MERGED)
        for writer in (after, append):
            await writer.complete((await writer.obtain_grant()).grant, "5")
        (conflict,) = w.events(ConflictDetected)
        story = await explain(w.settings(**settings), "delta:3", place.table)

    (entry, *_) = abort.conflicts
    assert (entry.other_transaction, entry.other_writer) == ("delta:3", "delta:3")
    assert (entry.partition, entry.file_group, entry.kind) == (MERGED, "*", "commit")
    assert conflict.winner == "delta:3"
    assert story is not None
