"""The snapshots of a Paimon table, as a watcher reads them: names, the gate's property, and the footprint of one snapshot.

It relies on these facts of Paimon 1.0 to 1.4 and pypaimon 2.1:

- `snapshot/snapshot-N` is JSON. Its `deltaManifestList` names a file in `manifest/` with the manifests of this commit alone.
- An entry of a manifest has the kind 0 (added) or 1 (deleted), the partition as a `BinaryRow`, and the file's name.
- `schema/schema-<id>` is JSON with the columns, the partition keys and the primary keys.
- The `indexManifest` of a snapshot names a file in `manifest/` with all index files of the table, those that this commit has left
  alone, too. One of the type `DELETION_VECTORS` lists its data files, with the number of rows that each vector deletes. A delete
  of rows may move the vectors of other files to its new index file, and changes none of the manifests.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from lakewarden.handlers import observations
from lakewarden.handlers.assessment import DataFile, PastCommit, Unread
from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.avro_blocks import fields
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import UNKNOWN_MAKER, Maker
from lakewarden.handlers.paimon.partitions import PartitionSpelling
from lakewarden.handlers.partition_spelling import require_short
from lakewarden.handlers.unreadable import FIRST_MS, LAST_MS, MAX_SIZE, json_of, known, number, read_each

SNAPSHOT_FOLDER: Final = "snapshot/"
MANIFEST_FOLDER: Final = "manifest/"
SNAPSHOT_VERSIONS: Final = (2, 3)
"""Versions of a snapshot's JSON that are known. A snapshot without one is of version 1."""

_LISTED = fields("_FILE_NAME")
_INDEXED = fields("_INDEX_TYPE", "_PARTITION", "_FILE_NAME", "_DELETIONS_VECTORS_RANGES")
_CHANGED = fields("_KIND", "_PARTITION", "_BUCKET", _FILE=fields("_FILE_NAME", "_FILE_SIZE"))
"""What is read of lists of manifests, of index files, and of manifests."""
_NAME = re.compile(r"snapshot/snapshot-([1-9][0-9]*)")
_ADDED, _DELETED = 0, 1
_VECTORS = "DELETION_VECTORS"

DeletionVectors: TypeAlias = Mapping[observations.Place, Any]
"""The files that have deleted rows: their number, or where the vector is if no number is known."""


LATEST: Final = SNAPSHOT_FOLDER + "LATEST"
"""A hint: the number of the newest snapshot, or of one before it."""


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
    is_elsewhere: bool = False
    """Whether data files may be outside of the table's folder."""


def read_snapshot(body: bytes) -> Snapshot:
    """Return what a snapshot says. Raises `UnreadableCommit`."""
    with observations.reading("the snapshot"):
        fields = _object(body)
        version = fields.get("version", 1)
        if version not in SNAPSHOT_VERSIONS:
            raise observations.UnknownVersion(
                f"version {version!r:.20} of Paimon's snapshots is unknown; known are {', '.join(map(str, SNAPSHOT_VERSIONS))}"
            )
        properties = fields.get("properties")
        indexes, changelogs = fields.get("indexManifest"), fields.get("changelogManifestList")
        user, identifier = fields.get("commitUser"), fields.get("commitIdentifier")
        return Snapshot(
            int(fields["schemaId"]),
            MANIFEST_FOLDER + fields["deltaManifestList"],
            isinstance(properties, dict) and TRANSACTION in properties,
            MANIFEST_FOLDER + indexes if indexes else None,
            Maker.of(engine=fields.get("writerVersion"), job=fields.get("commitUser")),
            str(fields.get("commitKind") or "(unknown)"),
            (number(fields.get("timeMillis"), LAST_MS, FIRST_MS) or 0) / 1000,
            (str(user), identifier) if user and isinstance(identifier, int) else None,
            MANIFEST_FOLDER + changelogs if changelogs else None,
        )


def read_schema(body: bytes) -> TableLayout:
    """Return what a schema says. Raises `UnreadableCommit`."""
    with observations.reading("the schema"):
        fields = _object(body)
        kinds = {str(each["name"]): each["type"] for each in fields["fields"]}
        columns = [(str(name), str(kinds[name])) for name in fields["partitionKeys"]]
        require_short([name for name, _ in columns])
        options = fields.get("options") or {}
        keys = [known(each, str) for each in known(fields.get("primaryKeys"), list | None) or ()]
        is_elsewhere = bool(options.get("data-file.external-paths"))
        return TableLayout(PartitionSpelling.of(columns, options), bool(keys), is_elsewhere)


def manifests_of(body: bytes) -> list[str]:
    """Return the paths of the manifests in a list. Raises `UnreadableCommit`."""
    with observations.reading("the list of manifests"):
        return [MANIFEST_FOLDER + known(each["_FILE_NAME"], str) for each in read_avro(body, _LISTED)]


def deletion_vectors(body: bytes, layout: TableLayout) -> DeletionVectors:
    """Return the deletion vectors in a list of index files. Raises `UnreadableCommit`."""
    found: dict[observations.Place, Any] = {}
    with observations.reading("the list of index files"):
        for record in read_avro(body, _INDEXED):
            if known(record["_INDEX_TYPE"], str) != _VECTORS:
                continue
            partition = _partition(record, layout)
            for each in record.get("_DELETIONS_VECTORS_RANGES") or ():
                deleted, place = each.get("_CARDINALITY"), (record["_FILE_NAME"], each["f1"])
                found[partition, known(each["f0"], str)] = place if deleted is None else deleted
    return found


def changed_vectors(before: DeletionVectors, after: DeletionVectors) -> set[observations.Place]:
    """Return the files of which a commit has deleted rows, or restored."""
    return {place for place in {*before, *after} if before.get(place) != after.get(place)}


def foreign_snapshot(
    number: int,
    manifests: Iterable[observations.Piece],
    layout: TableLayout,
    vectors: Collection[observations.Place] | observations.UnreadableCommit = (),
    made_by: Maker = UNKNOWN_MAKER,
) -> observations.ObservedCommit | None:
    """Return what a snapshot that isn't the gate's has changed, or None if it has changed no file.

    `vectors` are the files of an append table whose deletion vectors it has changed, or why they can't be read.

    | entry | operation | because |
    | --- | --- | --- |
    | deleted file | `delete` | a rewrite that has read the file is refused; an append isn't |
    | file with another deletion vector | `delete` | the same |
    | added file of an append table, in a partition without a deleted one | `delete` | `PaimonSink` finds it in its base |
    | any other added file | `create` | the deleted one says it already, or readers merge by key |
    """
    entries, unread = _entries(number, manifests, layout)
    if isinstance(vectors, observations.UnreadableCommit):
        unread += observations.unread_of("deletion vector", str(number), [(None, str(vectors))], 1)
        vectors = ()
    removed = [each.place for each in entries if each.is_deleted]
    added = [each.place for each in entries if not each.is_deleted]
    return observations.observed_commit(
        str(number),
        [*removed, *vectors],
        added,
        additions_refute=not layout.has_primary_key,
        made_by=made_by,
        unread=unread,
    )


def past_snapshot(
    number: int, snapshot: Snapshot, manifests: Iterable[observations.Piece], layout: TableLayout
) -> tuple[PastCommit, list[DataFile]]:
    """Return what a snapshot's history says, and the files that it has added."""
    entries, unread = _entries(number, manifests, layout)
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
        unread=unread,
    )
    return found, [DataFile(each.path, each.place[0]) for each in added]


def changelog_files(
    number: int, manifests: Iterable[observations.Piece], layout: TableLayout
) -> tuple[list[str], tuple[Unread, ...]]:
    """Return the paths of a snapshot's changelog files, and what of them can't be read."""
    entries, unread = _entries(number, manifests, layout)
    return [each.path for each in entries], unread


class _ChangedFile(NamedTuple):
    """A file that a snapshot has added or deleted."""

    place: observations.Place
    is_deleted: bool
    bucket: str
    size: int

    @property
    def path(self) -> str:
        partition, name = self.place
        return "/".join(filter(None, (partition, f"bucket-{self.bucket}", name)))


def _entries(
    number: int, manifests: Iterable[observations.Piece], layout: TableLayout
) -> tuple[list[_ChangedFile], tuple[Unread, ...]]:
    """Return the entries of manifests, and what of them can't be read."""
    manifests, name = list(manifests), str(number)
    found, unread = read_each(manifests, lambda each: read_avro(observations.content_of(each), _CHANGED))
    records = [each for records in found for each in records]
    entries, failed = read_each(records, lambda each: _entry(each, layout))
    return entries, (
        *observations.unread_of("manifest", name, unread, len(manifests)),
        *observations.unread_of("file", name, failed, len(records)),
    )


def _entry(record: dict[str, Any], layout: TableLayout) -> _ChangedFile:
    file, kind = record["_FILE"], record["_KIND"]
    name, size = known(file["_FILE_NAME"], str), number(file.get("_FILE_SIZE"), MAX_SIZE)
    if kind not in (_ADDED, _DELETED):
        raise observations.UnreadableCommit("it was neither added nor deleted")
    bucket = "postpone" if record.get("_BUCKET") == -2 else str(record.get("_BUCKET", 0))
    return _ChangedFile((_partition(record, layout), name), kind == _DELETED, bucket, size or 0)


def _partition(record: dict[str, Any], layout: TableLayout) -> str:
    with observations.reading("its partition"):
        return layout.partitions.path_of_row(known(record["_PARTITION"], bytes))


def _object(body: bytes) -> dict[str, Any]:
    found = json_of(body)
    if not isinstance(found, dict):
        raise observations.UnreadableCommit("not a JSON object")
    return found
