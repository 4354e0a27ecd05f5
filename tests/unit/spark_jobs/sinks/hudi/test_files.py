"""Which batches a Hudi table has, read from files as Hudi 1.2.0 writes them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.events import Marker
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.spark_jobs import BaseChanged
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from tests.recorded_hudi import recorded

PROPERTIES = "hoodie.table.name=trips\nhoodie.table.version=9\nhoodie.timeline.layout.version=2\n"

STAT = {
    "type": "record",
    "name": "HoodieWriteStat",
    "fields": [
        {"name": "fileId", "type": ["null", "string"]},
        {"name": "path", "type": ["null", "string"]},
        {"name": "prevCommit", "type": ["null", "string"]},
    ],
}
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "HoodieCommitMetadata",
        "fields": [
            {
                "name": "partitionToWriteStats",
                "type": {"type": "map", "values": {"type": "array", "items": STAT}},
            },
            {"name": "extraMetadata", "type": {"type": "map", "values": "string"}},
            {"name": "operationType", "type": ["null", "string"]},
        ],
    }
)


def metadata(
    writer: str | None, batch: int | None = None, stats: Any = None, *, key: str = "_lakewarden"
) -> bytes:
    extra = {"schema": "{}"}
    if writer is not None:
        extra[key] = json.dumps({"writer": writer, "batch": batch, "transaction": f"t-{batch}"})
    record = {"partitionToWriteStats": stats or {}, "extraMetadata": extra, "operationType": "UPSERT"}
    stream = io.BytesIO()
    fastavro.writer(stream, SCHEMA, [record])
    return stream.getvalue()


class Table:
    """A table's metadata on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.timeline = root / ".hoodie" / "timeline"
        self.timeline.mkdir(parents=True)
        (root / ".hoodie" / "hoodie.properties").write_text(PROPERTIES)
        self.files = HudiFiles(f"file://{root}")

    def commit(
        self, time: int, writer: str | None, batch: int | None = None, *, completion: int | None = None
    ) -> Path:
        path = self.timeline / f"{time:017d}_{completion or time + 1:017d}.commit"
        path.write_bytes(metadata(writer, batch))
        return path

    def archive(self, number: int, *entries: tuple[int, bytes]) -> None:
        """Write a file of the archive that contains these instants, and a manifest that has it and its predecessors."""
        history = self.timeline / "history"
        history.mkdir(exist_ok=True)
        name = f"{entries[0][0]:017d}_{entries[-1][0]:017d}_0.parquet"
        columns = {
            "instantTime": [f"{time:017d}" for time, _ in entries],
            "completionTime": [f"{time + 1:017d}" for time, _ in entries],
            "action": ["commit" for _ in entries],
            "metadata": [body for _, body in entries],
        }
        pq.write_table(pa.table(columns), history / name)
        files = [
            {"fileName": path.name, "fileLen": path.stat().st_size} for path in history.glob("*.parquet")
        ]
        (history / f"manifest_{number}").write_text(json.dumps({"files": files}))
        (history / "_version_").write_text(str(number))


@pytest.fixture
def hudi(tmp_path: Path) -> Table:
    return Table(tmp_path / "trips")


def test_a_batch_is_the_instant_that_has_its_writer_and_number(hudi: Table) -> None:
    hudi.commit(10, "w", 0)
    hudi.commit(20, "other", 5)
    hudi.commit(30, "w", 1)
    hudi.commit(40, None)

    assert hudi.files.committed("w", 0) == f"{10:017d}"
    assert hudi.files.committed("w", 1) == f"{30:017d}"
    assert hudi.files.committed("w", 2) is None
    assert hudi.files.committed("other", 5) == f"{20:017d}"
    assert hudi.files.committed("absent", 0) is None


def test_the_writers_and_a_batch_that_is_there_twice_are_found_among_the_newest_commits(hudi: Table) -> None:
    hudi.commit(10, "w", 0)
    hudi.commit(20, "w", 1, completion=60)
    hudi.commit(30, "other", 1)
    hudi.commit(40, "w", 1)
    hudi.commit(50, "w", None)
    hudi.commit(5, "w", 1)

    assert hudi.files.repeated("w", 1, f"{40:017d}") == [f"{20:017d}"], "the newest five"
    assert hudi.files.repeated("w", 0, f"{10:017d}") == []
    assert hudi.files.repeated("other", 1, f"{30:017d}") == []
    assert hudi.files.writers() == ["other", "w"]


def test_a_writer_is_known_however_many_commits_of_others_came_since(hudi: Table) -> None:
    """One that isn't known is refused beside another of its job (docs/recovery.md, Who a writer is)."""
    hudi.archive(1, (5, metadata("of-the-archive", 0)))
    hudi.commit(10, "w", 0)
    for number in range(150):
        hudi.commit(20 + number, "other", number)

    assert hudi.files.writers() == ["of-the-archive", "w", "other"]


def test_a_batch_that_is_committed_while_the_commit_waits_for_the_users_lock_is_refused(hudi: Table) -> None:
    write: Any = HudiWrite.__new__(HudiWrite)
    write._files, write._locked, write.instant = hudi.files, False, f"{20:017d}"
    write._txn = SimpleNamespace(writer="w", batch_id=1, table="trips", id="t")
    hudi.commit(5, "w", 0)
    write.answer("locked", "")
    assert write._locked

    write._locked = False
    hudi.commit(10, "w", 1)
    with pytest.raises(
        BaseChanged, match=r"another commit of this writer came after its batch.*instant=0+20"
    ):
        write.answer("locked", "")
    assert not write._locked


@pytest.mark.parametrize("readable", [True, False])
def test_a_batch_that_is_there_twice_is_reported_behind_its_commit(
    hudi: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, readable: bool
) -> None:
    write: Any = HudiWrite.__new__(HudiWrite)
    write._files, write.instant = hudi.files, f"{20:017d}"
    write._txn = SimpleNamespace(writer="w", batch_id=1, table="trips", id="t")
    hudi.commit(10, "w", 1)
    hudi.commit(20, "w", 1)
    if not readable:
        monkeypatch.delattr(HudiFiles, "repeated")

    write._report_repeated(write.instant)

    assert ("hudi.batch-twice" in caplog.text) == readable


def test_of_commits_that_left_the_timeline_nothing_is_kept(hudi: Table) -> None:
    """A driver runs for months beside writers that commit all the time."""
    old = hudi.commit(10, "other", 0)
    hudi.files.committed("w", 0)
    old.unlink()
    hudi.commit(20, "other", 1)

    hudi.files.committed("w", 0)

    assert len(hudi.files._commits) == 1


def test_a_commit_by_sql_has_its_entry_under_another_key(hudi: Table) -> None:
    path = hudi.commit(10, "w", 0)
    path.write_bytes(metadata("w", 0, key="hoodie._lakewarden"))
    hudi.archive(1, (5, metadata("another", 0, key="hoodie._lakewarden")))

    assert hudi.files.committed("w", 0) == f"{10:017d}"
    assert hudi.files.committed("another", 0) == f"{5:017d}"


def test_the_newest_commit_is_the_one_that_was_completed_last(hudi: Table) -> None:
    hudi.commit(10, "w", 3, completion=50)
    hudi.commit(20, "w", 2, completion=30)

    assert hudi.files.committed("w", 3) == f"{10:017d}"
    assert hudi.files.committed("w", 2) == f"{20:017d}"
    assert hudi.files.committed("w", 4) is None


def test_the_columns_are_those_of_the_last_commit(hudi: Table) -> None:
    """An empty commit may have no schema."""
    assert HudiFiles(hudi.files.uri + "/absent").column_types() == hudi.files.column_types() == {}
    hudi.commit(10, None).write_bytes(recorded("cow-v9", "20261122135446024_20261122135634351.commit"))
    hudi.commit(20, "w", 0)

    assert hudi.files.column_types() == {"k": "string", "p": "string", "ts": "bigint", "v": "string"}


def test_a_batch_that_left_the_timeline_is_found_in_the_archive(hudi: Table) -> None:
    hudi.archive(1, (10, metadata("w", 0)), (20, metadata("other", 0)))
    hudi.archive(2, (30, metadata("w", 1)), (40, b"a clean's metadata"))
    hudi.commit(50, "other", 1)

    assert hudi.files.committed("w", 0) == f"{10:017d}"
    assert hudi.files.committed("w", 1) == f"{30:017d}"
    assert hudi.files.committed("w", 2) is None


def test_the_archive_is_not_read_for_a_writer_that_is_on_the_timeline(hudi: Table) -> None:
    hudi.archive(1, (10, b"_lakewarden, and no metadata"))
    hudi.commit(50, "w", 1)

    assert hudi.files.committed("w", 2) is None
    with pytest.raises(UnreadableHudi):
        hudi.files.committed("another", 2)


def test_a_batch_that_is_only_pending_is_not_committed(hudi: Table) -> None:
    (hudi.timeline / f"{10:017d}.commit.requested").touch()
    (hudi.timeline / f"{10:017d}.inflight").write_bytes(metadata("w", 0))

    assert hudi.files.committed("w", 0) is None


def test_a_table_that_does_not_exist_has_no_batch(tmp_path: Path) -> None:
    assert HudiFiles(f"file://{tmp_path}/none").committed("w", 0) is None


def test_a_completed_instant_without_metadata_is_no_commit_of_this_write(hudi: Table) -> None:
    """Hudi renames the file that it could not write. Its rows may be read, but the batch isn't recorded."""
    commit = hudi.commit(1, "w", 0)
    time = commit.name.partition("_")[0]
    assert hudi.files.is_committed(time)

    commit.write_bytes(b"")

    assert not hudi.files.is_committed(time)
    with pytest.raises(UnreadableHudi, match=f"{commit.name} can't be read .the file is empty.*roll it back"):
        HudiFiles(f"file://{hudi.root}").committed("w", 0)


def test_a_commit_that_cannot_be_read_is_an_error_and_not_a_missing_batch(hudi: Table) -> None:
    hudi.commit(10, "w", 0).write_bytes(b"Obj\x01")

    with pytest.raises(UnreadableHudi):
        hudi.files.committed("w", 0)


def test_the_plan_and_the_markers_of_a_pending_instant(hudi: Table) -> None:
    time = f"{10:017d}"
    (hudi.timeline / f"{time}.commit.requested").touch()
    assert hudi.files.planned(time) is None
    stats = {
        "p=1": [
            {"fileId": "a-0", "path": None, "prevCommit": "5"},
            {"fileId": "", "path": None, "prevCommit": "null"},
        ]
    }
    (hudi.timeline / f"{time}.inflight").write_bytes(metadata("w", 0, stats))
    markers = hudi.root / ".hoodie" / ".temp" / time
    (markers / "p=2").mkdir(parents=True)
    (markers / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
    (markers / "MARKERS0").write_text(f"p=1/a-0_0-1-2_{time}.parquet.marker.MERGE\n")
    (markers / "p=2" / f"b-0_0-1-2_{time}.parquet.marker.CREATE").touch()
    known: dict[str, int] = {}

    assert hudi.files.planned(time) == [Marker(partition="p=1", file_group="a-0", operation="merge")]
    assert sorted(hudi.files.markers(time, known), key=str) == [
        Marker(partition="p=1", file_group="a-0", operation="merge"),
        Marker(partition="p=2", file_group="b-0", operation="create"),
    ]
    assert hudi.files.markers(time, known) == [], "each file once, unless it has grown"
    with (markers / "MARKERS0").open("a") as file:
        file.write(f"p=3/c-0_0-1-3_{time}.parquet.marker.CREATE\n")
    assert Marker(partition="p=3", file_group="c-0", operation="create") in hudi.files.markers(time, known)


def test_the_winner_of_a_conflict_is_the_last_commit_to_the_same_file_groups(hudi: Table) -> None:
    """Its label says whether it went through the gate. Of a pending table service, there is no commit to name."""
    stats = {"p=1": [{"fileId": "a-0", "path": None, "prevCommit": "5"}]}
    elsewhere = {"p=1": [{"fileId": "b-0", "path": None, "prevCommit": "5"}]}
    places = {("p=1", "a-0")}
    hudi.commit(10, "before", 1).write_bytes(metadata("before", 1, stats))
    hudi.commit(30, "ours", 1).write_bytes(metadata("ours", 1, stats))
    hudi.commit(50, "other", 1).write_bytes(metadata("other", 1, elsewhere))

    found = hudi.files.winner(f"{20:017d}", places)
    assert found is not None
    assert re.fullmatch(rf"instant {30:017d}: .*job ours, transaction t-1", found.text)
    assert hudi.files.winner(f"{40:017d}", places) is None

    hudi.commit(60, None).write_bytes(metadata(None, None, stats))
    found = hudi.files.winner(f"{20:017d}", places)
    assert found is not None
    assert found.commit.startswith(f"instant {60:017d}")
    assert found.transaction is None
