"""Small tables of all four formats, made of one history whose truth is known: for `assess` of damaged tables."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro

BEGAN = 1_790_000_000.0
STEP = 600.0
"""Seconds between two commits."""


@dataclass(frozen=True)
class Written:
    """One commit: it adds a file, and replaces those of its partition."""

    number: int
    """From 0 on."""
    behind: int
    """How many commits it has not seen: it overlaps so many."""

    @property
    def ended(self) -> float:
        return BEGAN + STEP * self.number

    @property
    def began(self) -> float:
        return self.ended - STEP * self.behind - 60 - self.number  # no two of Hudi's instants are the same

    @property
    def file(self) -> str:
        return f"part-{self.number}.parquet"


@dataclass(frozen=True)
class History:
    """The truth."""

    commits: tuple[Written, ...]
    lost: tuple[int, ...]
    """After which commits a file, or a write of Hudi, was lost."""

    @property
    def overlapping(self) -> set[int]:
        pairs = (
            (each.number, each.number - 1 - back) for each in self.commits for back in range(each.behind)
        )
        return {number for later, earlier in pairs if earlier >= 0 for number in (later, earlier)}

    def truth(self) -> dict[str, float]:
        """Each figure that may be known."""
        return {
            "commits": len(self.commits),
            "overlapping": len(self.overlapping),
            "in_the_way": len(self.overlapping),
            "lost_files": len(self.lost),
            "lost_tries": len(self.lost),
            "known_seconds": sum(each.ended - each.began for each in self.commits),
        }


Files = dict[str, tuple[bytes, float]]
"""By path: content, and time of modification."""


def delta(history: History) -> Files:
    found: Files = {}
    for each in history.commits:
        info = {
            "timestamp": int(each.ended * 1000),
            "readVersion": each.number - 1 - each.behind,
            "operationMetrics": {"executionTimeMs": str(int((each.ended - each.began) * 1000))},
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if each.number == 0:
            actions.append({"metaData": {"schemaString": '{"fields":[]}', "partitionColumns": []}})
        actions.append({"add": {"path": each.file, "partitionValues": {}, "size": 1}})
        actions.append({"remove": {"path": f"old-{each.number}.parquet", "partitionValues": {}}})
        found[f"_delta_log/{each.number:020d}.json"] = (
            "\n".join(map(json.dumps, actions)).encode(),
            each.ended,
        )
        found[f"_delta_log/{each.number:020d}.crc"] = b"{}", each.ended
        found[each.file] = b"1", each.ended - 30
    return found | _lost(history, "")


def paimon(history: History) -> Files:
    schema = {"fields": [], "partitionKeys": [], "primaryKeys": ["k"], "options": {}}
    found: Files = {"schema/schema-0": (json.dumps(schema).encode(), BEGAN - 60)}
    for each in history.commits:
        number = each.number + 1
        snapshot = {
            "version": 3,
            "schemaId": 0,
            "deltaManifestList": f"list-{number}",
            "commitUser": f"user-{number}",
            "commitIdentifier": 1,
            "commitKind": "OVERWRITE",
            "timeMillis": int(each.ended * 1000),
        }
        names = ((0, each.file), (1, f"old-{number}.parquet"))
        entries = [
            {
                "_KIND": kind,
                "_PARTITION": bytes(8),
                "_BUCKET": 0,
                "_FILE": {"_FILE_NAME": name, "_FILE_SIZE": 1},
            }
            for kind, name in names
        ]
        found[f"snapshot/snapshot-{number}"] = json.dumps(snapshot).encode(), each.ended
        found["snapshot/LATEST"] = str(number).encode(), each.ended
        found[f"manifest/list-{number}"] = avro([{"_FILE_NAME": f"manifest-{number}"}]), each.ended
        found[f"manifest/manifest-{number}"] = avro(entries), each.ended
        found[f"bucket-0/{each.file}"] = b"1", each.ended - 30
    return found | _lost(history, "bucket-0/")


def iceberg(history: History) -> Files:
    found: Files = {}
    snapshots = []
    for each in history.commits:
        number = each.number + 1
        snapshot = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": int(each.ended * 1000),
            "manifest-list": f"file:/t/metadata/snap-{number}.avro",
            "summary": {"operation": "overwrite", "spark.app.id": f"app-{number}"},
        } | ({"parent-snapshot-id": number - 1} if number > 1 else {})
        snapshots.append(snapshot)
        names = ((1, each.file), (2, f"old-{number}.parquet"))
        entries = [
            {
                "status": status,
                "snapshot_id": number,
                "data_file": {"file_path": f"file:/t/data/{name}", "partition": {}, "file_size_in_bytes": 1},
            }
            for status, name in names
        ]
        manifest = {
            "manifest_path": f"file:/t/metadata/manifest-{number}.avro",
            "partition_spec_id": 0,
            "added_snapshot_id": number,
        }
        found[f"metadata/snap-{number}.avro"] = avro([manifest]), each.ended
        found[f"metadata/manifest-{number}.avro"] = avro(entries), each.ended
        found[f"data/{each.file}"] = b"1", each.ended - 30
    fields = {
        "format-version": 2,
        "location": "file:/t",
        "schemas": [{"fields": []}],
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "current-snapshot-id": len(snapshots),
        "snapshots": snapshots,
    }
    found["metadata/version-hint.text"] = b"1", history.commits[-1].ended
    found["metadata/v1.metadata.json"] = json.dumps(fields).encode(), history.commits[-1].ended
    return found | _lost(history, "data/")


def hudi(history: History) -> Files:
    properties = b"hoodie.table.version=8\nhoodie.timeline.layout.version=2\n"
    found: Files = {".hoodie/hoodie.properties": (properties, BEGAN - 60)}
    for each in history.commits:
        began, ended = instant(each.began), instant(each.ended)
        stat = {"fileId": "f", "path": f"f_0-1-2_{began}.parquet", "prevCommit": "20200101000000000"}
        metadata = {"partitionToWriteStats": {"": [stat]}, "operationType": "UPSERT"}
        found[f".hoodie/timeline/{began}.commit.requested"] = b"", each.began
        found[f".hoodie/timeline/{began}_{ended}.commit"] = json.dumps(metadata).encode(), each.ended
    for number in history.lost:
        at = BEGAN + STEP * number + 100
        found[f".hoodie/timeline/{instant(at)}.commit.requested"] = b"", at
    return found


def instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%d%H%M%S") + "000"


def _lost(history: History, folder: str) -> Files:
    return {f"{folder}lost-{number}.parquet": (b"1", BEGAN + STEP * number + 100) for number in history.lost}


FORMATS: Mapping[str, Callable[[History], Files]] = {
    "delta": delta,
    "paimon": paimon,
    "iceberg": iceberg,
    "hudi": hudi,
}


def write(files: Files, table: Path) -> None:
    for path, (body, at) in files.items():
        file = table / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        os.utime(file, (at, at))


def avro(records: list[dict[str, Any]]) -> bytes:
    """An Avro file with a schema for these records."""
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(_schema(records[0], ["r"])), records)
    return file.getvalue()


def _schema(value: Any, names: list[str]) -> Any:
    match value:
        case dict():
            names.append(f"{names[0]}{len(names)}")
            name = names[-1]
            fields = [{"name": key, "type": _schema(each, names)} for key, each in value.items()]
            return {"type": "record", "name": name, "fields": fields}
        case bytes():
            return "bytes"
        case int():
            return "long"
        case _:
            return "string"
