"""The files of `_delta_log`: their names, the table's partition columns, and the footprint of one commit.

It relies on these facts of Delta's protocol, which hold for all its reader and writer versions:

- Commit N is `_delta_log/<N with 20 digits>.json`. Each line is one action, an object with one key.
- `add` and `remove` have the partition's values as text, by the columns' physical names. A null or an empty text is NULL.
- `commitInfo` is free-form. Delta and delta-rs write `isBlindAppend`; Delta's own check takes a commit without it for one
  that has read.
- Checkpoints sum up the log. Commits before the newest one may be removed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from lakewarden.events.base import MAX_ORIGIN
from lakewarden.events.codec import json_object
from lakewarden.handlers import observations
from lakewarden.handlers.assessment import DataFile, Lack, PastCommit, Unread
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import of_delta
from lakewarden.handlers.partition_spelling import HIVE_NULL, delta_value, escape_as_hive

LOG_FOLDER: Final = "_delta_log/"
LAST_CHECKPOINT: Final = LOG_FOLDER + "_last_checkpoint"
READER_VERSIONS: Final = (1, 2, 3)
"""Versions of the protocol whose meaning of a commit is known."""
UNREADABLE_FEATURES: Final = frozenset({"catalogManaged", "catalogOwned", "catalogOwned-preview"})
"""Features of tables whose newest commits are kept by a catalog, and appear in `_delta_log` later or never."""

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


def checkpoint_version(body: bytes) -> int:
    """Return the version in `_last_checkpoint`, or 0 if it says none: then the whole log is listed."""
    version = json_object(body).get("version")
    return version if isinstance(version, int) and version > 0 else 0


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """The partition columns of a table, in order."""

    columns: tuple[tuple[str, str, str], ...]
    """Name, physical name and Spark type of each."""

    def path(self, values: Mapping[str, str | None]) -> str:
        """Return the partition's path, as `DeltaSink` spells it."""
        return "/".join(
            f"{escape_as_hive(name)}={_spelled(values.get(physical), kind)}"
            for name, physical, kind in self.columns
        )


def layout_of(actions: Iterable[tuple[str, dict[str, Any]]]) -> PartitionLayout | None:
    """Return the layout in the last `metaData` of these actions, or None. Raises `UnreadableCommit` for an unknown protocol."""
    layout = None
    for kind, action in actions:
        if kind == "protocol":
            _require_known(action)
        elif kind == "metaData":
            layout = _layout(action)
    return layout


def layout_of_values(actions: Iterable[tuple[str, dict[str, Any]]]) -> PartitionLayout:
    """Return a layout from the files of a commit alone: physical names by alphabet, values as they are written."""
    files = [action for kind, action in actions if kind in ("add", "remove")]
    names = sorted({str(name) for each in files for name in _values(each)})
    return PartitionLayout(tuple((each, each, "string") for each in names))


def read_checksum(body: bytes) -> PartitionLayout | None:
    """Return the layout in a checksum file, or None if it has none. Raises `UnreadableCommit` for an unknown protocol."""
    found = json_object(body)
    if not isinstance(found.get("metadata"), dict):
        return None
    protocol = found.get("protocol")
    if isinstance(protocol, dict):
        _require_known(protocol)
    return _layout(found["metadata"])


def actions_of(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the actions of a commit. Raises `UnreadableCommit`."""
    try:
        found = [json.loads(line) for line in body.splitlines() if line.strip()]
    except ValueError as error:
        raise observations.UnreadableCommit(f"a line is not JSON: {error}") from error
    actions = []
    for each in found:
        if not isinstance(each, dict):
            raise observations.UnreadableCommit("a line is not an action")
        actions += [(kind, action) for kind, action in each.items() if isinstance(action, dict)]
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
    removed: list[observations.Place] = []
    added: list[observations.Place] = []
    rearranged: list[observations.Place] = []
    for kind, action in actions:
        if kind == "remove":
            found = removed
        elif kind == "add":
            found = rearranged if action.get("dataChange") is False else added
        else:
            continue
        found.append((layout.path(_values(action)), _name(action)))
    return observations.observed_commit(
        str(version),
        removed,
        added,
        additions_refute=info.get("isBlindAppend") is not True,
        rearranged=rearranged,
        made_by=of_delta(info, actions),
    )


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
    info = _info(actions)
    added = [each for kind, each in actions if kind == "add"]
    removed = [each for kind, each in actions if kind == "remove"]
    ended = _milliseconds(info.get("inCommitTimestamp")) or _milliseconds(info.get("timestamp"))
    if not (added or removed):
        return None
    unread = (
        []
        if ended is not None
        else [Unread(f"the time of commit {version}", "it has none but its file's", _TIMES, version)]
    )
    if ended is None:
        ended = 0.0 if stored is None else stored
    metrics = info.get("operationMetrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    took = _milliseconds(metrics.get("executionTimeMs", metrics.get("execution_time_ms")))  # of delta-rs
    began = min((at for each in added if (at := _milliseconds(each.get("modificationTime")))), default=None)
    base, maker = _base(version, info.get("readVersion")), of_delta(info, actions)
    if base is None:
        unread.append(Unread(f"what commit {version} had read", "its writer doesn't say it", _BASE, version))
    found = PastCommit(
        str(version),
        ended,
        maker.name or maker.engine or "(unknown)",
        str(info.get("operation") or "(unknown)")[:MAX_ORIGIN],
        frozenset(layout.path(_values(each)) for each in (*added, *removed)),
        frozenset(layout.path(_values(each)) for each in removed),
        ended - took if took is not None else None if began is None else min(began, ended),
        took is not None,
        version,
        base,
        sum(size for each in added if isinstance(size := each.get("size"), int)),
        all(each.get("dataChange") is False for each in (*added, *removed)),
        went_through_the_gate(info),
        stored=stored,
        unread=tuple(unread),
    )
    return found, [DataFile(unquote(str(each.get("path"))), layout.path(_values(each))) for each in added]


_BASE: Final = frozenset({Lack.BASE})
_TIMES: Final = frozenset({Lack.TIMES})


def _base(version: int, given: Any) -> int | None:
    """Return the version that a commit has read. The first one has read nothing; none has read a later one."""
    if version == 0:
        return -1
    return given if type(given) is int and given < version else None


def _info(actions: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return next((action for kind, action in actions if kind == "commitInfo"), {})


def _milliseconds(value: Any) -> float | None:
    """Return seconds of a number of milliseconds, which metrics have as text."""
    try:
        return int(value) / 1000
    except (TypeError, ValueError, OverflowError):
        return None


def went_through_the_gate(info: Mapping[str, Any]) -> bool:
    """Return whether `commitInfo` has the gate's label, in its `userMetadata` (`spark_jobs/sinks/delta/observer.py`)."""
    return TRANSACTION in json_object(info.get("userMetadata"))


def _layout(action: dict[str, Any]) -> PartitionLayout:
    try:
        fields = {field["name"]: field for field in json.loads(action["schemaString"])["fields"]}
        return PartitionLayout(tuple(_columns(action["partitionColumns"], fields)))
    except (KeyError, TypeError, ValueError) as error:
        raise observations.UnreadableCommit(f"the table's metadata can't be read: {error!r}") from error


def _columns(names: Iterable[str], fields: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        field = fields[name]
        physical = (field.get("metadata") or {}).get("delta.columnMapping.physicalName", name)
        yield name, str(physical), str(field["type"])


def _require_known(protocol: Mapping[str, Any]) -> None:
    version = protocol.get("minReaderVersion")
    if version not in READER_VERSIONS:
        raise observations.UnknownVersion(
            f"reader version {version} of Delta's protocol is unknown; known are {', '.join(map(str, READER_VERSIONS))}"
        )
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    if features & UNREADABLE_FEATURES:
        raise observations.UnknownVersion(
            f"a catalog keeps the table's commits ({min(features & UNREADABLE_FEATURES)}), so its log lacks the newest ones"
        )


def _values(action: Mapping[str, Any]) -> Mapping[str, str | None]:
    values = action.get("partitionValues")
    if not isinstance(values, dict):
        raise observations.UnreadableCommit(
            "a file has no partitionValues: its writer is older than Delta Lake 0.7"
        )
    return values


def _name(action: Mapping[str, Any]) -> str:
    path = action.get("path")
    if not isinstance(path, str) or not path.rpartition("/")[2]:
        raise observations.UnreadableCommit("a file has no path")
    return path.rpartition("/")[2]


def _spelled(value: str | None, kind: str) -> str:
    if value is None or not value:
        return HIVE_NULL
    try:
        return escape_as_hive(delta_value(value, kind))
    except (ValueError, ArithmeticError) as error:
        raise observations.UnreadableCommit(
            f"a partition has the value {value!r:.50}, which isn't of type {kind}: {error}"
        ) from error
