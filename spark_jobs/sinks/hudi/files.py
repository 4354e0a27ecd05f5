"""The files of a Hudi table, read without Spark: which batches are committed, and what a pending instant touches.

`handlers/hudi` says what the files mean. This module reads them through a file system of pyarrow, past any cache of Spark or of
Hudi's timeline server. Files of completed instants and of the archive never change, so what was found in them is kept.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from lakewarden.events import Marker, canonical_table
from lakewarden.handlers.commit_label import HUDI_LABEL
from lakewarden.handlers.hudi.markers import (
    is_direct_marker,
    is_markers_file,
    parse_marker,
    read_markers_file,
)
from lakewarden.handlers.hudi.metadata import archived_commits, read_metadata
from lakewarden.handlers.hudi.properties import HudiTable, parse_properties, read_properties
from lakewarden.handlers.hudi.timeline import (
    HEARTBEAT_FOLDER,
    MARKER_FOLDER,
    PROPERTIES,
    Instant,
    Layout,
    TimelineFile,
    UnreadableHudi,
    instants,
)
from lakewarden.handlers.maker import Maker, Winner, of_hudi
from lakewarden.spark_jobs.gate.outcome import find_batch
from lakewarden.spark_jobs.sinks.hudi.options import SQL_EXTRA_METADATA

MAX_BESIDE = 5
"""Commits among which one is looked for that was completed during another."""


@dataclass(frozen=True, slots=True)
class CompletedInstant:
    """A completed instant that a sink wrote."""

    instant: str
    writer: str
    batch: int | None
    transaction: str


class HudiFiles:
    """Reads one table. The methods raise what the store raises, and `UnreadableHudi`."""

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        """`filesystem`: a `pyarrow.fs.FileSystem`; None: the one that pyarrow has for the URI, else `ValueError`."""
        self.uri = canonical_table(uri)
        self._fs: Any = filesystem
        self._root = self.uri.partition("://")[2]
        if filesystem is None:
            self._fs, self._root = _opened(self.uri)
        self._commits: dict[str, CompletedInstant | None] = {}
        self._archived: dict[str, list[CompletedInstant]] = {}

    def properties(self) -> dict[str, str]:
        """Return what `hoodie.properties` says; nothing, if there is no table yet."""
        body = self._read(PROPERTIES)
        return {} if body is None else parse_properties(body)

    def column_types(self) -> dict[str, str | None]:
        """Return the table's columns and their types (`_type_of`), as its last commit has them, or its creation by SQL."""
        properties = self._read(PROPERTIES)
        if properties is None:
            return {}
        table = read_properties(properties)
        bodies = (self._read(table.timeline + file.name) for _, file in self._completed(table))
        schemas = (read_metadata(body).extra.get("schema", "") for body in bodies if body)
        created = parse_properties(properties).get("hoodie.table.create.schema", '{"fields": []}')
        schema = json.loads(next((each for each in schemas if '"fields"' in each), created))
        return {field["name"]: _type_of(field["type"]) for field in schema["fields"]}

    def layout(self) -> Layout | None:
        """Return the layout of the table's timeline; None, if there is no table yet."""
        table = self._table()
        return None if table is None else table.layout

    def instants(self) -> list[Instant]:
        """Return the instants of the active timeline, the oldest first."""
        table = self._table()
        return [] if table is None else self._instants(table)

    def instant(self, time: str) -> Instant | None:
        return _write_of(self.instants(), time)

    def is_committed(self, time: str) -> bool:
        """Whether the write of this instant is completed. An empty file doesn't count: Hudi's own writing of it failed."""
        table = self._table()
        if table is None:
            return False
        sizes = dict(self._list(table.timeline))
        write = _write_of(instants(sizes, table.layout), time)
        file = None if write is None else write.file("completed")
        return file is not None and sizes[file.name] > 0

    def committed(self, writer: str, batch_id: int) -> str | None:
        """Return the instant in which `writer` committed the batch, or None.

        Only for a writer without this batch or a smaller one in the active timeline, the archive is read. Raises `GateError` as
        `find_batch` does.
        """
        table = self._table()
        if table is None:
            return None
        batches = (
            (commit.batch, commit.instant)
            for commit in self._newest_first(table)
            if commit.writer == writer and commit.batch is not None
        )
        return find_batch(batches, batch_id, f"table={self.uri} writer={writer}")

    def repeated(self, writer: str, batch_id: int | None, instant: str) -> list[str]:
        """Return the other instants among the newest commits in which `writer` committed the batch."""
        alike = [each for each in self._newest(MAX_BESIDE) if (each.writer, each.batch) == (writer, batch_id)]
        return [each.instant for each in alike if batch_id is not None and each.instant != instant]

    def writers(self) -> list[str]:
        """Return the writers of all commits, the last one last. `committed` reads as much of the archive for a new writer."""
        return list(dict.fromkeys(each.writer for each in self._newest(None)))[::-1]

    def markers(self, instant: str, known_files: dict[str, int]) -> list[Marker]:
        """Return what the pending instant is known to touch.

        `known_files` has the sizes under which marker files were listed before. Only those that have grown since are read, and it
        is updated: a file that grows between the listing and the reading is read once more.
        """
        folder = f"{MARKER_FOLDER}{instant}/"
        found: list[Marker] = []
        for path, size in self._list(folder, recursive=True):
            if known_files.get(path) == size:
                continue
            if is_direct_marker(path):
                found.append(parse_marker(path))
            elif is_markers_file(path):
                body = self._read(folder + path)
                lines = read_markers_file(body or b"")
                if lines.unreadable:
                    raise UnreadableHudi(
                        f"lines of {path} are not markers: {lines.unreadable[0][:200]!r}; if the partition's name has a line "
                        "break, Hudi can't roll such a write back: replace it in the batch, or set the options "
                        "hoodie.write.markers.type=DIRECT, and hoodie.rollback.using.markers=false until this instant is rolled "
                        f"back; table={self.uri}"
                    )
                found += lines.markers
            known_files[path] = size
        return found

    def planned(self, instant: str) -> list[Marker] | None:
        """Return what the inflight file of the instant says that it is going to touch; None before it exists."""
        table = self._table()
        pending = None if table is None else _write_of(self._instants(table), instant)
        inflight = None if pending is None else pending.file("inflight")
        if table is None or inflight is None:
            return None
        body = self._read(table.timeline + inflight.name)
        if not body:
            return None
        found = read_metadata(body)
        if found.unread:
            raise UnreadableHudi(f"{inflight.name}: {found.unread[0]}; table={self.uri}")
        return list(found.touched)

    def winner(self, since: str, places: AbstractSet[tuple[str, str]]) -> Winner | None:
        """Return the last instant that was completed after `since` and touched one of the places, file groups of partitions.

        None if there is none: Hudi also refuses a commit because of a pending table service, or a rollback.
        """
        table = self._table()
        if table is None:
            return None
        for each, file in self._completed(table):
            if _completion(each) <= since:
                return None
            found = read_metadata(self._read(table.timeline + file.name) or b"")
            if places.isdisjoint((marker.partition, marker.file_group) for marker in found.touched):
                continue
            gated = _commit(each.time, found.extra)
            maker = of_hudi(found.extra) if gated is None else Maker(job=gated.writer)
            commit = maker.of_commit(f"instant {each.time}", found.operation)
            return Winner(commit, None if gated is None else gated.transaction)
        return None

    def remove_heartbeat(self, instant: str) -> None:
        """Remove the heartbeat of an instant that was rolled back. Until it is old, others take it for alive."""
        path = f"{self._root}/{HEARTBEAT_FOLDER}{instant}"
        if self._fs.get_file_info(path).is_file:
            self._fs.delete_file(path)

    # the table

    def _table(self) -> HudiTable | None:
        """Return where the table's timeline is; None if there is no table."""
        body = self._read(PROPERTIES)
        if body is None:
            return None
        return read_properties(body)

    def _instants(self, table: HudiTable) -> list[Instant]:
        return instants((path for path, _ in self._list(table.timeline)), table.layout)

    def _completed(self, table: HudiTable) -> list[tuple[Instant, TimelineFile]]:
        """Return the completed writes with the file that says so, the newest first."""
        found = sorted(self._instants(table), key=_completion, reverse=True)
        return [
            (each, file) for each in found if each.writes and (file := each.file("completed")) is not None
        ]

    def _newest(self, number: int | None) -> list[CompletedInstant]:
        table = self._table()
        return [] if table is None else list(itertools.islice(self._newest_first(table), number))

    def _newest_first(self, table: HudiTable) -> Iterator[CompletedInstant]:
        completed = self._completed(table)
        present = {file.name for _, file in completed}
        self._commits = {name: commit for name, commit in self._commits.items() if name in present}
        for each, file in completed:
            if file.name not in self._commits:
                body = self._read(table.timeline + file.name)
                if body is None:
                    continue  # archived since it was listed: it is found there
                self._commits[file.name] = self._commit_in(file.name, each.time, body)
            commit = self._commits[file.name]
            if commit is not None:
                yield commit
        yield from self._archive(table.archive) if table.layout == 2 else self._log_archive(table.archive)

    def _commit_in(self, name: str, time: str, body: bytes) -> CompletedInstant | None:
        try:
            return _commit(time, read_metadata(body).extra)
        except UnreadableHudi as error:
            raise UnreadableHudi(
                f"the completed instant {name} can't be read ({error}), so it is unknown which batch it has; roll it back, or "
                f"restore it to a savepoint, with Hudi's command line, then restart; table={self.uri}"
            ) from error

    def _archive(self, folder: str) -> Iterator[CompletedInstant]:
        """Yield the commits of the archive, the newest first."""
        version = self._read(f"{folder}_version_")
        if version is None:
            return
        manifest = self._read(f"{folder}manifest_{int(version)}")
        if manifest is None:
            raise UnreadableHudi(f"the archive's manifest_{int(version)} is missing; table={self.uri}")
        names = [str(each["fileName"]) for each in json.loads(manifest)["files"]]
        self._archived = {name: commits for name, commits in self._archived.items() if name in names}
        for name in sorted(names, key=_newest_of_file, reverse=True):
            if name not in self._archived:
                self._archived[name] = self._archived_in(folder + name)
            yield from self._archived[name]

    def _log_archive(self, folder: str) -> Iterator[CompletedInstant]:
        """The same in layout 1. A file grows where the store can append."""
        files = [(f"{folder}{path}", size) for path, size in self._list(folder) if ".archive." in path]
        known = {f"{path} {size}": path for path, size in files}
        self._archived = {name: commits for name, commits in self._archived.items() if name in known}
        for name, path in known.items():
            if name not in self._archived:
                found = archived_commits(self._read(path) or b"")
                self._archived[name] = [
                    each for each in itertools.starmap(_commit, found) if each is not None
                ]
        every = itertools.chain.from_iterable(self._archived.values())
        yield from sorted(every, key=lambda commit: commit.instant, reverse=True)

    def _archived_in(self, path: str) -> list[CompletedInstant]:
        import pyarrow.parquet as pq

        columns = ["instantTime", "completionTime", "metadata"]
        with self._fs.open_input_file(f"{self._root}/{path}") as file:
            rows = pq.read_table(file, columns=columns).to_pylist()
        rows.sort(key=lambda row: row["completionTime"] or row["instantTime"], reverse=True)
        found = (_archived_commit(str(row["instantTime"]), row["metadata"]) for row in rows)
        return [commit for commit in found if commit is not None]

    # the store

    def _read(self, path: str) -> bytes | None:
        try:
            with self._fs.open_input_stream(f"{self._root}/{path}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _list(self, folder: str, *, recursive: bool = False) -> list[tuple[str, int]]:
        """Return the paths of the files below a folder, relative to it, with their sizes."""
        from pyarrow import fs

        base = f"{self._root}/{folder}"
        found = self._fs.get_file_info(
            fs.FileSelector(base.rstrip("/"), allow_not_found=True, recursive=recursive)
        )
        return [
            (str(info.path).removeprefix(base), int(info.size))
            for info in found
            if info.is_file and not info.base_name.endswith(".crc")
        ]


def _opened(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a table's bucket or host, and the table's path in it. pyarrow would decode the path."""
    from pyarrow import ArrowInvalid, fs

    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    remedy = "pass `filesystem`, a pyarrow.fs.FileSystem, to HudiSink"
    if scheme == "abfs":
        # By an exception of Azure's client that Arrow doesn't catch
        raise ValueError(
            f"pyarrow's own file system for Azure ends the process if it finds no credentials: {remedy}, with an account key "
            f"or a SAS token, or adlfs in fs.PyFileSystem(fs.FSSpecHandler(…)); table={uri}"
        )
    try:
        found, root = fs.FileSystem.from_uri(f"{scheme}://{authority}/")
    except (ArrowInvalid, OSError) as error:
        raise ValueError(f"pyarrow can't open the table's store: {error}; {remedy}; table={uri}") from error
    return found, f"{root.rstrip('/')}/{path}"


def _type_of(avro: Any) -> str | None:
    """Return the Spark type whose values are spelled as those of an Avro type, `bigint` for integers; None: it isn't known."""
    if isinstance(avro, list):
        avro = next((each for each in avro if each != "null"), None)
    match avro:
        case {"logicalType": "decimal", "precision": precision}:
            return f"decimal({precision},{avro.get('scale', 0)})"
        case {"logicalType": "date"}:
            return "date"
        case "int" | "long":
            return "bigint"
        case "string" | "boolean":
            return str(avro)
        case _:
            return None


def _write_of(found: list[Instant], time: str) -> Instant | None:
    return next((each for each in found if each.time == time and each.writes), None)


def _completion(instant: Instant) -> str:
    return instant.completion or instant.time


def _newest_of_file(name: str) -> str:
    """The newest instant in a file of the archive: `<oldest>_<newest>_<level>.parquet`."""
    return name.split("_")[1]


def _archived_commit(instant: str, metadata: bytes | None) -> CompletedInstant | None:
    """Return the commit in a row of the archive. Rows of cleans and rollbacks have metadata of another kind."""
    # The key of a commit by SQL contains the other one.
    if not metadata or HUDI_LABEL.encode() not in metadata:
        return None
    return _commit(instant, read_metadata(metadata).extra)


def _commit(instant: str, extra: Any) -> CompletedInstant | None:
    entry = extra.get(HUDI_LABEL) or extra.get(SQL_EXTRA_METADATA)
    if entry is None:
        return None
    fields = json.loads(entry)
    return CompletedInstant(instant, fields["writer"], fields["batch"], fields["transaction"])
