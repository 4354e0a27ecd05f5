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
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from lakewarden.events import ALL_FILE_GROUPS, Marker, Operation
from lakewarden.handlers.avro_blocks import uncompressed
from lakewarden.handlers.hudi.markers import each_once, marker_of_file, touched
from lakewarden.handlers.hudi.timeline import UnreadableHudi

_AVRO = b"Obj\x01"
_BLOCK = b"#HUDI#"
_DATA_BLOCK, _SCHEMA = 3, 2
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


def read_metadata(body: bytes) -> InstantMetadata:
    """What a commit's metadata or a table service's plan says. Raises `UnreadableHudi` if the bytes are neither."""
    record = decode(body)
    try:
        if "partitionToWriteStats" in record:
            return _commit(record)
        if "clusteringPlan" in record:
            markers = [
                touched(each["partitionPath"] or "", each["fileId"], "delete") for each in _clustered(record)
            ]
            return InstantMetadata(
                record.get("operationType"), each_once(markers), record.get("extraMetadata") or {}
            )
        if "operations" in record:
            operations = record["operations"] or []
            markers = [touched(each["partitionPath"] or "", each["fileId"], "merge") for each in operations]
            return InstantMetadata("COMPACT", each_once(markers), record.get("extraMetadata") or {})
    except UnreadableHudi:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableHudi(f"a field is missing or of another type: {error!r:.200}") from error
    raise UnreadableHudi(f"neither a commit's metadata nor a plan; it has the fields {sorted(record)!r:.200}")


def _commit(record: dict[str, Any]) -> InstantMetadata:
    markers: list[Marker] = []
    overwrites = record.get("operationType") in _OVERWRITES
    for partition, stats in (record["partitionToWriteStats"] or {}).items():
        for stat in stats:
            file_group, path, before = stat.get("fileId"), stat.get("path"), stat.get("prevCommit")
            operation: Operation = "create" if before in (None, "", "null") else "merge"
            if not file_group:
                if overwrites:
                    markers.append(touched(partition, ALL_FILE_GROUPS, "delete"))
                continue
            if path:
                operation = marker_of_file(
                    path, operation
                ).operation  # a log file and a base file differ by their paths
            markers.append(touched(partition, file_group, operation))
    for partition, file_groups in (record.get("partitionToReplaceFileIds") or {}).items():
        markers += [touched(partition, each, "delete") for each in file_groups]
    extra = {key: value for key, value in (record.get("extraMetadata") or {}).items() if value is not None}
    return InstantMetadata(record.get("operationType"), each_once(markers), extra)


def _clustered(record: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The file slices that a clustering plan replaces. An insert_overwrite's request has no plan."""
    plan = record["clusteringPlan"] or {}
    for group in plan.get("inputGroups") or []:
        yield from group.get("slices") or []


def decode(body: bytes) -> dict[str, Any]:
    """The record in the bytes, Avro or JSON. Raises `UnreadableHudi`."""
    if not body:
        raise UnreadableHudi("the file is empty")
    try:
        if body.startswith(_AVRO):
            record: Any = next(iter(fastavro.reader(io.BytesIO(uncompressed(body)))), None)
        else:
            record = json.loads(body)
    except Exception as error:  # fastavro raises whatever the bytes provoke in it: there is no common class
        raise UnreadableHudi(f"neither Avro nor JSON: {error!r:.200}") from error
    if not isinstance(record, dict):
        raise UnreadableHudi(f"not a record: {type(record).__name__}")
    return record


def archived_commits(body: bytes) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The completed writes in a file of layout 1's archive: instant and extra metadata (rule 4). Raises `UnreadableHudi`."""
    at = body.find(_BLOCK)
    while at >= 0:
        start = at + 14
        size = int.from_bytes(body[at + 6 : start])
        block = body[start : start + size]
        if len(block) == size and int.from_bytes(block[-8:]) == size + 6:
            try:
                yield from list(_completed(block))
            except Exception as error:  # fastavro raises whatever the bytes provoke in it
                raise UnreadableHudi(f"a block of the archive: {error!r:.200}") from error
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
    schema = fastavro.parse_schema(json.loads(headers[_SCHEMA]))
    _, count = struct.unpack_from(">ii", block, at + 8)
    at += 16
    for _ in range(count):
        (length,) = struct.unpack_from(">i", block, at)
        record: Any = fastavro.schemaless_reader(io.BytesIO(block[at + 4 : at + 4 + length]), schema, None)
        at += 4 + length
        commit = record["hoodieCommitMetadata"] or record["hoodieReplaceCommitMetadata"]
        if record["actionState"] == "COMPLETED" and commit is not None:
            yield record["commitTime"], commit["extraMetadata"] or {}
