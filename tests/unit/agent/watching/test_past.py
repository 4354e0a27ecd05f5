"""What `lakewarden assess` reads of tables on a disk, with files that the formats wrote."""

import gzip
import io
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any

import anyio
import fastavro
import obstore
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from obstore.store import MemoryStore
from pyarrow import parquet

from lakewarden.agent.operators import text as view_text
from lakewarden.agent.operators.as_json import as_json
from lakewarden.agent.operators.assess import picture
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import delta as delta_module, leftovers, past as module, reading
from lakewarden.agent.watching.files import Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import Figure, Lack, Rests, TableHistory, assess
from lakewarden.handlers.delta.log import PartitionLayout, past_commit
from lakewarden.handlers.observations import UnreadableCommit
from tests import recorded_iceberg
from tests.pages.assessment import contest
from tests.printed import ROOT
from tests.recorded_delta import commit, recorded as checksum
from tests.recorded_hudi import recorded
from tests.recorded_paimon import metadata
from tests.tuned import tuned
from tests.unit.agent.watching.test_catalogs import Database
from tests.unit.agent.watching.written_tables import (
    BEGAN,
    FORMATS,
    Files,
    History,
    Written,
    avro,
    instant,
    write,
)

LATER = 2_000_000_000.0
DAY = "region=a%20b%252Fc/day=2026-11-23"
"""The folder of a partition of the recorded Delta table."""
HUDI_SECONDS = 1_795_356_442.059
"""20261122140722059 in UTC."""
ROLLBACK = {
    "type": "record",
    "name": "HoodieRollbackMetadata",
    "fields": [
        {"name": "commitsRollback", "type": {"type": "array", "items": "string"}},
        {"name": "partitionMetadata", "type": {"type": "map", "values": "string"}},
    ],
}


def put(table: Path, path: str, body: bytes = b"", at: float | None = None) -> None:
    file = table / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)
    if at is not None:
        os.utime(file, (at, at))


def read(table: Path, **more: Any) -> TableHistory:
    wanted = {"days": 7.0, "now": LATER} | more
    return anyio.run(lambda: past(table.as_uri(), tuned(), **wanted))


def delta(table: Path) -> None:
    """Each commit's file has the commit's time."""
    for version in range(8):
        body = commit("days", version)
        (at,) = (
            info["timestamp"] for line in body.splitlines() if (info := json.loads(line).get("commitInfo"))
        )
        put(table, f"_delta_log/{version:020d}.json", body, at / 1000)


def paimon(table: Path) -> None:
    for path, body in metadata().items():
        put(table, path, body)


def iceberg(table: Path) -> None:
    location = recorded_iceberg.move(table)
    put(table, "metadata/v8.metadata.json", json.dumps(recorded_iceberg.moved(8, location)).encode())


def hudi(table: Path) -> None:
    """A commit of Hudi 0.15, a write that was rolled back, and one that died."""
    put(table, ".hoodie/hoodie.properties", recorded("cow-v6", "hoodie.properties"))
    body = recorded("cow-v6", "20261122140722059.commit")
    zone = 3600
    for name, content, after in (
        ("20261122140722059.commit.requested", b"", 0),
        ("20261122140722059.inflight", b"", 1),
        ("20261122140722059.commit", body, 30),
        ("20261122140732059.commit.requested", b"", 10),
        ("20261122140742059.rollback.requested", b"", 20),
        ("20261122140742059.rollback", rollback("20261122140727059"), 21),
    ):
        put(table, f".hoodie/{name}", content, HUDI_SECONDS + zone + after)


def rollback(*instants: str) -> bytes:
    file = io.BytesIO()
    record = {"commitsRollback": list(instants), "partitionMetadata": {"p=d1": ""}}
    fastavro.writer(file, fastavro.parse_schema(ROLLBACK), [record])
    return file.getvalue()


Make = Callable[[Path], None]
HISTORY = History(tuple(Written(number, number % 2) for number in range(4)), (2,))


@pytest.mark.parametrize(
    ("make", "expected"),
    [(delta, (6, 1, 3, 1)), (paimon, (5, 1, 1, 0)), (iceberg, (6, 1, 3, 1)), (hudi, (1, 1, 1, 0))],
)
def test_each_commit_is_read_once(tmp_path: Path, make: Make, expected: tuple[int, ...]) -> None:
    """Commits, those of the gate, those that replace or remove files, and those that only rearrange."""
    make(tmp_path)

    found = read(tmp_path)

    assert [each.ended for each in found.commits] == sorted(each.ended for each in found.commits)
    counts = [[each.is_gates, bool(each.rewritten), each.is_service] for each in found.commits]
    assert (len(counts), *map(sum, zip(*counts, strict=True))) == expected
    assert {each.what.partition(" after ")[0] for each in found.unread} <= {
        "data files",
        "files that no commit names",
        "commits",
    }  # data files aren't recorded, and the others are copies


def test_a_table_of_a_catalog_is_read_by_its_name(tmp_path: Path) -> None:
    iceberg(tmp_path / "flights")
    database = Database(tmp_path)
    database.point("flights", f"file://{tmp_path}/flights/metadata/v8.metadata.json")
    settings = Settings(catalogs={"prod": {"type": "sql", "uri": f"sqlite:///{database.path}"}})  # type: ignore[dict-item]

    found = anyio.run(lambda: past("prod:air.flights", settings, days=7))

    assert (found.table, found.form, len(found.commits)) == ("prod:air.flights", "iceberg", 6)
    with pytest.raises(
        UnreadableTableError, match=r"^test:air.flights can't be assessed: no catalog is called test"
    ):
        anyio.run(lambda: past("test:air.flights", settings, days=7))


def test_a_merge_of_delta_says_when_it_began_and_what_it_read(tmp_path: Path) -> None:
    delta(tmp_path)

    (merge, *_) = (each for each in read(tmp_path).commits if each.operation == "MERGE")

    assert (merge.version, merge.number, merge.base, merge.is_known) == ("3", 3, 2, True)
    assert merge.seconds == pytest.approx(64.045)
    assert merge.partitions == merge.rewritten == {"region=a b%2Fc/day=2026-11-23"}


def test_the_estimate_is_near_what_native_writers_lost(tmp_path: Path) -> None:
    """`tests/recorded_delta` says what they measured."""
    found = assess(contest(tmp_path))

    assert found["lost_files"] == Figure(5)
    assert found["lost_seconds"].value == pytest.approx(88.7, rel=0.2)
    assert found["known_seconds"].value == pytest.approx(97.9, rel=0.2)
    assert found.changes[0].startswith("admission auto")
    known, lost = found["known_seconds"].value, found["lost_seconds"].value
    assert known is not None
    assert lost is not None
    said = f"Of {known + lost:.0f} seconds that these two writers computed, {lost:.0f} were thrown away."
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("name", "is_left"),
    [("part-9.parquet", True), (".part-9.parquet.crc", False), ("_SUCCESS", False), ("part-9.txt", False)],
)
def test_a_data_file_that_no_commit_names_is_left_over(tmp_path: Path, name: str, is_left: bool) -> None:
    delta(tmp_path)
    put(tmp_path, f"{DAY}/{name}".replace("%20", " ").replace("%25", "%"), b"12345", at=1_795_383_900.0)

    found = read(tmp_path).leftovers

    assert found is not None
    assert [(each.partition, each.size) for each in found] == [("region=a b%2Fc/day=2026-11-23", 5)] * is_left


class Partitioned(Written):
    """It writes into a folder of its own."""

    @property
    def file(self) -> str:
        return f"day=1/hour={self.number}/part.parquet"


@pytest.mark.parametrize(("form", "root"), [("delta", ""), ("iceberg", "data/"), ("paimon", "bucket-0/")])
@pytest.mark.parametrize("folder", ["day=2", "day=2/hour=3", "day=1/hour=3", "xY", "_day=2"])
def test_a_file_that_is_lost_in_a_folder_without_a_commit_is_found(
    tmp_path: Path, form: str, root: str, folder: str
) -> None:
    history = History(tuple(Partitioned(number, 0) for number in range(3)), ())
    files = FORMATS[form](history) | {f"{root}{folder}/lost.parquet": (b"1", BEGAN + 300)}
    files[f"{root}day=0/of_an_older_commit.parquet"] = b"1", BEGAN - 300
    files["metadata/old.avro"] = files["manifest/old.avro"] = b"1", BEGAN + 300
    write(files, tmp_path)
    assert assess(read(tmp_path, days=30.0))["lost_files"] == Figure(1, Rests.KNOWN)


@pytest.mark.parametrize("form", ["delta", "iceberg", "paimon"])
def test_a_link_makes_no_second_file_of_a_lost_one_and_a_loop_costs_its_folder(
    tmp_path: Path, form: str
) -> None:
    root = {"delta": "", "iceberg": "data/", "paimon": ""}[form]
    history = History(tuple(Partitioned(number, 0) for number in range(3)), ())
    files = FORMATS[form](history) | {f"{root}day=1/hour=1/lost.parquet": (b"1", BEGAN + 300)}
    write(files, tmp_path)
    (tmp_path / root / "alias").symlink_to(tmp_path / root / "day=1", target_is_directory=True)
    assert assess(read(tmp_path, days=30.0))["lost_files"] == Figure(1, Rests.KNOWN)

    (tmp_path / root / "day=1/hour=1/loop").symlink_to(tmp_path, target_is_directory=True)
    found = assess(read(tmp_path, days=30.0))
    assert found["lost_files"].rests_on in (Rests.AT_LEAST, Rests.NOT_KNOWN)
    assert all("loop" in each for each in found.unread)


@pytest.mark.parametrize("restored", [True, False])
def test_a_file_that_comes_back_does_not_date_its_commit(*, restored: bool) -> None:
    add = {"path": "p.parquet", "partitionValues": {}, "modificationTime": 1_700_000_000_000}
    actions: list[tuple[str, dict[str, Any]]] = [
        ("commitInfo", {"timestamp": 1_790_000_000_000}),
        ("add", add),
    ]
    if restored:
        actions[0][1]["operation"] = "RESTORE"
    else:
        actions.append(("remove", {"path": "p.parquet"}))
    found = past_commit(3, actions, PartitionLayout(()))
    assert found is not None
    assert found[0].began is None


def test_a_file_with_another_deletion_vector_is_no_new_one() -> None:
    actions: list[tuple[str, dict[str, Any]]] = [
        ("remove", {"path": "p.parquet", "partitionValues": {}}),
        ("add", {"path": "p.parquet", "partitionValues": {}, "size": 900, "deletionVector": {}}),
        ("add", {"path": "q.parquet", "partitionValues": {}, "size": 7}),
    ]
    found = past_commit(3, actions, PartitionLayout(()))
    assert found is not None
    assert found[0].size == 7


NUMBERS: tuple[Any, ...] = (-5, 10**15, 10**400, "x", True, [], {}, float("nan"))


@pytest.mark.parametrize("wild", NUMBERS, ids=repr)
def test_a_number_that_cannot_be_true_is_not_known(wild: Any) -> None:
    add = {"path": "p.parquet", "partitionValues": {}, "modificationTime": wild, "size": wild}
    info = {"timestamp": 1_790_000_000_000, "operationMetrics": {"executionTimeMs": wild}}
    found = past_commit(3, [("commitInfo", info), ("add", add)], PartitionLayout(()))
    assert found is not None
    commit, _ = found
    assert (commit.began, commit.is_known, commit.size) == (None, False, 0)
    assert [each.what for each in commit.unread if Lack.TIMES in each.lacks] == ["how long commit 3 took"]


OLD = 1_790_000_000_000 - 90 * 86_400_000


@pytest.mark.parametrize(
    ("modified", "operation"),
    [(0, "WRITE"), (OLD, "CONVERT"), (OLD, "CLONE"), (OLD, "RESTORE"), (OLD, "ADD FILES")],
)
def test_adopted_files_do_not_date_their_commit(tmp_path: Path, modified: int, operation: str) -> None:
    """Those of an operation without a name of its own are older than the commit that it has read."""
    files = FORMATS["delta"](HISTORY)
    path = "_delta_log/00000000000000000003.json"
    info, *others = (json.loads(line) for line in files[path][0].splitlines())
    info["commitInfo"] |= {"operation": operation, "operationMetrics": {}}
    for each in others:
        if "add" in each:
            each["add"]["modificationTime"] = modified
    files[path] = "\n".join(map(json.dumps, [info, *others])).encode(), files[path][1]
    write(files, tmp_path)

    found = read(tmp_path, days=30.0).commits[3]

    assert found.seconds is None or found.seconds <= 60 + 600


def test_a_duration_from_before_the_commit_that_was_read_is_not_known(tmp_path: Path) -> None:
    files = FORMATS["delta"](HISTORY)
    path = "_delta_log/00000000000000000003.json"
    body, at = files[path]
    files[path] = body.replace(b'"executionTimeMs": "', b'"executionTimeMs": "9'), at
    write(files, tmp_path)

    assert assess(read(tmp_path, days=30.0))["known_seconds"].rests_on is Rests.ESTIMATED


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_metadata_in_a_checkpoint_alone_is_found(tmp_path: Path, kind: str) -> None:
    """The commits before it were cleaned. JSON is a checkpoint of version 2."""
    schema = json.dumps({"fields": [{"name": "p", "type": "string", "metadata": {}}]})
    actions: dict[str, Any] = {
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
        "metaData": {"schemaString": schema, "partitionColumns": ["p"]},
    }
    rows = [{name: action if name == each else None for name, action in actions.items()} for each in actions]
    if kind == "parquet":
        file = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(rows), file)
        put(tmp_path, "_delta_log/00000000000000000004.checkpoint.parquet", file.getvalue())
    else:
        body = "\n".join(map(json.dumps, rows)).encode()
        put(tmp_path, "_delta_log/00000000000000000004.checkpoint.0b1c.json", body)
    lines = [{"commitInfo": {"timestamp": 1}}, {"add": {"path": "p=1/x", "partitionValues": {"p": "1"}}}]
    for version in (4, 5):
        put(tmp_path, f"_delta_log/{version:020d}.json", "\n".join(map(json.dumps, lines)).encode(), BEGAN)

    layout = anyio.run(lambda: delta_module.find_layout(Buckets(tuned()).table(tmp_path.as_uri()), 5))

    assert layout == PartitionLayout((("p", "p", "string"),))


def test_lost_files_in_random_prefixes_are_of_no_known_partition(tmp_path: Path) -> None:
    """Delta with column mapping: the folders are no partitions, and the table isn't called unpartitioned."""
    files = FORMATS["delta"](HISTORY)
    for number in range(4):
        path = f"_delta_log/{number:020d}.json"
        body = files[path][0].replace(b'"part-', b'"aB/part-').replace(b'"old-', b'"aB/old-')
        body = body.replace(b'"partitionValues": {}', b'"partitionValues": {"p": "1"}')
        body = body.replace(b'"partitionColumns": []', b'"partitionColumns": ["p"]')
        body = body.replace(
            b'{\\"fields\\":[]}', b'{\\"fields\\": [{\\"name\\": \\"p\\", \\"type\\": \\"string\\"}]}'
        )
        files[path] = body, files[path][1]
    moved = {
        f"{'cD' if path.startswith('lost') else 'aB'}/{path}": each
        for path, each in files.items()
        if path.endswith(".parquet")
    }
    write({path: each for path, each in files.items() if not path.endswith(".parquet")} | moved, tmp_path)

    history = read(tmp_path, days=30.0)

    assert [each.partition for each in history.leftovers or ()] == [None]
    assert {each for commit in history.commits for each in commit.partitions} == {"p=1"}
    assert not any("the table has none" in each for each in assess(history).changes)


@pytest.mark.parametrize("path", ["cdc-1.parquet", "_change_data/cdc-1.parquet", "a%2525b-cdc.parquet"])
def test_the_files_of_a_change_data_feed_are_not_lost(tmp_path: Path, path: str) -> None:
    files = FORMATS["delta"](HISTORY)
    log = "_delta_log/00000000000000000003.json"
    named = json.dumps({"cdc": {"path": path, "partitionValues": {}, "size": 1}})
    files[log] = files[log][0] + b"\n" + named.encode(), files[log][1]
    files[path.replace("%25", "%")] = b"1", BEGAN + 1_700
    write(files, tmp_path)

    assert assess(read(tmp_path, days=30.0))["lost_files"] == Figure(1, Rests.KNOWN)


def test_paimons_changelogs_of_expired_snapshots_are_not_called_lost(tmp_path: Path) -> None:
    write(FORMATS["paimon"](HISTORY), tmp_path)
    put(tmp_path, "changelog/changelog-1", b"{}")
    put(tmp_path, "bucket-0/changelog-of-1.parquet", b"1", BEGAN + 700)

    found = assess(read(tmp_path, days=30.0))

    assert found["lost_files"].rests_on is Rests.NOT_KNOWN
    assert any("changelogs of expired snapshots" in each for each in found.unread)


@pytest.mark.parametrize("given", [None, -1])
def test_icebergs_main_branch_is_found_by_its_reference(tmp_path: Path, given: int | None) -> None:
    refs = {"main": {"snapshot-id": 3, "type": "branch"}}
    assert len(iceberg_with(tmp_path, refs=refs, **{"current-snapshot-id": given}).commits) == 3


@pytest.mark.parametrize("newest", [9, "x", []])
def test_icebergs_newest_snapshot_that_is_not_there_is_not_nothing(tmp_path: Path, newest: Any) -> None:
    found = assess(iceberg_with(tmp_path, **{"current-snapshot-id": newest}))
    assert found["commits"] == Figure(None, Rests.NOT_KNOWN, found["commits"].because)
    assert any(each.startswith("the newest snapshot") for each in found.unread)


def test_of_icebergs_metadata_files_the_newest_that_can_be_read_counts(tmp_path: Path) -> None:
    """One has an ending of former releases, and one has lost its content."""
    iceberg_with(tmp_path)
    path = tmp_path / "metadata/v1.metadata.json"
    put(tmp_path, "metadata/v2.metadata.json.gz", gzip.compress(path.read_bytes()))
    path.write_bytes(b"{}")
    put(tmp_path, "metadata/v3.metadata.json")

    found = assess(read(tmp_path, days=30.0))

    assert (found["commits"].value, found["commits"].rests_on) == (3, Rests.AT_LEAST)
    assert [each.partition(":")[0] for each in found.unread] == ["metadata file 3"]


@pytest.mark.parametrize(
    "name", ["write.data.path", "write.object-storage.path", "write.folder-storage.path"]
)
def test_a_data_folder_elsewhere_is_not_searched(tmp_path: Path, name: str) -> None:
    elsewhere = iceberg_with(tmp_path, properties={name: "file:/elsewhere"})
    assert assess(elsewhere)["lost_files"].rests_on is Rests.NOT_KNOWN
    inside = iceberg_with(tmp_path, properties={name: "file:/t/data"})
    assert assess(inside)["lost_files"].rests_on is Rests.KNOWN


MANY = [f"c{number}" for number in range(20_000)]
COLUMNS = [{"name": each, "type": "string"} for each in MANY]
"""Of a text of 1 MB. With a path for each of 20,000 files, a reader would make 8 GB of it."""
MANY_IN = {
    "delta": (
        "_delta_log/00000000000000000000.json",
        {"metaData": {"schemaString": json.dumps({"fields": COLUMNS}), "partitionColumns": MANY}},
    ),
    "iceberg": (
        "metadata/v1.metadata.json",
        {"partition-specs": [{"spec-id": 0, "fields": [each | {"transform": "void"} for each in COLUMNS]}]},
    ),
    "paimon": ("schema/schema-0", {"fields": COLUMNS, "partitionKeys": MANY}),
}


@pytest.mark.parametrize("form", MANY_IN)
def test_names_of_partition_columns_that_no_path_can_have_cost_the_partitions(
    tmp_path: Path, form: str
) -> None:
    files = FORMATS[form](HISTORY)
    path, fields = MANY_IN[form]
    body, at = files[path]
    changed = body + b"\n" + json.dumps(fields).encode()
    if form != "delta":
        changed = json.dumps(json.loads(body) | fields).encode()
    write(files | {path: (changed, at)}, tmp_path)

    found = assess(read(tmp_path, days=30.0))

    assert found["in_the_way"].value is None
    assert any(
        "the names of its partition columns" in each or "partition spec" in each for each in found.unread
    )


def test_paimons_external_paths_are_not_searched(tmp_path: Path) -> None:
    files = FORMATS["paimon"](HISTORY)
    body, at = files["schema/schema-0"]
    fields = json.loads(body) | {"options": {"data-file.external-paths": "s3://elsewhere/t"}}
    write(files | {"schema/schema-0": (json.dumps(fields).encode(), at)}, tmp_path)
    assert assess(read(tmp_path, days=30.0))["lost_files"].rests_on is Rests.AT_LEAST


def test_a_setting_says_which_of_two_formats_is_read(tmp_path: Path) -> None:
    write(FORMATS["hudi"](HISTORY) | FORMATS["delta"](HISTORY), tmp_path)
    uri = f"file://{tmp_path}"

    for form in ("hudi", "delta"):
        found = anyio.run(partial(past, uri, tuned(formats={uri: form}), days=30, now=LATER))
        assert found.form == form


def iceberg_with(table: Path, **fields: Any) -> TableHistory:
    files = FORMATS["iceberg"](History(tuple(Written(number, 0) for number in range(3)), ()))
    written, at = files["metadata/v1.metadata.json"]
    files["metadata/v1.metadata.json"] = json.dumps(json.loads(written) | fields).encode(), at
    write(files, table)
    return read(table, days=30.0)


def test_a_table_whose_commits_are_on_no_branch_is_not_called_empty(tmp_path: Path) -> None:
    text = "\n".join(
        view_text.lines("assess", [assess(iceberg_with(tmp_path, **{"current-snapshot-id": None}))])
    )
    assert "3 snapshots" in text
    assert "nothing to assess" not in text


def test_a_replaced_table_whose_former_snapshots_expired_has_no_known_number_of_commits(
    tmp_path: Path,
) -> None:
    snapshot: dict[str, Any] = {
        "snapshot-id": 3,
        "sequence-number": 3,
        "timestamp-ms": int(BEGAN * 1000 + 1_200_000),
    }
    snapshot |= {"manifest-list": "file:/t/metadata/snap-3.avro", "summary": {"operation": "append"}}
    found = assess(iceberg_with(tmp_path, snapshots=[snapshot]))["commits"]
    assert (found.value, found.rests_on) == (1, Rests.AT_LEAST)


def test_in_format_1_snapshots_without_parents_are_not_called_all(tmp_path: Path) -> None:
    """Both are optional there: parents and sequence numbers."""
    iceberg_with(tmp_path)
    path = tmp_path / "metadata/v1.metadata.json"
    fields = json.loads(path.read_bytes()) | {"format-version": 1}
    for each in fields["snapshots"]:
        each.pop("parent-snapshot-id", None)
        del each["sequence-number"]
    put(tmp_path, "metadata/v1.metadata.json", json.dumps(fields).encode())
    found = assess(read(tmp_path, days=30.0))["commits"]
    assert (found.value, found.rests_on) == (1, Rests.AT_LEAST)


def test_files_of_a_location_provider_are_not_known_to_be_found(tmp_path: Path) -> None:
    history = iceberg_with(tmp_path, properties={"write.location-provider.impl": "org.example.Provider"})
    assert assess(history)["lost_files"].rests_on is Rests.NOT_KNOWN


def test_hudis_instants_in_utc_are_not_moved_by_files_of_another_zone(tmp_path: Path) -> None:
    files = FORMATS["hudi"](History(tuple(Written(number, 0) for number in range(3)), ()))
    files = {path: (body, at + 9 * 3600) for path, (body, at) in files.items()}
    body, at = files[".hoodie/hoodie.properties"]
    files[".hoodie/hoodie.properties"] = body + b"hoodie.table.timeline.timezone=UTC\n", at
    write(files, tmp_path)
    found = assess(read(tmp_path, days=30.0))
    assert found["overlapping"].value is None
    assert found["known_seconds"] == Figure(183.0, Rests.ESTIMATED, found["known_seconds"].because)


def test_a_file_in_another_folder_than_its_commit_says_is_not_lost(tmp_path: Path) -> None:
    """Paimon's `data-file.path-directory`."""
    files = FORMATS["paimon"](History(tuple(Written(number, 0) for number in range(3)), (1,)))
    write({path.replace("bucket-0/", "data/bucket-0/"): each for path, each in files.items()}, tmp_path)
    found = assess(read(tmp_path, days=30.0))["lost_files"]
    assert (found.value, found.rests_on) == (1, Rests.AT_LEAST)


def test_the_files_of_a_copied_table_say_nothing_of_time(tmp_path: Path) -> None:
    delta(tmp_path)
    body = json.loads(commit("days", 1).splitlines()[-1])["add"]["path"]
    put(tmp_path, body.replace("%20", " ").replace("%25", "%"), at=LATER)

    found = read(tmp_path)

    assert found.leftovers is None
    assert "the table was copied" in found.unread[0].why


MARKED = b'{"XTABLE_METADATA": "{}"}'
OTHERS: dict[str, dict[str, tuple[bytes, float]]] = {
    "hudi": {".hoodie/20260101000000000.commit": (MARKED, LATER)},
    "delta": {"_delta_log/00000000000000000009.json": (MARKED, LATER)},
    "iceberg": {"metadata/v3.metadata.json": (b'{"properties": {"delta-version": "9"}}', LATER)},
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("other", OTHERS)
def test_a_table_that_a_translator_shows_in_another_format_is_read_in_its_own(
    tmp_path: Path, form: str, other: str
) -> None:
    if form == other:
        return
    write(OTHERS[other] | FORMATS[form](HISTORY), tmp_path)

    found = read(tmp_path, days=3650)

    assert (found.form, found.translations) == (form, (other,))
    assert {each.what for each in found.unread} == set()


@pytest.mark.parametrize(("newer", "older"), [*permutations(FORMATS, 2)])
def test_of_two_formats_that_writers_wrote_the_newer_one_is_read_and_the_other_named(
    tmp_path: Path, newer: str, older: str
) -> None:
    before = {path: (body, at - 100_000) for path, (body, at) in FORMATS[older](HISTORY).items()}
    write(before | FORMATS[newer](HISTORY), tmp_path)

    found = read(tmp_path, days=3650)

    assert found.form == newer
    assert f"the table's commits in {older}" in {each.what for each in found.unread}


def test_a_metadata_of_iceberg_that_follows_at_once_is_paimons(tmp_path: Path) -> None:
    files = {path: (body, at + 60) for path, (body, at) in FORMATS["iceberg"](HISTORY).items()}
    write(files | FORMATS["paimon"](HISTORY), tmp_path)

    assert read(tmp_path, days=3650).form == "paimon"


@pytest.mark.parametrize("damaged", [False, True])
def test_changelog_files_of_paimon_belong_to_their_commit(tmp_path: Path, *, damaged: bool) -> None:
    """If they can't be read, no file is known to be lost."""
    files = FORMATS["paimon"](HISTORY)
    body, at = files["snapshot/snapshot-2"]
    entry = {
        "_KIND": 0,
        "_PARTITION": bytes(8),
        "_BUCKET": 0,
        "_FILE": {"_FILE_NAME": "changelog-1.parquet", "_FILE_SIZE": 1},
    }
    files["snapshot/snapshot-2"] = (
        json.dumps(json.loads(body) | {"changelogManifestList": "changes"}).encode(),
        at,
    )
    files["manifest/changes"] = b"?" if damaged else avro([{"_FILE_NAME": "changed"}]), at
    files["manifest/changed"] = avro([entry]), at
    files["bucket-0/changelog-1.parquet"] = b"1", at - 10
    write(files, tmp_path)

    found = assess(read(tmp_path, days=3650))

    assert found["commits"] == Figure(4)
    assert found["lost_files"].value == (None if damaged else 1)
    assert [each.startswith("the changelog files of snapshot 2: ") for each in found.unread] == [
        True
    ] * damaged


def test_a_commit_of_paimon_and_its_compaction_are_one_and_never_in_its_own_way(tmp_path: Path) -> None:
    files = FORMATS["paimon"](HISTORY)
    for number, kind in ((2, "APPEND"), (3, "COMPACT")):
        path = f"snapshot/snapshot-{number}"
        fields = {"commitUser": "u", "commitIdentifier": 7, "commitKind": kind}
        files[path] = json.dumps(json.loads(files[path][0]) | fields).encode(), files[path][1]
        files[f"bucket-0/part-{number - 1}.parquet"] = b"1", BEGAN + 10
    write(files, tmp_path)

    found = assess(read(tmp_path, days=3650))

    assert found["commits"] == Figure(3)
    assert ("u", "u") not in {(each.later, each.earlier) for each in found.pairs}


def of_one_query(files: Files, form: str) -> Files:
    """The same table, written by one streaming query, or one user of Paimon."""
    query = {
        "delta": (b'{"commitInfo":', b'{"txn": {"appId": "q", "version": 1}}\n{"commitInfo":'),
        "hudi": (b'"operationType"', b'"extraMetadata": {"_hudi_streaming_sink_checkpoint": "{\\"q\\": 1}"}, "operationType"'),
        "iceberg": (b'"spark.app.id"', b'"spark.sql.streaming.queryId": "q", "spark.app.id"'),
        "paimon": (b'"commitIdentifier": 1', b'"commitUser": "q", "commitIdentifier": 1'),
    }[form]  # fmt: skip
    silent = {path: (body.replace(b'"readVersion"', b'"x"'), at) for path, (body, at) in files.items()}
    return {path: (body.replace(*query), at) for path, (body, at) in silent.items()}


@pytest.mark.parametrize("form", FORMATS)
def test_a_writer_whose_commits_follow_each_other_is_never_in_its_own_way(tmp_path: Path, form: str) -> None:
    """Also where times, or what a commit had read, aren't known or say otherwise."""
    write(of_one_query(FORMATS[form](HISTORY), form), tmp_path)

    history = read(tmp_path, days=30.0)

    assert {each.writer for each in history.commits} == {"q"}
    assert assess(history).pairs == ()


CLOCKS: dict[str, tuple[int, Callable[[int], int]]] = {
    "90 days behind": (2, lambda time: time - 90 * 86_400_000),
    "90 days behind, the newest": (3, lambda time: time - 90 * 86_400_000),
    "40 days ahead": (2, lambda time: time + 40 * 86_400_000),
    "a day ahead, the newest": (3, lambda time: time + 80_000_000),
    "in microseconds": (2, lambda time: time * 1000),
    "in microseconds, the newest": (3, lambda time: time * 1000),
    "in seconds": (1, lambda time: time // 1000),
    "before 1970": (1, lambda time: -time),
}


def test_a_copied_history_that_went_on_is_not_taken_for_new(tmp_path: Path) -> None:
    """Nor is the oldest commit, if it alone is dated before the period: it isn't known which of the two it is."""
    files = FORMATS["delta"](History(tuple(Written(number, 0) for number in range(9)), ()))
    for number in range(4):
        path = f"_delta_log/{number:020d}.json"
        long_ago = files[path][0].replace(b"17900", b"17800")
        files[path] = long_ago, BEGAN + 2_000
    write(files, tmp_path)

    found = assess(read(tmp_path, days=7, now=BEGAN + 86_400))

    assert (found["commits"].value, found["commits"].rests_on) == (5, Rests.AT_LEAST)
    assert found.since == HISTORY.commits[0].ended + 4 * 600


@pytest.mark.parametrize("case", CLOCKS)
def test_a_wrong_clock_cuts_no_history_and_is_reported(tmp_path: Path, case: str) -> None:
    wrong, clock = CLOCKS[case]
    files = FORMATS["delta"](HISTORY)
    path = f"_delta_log/{wrong:020d}.json"
    time = int(HISTORY.commits[wrong].ended * 1000)
    files[path] = files[path][0].replace(str(time).encode(), str(clock(time)).encode()), files[path][1]
    write(files, tmp_path)

    found = assess(read(tmp_path, days=7, now=BEGAN + 86_400))

    true = HISTORY.truth()
    assert [found[name].value for name in ("overlapping", "in_the_way")] == [true["overlapping"]] * 2
    assert found["commits"].value == 4
    assert [found.since, found.until] == pytest.approx([BEGAN, HISTORY.commits[-1].ended], abs=601)
    assert any("clock" in each or "can be true" in each for each in found.unread)


def test_hudis_losses_are_those_rolled_back_and_those_that_died(tmp_path: Path) -> None:
    hudi(tmp_path)

    found = read(tmp_path)

    (only,) = found.commits
    begun = HUDI_SECONDS + 3600
    assert only.writer == "ingest"
    assert [only.began, only.ended] == pytest.approx([begun, begun + 30])
    assert [each.name for each in found.lost] == ["20261122140727059", "20261122140732059"]
    assert [each.began for each in found.lost] == pytest.approx([begun + 5, begun + 10])
    assert [each.until is None for each in found.lost] == [False, True]
    assert assess(found)["lost_seconds"].value == pytest.approx(15 + 30)


def hudi_files(*named: tuple[str, float, bytes], layout: int = 1) -> Files:
    """A timeline: names with `{}` for an instant so many seconds after the first, which begins with its file."""
    version, folder = {1: (6, ""), 2: (8, "timeline/")}[layout]
    properties = f"hoodie.table.version={version}\n".encode()
    found = {".hoodie/hoodie.properties": (properties, BEGAN)}
    for name, after, body in named:
        found[f".hoodie/{folder}{name}"] = body, BEGAN + after
    return found


def at(after: float) -> str:
    return instant(BEGAN + after)


COMMIT = json.dumps({"partitionToWriteStats": {"": [{"fileId": "f"}]}, "operationType": "UPSERT"}).encode()
PLAN = json.dumps({"clusteringPlan": {"inputGroups": []}, "operationType": "CLUSTER"}).encode()
DAY_LATER = 90_000.0


@pytest.mark.parametrize(
    ("files", "seconds", "rests"),
    [
        ([(f"{at(0)}.commit.requested", 0, b""), (f"{at(0)}.commit", 30, COMMIT)], 30, Rests.KNOWN),
        # A copy, minutes later.
        ([(f"{at(0)}.commit.requested", 180, b""), (f"{at(0)}.commit", 180, COMMIT)], None, Rests.NOT_KNOWN),
        # A compaction that has waited for an hour, and one of which it isn't known.
        (
            [
                (f"{at(0)}.compaction.requested", 0, b""),
                (f"{at(0)}.compaction.inflight", 3_600, b""),
                (f"{at(0)}.commit", 3_630, COMMIT),
            ],
            30,
            Rests.KNOWN,
        ),
        (
            [(f"{at(0)}.compaction.requested", 0, b""), (f"{at(0)}.commit", 3_630, COMMIT)],
            None,
            Rests.NOT_KNOWN,
        ),
    ],
    ids=["a write", "copied", "a service", "a service whose begin isn't known"],
)
def test_seconds_of_hudi_are_by_one_clock_and_without_a_plans_wait(
    tmp_path: Path, files: list[tuple[str, float, bytes]], seconds: float | None, rests: Rests
) -> None:
    write(hudi_files(*files), tmp_path)
    found = assess(read(tmp_path, days=30.0))["known_seconds"]
    assert (found.value, found.rests_on) == (seconds, rests)


PENDING: dict[str, tuple[list[tuple[str, float, bytes]], float, float | None]] = {
    "without a heartbeat for an hour": ([(f"{at(100)}.commit.requested", 100, b"")], 3_700, None),
    "without one for a day": ([(f"{at(100)}.commit.requested", 100, b"")], DAY_LATER, 1),
    "with one that is old": (
        [(f"{at(100)}.commit.requested", 100, b""), (f".heartbeat/{at(100)}", 200, b"")],
        3_700,
        1,
    ),
    "with one that is young": (
        [(f"{at(100)}.commit.requested", 100, b""), (f".heartbeat/{at(100)}", 3_600, b"")],
        3_700,
        0,
    ),
    "a clustering that waits": ([(f"{at(100)}.replacecommit.requested", 100, PLAN)], DAY_LATER, 0),
    "a compaction that waits": ([(f"{at(100)}.compaction.requested", 100, b"")], DAY_LATER, 0),
    "a restore": (
        [(f"{at(100)}.restore.requested", 100, b""), (f"{at(100)}.restore", 101, b"")],
        DAY_LATER,
        None,
    ),
    "no time in its name": ([("001.commit.requested", 100, b"")], DAY_LATER, None),
}


@pytest.mark.parametrize("case", PENDING)
def test_a_pending_instant_of_hudi_is_lost_if_it_cannot_run_any_more(tmp_path: Path, case: str) -> None:
    """None: it isn't known."""
    more, now, lost = PENDING[case]
    done = [(f"{at(0)}.commit.requested", 0.0, b""), (f"{at(0)}.commit", 30.0, COMMIT)]
    write(hudi_files(*done, *more), tmp_path)
    found = assess(read(tmp_path, days=30.0, now=BEGAN + now))["lost_tries"]
    assert (found.value, found.rests_on) == (lost, Rests.NOT_KNOWN if lost is None else Rests.KNOWN)


@pytest.mark.parametrize("make", [delta, paimon, iceberg])
def test_a_history_is_cut_at_a_limit_and_says_so(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.setattr(reading, "MAX_COMMITS", 2)

    found = read(tmp_path)

    assert len(found.commits) == 2
    assert "at most 2 commits" in found.unread[0].why


def test_only_the_days_before_the_newest_commit_are_read(tmp_path: Path) -> None:
    delta(tmp_path)

    assert len(read(tmp_path, days=30 / 86_400).commits) == 3


def test_a_damaged_commit_costs_that_commit_and_a_damaged_table_is_an_error_with_its_name(
    tmp_path: Path,
) -> None:
    delta(tmp_path)
    put(tmp_path, "_delta_log/00000000000000000007.crc", checksum("days", "00000000000000000007.crc"))
    put(tmp_path, "_delta_log/00000000000000000003.json", b"{")
    put(tmp_path, "other/.hoodie/hoodie.properties", b"")

    assert [each.version for each in read(tmp_path).commits] == ["1", "2", "4", "5", "7"]
    assert read(tmp_path).unread[0].what == "commit 3"
    with pytest.raises(UnreadableTableError, match=r"other can't be assessed: hoodie.table.version"):
        read(tmp_path / "other")


def test_a_name_acts_on_no_page_and_no_terminal(tmp_path: Path) -> None:
    delta(tmp_path)
    hostile = "\x1b[2J<script>"
    actions = [*commit("days", 7).splitlines(), json.dumps({"txn": {"appId": hostile}}).encode()]
    put(tmp_path, "_delta_log/00000000000000000007.json", b"\n".join(actions))

    found = read(tmp_path)

    assert hostile in {each.writer for each in found.commits}
    drawn = picture([found])
    assert "<script>" not in drawn
    assert "\x1b" not in drawn
    assert as_json(assess(found)).isascii()
    assert "\\u001b[2J<script>" in "\n".join(view_text.lines("assess", [assess(found)]))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def fields(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, ANY))


@given(
    fields("timestamp", "inCommitTimestamp", "operation", "operationMetrics", "readVersion", "engineInfo", "job", "userName"),
    fields("path", "partitionValues", "size", "modificationTime", "dataChange"),
    fields("appId"),
)  # fmt: skip
def test_a_commit_with_any_values_is_assessed_or_unreadable(
    info: dict[str, Any], add: dict[str, Any], txn: dict[str, Any]
) -> None:
    sound: dict[str, Any] = {"partitionValues": {}, "size": 7}
    for some_info, some_add in product((info, {**info, "timestamp": 5}), (add, {**add, **sound})):
        with suppress(UnreadableCommit):
            actions = [("commitInfo", some_info), ("add", some_add), ("txn", txn)]
            found = past_commit(7, actions, PartitionLayout(()))
            commits = [] if found is None else [found[0]]
            read_history = TableHistory("file:///t", "delta", commits, leftovers=())
            assert [*view_text.lines("assess", [assess(read_history)]), picture([read_history])]


class Sorted(Buckets):
    """Tables in a store whose listing is in order and can begin anywhere, as S3's."""

    def __init__(self, files: Files) -> None:
        super().__init__(Settings())
        self.store = MemoryStore()
        for path, (body, _) in files.items():
            obstore.put(self.store, f"t/{path}", body)

    def table(self, uri: str, access: Mapping[str, str] | None = None) -> TableFiles:
        return TableFiles(self.store, "t/", 10.0, seeks=True)  # type: ignore[arg-type]


def sought(files: Files, monkeypatch: pytest.MonkeyPatch) -> TableHistory:
    monkeypatch.setattr(module, "Buckets", lambda _: Sorted(files))
    monkeypatch.setattr(delta_module, "LOG_CHUNK", 2)
    monkeypatch.setattr(leftovers, "PART_FILES", 1)
    return anyio.run(lambda: past("s3://lake/t", Settings(), days=3650))


@pytest.mark.parametrize("form", FORMATS)
def test_a_store_that_seeks_is_listed_in_parts_with_the_same_result(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = FORMATS[form](HISTORY)
    write(files, tmp_path)

    found = sought(files, monkeypatch)

    assert [each.version for each in found.commits] == [
        each.version for each in read(tmp_path, days=3650).commits
    ]
    assert {each.what.partition(" after ")[0] for each in found.unread} <= {
        "files that no commit names",
        "commits",
        "the times of instants",
    }  # all are new


@pytest.mark.parametrize("missing", [{2}, {0}, {0, 1}, {1, 2, 3}, {1, 4, 5}, {6}, set(range(7))])
def test_a_gap_and_a_cleaned_log_are_told_apart_in_parts_of_a_log(
    missing: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FORMATS["delta"](History(tuple(Written(number, 0) for number in range(8)), ()))
    for number in missing:
        del files[f"_delta_log/{number:020d}.json"]

    found = sought(files, monkeypatch)

    left = sorted({*range(8)} - missing)
    assert [each.number for each in found.commits] == left
    gaps = sum(Lack.COMMITS in each.lacks for each in found.unread)
    assert gaps == sum(after - before > 1 for before, after in pairwise(left))
    assert any("cleaned" in each.why for each in found.unread) == (left[0] > 0)


async def test_a_folder_of_a_store_that_seeks_is_listed_without_those_below_it() -> None:
    names = ["a", "b/1", "b/2", "b0", "c/d/1", "c.txt", "d/1", "e"]
    files = Sorted({f"data/{each}": (b"", 0.0) for each in names}).table("")

    found = [path async for page in files.pages_of_folder("data") for path in page]
    after = [path async for page in files.pages_of_folder("data", "data/b0") for path in page]

    assert found == ["data/a", "data/b0", "data/c.txt", "data/e"]
    assert after == ["data/c.txt", "data/e"]
