"""The files of `_delta_log`: their names, the table's partition columns, and the footprint of one commit.

It relies on these facts of Delta's protocol, which hold for all its reader and writer versions:

- Commit N is `_delta_log/<N with 20 digits>.json`. Each line is one action, an object with one key.
- `add` has the partition's values as text, by the columns' physical names. A null or an empty text is NULL. A `remove` lacks
  those that are NULL, or all; then the folders of its file say them, as Delta and delta-rs name them.
- A file's path is a URI: relative to the table's root, or absolute, as in a shallow clone.
- `commitInfo` is free-form. Delta and delta-rs write `isBlindAppend`; Delta's own check takes a commit without it for one
  that has read.
- Checkpoints sum up the log. Commits before the newest one may be removed.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from lakewarden.events.base import MAX_ORIGIN
from lakewarden.events.codec import json_object
from lakewarden.handlers import observations
from lakewarden.handlers.assessment import DataFile, Lack, PastCommit, Unread
from lakewarden.handlers.commit_label import transaction_of_delta
from lakewarden.handlers.maker import of_delta
from lakewarden.handlers.partition_spelling import HIVE_NULL, delta_value, escape_as_hive, require_short
from lakewarden.handlers.unreadable import (
    FIRST_MS,
    LAST_MS,
    MAX_DURATION_MS,
    MAX_SIZE,
    json_of,
    number,
    read_each,
)

LOG_FOLDER: Final = "_delta_log/"
LAST_CHECKPOINT: Final = LOG_FOLDER + "_last_checkpoint"
READER_VERSIONS: Final = (1, 2, 3)
"""Versions of the protocol whose meaning of a commit is known."""
UNREADABLE_FEATURES: Final = frozenset({"catalogManaged", "catalogOwned", "catalogOwned-preview"})
"""Features of tables whose newest commits are kept by a catalog, and appear in `_delta_log` later or never."""

MAX_ACTIONS: Final = 250_000
"""Lines of one commit, of about 500 bytes of memory each."""
_OF_FILES: Final = ("path", "partitionValues", "size", "modificationTime", "dataChange")
"""What is kept of an `add` or a `remove`."""

_VERSIONED = re.compile(r"(\d{20})\.(?:json|checkpoint(?:\..+)?\.(?:parquet|json))")


def commit_path(version: int) -> str:
    """Return the path of a commit."""
    return f"{LOG_FOLDER}{version:020d}.json"


def checksum_path(version: int) -> str:
    """Return the path of the file that repeats the table's metadata, if the writer of this version has written one."""
    return f"{LOG_FOLDER}{version:020d}.crc"


def before(version: int) -> str:
    """Return a path before all files of a version, and after those of earlier ones."""
    return f"{LOG_FOLDER}{version:020d}."


def version_of(path: str) -> int | None:
    """Return the version that a commit or a checkpoint stands for, or None for any other file."""
    match = _VERSIONED.fullmatch(path.removeprefix(LOG_FOLDER))
    return None if match is None else int(match[1])


def newest_version(paths: Iterable[str]) -> int | None:
    """Return the newest version that the log has, as a commit or as a checkpoint, or None."""
    return max((found for path in paths if (found := version_of(path)) is not None), default=None)


def newest_named(paths: Iterable[str]) -> int:
    """Return the newest version that a file of the log is called after, of any kind: checksums, too."""
    names = (path.removeprefix(LOG_FOLDER).partition(".")[0] for path in paths)
    return max((int(each) for each in names if len(each) == 20 and each.isdecimal()), default=0)


def checkpoint_of(paths: Iterable[str], version: int) -> list[str]:
    """Return the parts of the newest checkpoint of a listing that is not after a version."""
    found: dict[int, list[str]] = {}
    for path in paths:
        number = version_of(path)
        if number is not None and number <= version and path != commit_path(number):
            found.setdefault(number, []).append(path)
    return sorted(found[max(found)]) if found else []


def checkpoint_version(body: bytes) -> int:
    """Return the version in `_last_checkpoint`, or 0 if it says none: then the whole log is listed."""
    version = json_object(body).get("version")
    return version if isinstance(version, int) and version > 0 else 0


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """The partition columns of a table, in order."""

    columns: tuple[tuple[str, str, str], ...]
    """Name, physical name and Spark type of each."""
    unknown: str | None = None
    """Why the columns aren't known."""

    def path(self, values: Mapping[str, Any], *, as_written: bool = False) -> str:
        """Return the partition's path, as `DeltaSink` spells it. Raises `UnreadableCommit` if that isn't certain.

        `as_written`: if it isn't, return the values as the log has them, which distinguishes the partitions of one writer.
        """
        if self.unknown is not None:
            raise observations.UnreadableCommit(self.unknown)
        if not values.keys() <= {physical for _, physical, _ in self.columns}:
            raise observations.UnreadableCommit("it has other partition columns than the table")
        return "/".join(
            f"{escape_as_hive(name)}={_spelled(values.get(physical), kind, as_written=as_written)}"
            for name, physical, kind in self.columns
        )

    def path_of(self, action: Mapping[str, Any], *, as_written: bool = False) -> str:
        """Return the path of the partition of an `add` or a `remove`, likewise."""
        values = action.get("partitionValues")
        if values is None and (self.columns or self.unknown):
            values = self._from_folders(_path(action))
        if not isinstance(values, dict | None):
            raise observations.UnreadableCommit("its partitionValues are no object")
        return self.path(values or {}, as_written=as_written)

    def _from_folders(self, path: str) -> dict[str, str | None]:
        folders = unquote(path).split("/")[:-1][-len(self.columns) :]
        pairs = [each.partition("=") for each in folders]
        if self.unknown or [name for name, _, _ in pairs] != [
            escape_as_hive(name) for name, _, _ in self.columns
        ]:
            raise observations.UnreadableCommit("it doesn't say its partition")
        values = (None if value == HIVE_NULL else unquote(value) for _, _, value in pairs)
        return {physical: value for (_, physical, _), value in zip(self.columns, values, strict=True)}


def layout_of(actions: Iterable[tuple[str, dict[str, Any]]]) -> PartitionLayout | None:
    """Return the layout in the last `metaData` of these actions, or None. Raises `UnknownVersion` for an unknown protocol."""
    layout = None
    for kind, action in actions:
        if kind == "protocol":
            _require_known(action)
        elif kind == "metaData":
            layout = _layout(action)
    return layout


def layout_of_values(actions: Iterable[tuple[str, dict[str, Any]]]) -> PartitionLayout:
    """Return a layout from the files of a commit alone: physical names by alphabet, values as they are written.

    Raises `Unreadable`.
    """
    files = [action.get("partitionValues") for kind, action in actions if kind in ("add", "remove")]
    names = sorted({str(name) for each in files if isinstance(each, dict) for name in each})
    require_short(names)
    return PartitionLayout(tuple((each, each, "string") for each in names))


def read_checksum(body: bytes) -> PartitionLayout | None:
    """Return the layout in a checksum file, or None if it has none. Raises `UnknownVersion` for an unknown protocol."""
    found = json_object(body)
    if not isinstance(found.get("metadata"), dict):
        return None
    protocol = found.get("protocol")
    if isinstance(protocol, dict):
        _require_known(protocol)
    return _layout(found["metadata"])


def actions_of(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the actions of a commit, without the statistics of files. Raises `UnreadableCommit`."""
    if body.count(b"\n") > MAX_ACTIONS:
        raise observations.UnreadableCommit(f"the commit has more than {MAX_ACTIONS:,} actions")
    actions: list[tuple[str, dict[str, Any]]] = []
    with observations.reading("the commit"):
        for line in io.BytesIO(body):
            found = json_of(line) if line.strip() else {}
            if not isinstance(found, dict):
                raise observations.UnreadableCommit("a line is not an action")
            for kind, action in found.items():
                if kind in ("add", "remove") and isinstance(action, dict):
                    actions.append((kind, {name: action[name] for name in _OF_FILES if name in action}))
                elif action is not None:
                    actions.append((kind, action if isinstance(action, dict) else {}))
    if not actions:
        raise observations.UnreadableCommit("the commit has no action")
    return actions


def foreign_commit(
    version: int, actions: Iterable[tuple[str, dict[str, Any]]], layout: PartitionLayout
) -> observations.ObservedCommit | None:
    """Return what a commit has changed, or None if it went through the gate, or has changed no file.

    | action | operation | because |
    | --- | --- | --- |
    | `remove` | `delete` | a rewrite that has read the file is refused, rearranged or not; an append isn't |
    | `add` of a commit that has read (`isBlindAppend` isn't true), in a partition without a `remove` | `delete` | the same |
    | any other `add` | `create` | the `remove` says it already, or nothing is refused |
    """
    actions = list(actions)
    info = _info(actions)
    if went_through_the_gate(info):
        return None
    additions_refute = info.get("isBlindAppend") is not True
    files = [each for each in actions if each[0] in ("add", "remove")]
    found, failed = read_each(files, lambda each: (_role(*each), (layout.path_of(each[1]), _name(each[1]))))
    places: dict[str, list[observations.Place]] = {"removed": [], "added": [], "rearranged": []}
    for role, place in found:
        places[role].append(place)
    refuting = {"removed", "added"} if additions_refute else {"removed"}
    failed = [each for each in failed if _role(*each[0]) in refuting]
    return observations.observed_commit(
        str(version),
        places["removed"],
        places["added"],
        additions_refute=additions_refute,
        rearranged=places["rearranged"],
        made_by=of_delta(info, actions),
        unread=observations.unread_of("file", str(version), failed, len(files)),
    )


def _role(kind: str, action: Mapping[str, Any]) -> str:
    if kind == "remove":
        return "removed"
    return "rearranged" if action.get("dataChange") is False else "added"


def past_commit(
    version: int,
    actions: Iterable[tuple[str, dict[str, Any]]],
    layout: PartitionLayout,
    stored: float | None = None,
) -> tuple[PastCommit, list[DataFile]] | None:
    """Return what a commit's history says, and the files that it has added, or None if it has changed no file.

    `stored`: when its file was written, which is its time if it has none of its own, as for Delta.
    """
    actions = list(actions)
    info, files = _info(actions), [each for each in actions if each[0] in ("add", "remove")]
    if not files:
        return None
    unread: list[Unread] = []
    ended = _moment(info.get("inCommitTimestamp")) or _moment(info.get("timestamp"))
    if ended is None:
        ended, why = stored or 0.0, "it has none that can be true, so its file's is taken"
        unread.append(Unread(f"the time of commit {version}", why, _TIMES, version))
    stated, took = _duration(info)
    if stated is not None and took is None:
        why = f"{stated!r:.30} milliseconds can't be true"
        unread.append(Unread(f"how long commit {version} took", why, _TIMES, version))
    base, maker = _base(version, info.get("readVersion")), of_delta(info, actions)
    if base is None:
        unread.append(Unread(f"what commit {version} had read", "its writer doesn't say it", _BASE, version))
    places, failed = read_each(
        files, lambda each: (each[0], layout.path_of(each[1], as_written=True), _path(each[1]))
    )
    removed = {str(action.get("path")) for kind, action in files if kind == "remove"}
    # Those with another deletion vector are older.
    new = [action for kind, action in files if kind == "add" and str(action.get("path")) not in removed]
    sizes = (number(each.get("size"), MAX_SIZE) for each in new)
    found = PastCommit(
        str(version),
        ended,
        maker.name or maker.engine or "(unknown)",
        str(info.get("operation") or "(unknown)")[:MAX_ORIGIN],
        frozenset(partition for _, partition, _ in places),
        frozenset(partition for kind, partition, _ in places if kind == "remove"),
        began=_first_file(info, new, ended) if took is None else ended - took,
        is_known=took is not None,
        number=version,
        base=base,
        size=sum(filter(None, sizes)),
        is_service=all(action.get("dataChange") is False for _, action in files),
        is_gates=went_through_the_gate(info),
        session=next(
            (str(action["appId"]) for kind, action in actions if kind == "txn" and action.get("appId")), None
        ),
        stored=stored,
        unread=(*unread, *observations.unread_of("file", str(version), failed, len(files))),
    )
    return found, [DataFile(unquote(path), partition) for kind, partition, path in places if kind == "add"]


def change_files(actions: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the paths of a commit's change data feed, which may lie beside the data files."""
    paths = (action.get("path") for kind, action in actions if kind == "cdc")
    return [unquote(each) for each in paths if isinstance(each, str)]


_BASE: Final = frozenset({Lack.BASE})
_TIMES: Final = frozenset({Lack.TIMES})
_ADOPTING: Final = frozenset({"CLONE", "CONVERT", "RESTORE"})
"""Operations whose files are older than they are."""


def _duration(info: Mapping[str, Any]) -> tuple[Any, float | None]:
    """Return what a commit says of its duration, and the seconds, unless that can't be true."""
    metrics = info.get("operationMetrics")
    if not isinstance(metrics, dict):
        return None, None
    stated = metrics.get("executionTimeMs", metrics.get("execution_time_ms"))  # of delta-rs
    took = number(stated, MAX_DURATION_MS)
    return stated, None if took is None else took / 1000


def _first_file(info: Mapping[str, Any], new: Iterable[dict[str, Any]], ended: float) -> float | None:
    """Return when the first new file of a commit was written."""
    if str(info.get("operation")) in _ADOPTING:
        return None
    times = filter(None, (_moment(each.get("modificationTime")) for each in new))
    first = min(times, default=None)
    return None if first is None else min(first, ended)


def _base(version: int, given: Any) -> int | None:
    """Return the version that a commit has read. The first one has read nothing; none has read a later one."""
    if version == 0:
        return -1
    return number(given, version - 1, least=-1)


def _info(actions: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return next((action for kind, action in actions if kind == "commitInfo"), {})


def _moment(value: Any) -> float | None:
    """Return seconds of a time in milliseconds."""
    found = number(value, LAST_MS, FIRST_MS)
    return None if found is None else found / 1000


def went_through_the_gate(info: Mapping[str, Any]) -> bool:
    """Return whether `commitInfo` has the gate's label."""
    return transaction_of_delta(info) is not None


def _layout(action: dict[str, Any]) -> PartitionLayout:
    try:
        with observations.reading("the table's metadata"):
            names = action["partitionColumns"]
            if not names:
                return PartitionLayout(())
            require_short(names)
            fields = {field["name"]: field for field in json_of(action["schemaString"].encode())["fields"]}
            return PartitionLayout(tuple(_columns(names, fields)))
    except observations.UnreadableCommit as error:
        return PartitionLayout((), str(error))


def _columns(names: Iterable[str], fields: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        field = fields[name]
        physical = (field.get("metadata") or {}).get("delta.columnMapping.physicalName", name)
        yield name, str(physical), str(field["type"])


def _require_known(protocol: Mapping[str, Any]) -> None:
    version = protocol.get("minReaderVersion")
    if version not in READER_VERSIONS:
        raise observations.UnknownVersion(
            f"reader version {version!r:.20} of Delta's protocol is unknown; known are {', '.join(map(str, READER_VERSIONS))}"
        )
    lists = (protocol.get(each) for each in ("readerFeatures", "writerFeatures"))
    features = {str(each) for names in lists if isinstance(names, list) for each in names}
    if features & UNREADABLE_FEATURES:
        raise observations.UnknownVersion(
            f"a catalog keeps the table's commits ({min(features & UNREADABLE_FEATURES)}), so its log lacks the newest ones"
        )


def _path(action: Mapping[str, Any]) -> str:
    path = action.get("path")
    if not isinstance(path, str) or not path.rpartition("/")[2]:
        raise observations.UnreadableCommit("it has no path")
    return path


def _name(action: Mapping[str, Any]) -> str:
    return _path(action).rpartition("/")[2]


def _spelled(value: Any, kind: str, *, as_written: bool) -> str:
    if value is None or value == "":
        return HIVE_NULL
    if not isinstance(value, str):
        raise observations.UnreadableCommit("a value of its partition is no text")
    try:
        return escape_as_hive(delta_value(value, kind))
    except (ValueError, ArithmeticError) as error:
        if as_written:
            return escape_as_hive(value)
        raise observations.UnreadableCommit(
            f"a partition has the value {value!r:.50}, which isn't of type {kind:.50}, or not certain"
        ) from error
