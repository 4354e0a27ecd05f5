"""The metadata of an Iceberg table, the metadata files of a Hadoop catalog, and the footprint of one snapshot.

It relies on these facts of Iceberg's table formats 1 to 3:

- In a Hadoop catalog, version N of the table is `metadata/v<N>.metadata.json`: it exists exactly if it is committed. In any other
  catalog only the catalog knows which file counts.
- A snapshot has a manifest list. The manifests whose `added_snapshot_id` is the snapshot's have its changes: entries with the
  status 1 (added) or 2 (deleted). `content` is 0 for data files, 1 and 2 for delete files; the deletion vectors of format 3 are
  delete files, too.
- Each new snapshot of a table has the next sequence number (format 1 has none), whatever branch it is on.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from lakewarden.events.inflate import inflate_gzip
from lakewarden.handlers.assessment import DataFile, Lack, PastCommit, Unread
from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.avro_blocks import MAX_BYTES
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import of_iceberg
from lakewarden.handlers.observations import ObservedCommit, Place, UnreadableCommit, observed_commit
from lakewarden.handlers.partition_spelling import (
    binary_text,
    date_of,
    escape_as_java_url,
    iceberg_moment,
    number_text,
    transformed,
)

METADATA_FOLDER: Final = "metadata/"
FORMAT_VERSIONS: Final = (1, 2, 3)

_VERSION = re.compile(r"metadata/v(\d+)(\.gz)?\.metadata\.json")
_OTHER_CATALOG = re.compile(r"metadata/\d+-[0-9a-f-]+(\.gz)?\.metadata\.json")
_DELETED = 2
_EXISTING = 0


def version_path(version: int, *, gzipped: bool) -> str:
    """Return the path of a version's metadata."""
    return f"{METADATA_FOLDER}v{version}{'.gz' if gzipped else ''}.metadata.json"


def newest_version(paths: Iterable[str]) -> tuple[int, bool] | None:
    """Return the newest version of a listing, and whether its file is compressed; None if the table has no such file."""
    found = ((int(match[1]), bool(match[2])) for path in paths if (match := _VERSION.fullmatch(path)))
    return max(found, default=None)


def has_other_catalog(paths: Iterable[str]) -> bool:
    """Return whether a listing has metadata files of which only a catalog knows whether they count."""
    return any(_OTHER_CATALOG.fullmatch(path) for path in paths)


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a partition spec."""

    name: str
    transform: str
    kind: str = ""
    """Iceberg's type of its values, unless the transform is a function that has its own."""


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """A snapshot of the main branch."""

    id: int
    operation: str
    manifests: str
    """Path of its list of manifests."""
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


def read_metadata(body: bytes) -> TableMetadata:
    """Return what a metadata file says. Raises `UnreadableCommit`."""
    try:
        fields = json.loads(inflate_gzip(body, MAX_BYTES) if body.startswith(b"\x1f\x8b") else body)
    except (ValueError, EOFError, OSError) as error:
        raise _unreadable(error) from error
    return metadata_of(fields)


def metadata_of(fields: Any) -> TableMetadata:
    """Return what metadata says that is decoded already. Raises `UnreadableCommit`."""
    try:
        version = fields["format-version"]
        if version not in FORMAT_VERSIONS:
            raise UnreadableCommit(
                f"format version {version} of Iceberg is unknown; known are {', '.join(map(str, FORMAT_VERSIONS))}"
            )
        properties = fields.get("properties") or {}
        types = dict(_types(fields.get("schemas") or fields.get("schema")))
        return TableMetadata(
            snapshots=tuple(_main_branch(fields)),
            specs={int(spec["spec-id"]): tuple(_fields(spec, types)) for spec in _specs(fields)},
            appends_invalidate=properties.get("write.merge.isolation-level", "serializable").lower()
            == "serializable",
            location=str(fields["location"]),
            uuid=fields.get("table-uuid"),
            listed=frozenset(each["snapshot-id"] for each in fields.get("snapshots") or ()),
            properties=properties,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> UnreadableCommit:
    return UnreadableCommit(f"the table's metadata can't be read: {error!r:.200}")


def relative_path(path: str, location: str) -> str:
    """Return the path of a file below the table's root. Raises `UnreadableCommit` if it is elsewhere."""
    if not is_below(path, location):
        raise UnreadableCommit(f"a file of the table's metadata is outside of its location: {path}")
    return _plain(path).removeprefix(_plain(location).rstrip("/") + "/")


def is_below(path: str, location: str) -> bool:
    """Return whether a file is below the table's root."""
    return _plain(path).startswith(_plain(location).rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that a snapshot has added."""

    path: str
    spec: int


def manifests_of(body: bytes, snapshot: int) -> list[Manifest]:
    """Return the manifests with the snapshot's own changes. Raises `UnreadableCommit`."""
    try:
        return [
            Manifest(str(each["manifest_path"]), int(each["partition_spec_id"]))
            for each in read_avro(body)
            if each["added_snapshot_id"] == snapshot
        ]
    except (KeyError, TypeError) as error:
        raise UnreadableCommit(f"the list of manifests lacks {error}") from error


def foreign_snapshot(
    snapshot: IcebergSnapshot, manifests: Iterable[tuple[int, bytes]], metadata: TableMetadata
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
    entries = [
        entry for spec, body in manifests for entry in _entries(body, metadata.specs.get(spec), snapshot.id)
    ]
    refuting = [each.place for each in entries if each.refutes]
    added = [each.place for each in entries if not each.refutes]
    appends_refute = metadata.appends_invalidate and snapshot.operation != "replace"
    maker = of_iceberg(snapshot.summary)
    return observed_commit(str(snapshot.id), refuting, added, additions_refute=appends_refute, made_by=maker)


def past_snapshot(
    snapshot: IcebergSnapshot, manifests: Iterable[tuple[int, bytes]], metadata: TableMetadata
) -> tuple[PastCommit, list[DataFile]]:
    """Return what a snapshot's history says, and the files that it has added."""
    entries = [
        entry for spec, body in manifests for entry in _entries(body, metadata.specs.get(spec), snapshot.id)
    ]
    added, maker = [each for each in entries if not each.is_deleted], of_iceberg(snapshot.summary)
    inside = [each for each in added if is_below(each.path, metadata.location)]
    unread = []
    if len(inside) < len(added):
        what, why = (
            f"{len(added) - len(inside)} files of snapshot {snapshot.id}",
            "they are outside of the table's location",
        )
        unread.append(Unread(what, why, frozenset({Lack.PLACES})))
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
        unread=tuple(unread),
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


def _entries(body: bytes, spec: tuple[SpecField, ...] | None, snapshot: int) -> Iterator[_ManifestEntry]:
    if spec is None:
        raise UnreadableCommit("a manifest has a partition spec that the table's metadata lacks")
    try:
        for each in read_avro(body):
            if each["status"] == _EXISTING or each.get("snapshot_id") not in {None, snapshot}:
                continue
            file = each["data_file"]
            values = list(file["partition"].values())
            path = "/".join(
                f"{escape_as_java_url(field.name)}={_spelled(value, field)}"
                for field, value in zip(spec, values, strict=True)
                if field.transform != "void"
            )
            is_deleted, found = each["status"] == _DELETED, str(file["file_path"])
            refutes = is_deleted or bool(file.get("content"))
            size = int(file.get("file_size_in_bytes") or 0)
            yield _ManifestEntry((path, found.rpartition("/")[2]), refutes, is_deleted, found, size)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableCommit(f"an entry of a manifest can't be read: {error!r}") from error


def _spelled(value: Any, field: SpecField) -> str:
    if value is None:
        return "null"
    if field.transform == "day":
        return date_of(value)
    return escape_as_java_url(_text(transformed(field.transform, value), field.kind))


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
            raise ValueError(f"partitions by a {kind} are not followed")
        case int() if kind.startswith("timestamp"):
            return iceberg_moment(value, zoned=kind == "timestamptz")
        case _:
            return str(value)


def _main_branch(fields: Mapping[str, Any]) -> Iterator[IcebergSnapshot]:
    found = {each["snapshot-id"]: each for each in fields.get("snapshots") or ()}
    number = fields.get("current-snapshot-id")
    while number in found:
        each = found.pop(number)
        summary = each.get("summary") or {}
        if "manifest-list" not in each:
            raise UnreadableCommit("a snapshot has no list of manifests, as in tables of before 2019")
        yield IcebergSnapshot(
            int(each["snapshot-id"]),
            str(summary.get("operation")),
            str(each["manifest-list"]),
            TRANSACTION in summary,
            (int(each.get("sequence-number") or 0), int(each.get("timestamp-ms") or 0)),
            each.get("parent-snapshot-id"),
            summary,
        )
        number = each.get("parent-snapshot-id")


def _specs(fields: Mapping[str, Any]) -> list[Any]:
    return fields.get("partition-specs") or [{"spec-id": 0, "fields": fields.get("partition-spec") or []}]


def _fields(spec: Mapping[str, Any], types: Mapping[int, str]) -> Iterator[SpecField]:
    for each in spec["fields"]:
        name, transform = str(each["name"]), str(each["transform"])
        keeps = transform.startswith(("identity", "truncate"))
        yield SpecField(name, transform, types[each["source-id"]] if keeps else "")


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
    if "://" not in uri and not uri.startswith("file:"):
        return uri
    split = urlsplit(uri)
    return (split.netloc if split.netloc != "localhost" else "") + split.path
