"""The watcher of tables that show commits only, on a local disk with files that the formats wrote."""

from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.watching import follower, watcher
from lakewarden.agent.watching.formats import format_of
from lakewarden.events import CommitCompleted, CommitIntent
from lakewarden.handlers.observations import EVERYTHING
from tests import recorded_iceberg
from tests.recorded_delta import commit, recorded
from tests.recorded_paimon import metadata
from tests.unit.agent.watching.lake import LOG, Lake, logged
from tests.waiting import until


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path.resolve())


async def test_commits_since_the_first_look_are_reported_once(lake: Lake) -> None:
    """Version 6 changes no file, and version 7 has the gate's label. A second watcher publishes the same ids."""
    other = Lake(lake.root)
    lake.commit(0, 1)
    async with lake.followed(), other.followed():
        lake.commit(2, 3, 4, 5, 6, 7)
        await until(lambda: len(lake.published.versions()) == 4 and len(other.published.versions()) == 4)

    assert lake.published.versions() == ["2", "3", "4", "5"]
    assert [each.event_id for each in lake.published] == [each.event_id for each in other.published]
    intent, completion = lake.published[:2]
    assert isinstance(intent, CommitIntent)
    assert (intent.transaction, intent.observed, intent.conflict_rule) == ("delta:2", True, "deleted-file")
    assert completion.transaction == "delta:2"


async def test_an_idle_look_is_one_request(lake: Lake) -> None:
    lake.commit(0, 1, 2)
    async with lake.followed() as running:
        (table,) = running.tables.values()
    assert table.watched is not None
    assert table.files is not None
    counts = [table.files.requests]

    for _ in range(3):
        await table.watched.look()
        counts.append(table.files.requests)

    assert [later - earlier for earlier, later in pairwise(counts)] == [1, 1, 1]


async def test_a_log_with_a_checkpoint_is_read_from_its_newest_version(lake: Lake) -> None:
    """Older commits are gone. The metadata comes from the checksum file."""
    lake.put("days", "_delta_log/_last_checkpoint", b'{"version":7,"size":3}')
    lake.put("days", f"_delta_log/{7:020d}.checkpoint.parquet", b"")
    lake.put("days", f"_delta_log/{7:020d}.crc", recorded("days", f"{7:020d}.crc"))
    async with lake.followed():
        lake.put("days", LOG.format(8), commit("days", 3))
        await until(lake.published.versions)

    assert lake.published.versions() == ["8"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        pytest.param(
            f"_delta_log/{7:020d}.checkpoint.parquet", "in a checkpoint that can't be read", id="delta"
        ),
        pytest.param(
            "metadata/00001-80a083e8-7026-4e79-81be-64bd76c43a11.metadata.json",
            "only the table's catalog knows",
            id="iceberg of another catalog: of two files with one number, only that knows which is committed",
        ),
    ],
)
async def test_a_table_whose_files_do_not_say_what_is_committed_is_not_watched(
    lake: Lake, path: str, why: str
) -> None:
    lake.put("t", path, b"{}" if path.endswith("json") else b"")
    with capture_logs() as logs:
        async with lake.watched(lake.at("t")):
            await logged(logs, "watch.table-unreadable")

    assert why in next(each["why"] for each in logs if "why" in each)


async def test_a_gap_is_left_behind(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit 3 is missing, as after a clean-up of the log while the watcher was suspended."""
    monkeypatch.setattr(follower, "RECHECK_SECONDS", 0.05)
    lake.commit(0, 1, 2)
    with capture_logs() as logs:
        async with lake.followed():
            lake.commit(4)
            await logged(logs, "watch.position-lost")
            await logged(logs, "watch.table", 2)
            lake.commit(5)
            await until(lake.published.versions)

    assert lake.published.versions() == ["5"]


async def test_a_damaged_commit_is_reported_in_the_log_until_it_can_be_read(lake: Lake) -> None:
    lake.commit(0, 1)
    with capture_logs() as logs:
        async with lake.followed():
            lake.put("days", LOG.format(2), commit("days", 2)[:100])
            await logged(logs, "watch.file-unreadable")
            assert lake.published.versions() == []
            lake.commit(2)
            await until(lake.published.versions)

    assert lake.published.versions() == ["2"]
    assert sum(each["event"] == "watch.file-unreadable" for each in logs) == 1


async def test_a_table_that_vanishes_and_returns_is_watched_from_its_newest_version(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "RECHECK_SECONDS", 0.05)
    lake.commit(0, 1)
    with capture_logs() as logs:
        async with lake.followed():
            away = (lake.root / "days").rename(lake.root / "away")
            await logged(logs, "watch.table-unreadable")
            lake.root.joinpath("away", LOG.format(2)).write_bytes(commit("days", 2))
            away.rename(lake.root / "days")
            await logged(logs, "watch.table-readable")
            lake.commit(3)
            await until(lake.published.versions)

    assert lake.published.versions() == ["3"]


async def test_a_commit_whose_age_is_unknown_is_skipped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka didn't answer for too long: writers that began meanwhile have the commit in their base."""
    monkeypatch.setattr(watcher, "MAX_AGE_SECONDS", 0.1)
    lake.published.accepts = anyio.Event()
    lake.commit(0, 1)
    with capture_logs() as logs:
        async with lake.followed():
            lake.commit(2)
            await logged(logs, "watch.commits-skipped")
            monkeypatch.setattr(watcher, "MAX_AGE_SECONDS", 120.0)
            lake.published.accepts.set()
            lake.commit(3)
            await until(lake.published.versions)

    assert lake.published.versions() == ["3"]
    (line,) = [each for each in logs if each["event"] == "watch.commits-skipped"]
    assert line["versions"] == ["2"]


SNAPSHOT = "snapshot/snapshot-{}"


def put(lake: Lake, files: dict[str, bytes], *paths: str) -> None:
    """Add some files of a recorded Paimon table."""
    for path in paths:
        lake.put("flights", path, files[path])


async def test_snapshots_of_paimon_are_reported_with_their_files(lake: Lake) -> None:
    """Snapshot 4 has the gate's property."""
    files = metadata()
    put(lake, files, *(each for each in files if not each.startswith("snapshot/")), SNAPSHOT.format(1))
    async with lake.followed("flights") as running:
        put(lake, files, *map(SNAPSHOT.format, (2, 3, 4, 5)))
        await until(lambda: len(lake.published.versions()) == 3)
        (table,) = running.tables.values()

    assert lake.published.versions() == ["2", "3", "5"]
    assert lake.published[0].transaction == "paimon:2"
    assert table.problems == set()


async def test_snapshots_of_paimon_that_only_change_deletion_vectors_are_reported(lake: Lake) -> None:
    """Those of Java Paimon. When snapshot 5 is read, the snapshot before has expired: its delete isn't known."""
    files = metadata("vectors")
    put(lake, files, *(each for each in files if not each.startswith("snapshot/")), SNAPSHOT.format(2))
    async with lake.followed("flights") as running:
        (table,) = running.tables.values()
        assert table.watched is not None
        put(lake, files, *map(SNAPSHOT.format, (3, 4)))
        await until(lambda: len(lake.published.versions()) == 2)
        for number in (3, 4):
            (lake.root / "flights" / "snapshot" / f"snapshot-{number}").unlink()
        put(lake, files, SNAPSHOT.format(5))
        lake.put("flights", "snapshot/snapshot-6", files["snapshot/snapshot-1"])
        await until(lambda: len(lake.published.versions()) == 3)

    assert lake.published.versions() == ["3", "4", "6"]
    touched = [len(each.markers) for each in lake.published if isinstance(each, CommitCompleted)]
    assert touched == [1, 1, 2]
    assert table.problems == set()


async def test_snapshots_of_iceberg_are_reported_with_their_files(lake: Lake) -> None:
    """Version 6 has no new snapshot, and version 7 is the gate's."""
    versions = [f"metadata/v{number}.metadata.json" for number in range(1, 9)]
    for path in {*recorded_iceberg.names()} - {*versions[1:]}:
        lake.put("flights", path, recorded_iceberg.recorded(path))
    async with lake.followed("flights") as running:
        for path in versions[1:]:
            lake.put("flights", path, recorded_iceberg.recorded(path))
        await until(lambda: len(lake.published.versions()) == 5)
        (table,) = running.tables.values()

    assert len(set(lake.published.versions())) == 5
    assert lake.published[0].transaction.startswith("iceberg:")
    assert table.problems == set()


async def test_a_commit_that_stays_unreadable_counts_as_one_of_the_whole_table_and_the_next_is_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "UNREADABLE_SECONDS", 0.05)
    lake.commit(0, 1)
    lake.put("flights", SNAPSHOT.format(1), metadata()[SNAPSHOT.format(1)])
    lake.put("flights", "schema/schema-0", b"{")  # so what the partitions are is unknown
    with capture_logs() as logs:
        async with lake.followed(), lake.followed("flights"):
            lake.put("days", LOG.format(2), commit("days", 2)[:100])
            lake.put("flights", SNAPSHOT.format(2), metadata()[SNAPSHOT.format(2)])
            lake.commit(3)
            await until(lambda: len(lake.published.versions()) == 3)

    completed = [each for each in lake.published if isinstance(each, CommitCompleted)]
    unread = {each.transaction for each in completed if each.markers == (EVERYTHING,)}
    assert unread == {"delta:2", "paimon:2"}
    assert "delta:3" in {each.transaction for each in completed}
    assert (
        sorted(each["event"] for each in logs if each["log_level"] == "warning")
        == ["watch.file-unreadable"] * 2
    )


async def test_a_table_that_becomes_one_of_an_unknown_version_is_unreadable_and_not_stopped(
    lake: Lake,
) -> None:
    lake.commit(0, 1)
    with capture_logs() as logs:
        async with lake.followed():
            lake.put("days", LOG.format(2), b'{"protocol":{"minReaderVersion":9}}')
            await logged(logs, "watch.table-unreadable")

    assert lake.published == []
    assert "reader version 9" in next(each["why"] for each in logs if "why" in each)


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["_delta_log", "day=1", "metadata"], "delta"),
        ([".hoodie", "_delta_log"], "hudi"),
        (["metadata", "data"], "iceberg"),
        (["bucket-0", "manifest", "schema", "snapshot"], "paimon"),
        (["schema"], None),
        ([], None),
    ],
)
def test_a_format_is_known_by_its_folders(folders: list[str], expected: str | None) -> None:
    assert format_of(folders) == expected
