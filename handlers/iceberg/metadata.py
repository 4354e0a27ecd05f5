"""The metadata of an Iceberg table, the metadata files of a Hadoop catalog, and the footprint of one snapshot.

It relies on these facts of Iceberg's table formats 1 to 3:

- In a Hadoop catalog, version N of the table is `metadata/v<N>.metadata.json`: it exists exactly if it is committed. In any other
  catalog only the catalog knows which file counts.
- A snapshot has a manifest list. The manifests whose `added_snapshot_id` is the snapshot's have its changes: entries with the
  status 1 (added) or 2 (deleted). `content` is 0 for data files, 1 and 2 for delete files; the deletion vectors of format 3 are
  delete files, too.
- Each new snapshot of a table has the next sequence number (format 1 has none), whatever branch it is on.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lakewarden.events.inflate import inflate_gzip, inflate_zstd
from lakewarden.handlers.assessment import DataFile, Lack, PastCommit, Unread
from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.avro_blocks import MAX_BYTES, fields
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import of_iceberg
from lakewarden.handlers.observations import (
    ObservedCommit,
    Piece,
    Place,
    UnknownVersion,
    UnreadableCommit,
    content_of,
    observed_commit,
    reading,
    unread_of,
)
from lakewarden.handlers.partition_spelling import (
    binary_text,
    date_of,
    escape_as_java_url,
    iceberg_moment,
    number_text,
    require_short,
    transformed,
)
from lakewarden.handlers.unreadable import FIRST_MS, LAST_MS, MAX_SIZE, json_of, known, number, read_each

METADATA_FOLDER: Final = "metadata/"
HINT: Final = METADATA_FOLDER + "version-hint.text"
"""The number of the newest metadata file, or of one before it, in a Hadoop catalog."""
FORMAT_VERSIONS: Final = (1, 2, 3)

_LISTED = fields("manifest_path", "partition_spec_id", "added_snapshot_id")
_FILE = fields("content", "file_path", "partition", "file_size_in_bytes", "content_size_in_bytes")
_CHANGED = fields("status", "snapshot_id", data_file=_FILE)
"""What is read of lists of manifests, and of manifests."""
ENDING: Final = ".metadata.json"
_VERSION = re.compile(r"metadata/v(0|[1-9][0-9]*)(\.gz\.metadata\.json|\.metadata\.json(?:\.gz)?)")
_OTHER_CATALOG = re.compile(r"metadata/\d+-[0-9a-f-]+(\.gz)?\.metadata\.json")
_COMPRESSED = {b"\x1f\x8b": inflate_gzip, b"\x28\xb5\x2f\xfd": inflate_zstd}
_TYPES = {
    "": int,
    "string": str,
    "int": int,
    "long": int,
    "date": int,
    "boolean": bool,
    "float": float,
    "double": float,
}
"""What Avro has for values of Iceberg's types, and of functions that have their own."""
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_NONE = (None, -1)
"""In place of a snapshot's id: there is none."""
_ODD_PARENT = -2
"""In place of the id of a parent that is no number: there is one, and none has this id."""
_DATA_PATHS = ("write.data.path", "write.folder-storage.path", "write.object-storage.path")


def version_path(version: int, ending: str = ENDING) -> str:
    """Return the path of a version's metadata."""
    return f"{METADATA_FOLDER}v{version}{ending}"


def versions(paths: Iterable[str]) -> list[tuple[int, str]]:
    """Return the versions of a listing, the newest first, with the endings of their files, which may be compressed."""
    found = filter(None, map(_VERSION.fullmatch, paths))
    return sorted(((int(each[1]), each[2]) for each in found), reverse=True)


def has_other_catalog(paths: Iterable[str]) -> bool:
    """Return whether a listing has metadata files of which only a catalog knows whether they count."""
    return any(_OTHER_CATALOG.fullmatch(path) for path in paths)


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a partition spec."""

    name: str
    transform: str
    kind: str | None = ""
    """Iceberg's type of its values, unless the transform is a function that has its own. None: its column is gone."""


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """A snapshot of the main branch."""

    id: int
    operation: str
    manifests: str
    """Path of its list of manifests. Empty: it has none, as in tables of before 2019."""
    is_gates: bool
    age: tuple[int, int] = (0, 0)
    """Sequence number and time in milliseconds: higher than that of each older snapshot of the table."""
    parent: int | None = None
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """What a metadata file says that matters here."""

    snapshots: tuple[IcebergSnapshot, ...]
    """Those of the main branch, the newest first, as far as they have not expired."""
    specs: Mapping[int, tuple[SpecField, ...]]
    appends_invalidate: bool
    """Whether Iceberg refuses a MERGE for rows that were appended to its partitions since its base."""
    location: str
    uuid: str | None = None
    """None in format 1, maybe. A table that is dropped and created again has another one."""
    listed: frozenset[int] = frozenset()
    """The snapshots of all branches."""
    properties: Mapping[str, str] = field(default_factory=dict)
    has_first: bool = True
    """False: others are older than the oldest of the main branch, without numbers that would say of which branch they are."""
    has_newest: bool = True
    """False: the newest snapshot is not among those that could be read."""

    def since(self, known: IcebergSnapshot | None) -> tuple[list[IcebergSnapshot], bool]:
        """Return the snapshots after this one, the oldest first, and whether that is certainly all of them.

        | the newest snapshot | returned | all of them |
        | --- | --- | --- |
        | is `known`, or older: the branch was set back | none | yes |
        | has `known` among its ancestors | those between | yes |
        | has other ancestors, `known` is listed: it was set back, then written to | the newer ones | yes |
        | is newer, `known` or an ancestor is not listed: expired, or never listed | the newer ones | no |
        """
        for index, each in enumerate(self.snapshots):
            if known is not None and known.id in (each.id, each.parent):
                return [*self.snapshots[: index + (each.id != known.id)]][::-1], True
        newer = [each for each in self.snapshots if known is None or each.age > known.age]
        if not newer:
            return [], True
        is_cut = len(newer) == len(self.snapshots) and newer[-1].parent is not None
        return newer[::-1], not is_cut and (known is None or known.id in self.listed)

    @property
    def newest(self) -> IcebergSnapshot | None:
        return self.snapshots[0] if self.snapshots else None

    @property
    def why_unsearchable(self) -> str | None:
        """Why lost data files can be in other folders than those of the commits, or None."""
        given = self.properties
        has_hashes = given.get("write.object-storage.enabled", "false").lower() == "true"
        if has_hashes or "write.location-provider.impl" in given:
            return "their folders aren't those of partitions (object storage, a location provider), so lost ones can't be found"
        if any(name in given and not is_below(given[name], self.location) for name in _DATA_PATHS):
            return "the table's properties name a folder outside of its location, so lost ones can't be found"
        return None


def read_metadata(body: bytes) -> TableMetadata:
    """Return what a metadata file says. Raises `UnreadableCommit`."""
    with reading("the table's metadata"):
        for magic, inflate in _COMPRESSED.items():
            if body.startswith(magic):
                body = inflate(body, MAX_BYTES)
        return metadata_of(json_of(body))


def metadata_of(fields: Any) -> TableMetadata:
    """Return what metadata says that is decoded already. Raises `UnreadableCommit`.

    A snapshot or a partition spec that can't be read is left out.
    """
    with reading("the table's metadata"):
        version = fields["format-version"]
        if version not in FORMAT_VERSIONS:
            raise UnknownVersion(
                f"format version {version!r:.20} of Iceberg is unknown; known are {', '.join(map(str, FORMAT_VERSIONS))}"
            )
        types = dict(_types(fields.get("schemas") or fields.get("schema")))
        specs, _ = read_each(_specs(fields), lambda spec: (int(spec["spec-id"]), tuple(_fields(spec, types))))
        snapshots, _ = read_each(fields.get("snapshots") or (), _snapshot)
        properties = _texts(fields.get("properties"))
        level = properties.get("write.merge.isolation-level", "serializable")
        newest = _newest(fields)
        main = tuple(_main_branch(newest, snapshots))
        return TableMetadata(
            snapshots=main,
            has_first=not main
            or bool(main[-1].age[0])
            or all(each.age >= main[-1].age for each in snapshots),
            has_newest=bool(main) or newest in _NONE,
            specs=dict(specs),
            appends_invalidate=level.lower() == "serializable",
            location=str(fields["location"]),
            uuid=fields.get("table-uuid"),
            listed=frozenset(each.id for each in snapshots),
            properties=properties,
        )


def relative_path(path: str, location: str) -> str:
    """Return the path of a file below the table's root. Raises `UnreadableCommit` if it is elsewhere."""
    if not is_below(path, location):
        raise UnreadableCommit(f"a file of the table's metadata is outside of its location: {path:.200}")
    return _plain(path).removeprefix(_plain(location).rstrip("/") + "/")


def is_below(path: str, location: str) -> bool:
    """Return whether a file is below the table's root."""
    return _plain(path).startswith(_plain(location).rstrip("/") + "/") and ".." not in path.split("/")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that a snapshot has added."""

    path: str
    spec: int


def manifests_of(body: bytes, snapshot: int) -> list[Manifest]:
    """Return the manifests with the snapshot's own changes. Raises `UnreadableCommit`."""
    with reading("the list of manifests"):
        return [
            Manifest(str(each["manifest_path"]), int(each["partition_spec_id"]))
            for each in read_avro(body, _LISTED)
            if known(each["added_snapshot_id"], int) == snapshot
        ]


def foreign_snapshot(
    snapshot: IcebergSnapshot, manifests: Iterable[tuple[int, Piece]], metadata: TableMetadata
) -> ObservedCommit | None:
    """Return what a snapshot that isn't the gate's has changed, or None if it has changed no file. `manifests` have their specs.

    | entry | operation | because |
    | --- | --- | --- |
    | deleted file, rearranged or not | `delete` | a rewrite that replaces the file is refused; an append isn't |
    | added delete file | `delete` | a rewrite of its partition is refused |
    | added data file, in a partition without the above | `delete` | a serializable MERGE of its partition is refused |
    | any other added file | `create` | nothing is refused for it |

    A compaction (`replace`), or a table whose isolation level is `snapshot`, has none of the third kind.
    """
    entries, unread = _entries(manifests, metadata, snapshot.id)
    refuting = [each.place for each in entries if each.refutes]
    added = [each.place for each in entries if not each.refutes]
    appends_refute = metadata.appends_invalidate and snapshot.operation != "replace"
    maker = of_iceberg(snapshot.summary)
    return observed_commit(
        str(snapshot.id), refuting, added, additions_refute=appends_refute, made_by=maker, unread=unread
    )


def past_snapshot(
    snapshot: IcebergSnapshot, manifests: Iterable[tuple[int, Piece]], metadata: TableMetadata
) -> tuple[PastCommit, list[DataFile]]:
    """Return what a snapshot's history says, and the files that it has added."""
    entries, unread = _entries(manifests, metadata, snapshot.id)
    added, maker = [each for each in entries if not each.is_deleted], of_iceberg(snapshot.summary)
    inside = [each for each in added if is_below(each.path, metadata.location)]
    if outside := len(added) - len(inside):
        what, why = f"{outside} files of snapshot {snapshot.id}", "they are outside of the table's location"
        unread = (*unread, Unread(what, why, frozenset({Lack.PLACES})))
    found = PastCommit(
        str(snapshot.id),
        snapshot.age[1] / 1000,
        maker.name or maker.engine or "(unknown)",
        snapshot.operation,
        frozenset(each.place[0] for each in entries),
        frozenset(each.place[0] for each in entries if each.refutes),
        size=sum(each.size for each in added),
        is_service=snapshot.operation == "replace",
        is_gates=snapshot.is_gates,
        session=maker.job,
        unread=unread,
    )
    return found, [DataFile(relative_path(each.path, metadata.location), each.place[0]) for each in inside]


class _ManifestEntry(NamedTuple):
    """A file that a snapshot has added or deleted."""

    place: Place
    refutes: bool
    """Whether it refutes rewrites."""
    is_deleted: bool
    path: str
    size: int


def _entries(
    manifests: Iterable[tuple[int, Piece]], metadata: TableMetadata, snapshot: int
) -> tuple[list[_ManifestEntry], tuple[Unread, ...]]:
    """Return the snapshot's own entries of its manifests, and what of them can't be read."""

    def changes(manifest: tuple[int, Piece]) -> list[tuple[int, dict[str, Any]]]:
        with reading("the manifest"):
            return [
                (manifest[0], each)
                for each in read_avro(content_of(manifest[1]), _CHANGED)
                if each["status"] != _EXISTING
                and known(each.get("snapshot_id"), int | None) in {None, snapshot}
            ]

    manifests = list(manifests)
    found, unread = read_each(manifests, changes)
    records = [each for records in found for each in records]
    entries, failed = read_each(records, lambda each: _entry(each[1], metadata.specs.get(each[0])))
    name = str(snapshot)
    return entries, (
        *unread_of("manifest", name, unread, len(manifests)),
        *unread_of("file", name, failed, len(records)),
    )


def _entry(record: Mapping[str, Any], spec: tuple[SpecField, ...] | None) -> _ManifestEntry:
    if spec is None:
        raise UnreadableCommit("its manifest has a partition spec that the table's metadata lacks")
    file = record["data_file"]
    path = "/".join(
        f"{escape_as_java_url(field.name)}={_spelled(value, field)}"
        for field, value in zip(spec, file["partition"].values(), strict=True)
        if field.transform != "void"
    )
    if record["status"] not in (_ADDED, _DELETED):
        raise UnreadableCommit("it was neither added nor deleted")
    is_deleted, name = record["status"] == _DELETED, known(file["file_path"], str)
    refutes = is_deleted or bool(known(file.get("content"), int | None))
    size = file.get("content_size_in_bytes")  # of a deletion vector, which shares its file with others
    size = number(file.get("file_size_in_bytes") if size is None else size, MAX_SIZE) or 0
    return _ManifestEntry((path, name.rpartition("/")[2]), refutes, is_deleted, name, size)


def _spelled(value: Any, field: SpecField) -> str:
    if value is None:
        return "null"
    if field.kind is None and not isinstance(value, str):
        raise UnreadableCommit(
            f"the column of its partition field {field.name!r:.100} was dropped: its type isn't known"
        )
    kind = field.kind or ""
    known(value, _TYPES.get(kind, object) if field.kind is not None else str)
    if field.transform == "day":
        return date_of(value)
    return escape_as_java_url(_text(transformed(field.transform, value), kind))


def _text(value: Any, kind: str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return number_text(value, kind)
        case bytes():
            return binary_text(value)
        case int() if kind == "date":
            return date_of(value)
        case int() if kind.endswith("_ns"):
            raise UnreadableCommit(f"partitions by a {kind} are not followed")
        case int() if kind.startswith("timestamp"):
            return iceberg_moment(value, zoned=kind == "timestamptz")
        case _:
            return str(value)


def _snapshot(fields: Mapping[str, Any]) -> IcebergSnapshot:
    summary, manifests, parent = (
        _texts(fields.get("summary")),
        fields.get("manifest-list"),
        fields.get("parent-snapshot-id"),
    )
    return IcebergSnapshot(
        int(fields["snapshot-id"]),
        summary.get("operation", "(unknown)"),
        manifests if isinstance(manifests, str) else "",
        TRANSACTION in summary,
        (
            number(fields.get("sequence-number"), MAX_SIZE) or 0,
            number(fields.get("timestamp-ms"), LAST_MS, FIRST_MS) or 0,
        ),
        None if parent in _NONE else parent if isinstance(parent, int) else _ODD_PARENT,
        summary,
    )


def _texts(fields: Any) -> dict[str, str]:
    """Return a map of texts, without what is none."""
    if not isinstance(fields, dict):
        return {}
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def _newest(fields: Mapping[str, Any]) -> Any:
    """Return the id of the main branch's newest snapshot, or one of `_NONE`."""
    given, refs = fields.get("current-snapshot-id"), fields.get("refs")
    if given in _NONE and isinstance(refs, dict) and isinstance(refs.get("main"), dict):
        return refs["main"].get("snapshot-id")
    return given


def _main_branch(newest: Any, snapshots: Iterable[IcebergSnapshot]) -> Iterator[IcebergSnapshot]:
    found = {each.id: each for each in snapshots}
    number = newest if isinstance(newest, int) else None
    while number in found:
        each = found.pop(number)
        yield each
        number = each.parent


def _specs(fields: Mapping[str, Any]) -> list[Any]:
    return fields.get("partition-specs") or [{"spec-id": 0, "fields": fields.get("partition-spec") or []}]


def _fields(spec: Mapping[str, Any], types: Mapping[int, str]) -> Iterator[SpecField]:
    require_short([str(each["name"]) for each in spec["fields"]])
    for each in spec["fields"]:
        name, transform = str(each["name"]), str(each["transform"])
        keeps = transform.startswith(("identity", "truncate"))
        yield SpecField(name, transform, types.get(each.get("source-id")) if keeps else "")


def _types(schema: Any) -> Iterator[tuple[int, str]]:
    """Yield the columns and fields of schemas that can be partitioned by."""
    if isinstance(schema, list):
        for each in schema:
            yield from _types(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("type"), str) and "id" in schema:
            yield int(schema["id"]), schema["type"]
        for each in (schema.get("fields"), schema.get("type")):
            yield from _types(each)


def _plain(uri: str) -> str:
    """Return authority and path. Hadoop has several schemes for one store, and several spellings of local files."""
    scheme, _, rest = uri.partition(":")
    if scheme == "file":
        return "/" + rest.removeprefix("//localhost/").lstrip("/")
    return uri.partition("://")[2] if "://" in uri else uri.removeprefix("./")
