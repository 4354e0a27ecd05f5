"""The watcher on a local disk: what it publishes, and what it logs when it can't read."""

import shutil
from pathlib import Path
from typing import Self

import pytest
from structlog.testing import capture_logs

from lakewarden.agent.errors import SettingsError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import watcher as watcher_module
from lakewarden.agent.watching.files import AbsentFileError, Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import TableFollower
from lakewarden.agent.watching.formats import follow
from lakewarden.events import CommitCompleted, CommitIntent, MarkerCreated, TransactionAbandoned
from tests.recorded_hudi import recorded
from tests.unit.agent.watching.lake import Lake, logged, looked_at
from tests.waiting import until

TIME = "20261122135643314"
DONE = "20261122135643314_20261122135847753.commit"
FIRST = "a1079540-5309-48af-8815-49d4dc51cc56-0"


class Table(Lake):
    """A table of Hudi on the local disk, and the events that a watcher published of it."""

    @property
    def uri(self) -> str:
        return f"file://{self.root}"

    def create(self) -> Self:
        return self.add("hoodie.properties", recorded("cow-v9", "hoodie.properties"))

    def add(self, path: str, body: bytes = b"") -> Self:
        """Write a file below `.hoodie`."""
        self.put(".hoodie", path, body)
        return self


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path.resolve() / "trips")


async def test_a_write_is_reported_from_its_request_to_its_commit(table: Table) -> None:
    table.create()
    async with table.watched(table.uri) as watcher:
        await looked_at(watcher, table.uri)
        table.add(f"timeline/{TIME}.commit.requested")
        (intent,) = await table.published.until(CommitIntent)
        table.add(f"timeline/{TIME}.inflight", recorded("cow-v9", f"{TIME}.inflight"))
        await table.published.until(MarkerCreated)
        table.add(f".temp/{TIME}/p=d9/{FIRST}_0-28-28_{TIME}.parquet.marker.MERGE")
        *_, direct = await table.published.until(MarkerCreated, 2)
        table.add(f"timeline/{DONE}", recorded("cow-v9", DONE))
        (completed,) = await table.published.until(CommitCompleted)

    assert isinstance(intent, CommitIntent)
    assert (intent.observed, intent.transaction, intent.writer) == (True, f"hudi:{TIME}", f"hudi:{TIME}")
    assert isinstance(direct, MarkerCreated)
    assert [(each.partition, each.file_group) for each in direct.markers] == [("p=d9", FIRST)]
    assert isinstance(completed, CommitCompleted)
    assert (completed.grant, completed.version) == (None, TIME)
    assert {each.partition for each in completed.markers} == {"p=d0", "p=d1"}


async def test_a_table_that_is_not_there_yet_is_watched_when_it_appears(table: Table) -> None:
    with capture_logs() as logs:
        async with table.watched(table.uri) as watcher:
            await logged(logs, "watch.table-unreadable")
            table.create()
            await looked_at(watcher, table.uri)

    events = [each["event"] for each in logs]
    assert events.count("watch.table-unreadable") == 1
    assert "watch.table-readable" in events


async def test_a_table_that_vanishes_ends_no_transaction(table: Table) -> None:
    """It may be on a disk that was unmounted. Its writer goes on elsewhere."""
    table.create()
    with capture_logs() as logs:
        async with table.watched(table.uri) as watcher:
            await looked_at(watcher, table.uri)
            table.add(f"timeline/{TIME}.commit.requested")
            await table.published.until(CommitIntent)
            away = table.root.rename(table.root.with_name("away"))
            await logged(logs, "watch.file-unreadable")
            away.rename(table.root)
            table.add(f"timeline/{DONE}", recorded("cow-v9", DONE))
            await table.published.until(CommitCompleted)

    assert not [each for each in table.published if isinstance(each, TransactionAbandoned)]


async def test_an_instant_that_is_rolled_back_is_abandoned(table: Table) -> None:
    table.create()
    async with table.watched(table.uri) as watcher:
        await looked_at(watcher, table.uri)
        table.add(f"timeline/{TIME}.commit.requested")
        await table.published.until(CommitIntent)
        (table.root / f".hoodie/timeline/{TIME}.commit.requested").unlink()
        (ended,) = await table.published.until(TransactionAbandoned)

    assert isinstance(ended, TransactionAbandoned)
    assert ended.transaction == f"hudi:{TIME}"


async def test_an_unknown_table_version_is_logged_once_with_what_is_known(table: Table) -> None:
    table.add("hoodie.properties", b"hoodie.table.version=10\n")
    with capture_logs() as logs:
        async with table.watched(table.uri) as watcher:
            await until(lambda: watcher.requests >= 12)  # two looks

    (line,) = [each for each in logs if each["event"] == "watch.table-unreadable"]
    assert line["why"] == "table version 10 is unknown; known are 6, 8, 9"


async def test_a_folder_that_can_not_be_listed_hides_no_other_table_of_its_glob(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher may lack the right to one folder. It logs this once, and finds a table there when it may list it."""
    table.create()
    (table.root.parent / "no-table").mkdir()
    secret = Table(table.root.with_name("a-secret")).create()
    readable = False
    has_files = TableFiles.has_files

    async def refusal(files: TableFiles, path: str) -> bool:
        if path.startswith(secret.root.name) and not readable:
            raise UnreadableTableError("access denied")
        return await has_files(files, path)

    monkeypatch.setattr(TableFiles, "has_files", refusal)
    monkeypatch.setattr(watcher_module, "DISCOVERY_SECONDS", 0.01)
    with capture_logs() as logs:
        async with table.watched(f"file://{table.root.parent}/*") as watcher:
            await looked_at(watcher, table.uri)
            assert set(watcher.tables) == {table.uri}
            readable = True
            await looked_at(watcher, secret.uri)

    (line,) = [each for each in logs if each["event"] == "watch.folder-unreadable"]
    assert (line["folder"], line["why"]) == (secret.uri, "access denied")


async def test_the_root_of_a_table_is_not_listed_for_a_glob(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have 300,000 files."""
    table.create()
    listed: list[str] = []
    folders = TableFiles.folders

    async def recorded(files: TableFiles, path: str) -> list[str]:
        listed.append(path)
        return await folders(files, path)

    monkeypatch.setattr(TableFiles, "folders", recorded)
    async with table.watched(f"file://{table.root.parent}/*") as watcher:
        await looked_at(watcher, table.uri)

    assert listed == [""]


async def test_a_table_of_a_glob_that_was_dropped_is_left_and_found_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests end. A table that is named is still looked at."""
    monkeypatch.setattr(watcher_module, "DISCOVERY_SECONDS", 0.01)
    monkeypatch.setattr(watcher_module, "ABSENT_SECONDS", 0.05)
    table.create()
    named = Table(table.root.with_name("named")).create()
    with capture_logs() as logs:
        async with table.watched(f"file://{table.root.parent}/*", named.uri) as watcher:
            await looked_at(watcher, table.uri)
            await looked_at(watcher, named.uri)
            shutil.rmtree(named.root)
            shutil.rmtree(table.root)
            await until(lambda: set(watcher.tables) == {named.uri})
            table.create()
            await looked_at(watcher, table.uri)

    events = [each["event"] for each in logs if each.get("table") == table.uri]
    assert [each for each in events if each in ("watch.table-found", "watch.table-dropped")] == [
        "watch.table-found",
        "watch.table-dropped",
        "watch.table-found",
    ]


async def test_a_table_of_a_glob_that_can_not_be_read_is_not_left(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "DISCOVERY_SECONDS", 0.01)
    monkeypatch.setattr(watcher_module, "ABSENT_SECONDS", 0.0)
    table.create()
    refused = 0

    async def refusal(files: TableFiles, path: str) -> list[str]:
        nonlocal refused
        refused += 1
        raise UnreadableTableError("access denied")

    async with table.watched(f"file://{table.root.parent}/*") as watcher:
        await looked_at(watcher, table.uri)
        monkeypatch.setattr(TableFiles, "folders", refusal)
        await until(lambda: refused >= 3)

        assert set(watcher.tables) == {table.uri}


@pytest.mark.parametrize("glob", ["s3://lake/*/trips", "s3://*"])
def test_a_glob_that_can_not_be_listed_is_refused(glob: str) -> None:
    with pytest.raises(SettingsError, match="wildcards stand in the last segment only"):
        Settings.load(watch=(glob,))


async def test_files_are_listed_and_read_below_the_table_only(table: Table) -> None:
    table.create().add("timeline/a.commit", b"x").add("timeline/history/b", b"y").add(".temp/1/p/m", b"")
    shutil.copytree(table.root, table.root.with_name("trips2"))
    files = Buckets(Settings()).table(table.uri)

    assert set(await files.folder(".hoodie/timeline/")) == {".hoodie/timeline/a.commit"}
    assert set(await files.below(".hoodie/.temp/")) == {".hoodie/.temp/1/p/m"}
    assert await files.below(".hoodie/.heartbeat/") == {}
    assert await files.read(".hoodie/timeline/a.commit") == b"x"
    assert await files.folders(".hoodie") == [".temp", "timeline"]
    with pytest.raises(AbsentFileError):
        await files.read(".hoodie/nothing")


async def test_a_table_that_fails_unexpectedly_is_begun_again_and_disturbs_no_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of the watcher that one table's files provoke."""
    other = f"{table.uri}2"
    table.create()
    shutil.copytree(table.root, table.root.with_name("trips2"))
    broken = True

    async def follow_or_fail(uri: str, files: TableFiles, settings: Settings) -> TableFollower:
        if uri == table.uri and broken:
            raise KeyError("fileId")
        return await follow(uri, files, settings)

    monkeypatch.setattr(watcher_module, "follow", follow_or_fail)
    with capture_logs() as logs:
        async with table.watched(table.uri, other) as watcher:
            await logged(logs, "watch.table-failed")
            await looked_at(watcher, other)
            broken = False
            await looked_at(watcher, table.uri)

    assert [each["table"] for each in logs if each["event"] == "watch.table-failed"] == [table.uri]
    assert "watch.table-readable" in [each["event"] for each in logs]
