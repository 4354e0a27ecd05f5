"""Reads a table's own history for `lakewarden assess`: commits, rollbacks, and data files that no commit names.

The newest commit comes first, so a limit cuts off the oldest ones. `handlers/assessment.py` has the rules.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio

from lakewarden.agent.clock import wall_ms
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.catalogs import TableName, catalogs
from lakewarden.agent.watching.delta import find_layout
from lakewarden.agent.watching.files import AbsentFileError, Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.formats import known_format
from lakewarden.agent.watching.iceberg import files_of, manifests_read, metadata_in, newest_metadata
from lakewarden.agent.watching.paimon import changes_read
from lakewarden.handlers.assessment import DataFile, Leftover, LostTry, PastCommit, TableHistory
from lakewarden.handlers.delta import log as delta
from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.handlers.hudi.properties import HudiTable, read_properties
from lakewarden.handlers.hudi.timeline import (
    HEARTBEAT_FOLDER,
    PROPERTIES,
    Instant,
    UnreadableHudi,
    instants,
    seconds_of,
)
from lakewarden.handlers.hudi.watching import past_commit, rolled_back
from lakewarden.handlers.iceberg import metadata as iceberg
from lakewarden.handlers.observations import File, UnreadableCommit
from lakewarden.handlers.paimon import snapshots as paimon

MAX_COMMITS = 5_000
MAX_PLACES = 300_000
"""Partitions and data files of all commits that are kept, about 100 MB."""
MAX_FOLDERS = 500
"""Folders in which data files are listed."""
MAX_LEFTOVERS = 100_000
AT_ONCE = 16
"""Files that are read at the same time."""
MAX_BYTES_AT_ONCE = 32 * 1024 * 1024
DEAD_SECONDS = 600.0
"""A pending instant of Hudi without a sign of life for so long has failed: its heartbeat's interval is a minute by default."""
COPIED_SECONDS = 3600.0
"""A data file that is so much younger than its commit was copied, and its time says nothing."""
DATA_FILES = (".parquet", ".orc", ".avro")
ZONE_SECONDS = 900
"""Time zones differ by multiples of it."""


@dataclass(slots=True)
class _Reading:
    """What was read, the newest commit first."""

    span: float
    """Seconds of history to read."""
    now: float
    commits: list[PastCommit] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    """The data files, by path, with the place of their commit in `commits`."""
    folders: dict[str, str] = field(default_factory=dict)
    """Their folders, with the partition."""
    places: int = 0
    lost: list[LostTry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, found: tuple[PastCommit, list[DataFile]] | None) -> bool:
        if found is None:
            return True
        commit, files = found
        if self.commits and commit.ended < self.commits[0].ended - self.span:
            return False
        self.places += len(commit.partitions) + len(files)
        if len(self.commits) >= MAX_COMMITS or (self.places > MAX_PLACES and self.commits):
            self.cut(
                commit.version,
                f"at most {MAX_COMMITS:,} commits, or {MAX_PLACES:,} files and partitions, are read",
            )
            return False
        for each in files:
            self.files[each.path] = len(self.commits)
            self.folders.setdefault(each.path.rpartition("/")[0], each.partition)
        self.commits.append(commit)
        return True

    def cut(self, before: object, why: object) -> None:
        self.notes.append(f"the commits before {before}: {why}")


async def past(table: str, settings: Settings, *, days: float, now: float | None = None) -> TableHistory:
    """Read the history of a table, a URI or `catalog:namespace.table`, of so many days before its newest commit.

    Raises `UnreadableTableError` if it can't be read at all.
    """
    try:
        return await _past(table, settings, days, now)
    except (AgentError, UnreadableCommit, UnreadableHudi) as error:
        raise UnreadableTableError(f"{table} can't be assessed: {error}") from error


async def _past(table: str, settings: Settings, days: float, now: float | None) -> TableHistory:
    reading = _Reading(days * 86_400, wall_ms() / 1000 if now is None else now)
    buckets = Buckets(settings)
    name = TableName.of(table)
    if name is not None:
        metadata, files = await _named(name, settings, buckets)
        form = "iceberg"
        await _iceberg(files, reading, metadata)
    else:
        files = buckets.table(table)
        form = await known_format(files)
        match form:
            case "delta":
                await _delta(files, reading)
            case "paimon":
                await _paimon(files, reading)
            case "hudi":
                await _hudi(files, reading)
            case _:
                await _iceberg(files, reading, await newest_metadata(files))
    leftovers = None if form == "hudi" else await _look_for_files(files, reading)
    return TableHistory(
        table, form, reading.commits[::-1], reading.lost, leftovers, reading.now, reading.notes
    )


# -- the formats -------------------------------------------------------------------------------------------------------


async def _delta(files: TableFiles, reading: _Reading) -> None:
    listed = await files.below(delta.LOG_FOLDER)
    newest = delta.newest_version(listed)
    if newest is None:
        raise UnreadableTableError(f"{delta.LOG_FOLDER} has no commit and no checkpoint")
    paths = _existing(listed, (delta.commit_path(each) for each in range(newest, -1, -1)))
    layout = await _layout(files, newest)
    async for path, body in _bodies(files, paths):
        version = delta.version_of(path)
        assert version is not None
        try:
            actions = delta.actions_of(body)
            own = delta.layout_of(actions)
            found = delta.past_commit(version, actions, own or layout or delta.layout_of_values(actions))
        except UnreadableCommit as error:
            return reading.cut(version + 1, error)
        if not reading.add(found):
            return None
        if own is not None and version:
            with suppress(UnreadableCommit):  # a damaged file of before: read on as far as possible
                layout = await _layout(files, version - 1)
    return None


async def _layout(files: TableFiles, version: int) -> delta.PartitionLayout | None:
    """The partition columns as of a version; None: a checkpoint has them. Raises `UnreadableCommit`."""
    try:
        return await find_layout(files, version)
    except UnreadableTableError:
        return None


async def _paimon(files: TableFiles, reading: _Reading) -> None:
    listed = await files.folder(paimon.SNAPSHOT_FOLDER)
    newest = paimon.newest_snapshot(listed)
    if newest is None:
        raise UnreadableTableError(f"{paimon.SNAPSHOT_FOLDER} has no snapshot")
    layouts: dict[int, paimon.TableLayout] = {}
    paths = _existing(listed, (paimon.snapshot_path(each) for each in range(newest, 0, -1)))
    async for path, body in _bodies(files, paths):
        number = int(path.rpartition("-")[2])
        try:
            snapshot = paimon.read_snapshot(body)
            layout, manifests = await changes_read(files, snapshot, layouts)
            more = reading.add(paimon.past_snapshot(number, snapshot, manifests, layout))
        except (UnreadableCommit, UnreadableTableError) as error:
            return reading.cut(number + 1, error)
        if not more:
            return None
    return None


async def _named(
    name: TableName, settings: Settings, buckets: Buckets
) -> tuple[iceberg.TableMetadata, TableFiles]:
    found = catalogs(settings)
    try:
        if name.catalog not in found:
            raise UnreadableTableError(
                f"no catalog is called {name.catalog}; docs/watch.md says how it is configured"
            )
        answer = await found[name.catalog].load(name, None, whole=True)
        metadata = await metadata_in(answer, buckets)
        return metadata, files_of(metadata.location, buckets, answer.access)
    finally:
        for each in found.values():
            await each.close()


async def _iceberg(files: TableFiles, reading: _Reading, metadata: iceberg.TableMetadata) -> None:
    for snapshot in metadata.snapshots:
        try:
            manifests = await manifests_read(snapshot, metadata, files)
            found = iceberg.past_snapshot(snapshot, manifests, metadata)
        except (UnreadableCommit, UnreadableTableError) as error:
            return reading.cut(snapshot.id, error)
        if not reading.add(found):
            return None
    return None


async def _hudi(files: TableFiles, reading: _Reading) -> None:
    table = read_properties(await files.read(PROPERTIES))
    listed = {path.rpartition("/")[2]: each for path, each in (await files.folder(table.timeline)).items()}
    found = instants(listed, table.layout)
    timed = [(each, at) for each in found if (at := seconds_of(each.time)) is not None]
    if not timed:
        return None
    newest, at = timed[-1]
    zone = ZONE_SECONDS * round((listed[newest.files[0].name].modified - at) / ZONE_SECONDS)
    clock = _HudiClock(listed, zone)
    completed = sorted(
        (each for each, _ in timed if each.state == "completed"), key=clock.ended, reverse=True
    )
    paths = {_completed_path(table, each): each for each in completed if each.writes}
    async for path, body in _bodies(files, [listed[path.rpartition("/")[2]] for path in paths]):
        instant = paths[path]
        try:
            commit = past_commit(
                instant, read_metadata(body), clock.began(instant.time), clock.ended(instant)
            )
        except UnreadableHudi as error:
            return reading.cut(instant.time, error)
        if not reading.add((commit, [])):
            break
    since = reading.commits[-1].began if reading.commits else None
    late = [each for each, _ in timed if (clock.began(each.time) or 0.0) >= (since or 0.0)]
    await _hudi_losses(files, reading, table, late, clock)
    return None


@dataclass(frozen=True, slots=True)
class _HudiClock:
    """Times of instants, which Hudi writes in the time zone of its writers."""

    listed: dict[str, File]
    zone: float

    def began(self, time: str) -> float | None:
        found = seconds_of(time)
        return None if found is None else found + self.zone

    def ended(self, instant: Instant) -> float:
        by_name = None if instant.completion is None else self.began(instant.completion)
        return self.listed[instant.files[-1].name].modified if by_name is None else by_name


async def _hudi_losses(
    files: TableFiles, reading: _Reading, table: HudiTable, late: Sequence[Instant], clock: _HudiClock
) -> None:
    """Instants that were rolled back, and those that are pending without a sign of life."""
    since = clock.began(late[0].time) if late else None
    rollbacks = [each for each in late if each.completes_as == "rollback" and each.state == "completed"]
    for rollback in rollbacks[-MAX_COMMITS:]:
        try:
            names, partitions = rolled_back(await files.read(_completed_path(table, rollback)))
        except (UnreadableHudi, UnreadableTableError) as error:
            reading.notes.append(f"rollback {rollback.time}: {error}")
            continue
        for name in names:
            began = clock.began(name)
            if began is not None and since is not None and began >= since:
                reading.lost.append(LostTry(name, began, partitions, clock.began(rollback.time)))
    beats = {
        path.rpartition("/")[2]: each.modified for path, each in (await files.below(HEARTBEAT_FOLDER)).items()
    }
    for each in late:
        last = max(beats.get(each.time, 0.0), *(clock.listed[file.name].modified for file in each.files))
        is_dead = each.writes and each.state != "completed" and reading.now - last > DEAD_SECONDS
        began = clock.began(each.time)
        if is_dead and not each.is_table_service and began is not None:
            reading.lost.append(LostTry(each.time, began, frozenset()))


def _completed_path(table: HudiTable, instant: Instant) -> str:
    return table.timeline + instant.files[-1].name


# -- files -------------------------------------------------------------------------------------------------------------


async def _look_for_files(files: TableFiles, reading: _Reading) -> list[Leftover] | None:
    """List the folders of the commits: when did each begin to write, and which data files does no commit name."""
    folders = list(reading.folders.items())
    if len(folders) > MAX_FOLDERS:
        reading.notes.append(
            f"files in {len(folders) - MAX_FOLDERS} of {len(folders)} folders: {MAX_FOLDERS} are listed at most"
        )
    first: dict[int, float] = {}
    leftovers: list[Leftover] = []
    for folder, partition in folders[:MAX_FOLDERS]:
        try:
            listed = await files.folder(folder)
        except UnreadableTableError as error:
            reading.notes.append(f"the files in {folder or 'the root'}: {error}")
            continue
        for path, file in listed.items():
            at = reading.files.get(path)
            if at is not None:
                if file.modified > reading.commits[at].ended + COPIED_SECONDS:
                    reading.notes.append(
                        "files that no commit names: the table was copied, so its files' times say nothing"
                    )
                    return None
                first[at] = min(first.get(at, file.modified), file.modified)
            elif path.endswith(DATA_FILES) and path.rpartition("/")[2][0] not in "._":
                leftovers.append(Leftover(partition, file.size, file.modified))
        if len(leftovers) > MAX_LEFTOVERS:
            reading.notes.append(f"files that no commit names: there are more than {MAX_LEFTOVERS:,}")
            return None
    for at, modified in first.items():
        commit = reading.commits[at]
        if commit.began is None:
            reading.commits[at] = replace(commit, began=min(modified, commit.ended))
    return leftovers


def _existing(listed: dict[str, File], paths: Iterable[str]) -> list[File]:
    """The files of consecutive commits, up to the first one that isn't there any more."""
    found: list[File] = []
    for path in paths:
        if path in listed:
            found.append(listed[path])
        elif found:
            break
    return found


async def _bodies(files: TableFiles, wanted: Sequence[File]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the content of files, in their order. Ends at the first one that is gone: older ones are, too."""
    at = 0
    while at < len(wanted):
        group: list[File] = []
        while at < len(wanted) and len(group) < AT_ONCE:
            if group and sum(each.size for each in group) + wanted[at].size > MAX_BYTES_AT_ONCE:
                break
            group.append(wanted[at])
            at += 1
        bodies = await _read_group(files, [each.path for each in group])
        for each in group:
            if each.path not in bodies:
                return
            yield each.path, bodies[each.path]


async def _read_group(files: TableFiles, paths: Sequence[str]) -> dict[str, bytes]:
    bodies: dict[str, bytes] = {}
    failed: list[UnreadableTableError] = []

    async def read(path: str) -> None:
        try:
            bodies[path] = await files.read(path)
        except AbsentFileError:
            pass
        except UnreadableTableError as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        for path in paths:
            tasks.start_soon(read, path)
    if failed:
        raise failed[0]
    return bodies
