"""The snapshots of a Paimon table, as a watcher reads them: names, the gate's property, and the footprint of one snapshot.

It relies on these facts of Paimon 1.0 to 1.4 and pypaimon 2.1:

- `snapshot/snapshot-N` is JSON. Its `deltaManifestList` names a file in `manifest/` with the manifests of this commit alone.
- An entry of a manifest has the kind 0 (added) or 1 (deleted), the partition as a `BinaryRow`, and the file's name.
- `schema/schema-<id>` is JSON with the columns, the partition keys and the primary keys.
- The `indexManifest` of a snapshot names a file in `manifest/` with all index files of the table, those that this commit has left
  alone, too. One of the type `DELETION_VECTORS` lists its data files, with the number of rows that each vector deletes. A delete
  of rows may move the vectors of other files to its new index file, and changes none of the manifests.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from lakewarden.handlers import observations
from lakewarden.handlers.assessment import DataFile, PastCommit
from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import UNKNOWN_MAKER, Maker
from lakewarden.handlers.paimon.partitions import PartitionSpelling

SNAPSHOT_FOLDER: Final = "snapshot/"
MANIFEST_FOLDER: Final = "manifest/"
SNAPSHOT_VERSIONS: Final = (2, 3)
"""Versions of a snapshot's JSON that are known. A snapshot without one is of version 1."""

_NAME = re.compile(r"snapshot/snapshot-(\d+)")
_DELETED = 1
_VECTORS = "DELETION_VECTORS"

DeletionVectors: TypeAlias = Mapping[observations.Place, Any]
"""The files that have deleted rows: their number, or where the vector is if no number is known."""


def snapshot_path(number: int) -> str:
    """Return the path of a snapshot."""
    return f"{SNAPSHOT_FOLDER}snapshot-{number}"


def schema_path(number: int) -> str:
    """Return the path of a schema."""
    return f"schema/schema-{number}"


def newest_snapshot(paths: Iterable[str]) -> int | None:
    """Return the newest snapshot of a listing, or None."""
    return max((int(match[1]) for path in paths if (match := _NAME.fullmatch(path))), default=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot says that matters here."""

    schema: int
    changes: str
    """Path of the list of the manifests that it has added."""
    is_gates: bool
    indexes: str | None = None
    """Path of the list of all index files, which have the deletion vectors. None: there is none."""
    made_by: Maker = UNKNOWN_MAKER
    kind: str = "(unknown)"
    ended: float = 0.0
    """Seconds since the epoch."""
    commit: tuple[str, int] | None = None
    """User and identifier of the commit, which may consist of several snapshots."""
    changelogs: str | None = None
    """Path of the list of the manifests that name its changelog files."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What a schema says that matters here."""

    partitions: PartitionSpelling
    has_primary_key: bool


def read_snapshot(body: bytes) -> Snapshot:
    """Return what a snapshot says. Raises `UnreadableCommit`."""
    fields = _object(body)
    version = fields.get("version", 1)
    if version not in SNAPSHOT_VERSIONS:
        raise observations.UnreadableCommit(
            f"version {version} of Paimon's snapshots is unknown; known are {', '.join(map(str, SNAPSHOT_VERSIONS))}"
        )
    try:
        properties = fields.get("properties") or {}
        changes = MANIFEST_FOLDER + fields["deltaManifestList"]
        indexes, changelogs = fields.get("indexManifest"), fields.get("changelogManifestList")
        user, identifier = fields.get("commitUser"), fields.get("commitIdentifier")
        return Snapshot(
            int(fields["schemaId"]),
            changes,
            TRANSACTION in properties,
            MANIFEST_FOLDER + indexes if indexes else None,
            Maker.of(engine=fields.get("writerVersion"), job=fields.get("commitUser")),
            str(fields.get("commitKind") or "(unknown)"),
            int(fields.get("timeMillis") or 0) / 1000,
            (str(user), int(identifier)) if user and identifier is not None else None,
            MANIFEST_FOLDER + changelogs if changelogs else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise observations.UnreadableCommit(f"the snapshot lacks what each has: {error!r}") from error


def read_schema(body: bytes) -> TableLayout:
    """Return what a schema says. Raises `UnreadableCommit`."""
    fields = _object(body)
    try:
        kinds = {str(each["name"]): each["type"] for each in fields["fields"]}
        columns = ((str(name), str(kinds[name])) for name in fields["partitionKeys"])
        spelling = PartitionSpelling.of(columns, fields.get("options") or {})
        return TableLayout(spelling, bool(fields["primaryKeys"]))
    except (KeyError, TypeError) as error:
        raise observations.UnreadableCommit(f"the schema lacks what each has: {error!r}") from error


def manifests_of(body: bytes) -> list[str]:
    """Return the paths of the manifests in a list. Raises `UnreadableCommit`."""
    try:
        return [MANIFEST_FOLDER + str(each["_FILE_NAME"]) for each in read_avro(body)]
    except KeyError as error:
        raise observations.UnreadableCommit(f"the list of manifests lacks {error}") from error


def deletion_vectors(body: bytes, layout: TableLayout) -> DeletionVectors:
    """Return the deletion vectors in a list of index files. Raises `UnreadableCommit`."""
    found: dict[observations.Place, Any] = {}
    try:
        for record in read_avro(body):
            if record["_INDEX_TYPE"] != _VECTORS:
                continue
            partition = _partition(record, layout)
            for each in record["_DELETIONS_VECTORS_RANGES"] or ():
                deleted, place = each.get("_CARDINALITY"), (record["_FILE_NAME"], each["f1"])
                found[partition, str(each["f0"])] = place if deleted is None else deleted
    except (KeyError, TypeError) as error:
        raise observations.UnreadableCommit(
            f"an entry of a list of index files lacks what each has: {error!r}"
        ) from error
    return found


def changed_vectors(before: DeletionVectors, after: DeletionVectors) -> set[observations.Place]:
    """Return the files of which a commit has deleted rows, or restored."""
    return {place for place in {*before, *after} if before.get(place) != after.get(place)}


def foreign_snapshot(
    number: int,
    manifests: Iterable[bytes],
    layout: TableLayout,
    vectors: Collection[observations.Place] = (),
    made_by: Maker = UNKNOWN_MAKER,
) -> observations.ObservedCommit | None:
    """Return what a snapshot that isn't the gate's has changed, or None if it has changed no file.

    `vectors` are the files of an append table whose deletion vectors it has changed.

    | entry | operation | because |
    | --- | --- | --- |
    | deleted file | `delete` | a rewrite that has read the file is refused; an append isn't |
    | file with another deletion vector | `delete` | the same |
    | added file of an append table, in a partition without a deleted one | `delete` | `PaimonSink` finds it in its base |
    | any other added file | `create` | the deleted one says it already, or readers merge by key |
    """
    entries = [_entry(record, layout) for body in manifests for record in read_avro(body)]
    removed = [each.place for each in entries if each.is_deleted]
    added = [each.place for each in entries if not each.is_deleted]
    return observations.observed_commit(
        str(number), [*removed, *vectors], added, additions_refute=not layout.has_primary_key, made_by=made_by
    )


def past_snapshot(
    number: int, snapshot: Snapshot, manifests: Iterable[bytes], layout: TableLayout
) -> tuple[PastCommit, list[DataFile]]:
    """Return what a snapshot's history says, and the files that it has added."""
    entries = [_entry(record, layout) for body in manifests for record in read_avro(body)]
    added = [each for each in entries if not each.is_deleted]
    found = PastCommit(
        str(number),
        snapshot.ended,
        snapshot.made_by.name or "(unknown)",
        snapshot.kind,
        frozenset(each.place[0] for each in entries),
        frozenset(each.place[0] for each in entries if each.is_deleted),
        size=sum(each.size for each in added),
        is_service=snapshot.kind == "COMPACT",
        is_gates=snapshot.is_gates,
        session=snapshot.commit[0] if snapshot.commit else None,
    )
    folders = ((each, f"{each.place[0]}/" if each.place[0] else "") for each in added)
    return found, [
        DataFile(f"{folder}bucket-{each.bucket}/{each.place[1]}", each.place[0]) for each, folder in folders
    ]


class _ChangedFile(NamedTuple):
    """A file that a snapshot has added or deleted."""

    place: observations.Place
    is_deleted: bool
    bucket: str
    size: int


def _entry(record: dict[str, Any], layout: TableLayout) -> _ChangedFile:
    try:
        place = _partition(record, layout), str(record["_FILE"]["_FILE_NAME"])
        bucket = "postpone" if record.get("_BUCKET") == -2 else str(record.get("_BUCKET", 0))
        return _ChangedFile(
            place, record["_KIND"] == _DELETED, bucket, int(record["_FILE"].get("_FILE_SIZE") or 0)
        )
    except (KeyError, TypeError) as error:
        raise observations.UnreadableCommit(
            f"an entry of a manifest lacks what each has: {error!r}"
        ) from error


def _partition(record: dict[str, Any], layout: TableLayout) -> str:
    try:
        return layout.partitions.path_of_row(bytes(record["_PARTITION"]))
    except ValueError as error:
        raise observations.UnreadableCommit(f"a partition can't be read: {error!r}") from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise observations.UnreadableCommit(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise observations.UnreadableCommit("not a JSON object")
    return found
