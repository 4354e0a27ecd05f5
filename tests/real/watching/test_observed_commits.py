"""`lakewarden watch` with a real agent, and tables that show commits only, on a local disk and on an S3 server."""

import pytest

from lakewarden.agent.operators.explain import explain
from lakewarden.events import Abort, ConflictDetected
from tests import recorded_iceberg
from tests.real.lock_places import Place
from tests.real.watching.scene import WatchedScene
from tests.real.writers import World
from tests.recorded_delta import commit
from tests.recorded_paimon import metadata

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


@pytest.mark.wide
async def test_an_append_of_paimon_stops_a_rewrite_of_its_partition_only(scene: WatchedScene) -> None:
    """`PaimonSink` would find the added file in its base. Snapshot 4 has the gate's property, and stops no writer."""
    w, place, files = scene.world, scene.place, metadata()
    later = {f"snapshot/snapshot-{number}" for number in range(2, 6)}
    for path, body in files.items():
        if path not in later:
            scene.put(path, body)
    settings = scene.settings()
    monday, tuesday = "day=20780/region=a b%2Fc", "day=20781/region=__DEFAULT_PARTITION__"
    async with w.agent(**settings), scene.watched():
        upsert, other, append = (w.writer(name, place.table) for name in ("upsert", "other", "append"))
        await upsert.begin()
        await upsert.touch("*", partition=monday)
        await other.begin()
        await other.touch("*", partition=tuesday)
        await append.begin(conflict_rule="deleted-file")
        await append.touch("bucket-0", partition=monday + "d", operation="create")

        scene.put("snapshot/snapshot-2", files["snapshot/snapshot-2"])
        first = await upsert.wait_for(Abort)
        scene.put("snapshot/snapshot-4", files["snapshot/snapshot-4"])
        scene.put("snapshot/snapshot-3", files["snapshot/snapshot-3"])
        scene.put("snapshot/snapshot-5", files["snapshot/snapshot-5"])
        second = await other.wait_for(Abort)
        await append.obtain_grant()

    assert first.conflicts[0].other_transaction == "paimon:2"
    assert {each.other_transaction for each in second.conflicts} == {"paimon:5"}


@pytest.mark.wide
async def test_a_merge_of_iceberg_stops_a_rewrite_of_its_partition_only(scene: WatchedScene) -> None:
    """Version 4 is a MERGE of one partition."""
    w, place = scene.world, scene.place
    later = {f"metadata/v{number}.metadata.json" for number in range(4, 9)}
    for path in {*recorded_iceberg.names()} - later:
        scene.put(path, recorded_iceberg.recorded(path))
    settings = scene.settings()
    monday = "at_day=2026-11-23/later_hour=2026-11-23-05/region=a+b%2Fc/id_bucket=0"
    null = "at_day=1969-12-31/later_hour=null/region=null/id_bucket=0"
    async with w.agent(**settings), scene.watched():
        upsert, other, append = (w.writer(name, place.table) for name in ("upsert", "other", "append"))
        for writer, partition in ((upsert, monday), (other, null)):
            await writer.begin()
            await writer.touch("*", partition=partition)
        await append.begin(conflict_rule="deleted-file")
        await append.touch("new-files", partition=f"{monday}0", operation="create")

        scene.put("metadata/v4.metadata.json", recorded_iceberg.recorded("metadata/v4.metadata.json"))
        abort = await upsert.wait_for(Abort)
        for writer in (other, append):
            await writer.complete((await writer.obtain_grant()).grant, "5")

    (entry, *_) = abort.conflicts
    assert entry.other_transaction == "iceberg:3916602019452908686"
    assert (entry.partition, entry.kind) == (monday, "commit")
