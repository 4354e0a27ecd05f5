"""What the files of the timeline contain: the metadata of a commit, and the plan of a table service.

| file | content | form |
| --- | --- | --- |
| completed commit, deltacommit, replacecommit | its metadata | Avro; JSON in layout 1 |
| `inflight` of a write | the same, from the workload profile | the same |
| `requested` of a compaction or a clustering | its plan | Avro |
| `requested` of a write | nothing, or of a replacecommit a plan without file groups | 0 bytes, or Avro |

Rules:

1. The metadata of a completed instant names every file group that it wrote. An inflight's names those that get updates. Inserts
   have an empty file group there, even if they go into an existing one, so what an inflight says is not complete.
2. Replaced file groups are deleted: those that an insert_overwrite or a clustering replaces. The inflight of an
   insert_overwrite names only the partitions, and stands for all file groups there.
3. An Avro file brings its schema. Fields are looked for by their names, so a release that adds fields can be read.
4. Layout 1's archive is a log: blocks of Avro records with a length before and after them. A block that was cut off is skipped,
   as Hudi does: its instants are still on the timeline, or in the block after it.
"""

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fastavro

from lakewarden.events import ALL_FILE_GROUPS, Marker, Operation
from lakewarden.handlers.avro_blocks import BoundedSchema, Wanted, fields, records_of
from lakewarden.handlers.hudi.markers import each_once, marker_of_file, touched
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.handlers.unreadable import Failed, json_of, known, read_each, reading

_AVRO = b"Obj\x01"
_BLOCK = b"#HUDI#"
_DATA_BLOCK, _SCHEMA = 3, 2
MAX_WHYS = 3
_PLACE = fields("partitionPath", "fileId")
WANTED = fields(
    "operationType",
    "extraMetadata",
    "partitionToReplaceFileIds",
    "commitsRollback",
    partitionToWriteStats=fields("fileId", "path", "prevCommit"),
    clusteringPlan=fields(inputGroups=fields(slices=_PLACE)),
    operations=_PLACE,
    partitionMetadata=fields(),
)
"""What is read of the metadata of commits and rollbacks, and of plans."""
_ARCHIVED = fields(
    "actionState",
    "commitTime",
    hoodieCommitMetadata=fields("extraMetadata"),
    hoodieReplaceCommitMetadata=fields("extraMetadata"),
)
_OVERWRITES = frozenset({"INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})


@dataclass(frozen=True, slots=True)
class InstantMetadata:
    """What a file of the timeline says about its instant."""

    operation: str | None
    """`UPSERT`, `INSERT_OVERWRITE`, `CLUSTER`, `COMPACT`, ..., as Hudi calls it."""
    touched: tuple[Marker, ...]
    """The file groups that it writes or replaces, each once."""
    extra: Mapping[str, str]
    """The extra metadata of a commit, where a writer can put its own entries."""
    unread: tuple[str, ...] = ()
    """Why file groups that it names can't be read, each reason once."""


def read_metadata(body: bytes) -> InstantMetadata:
    """What a commit's metadata or a table service's plan says. Raises `UnreadableHudi` if the bytes are neither.

    A file group that can't be read is `unread`.
    """
    record = decode(body)
    with reading("the file", UnreadableHudi):
        if "partitionToWriteStats" in record:
            return _commit(record)
        if "clusteringPlan" in record:
            return _plan(record, _operation(record), _clustered(record), "delete")
        if "operations" in record:
            return _plan(record, "COMPACT", record["operations"] or (), "merge")
    raise UnreadableHudi("neither a commit's metadata nor a plan")


def _plan(
    record: dict[str, Any], operation: str | None, plan: Iterable[Mapping[str, Any]], kind: Operation
) -> InstantMetadata:
    markers, failed = read_each(
        plan, lambda each: touched(each.get("partitionPath") or "", each["fileId"], kind)
    )
    return InstantMetadata(operation, each_once(markers), _texts(record.get("extraMetadata")), _whys(failed))


def _commit(record: dict[str, Any]) -> InstantMetadata:
    overwrites = _operation(record) in _OVERWRITES
    stats = [
        (partition, each)
        for partition, written in (record["partitionToWriteStats"] or {}).items()
        for each in known(written, list)
    ]
    replaced = [
        (partition, each)
        for partition, file_groups in (record.get("partitionToReplaceFileIds") or {}).items()
        for each in known(file_groups, list | None) or ()
    ]
    written, failed = read_each(stats, lambda each: _written(*each, overwrites=overwrites))
    gone, also_failed = read_each(replaced, lambda each: touched(*each, "delete"))
    markers = each_once([*filter(None, written), *gone])
    extra = _texts(record.get("extraMetadata"))
    return InstantMetadata(_operation(record), markers, extra, (*_whys(failed), *_whys(also_failed)))


def _written(partition: str, stat: dict[str, Any], *, overwrites: bool) -> Marker | None:
    file_group, path, before = stat.get("fileId"), stat.get("path"), stat.get("prevCommit")
    operation: Operation = "create" if before in (None, "", "null") else "merge"
    if not file_group:
        return touched(partition, ALL_FILE_GROUPS, "delete") if overwrites else None
    if path:
        with suppress(UnreadableHudi):  # a file that was there before the table was
            operation = marker_of_file(
                path, operation
            ).operation  # a log file and a base file differ by their paths
    return touched(partition, file_group, operation)


def _operation(record: Mapping[str, Any]) -> str | None:
    found: str | None = known(record.get("operationType"), str | None)
    return found


def _texts(fields: Any) -> dict[str, str]:
    return {key: value for key, value in (fields or {}).items() if isinstance(value, str)}


def _whys(failed: Failed[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(why for _, why in failed))[:MAX_WHYS]


def _clustered(record: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The file slices that a clustering plan replaces. An insert_overwrite's request has no plan."""
    plan = record["clusteringPlan"] or {}
    for group in plan.get("inputGroups") or []:
        yield from group.get("slices") or []


def decode(body: bytes, wanted: Wanted | None = WANTED) -> dict[str, Any]:
    """The record in the bytes, Avro with the wanted fields, or JSON. Raises `UnreadableHudi`."""
    if not body:
        raise UnreadableHudi("the file is empty")
    with reading("the file", UnreadableHudi):
        if body.startswith(_AVRO):
            record: Any = next(records_of(body, wanted), None)
        else:
            record = json_of(body)
    if not isinstance(record, dict):
        raise UnreadableHudi("the file has no record")
    return record


def archived_commits(body: bytes) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The completed writes in a file of layout 1's archive: instant and extra metadata (rule 4). Raises `UnreadableHudi`."""
    at = body.find(_BLOCK)
    while at >= 0:
        start = at + 14
        size = int.from_bytes(body[at + 6 : start])
        block = body[start : start + size]
        if len(block) == size and int.from_bytes(block[-8:]) == size + 6:
            with reading("a block of the archive", UnreadableHudi):
                completed = list(_completed(block))
            yield from completed
            at = start + size - 1
        at = body.find(_BLOCK, at + 1)


def _completed(block: bytes) -> Iterator[tuple[str, Mapping[str, str]]]:
    _, kind, count = struct.unpack_from(">iii", block)
    headers, at = {}, 12
    for _ in range(count):
        key, length = struct.unpack_from(">ii", block, at)
        headers[key] = block[at + 8 : at + 8 + length]
        at += 8 + length
    if kind != _DATA_BLOCK:
        return
    schema = BoundedSchema.of(headers[_SCHEMA], _ARCHIVED)
    _, count = struct.unpack_from(">ii", block, at + 8)
    at += 16
    for _ in range(count):
        (length,) = struct.unpack_from(">i", block, at)
        content = block[at + 4 : at + 4 + length]
        schema.require_few([(1, content)])
        record: Any = fastavro.schemaless_reader(io.BytesIO(content), schema.parsed, schema.read)
        at += 4 + length
        commit = record["hoodieCommitMetadata"] or record["hoodieReplaceCommitMetadata"]
        if record["actionState"] == "COMPLETED" and commit is not None:
            yield record["commitTime"], commit["extraMetadata"] or {}
