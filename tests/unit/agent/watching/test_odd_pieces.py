"""One odd piece stays one odd piece: each field of the recorded tables is left out and replaced, and each file is cut.

The mutated tables are replayed to the followers commit by commit. They go on after each commit, and report all others as before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from lakewarden.agent.watching import follower
from lakewarden.agent.watching.delta import DeltaFollower
from lakewarden.agent.watching.files import AbsentFileError, UnreadableTableError
from lakewarden.agent.watching.follower import NumberedFollower
from lakewarden.agent.watching.iceberg import IcebergFollower
from lakewarden.agent.watching.paimon import PaimonFollower
from lakewarden.events import Marker
from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.hudi.metadata import decode, read_metadata
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.handlers.observations import EVERYTHING, File, ObservedCommit, UnknownVersion
from lakewarden.handlers.unreadable import Unreadable
from tests import recorded_delta, recorded_hudi, recorded_iceberg, recorded_paimon
from tests.unit.handlers.avro_files import avro_file

DEEP: Any = "x"
for _ in range(50):
    DEEP = {"a": DEEP}
ODD: dict[str, Any] = {
    "null": None, "number": 5, "text": "x", "true": True, "list": [1], "object": {"a": 1}, "huge": 10**30,
    "half a character": "\ud800", "long": "x" * 5_000, "outside": "s3://other/../a%01b", "deep": DEEP,
}  # fmt: skip
RAW = {
    "@digits@": b"9" * 5_000, "@pit@": b"[" * 4_000 + b"]" * 4_000, "@no text@": b'"\xff\xfe"', "@nan@": b"NaN",
    "@infinite@": b"-1e999", "@twice@": b'{"a": 1, "a": {"a": "x"}}',
}  # fmt: skip
"""Values of JSON that Python refuses, or makes into something else, by their places in a text."""
RAW_KINDS: dict[str, type | None] = dict.fromkeys(RAW) | {"@twice@": dict, "@no text@": str}
ODD |= {each: each for each in RAW}
INSIDES = re.compile(
    r"Error|Exception|Traceback|\bb'|NoneType|object has no|unhashable|subscriptable|literal|argument|0x|<class|codec"
)
GONE: Any = object()
FEW = ("gone", "null", "number", "text", "@digits@", "@pit@")


class Kept:
    """The files of a table, of which the commits up to a number are there."""

    def __init__(self, files: Mapping[str, bytes], commit: re.Pattern[str]) -> None:
        self.files, self._commit = files, commit
        self.newest = 0
        self.refused: str | None = None

    def _is_there(self, path: str) -> bool:
        match = self._commit.search(path)
        return match is None or int(match[1]) <= self.newest

    async def read(self, path: str) -> bytes:
        if path == self.refused:
            raise UnreadableTableError(f"{path} has more than 64 MB")
        if path not in self.files or not self._is_there(path):
            raise AbsentFileError(path)
        return self.files[path]

    async def folder(self, path: str) -> dict[str, File]:
        return {
            each: File(each, len(body), "1", 1.0)
            for each, body in self.files.items()
            if each.startswith(path) and self._is_there(each)
        }

    async def below(self, path: str, after: str | None = None) -> dict[str, File]:
        return await self.folder(path)


@dataclass(frozen=True)
class Recorded:
    """A recorded table, and how its commits are followed."""

    files: dict[str, bytes]
    commit: re.Pattern[str]
    follower: Callable[[str, Any], NumberedFollower]
    numbers: range

    def is_first(self, path: str) -> bool:
        match = self.commit.search(path)
        return match is not None and int(match[1]) == self.numbers[0]

    def is_shared(self, path: str, what: str) -> bool:
        """Whether what was changed says something of all later commits."""
        return path.startswith(("schema/", "metadata/v")) or "metaData" in what or self.is_first(path)

    async def replayed(self, files: Mapping[str, bytes]) -> tuple[dict[str, tuple[Marker, ...]], list[str]]:
        """What is reported of each commit, and the problems. The follower must have gone on after each of them."""
        kept = Kept(files, self.commit)
        kept.newest = self.numbers[0]
        running = self.follower("file:///t", kept)
        await running.look()
        found: dict[str, tuple[Marker, ...]] = {}
        problems: list[str] = []
        for number in self.numbers[1:]:
            kept.newest = number
            look = await running.look()
            found |= {each.version: each.markers for each in look.seen if isinstance(each, ObservedCommit)}
            problems += [why for _, why in look.problems]
            position = running._position
            assert position is not None
            assert position.number == number
        return found, problems


def delta(table: str) -> Recorded:
    paths = [f"{number:020d}.json" for number in range(8 if table == "days" else 3)]
    files = {f"_delta_log/{each}": recorded_delta.recorded(table, each) for each in paths}
    return Recorded(files, re.compile(r"/(\d{20})\."), DeltaFollower, range(len(paths)))


def paimon(table: str) -> Recorded:
    files = {each: body for each, body in recorded_paimon.metadata(table).items() if not each.endswith("ST")}
    count = sum(each.startswith("snapshot/snapshot-") for each in files)
    return Recorded(files, re.compile(r"snapshot-(\d+)$"), PaimonFollower, range(1, count + 1))


def iceberg() -> Recorded:
    files = {each: recorded_iceberg.recorded(each) for each in recorded_iceberg.names()}
    return Recorded(files, re.compile(r"/v(\d+)\.metadata"), IcebergFollower, range(1, 9))


TABLES = {
    "delta": delta("days"), "delta with column mapping": delta("mapped"), "iceberg": iceberg(),
    "paimon": paimon("flights"), "paimon with vectors": paimon("vectors"),
}  # fmt: skip


def fields_of(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a tree. Of a list, the first element stands for all."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))[:1]
        if isinstance(value, list)
        else []
    )
    for key, below in items:
        yield (*before, key)
        yield from fields_of(below, (*before, key))


def changed(value: Any, place: tuple[Any, ...], to: Any) -> Any:
    if not place:
        return to
    copied = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    if len(place) == 1 and to is GONE:
        del copied[place[0]]
    else:
        copied[place[0]] = changed(copied[place[0]], place[1:], to)
    return copied if isinstance(value, dict) else list(copied.values())


def value_at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


@dataclass(frozen=True)
class Content:
    """The values of a file, and how they become a file again."""

    value: Any
    packed: Callable[[Any], bytes]


def content_of(path: str, body: bytes) -> Content:
    if body.startswith(b"Obj"):
        records = [_without_lists(each) for each in read_avro(body)]
        return Content(records, lambda value: avro_file(*value))
    if path.startswith("_delta_log"):
        lines = [json.loads(line) for line in body.splitlines()]
        return Content(lines, lambda value: b"\n".join(json.dumps(each).encode() for each in value))
    return Content(json.loads(body), lambda value: json.dumps(value).encode())


def _without_lists(record: Any) -> Any:
    """Without statistics and empty lists, whose type a schema can't be made of."""
    if isinstance(record, dict):
        return {
            key: _without_lists(each)
            for key, each in record.items()
            if each != [] and not re.search("STATS|_counts|_sizes|_bounds|split_off|partitions", key)
        }
    return record


def mutations(files: Mapping[str, bytes], odd: Collection[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield a path, what was done to it, and its new content. Fields of one name in files of one kind are tried once."""
    known: set[tuple[Any, ...]] = set()
    for path, body in files.items():
        kind = re.sub(r"[0-9a-f-]{8,}|\d+", "", path)
        for at in {0, 1, len(body) // 2, len(body) - 3} if (kind,) not in known else ():
            yield path, f"cut at {at}", body[:at]
        known.add((kind,))
        try:
            content = content_of(path, body)
        except ValueError:
            continue
        for place in fields_of(content.value):
            shape = (kind, *(each for each in place if isinstance(each, str)))
            if shape in known:
                continue
            known.add(shape)
            for name, to in ((each, ODD.get(each, GONE)) for each in odd):
                former = type(value_at(content.value, place))
                is_other = to not in (GONE, None, True) and RAW_KINDS.get(name, type(to)) is not former
                what = f"{place}: {name}{', another type' * is_other}"
                try:
                    packed = content.packed(changed(content.value, place, to))
                except Exception:  # noqa: BLE001, S112 - Avro has no such value
                    continue
                if name not in RAW:
                    yield path, what, packed
                elif not packed.startswith(b"Obj"):
                    yield path, what, packed.replace(f'"{name}"'.encode(), RAW[name])


@pytest.mark.parametrize(
    "odd", [FEW, pytest.param(("gone", *ODD), marks=pytest.mark.wide)], ids=["few", "all"]
)
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
async def test_a_piece_that_is_changed_costs_itself(
    table: Recorded, odd: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "UNREADABLE_SECONDS", 0.0)
    usual, problems = await table.replayed(table.files)
    assert usual
    assert not problems
    tried = 0
    for path, what, body in mutations(table.files, odd):
        tried += 1
        try:
            found, problems = await table.replayed(table.files | {path: body})
        except UnknownVersion:
            assert re.search(r"ersion|Features", what), (path, what)
            continue
        except (Unreadable, UnreadableTableError):
            assert table.is_first(path), (path, what)
            continue
        except Exception as error:
            raise AssertionError((path, what)) from error
        other = {version for version, markers in usual.items() if found.get(version) != markers}
        assert len(other) <= (2 if "vectors" in str(table.files) else 1) or table.is_shared(path, what), (
            path,
            what,
            other,
        )
        assert all(found[each][:1] == (EVERYTHING,) for each in other & found.keys()) or not problems, (
            path,
            what,
        )
        assert problems or not other or "another type" not in what, (path, what)
        assert not [why for why in problems if INSIDES.search(why)], (path, what, problems)
    assert tried > 50


HUDI = [
    (table, name)
    for table in ("cow-v9", "mor-v9", "cow-v6", "mor-v6")
    for name in recorded_hudi.names(table)
    if name[0] == "2"
]


@pytest.mark.parametrize(("table", "name"), HUDI)
def test_a_changed_field_of_hudis_metadata_costs_itself(table: str, name: str) -> None:
    body = recorded_hudi.recorded(table, name)
    whole, fields, texts = read_metadata(body), decode(body), []
    for _, what, other in mutations({name: json.dumps(fields).encode()}, ("gone", *ODD)):
        try:
            found = read_metadata(other)
        except UnreadableHudi as error:
            texts.append(str(error))
            continue
        is_same = {each.file_group for each in whole.touched} <= {each.file_group for each in found.touched}
        assert is_same or found.unread or "another type" not in what, (what, found)
        texts += found.unread
    assert not [each for each in texts if INSIDES.search(each)]


async def test_a_commit_that_the_store_refuses_for_a_minute_counts_as_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = TABLES["delta"]
    kept = Kept(table.files, table.commit)
    running = table.follower("file:///t", kept)
    await running.look()
    kept.newest, kept.refused = 3, f"_delta_log/{2:020d}.json"
    first = await running.look()
    with pytest.raises(UnreadableTableError):
        await running.look()

    monkeypatch.setattr(follower, "RECHECK_SECONDS", 0.0)
    last = await running.look()

    seen = [each for each in (*first.seen, *last.seen) if isinstance(each, ObservedCommit)]
    assert [(each.version, each.markers == (EVERYTHING,)) for each in seen] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]
    assert not first.complete
    assert last.complete


OPTIONAL = {
    "delta": """commitInfo commitInfo.* add.stats add.tags add.deletionVector add.baseRowId add.defaultRowCommitVersion
        add.clusteringProvider remove.deletionTimestamp remove.extendedFileMetadata remove.partitionValues remove.size
        remove.stats remove.tags remove.deletionVector remove.baseRowId remove.defaultRowCommitVersion metaData.name
        metaData.description metaData.createdTime metaData.configuration cdc.tags txn.lastUpdated protocol.readerFeatures
        protocol.writerFeatures""",
    "iceberg": """table-uuid properties schema partition-spec snapshot-log metadata-log sort-orders default-sort-order-id refs
        statistics partition-statistics next-row-id encryption-keys last-sequence-number last-updated-ms
        snapshots.parent-snapshot-id snapshots.sequence-number snapshots.summary snapshots.schema-id snapshots.first-row-id
        snapshots.added-rows snapshots.key-id snapshots.manifests current-schema-id default-spec-id last-partition-id
        last-column-id snapshot_id sequence_number file_sequence_number content min_sequence_number added_files_count
        existing_files_count deleted_files_count added_data_files_count existing_data_files_count deleted_data_files_count
        added_rows_count existing_rows_count deleted_rows_count partitions key_metadata first_row_id manifest_length
        data_file.content data_file.file_format data_file.record_count data_file.file_size_in_bytes
        data_file.block_size_in_bytes data_file.file_ordinal data_file.sort_columns data_file.distinct_counts
        data_file.content_stats data_file.key_metadata data_file.sort_order_id data_file.split_offsets
        data_file.equality_ids data_file.first_row_id data_file.referenced_data_file data_file.content_offset
        data_file.content_size_in_bytes""",
    "paimon": """uuid baseManifestList baseManifestListSize deltaManifestListSize changelogManifestList
        changelogManifestListSize indexManifest commitUser commitIdentifier commitKind timeMillis logOffsets totalRecordCount
        deltaRecordCount changelogRecordCount watermark statistics properties nextRowId operation writerVersion id options
        comment highestFieldId primaryKeys _BUCKET _TOTAL_BUCKETS _VERSION _FILE_SIZE _NUM_ADDED_FILES _NUM_DELETED_FILES
        _SCHEMA_ID _MIN_BUCKET _MAX_BUCKET _MIN_LEVEL _MAX_LEVEL _MIN_ROW_ID _MAX_ROW_ID _FILE._FILE_SIZE _FILE._ROW_COUNT
        _FILE._LEVEL _FILE._EXTRA_FILES _FILE._CREATION_TIME _FILE._SCHEMA_ID _FILE._DELETE_ROW_COUNT
        _FILE._EMBEDDED_FILE_INDEX _FILE._FILE_SOURCE _FILE._VALUE_STATS_COLS _FILE._EXTERNAL_PATH _FILE._FIRST_ROW_ID
        _FILE._WRITE_COLS _FILE._WRITE_COLS_SEQUENCES""",
    "paimon with vectors": "_EXTERNAL_PATH _GLOBAL_INDEX _ROW_COUNT _DELETIONS_VECTORS_RANGES._CARDINALITY",
}
"""Fields that a writer may leave out, by the specifications: Delta's PROTOCOL.md, Iceberg's spec (of one of its versions), what
Paimon's `Snapshot`, `SchemaSerializer`, `ManifestFileMeta`, `ManifestEntry`, `DataFileMeta` and `IndexManifestEntry` have as
nullable; and those that a watcher doesn't need."""


@pytest.mark.parametrize(("name", "fields"), OPTIONAL.items(), ids=OPTIONAL)
async def test_each_optional_field_may_be_missing(name: str, fields: str) -> None:
    """In all files of the table at once."""
    table = TABLES[name]
    usual, _ = await table.replayed(table.files)
    for field in fields.split():
        files = {}
        for path, body in table.files.items():
            content = content_of(path, body) if body.startswith((b"{", b"Obj")) else None
            files[path] = (
                body if content is None else content.packed(without(content.value, field.split(".")))
            )
        found, problems = await table.replayed(files)
        assert not problems, field
        assert found.keys() >= usual.keys(), (
            field
        )  # without commitInfo, a commit of the gate isn't known as one
        if field != "data_file.content" and not field.startswith(
            ("commitInfo", "snapshots.summary", "properties")
        ):
            assert found == usual, field


def without(value: Any, field: list[str]) -> Any:
    if isinstance(value, list):
        return [without(each, field) for each in value]
    if not isinstance(value, dict):
        return value
    if len(field) == 1:
        return {key: each for key, each in value.items() if key != field[0] and field[0] != "*"}
    return {key: without(each, field[1:]) if key == field[0] else each for key, each in value.items()}


NULLABLE = """operationType extraMetadata compacted version partitionToReplaceFileIds path prevCommit prevFilePathOverwritten
    numWrites numDeletes numUpdateWrites numInserts totalWriteBytes totalWriteErrors partitionPath totalLogRecords
    totalLogFiles totalUpdatedRecordsCompacted totalLogBlocks totalCorruptLogBlock totalRollbackBlocks fileSizeInBytes
    logFiles baseFile cdcStats runtimeStats minEventTime maxEventTime"""


@pytest.mark.parametrize("field", NULLABLE.split())
def test_each_nullable_field_of_hudis_commits_may_be_null_or_missing(field: str) -> None:
    """By `HoodieCommitMetadata.avsc`, each of a write stat is. The last six are JSON's alone."""
    fields = decode(recorded_hudi.recorded("cow-v9", "20261122135643314_20261122135847753.commit"))
    usual = read_metadata(json.dumps(fields).encode())
    for to in (GONE, None):
        stats = {
            partition: [changed(each, (field,), to) if field in each else each for each in written]
            for partition, written in fields["partitionToWriteStats"].items()
        }
        other = changed(fields, (field,), to) if field in fields else fields
        found = read_metadata(json.dumps(other | {"partitionToWriteStats": stats}).encode())
        assert not found.unread
        assert {each.file_group for each in found.touched} == {each.file_group for each in usual.touched}
