"""Reads a table's own history for `lakewarden assess`: commits, rollbacks, and data files that no commit names.

`handlers/assessment.py` has the rules of the figures. These are the rules of reading:

1. The newest commit comes first. Reading ends at `--days` before the newest one, so a limit cuts off the oldest ones.
2. A commit that can't be read costs that commit: reading goes on, and its `Unread` says so. After `MAX_UNREAD` of them it ends.
3. **Times may be wrong.** The order of commits is the format's, never that of times. A commit from before the period ends the
   reading only if its file is from before, too, by the store's clock; else if `CONFIRMING` commits in a row are, and the history
   isn't called whole then. A time that is later than its file's, or doesn't fit into the order of the others, is replaced by a
   neighbour's, and reported.
4. **Copies.** A file that is younger than its commit was copied. Then files' times say nothing: no data file is looked for.
5. Hudi names instants in a time zone, which the files' times show: at most 14 hours, in quarters of an hour.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

import anyio

from lakewarden.agent.clock import wall_ms
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.catalog import TableName
from lakewarden.agent.watching.catalogs import catalogs
from lakewarden.agent.watching.delta import find_layout, newest_commit
from lakewarden.agent.watching.files import Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.formats import KnownFormat, known_format
from lakewarden.agent.watching.iceberg import files_of, manifests_read, metadata_in, newest_metadata
from lakewarden.agent.watching.paimon import changes_read
from lakewarden.handlers.assessment import (
    DataFile,
    Lack,
    Leftover,
    LostTry,
    PastCommit,
    TableHistory,
    Unread,
    joined,
)
from lakewarden.handlers.delta import log as delta
from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.handlers.hudi.properties import HudiTable, read_properties
from lakewarden.handlers.hudi.timeline import (
    HEARTBEAT_FOLDER,
    PROPERTIES,
    Instant,
    instants,
    seconds_of,
    time_of,
)
from lakewarden.handlers.hudi.watching import past_commit, rolled_back
from lakewarden.handlers.iceberg import metadata as iceberg
from lakewarden.handlers.observations import File, UnknownVersion
from lakewarden.handlers.paimon import snapshots as paimon
from lakewarden.handlers.unreadable import Unreadable

MAX_COMMITS = 50_000
MAX_PLACES = 300_000
"""Partitions and data files of all commits that are kept, about 100 MB."""
MAX_FOLDERS = 500
"""Folders in which data files are listed."""
MAX_LEFTOVERS = 100_000
MAX_UNREAD = 100
"""Commits that can't be read before reading ends."""
CONFIRMING = 50
"""Commits in a row from before the period that end it, if files don't (rule 3)."""
AT_ONCE = 256
"""Commits of Delta and Hudi that are read at the same time: each is one small file."""
AT_ONCE_WITH_MANIFESTS = 32
LISTED_AHEAD = 2_000
"""Files that are listed while those before them are read."""
MAX_BYTES_AT_ONCE = 32 * 1024 * 1024
DEAD_SECONDS = 600.0
"""A pending instant of Hudi without a sign of life for so long has failed: its heartbeat's interval is a minute by default."""
COPIED_SECONDS = 3600.0
"""A file that is so much younger than its commit's time was copied."""
LATE_SECONDS = 10.0
"""A data file that is so much younger than its commit's file was copied: it was there before, and the store's clock is one."""
SKEW_SECONDS = 3600.0
"""Clocks of writers differ by so much without being called wrong."""
EARLIEST = 1_000_000_000.0
"""No table format existed in 2001."""
DATA_FILES = (".parquet", ".orc", ".avro")
OWN_FOLDERS = re.compile(
    r"[._][^=]*|branch|changelog|consumer|index|manifest|metadata|schema|service|snapshot|statistics|tag"
)
"""Folders that have no data files, but the format's own."""
ZONE_SECONDS = 900
"""Time zones differ by multiples of it."""
MAX_ZONE_SECONDS = 14 * 3600
LOG_CHUNK = 1_000
"""Versions of Delta's log that are listed at once, where the store's listing can begin anywhere."""

_NOT_PLAIN = frozenset({"", ".", ".."})
"""Parts of a path that name another folder: `s3://` has an empty one, too."""
_UNREADABLE = (Unreadable, UnreadableTableError)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Found = tuple[PastCommit, list[DataFile]]
Progress = Callable[[str], None]


@dataclass(slots=True)
class _Reading:
    """What was read, the newest commit first."""

    span: float
    """Seconds of history to read."""
    now: float
    progress: Progress
    commits: list[PastCommit] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    """The data files, by path, with the place of their commit in `commits`. -1: of a commit that was not read."""
    folders: dict[str, str] = field(default_factory=dict)
    """Their folders, with the partition."""
    places: int = 0
    lost: list[LostTry] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    failed: int = 0
    copied: int = 0
    """Commits whose file is younger than they are, by `COPIED_SECONDS`."""
    reached: int | None = None
    """The number of the oldest commit that was seen, in a format that counts them."""
    before: list[Found] = field(default_factory=list)
    """The last commits, if they are from before the period (rule 3)."""
    newest: float | None = None
    stored: float | None = None
    """The newest commit's time, and the store's of its file."""

    def add(self, found: Found | None) -> bool:
        """Add a commit. Returns whether to read on."""
        if found is None:
            return True
        commit = found[0]
        if self._is_plausible(commit):
            self.newest = commit.ended if self.newest is None else max(self.newest, commit.ended)
        self.stored = commit.stored if self.stored is None else self.stored
        is_before = self.newest is not None and commit.ended < self.newest - self.span
        by_store = None if commit.stored is None or self.stored is None else self.stored - commit.stored
        if is_before and by_store is not None and by_store > self.span:
            return False
        if is_before:
            self.before.append(found)
            return len(self.before) < CONFIRMING
        for each in (*self.before, found):
            if not self._keep(*each):
                return False
        self.before.clear()
        return True

    def _keep(self, commit: PastCommit, files: list[DataFile]) -> bool:
        self.places += len(commit.partitions) + len(files)
        if len(self.commits) >= MAX_COMMITS or (self.places > MAX_PLACES and self.commits):
            why = f"at most {MAX_COMMITS:,} commits, or {MAX_PLACES:,} files and partitions, are read"
            self.lacks(f"commits before {self.commits[-1].version}", why, Lack.OLDER)
            return False
        inside = [
            each
            for each in files
            if not each.path.startswith("/") and _NOT_PLAIN.isdisjoint(each.path.split("/"))
        ]
        if len(inside) < len(files):
            what = f"{len(files) - len(inside)} files of commit {commit.version}"
            # NAMES: one may be in the table, by an absolute path or another spelling.
            self.lacks(what, "they are outside of the table's folder", Lack.PLACES, Lack.NAMES)
        for each in inside:
            self.files[each.path] = len(self.commits)
            self.folders.setdefault(each.path.rpartition("/")[0], each.partition)
        self.commits.append(commit)
        self.copied += commit.stored is not None and commit.stored - commit.ended > COPIED_SECONDS
        self.progress(f"{len(self.commits):,} commits read")
        return True

    def reach(self, number: int, what: str) -> None:
        """The next commit that is there. Those between it and the one before are missing."""
        if self.reached is not None and number < self.reached - 1:
            first, last = number + 1, self.reached - 1
            numbers = f"{what} {first}" if first == last else f"{what}s {first} to {last}"
            self.lacks(numbers, "older ones are there, so the table's log is damaged", Lack.COMMITS)
        self.reached = number

    def fail(self, what: str, error: Exception) -> bool:
        """A commit can't be read (rule 2). Returns whether to read on."""
        self.failed += 1
        self.lacks(what, str(error), Lack.COMMITS)
        if self.failed >= MAX_UNREAD:
            self.lacks(f"commits before {what}", f"{MAX_UNREAD} commits could not be read", Lack.OLDER)
        return self.failed < MAX_UNREAD

    def lacks(self, what: str, why: str, *lacks: Lack) -> None:
        self.unread.append(Unread(what, why, frozenset(lacks)))

    def finish(self) -> None:
        """Put the commits in order, with times that fit into it (rule 3)."""
        if self.before and self.commits:
            why = "their times are from before the period, those of their files are not"
            self.lacks(f"commits before {self.commits[-1].version}", why, Lack.OLDER, Lack.TIMES)
        self.commits.reverse()
        last = len(self.commits) - 1
        self.files = {path: last - at if at >= 0 else at for path, at in self.files.items()}
        self._straighten()

    def _straighten(self) -> None:
        sound = [at for at, each in enumerate(self.commits) if self._is_plausible(each)]
        in_order = [sound[at] for at in _longest_rising([self.commits[at].ended for at in sound])]
        neighbour, following = None, iter([*in_order, None])
        after = next(following)
        for at, each in enumerate(self.commits):
            if at == after:
                neighbour, after = each.ended, next(following)
                continue
            bounds = [self.commits[after].ended] if after is not None else []
            bounds += [neighbour] if neighbour is not None else []
            if any(abs(each.ended - bound) <= SKEW_SECONDS for bound in bounds):
                continue
            fitting = min(bounds, default=self.now if each.stored is None else each.stored)
            seconds = each.seconds if each.is_known else None
            began = None if seconds is None else fitting - seconds
            why = "it doesn't fit to its file's, or between those of the commits before and after, so a clock is wrong"
            piece = Unread(f"the time of commit {each.version}", why, frozenset({Lack.TIMES}), each.number)
            self.commits[at] = replace(each, ended=fitting, began=began, unread=(*each.unread, piece))

    @property
    def is_copied(self) -> bool:
        return self.copied > len(self.commits) / 2

    def _is_plausible(self, commit: PastCommit) -> bool:
        """A commit isn't from the future, and not younger than its file."""
        latest = self.now + 86_400
        if commit.stored is not None:
            latest = min(latest, commit.stored + SKEW_SECONDS)
        return EARLIEST <= commit.ended <= latest


def _longest_rising(values: Sequence[float]) -> list[int]:
    """The places of a longest part of the values that never falls."""
    tails: list[float] = []
    ends: list[int] = []
    before: list[int] = []
    for at, value in enumerate(values):
        length = bisect_right(tails, value)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1] = [value]
        ends[length : length + 1] = [at]
    found, at = [], ends[-1] if ends else -1
    while at >= 0:
        found.append(at)
        at = before[at]
    return found[::-1]


def _silent(_: str) -> None:
    pass


async def past(
    table: str, settings: Settings, *, days: float, now: float | None = None, progress: Progress = _silent
) -> TableHistory:
    """Read the history of a table, a URI or `catalog:namespace.table`, of so many days before its newest commit.

    Raises `UnreadableTableError` if it can't be read at all.
    """
    try:
        return await _past(table, settings, days, now, progress)
    except (AgentError, Unreadable) as error:
        raise UnreadableTableError(f"{table} can't be assessed: {error}") from error


async def _past(
    table: str, settings: Settings, days: float, now: float | None, progress: Progress
) -> TableHistory:
    reading = _Reading(days * 86_400, wall_ms() / 1000 if now is None else now, progress)
    buckets = Buckets(settings)
    name = TableName.of(table)
    known = KnownFormat("iceberg")
    if name is not None:
        metadata, files = await _named(name, settings, buckets)
        await _iceberg(files, reading, metadata)
    else:
        files = buckets.table(table)
        known = await known_format(files)
        match known.form:
            case "delta":
                await _delta(files, reading)
            case "paimon":
                await _paimon(files, reading)
            case "hudi":
                await _hudi(files, reading)
            case _:
                await _iceberg(files, reading, await newest_metadata(files))
    for each in known.others:
        reading.lacks(f"the table's commits in {each}", f"the newest one is in {known.form}", Lack.NAMES)
    reading.finish()
    leftovers = None if known.form == "hudi" else await _look_for_files(files, known.form, reading)
    commits = joined(reading.commits)
    return TableHistory(
        table, known.form, commits, reading.lost, leftovers, reading.now, reading.unread, known.translations
    )


# -- the formats -------------------------------------------------------------------------------------------------------


async def _delta(files: TableFiles, reading: _Reading) -> None:
    newest = await newest_commit(files)
    layout, reading.reached = await _layout(files, newest), newest + 1

    async def use(file: File, body: bytes | Exception) -> bool:
        nonlocal layout
        version = delta.version_of(file.path)
        assert version is not None
        reading.reach(version, "commit")
        try:
            if isinstance(body, Exception):
                raise body
            actions = delta.actions_of(body)
            own = delta.layout_of(actions)
            spelling = own or layout or delta.layout_of_values(actions)
            found = delta.past_commit(version, actions, spelling, file.modified)
        except _UNREADABLE as error:
            return reading.fail(f"commit {version}", error)
        if not reading.add(found):
            return False
        if own is not None and version:
            with suppress(UnknownVersion):  # of before an upgrade, maybe a preview's
                layout = await _layout(files, version - 1)
        return True

    listed = _log_of_delta(files, newest)
    if await _in_order(listed, lambda each: files.read(each.path), use, AT_ONCE) and reading.reached:
        reading.lacks(f"commits before {reading.reached}", "the table's log has been cleaned", Lack.OLDER)


async def _log_of_delta(files: TableFiles, newest: int) -> AsyncIterator[File]:
    """Yield the commits of Delta's log, the newest first, listed chunk by chunk where the store's listing seeks."""
    top, low = newest, max(0, newest - LOG_CHUNK + 1) if files.seeks else 0
    while top >= 0:
        found: dict[int, File] = {}
        async for page in files.pages(delta.LOG_FOLDER, delta.before(low)):
            for path, file in page.items():
                version = delta.version_of(path)
                if version is not None and low <= version <= top and path == delta.commit_path(version):
                    found[version] = file
            if files.seeks and next(reversed(page)) >= delta.before(top + 1):
                break
        is_whole = len(found) == top - low + 1
        for version in sorted(found, reverse=True):
            yield found[version]
        # After a gap, the rest is listed from its beginning: the log is cleaned or damaged.
        top, low = low - 1, max(0, low - LOG_CHUNK) if is_whole else 0


async def _layout(files: TableFiles, version: int) -> delta.PartitionLayout | None:
    """The partition columns as of a version; None: they can't be found. Raises `UnknownVersion`."""
    try:
        return await find_layout(files, version)
    except UnknownVersion:
        raise
    except _UNREADABLE:
        return None


async def _paimon(files: TableFiles, reading: _Reading) -> None:
    listed: dict[int, File] = {}
    async for page in files.pages(paimon.SNAPSHOT_FOLDER):
        numbers = {paimon.newest_snapshot([path]): file for path, file in page.items()}
        listed |= {number: file for number, file in numbers.items() if number is not None}
    if not listed:
        raise UnreadableTableError(f"{paimon.SNAPSHOT_FOLDER} has no snapshot")
    layouts: dict[int, paimon.TableLayout] = {}

    async def read(number: int) -> tuple[Found, list[DataFile]]:
        snapshot = paimon.read_snapshot(await files.read(listed[number].path))
        layout, manifests = await changes_read(files, snapshot, layouts)
        commit, added = paimon.past_snapshot(number, snapshot, manifests, layout)
        changelogs: list[DataFile] = []
        unread = commit.unread
        if snapshot.changelogs is not None:
            try:
                _, manifests = await changes_read(
                    files, replace(snapshot, changes=snapshot.changelogs), layouts
                )
                other, changelogs = paimon.past_snapshot(number, snapshot, manifests, layout)
                unread = (*unread, *other.unread)
            except _UNREADABLE as error:
                what = f"the changelog files of snapshot {number}"
                unread = (*unread, Unread(what, str(error), frozenset({Lack.NAMES}), number))
        stored = listed[number].modified
        return (replace(commit, commit=snapshot.commit, stored=stored, unread=unread), added), changelogs

    async def use(number: int, result: tuple[Found, list[DataFile]] | Exception) -> bool:
        reading.reach(number, "snapshot")
        if isinstance(result, Exception):
            return reading.fail(f"snapshot {number}", result)
        found, changelogs = result
        reading.files |= dict.fromkeys((each.path for each in changelogs), -1)
        return reading.add(found)

    is_whole = await _in_order(sorted(listed, reverse=True), read, use, AT_ONCE_WITH_MANIFESTS)
    if is_whole and reading.reached != 1:
        reading.lacks(f"snapshots before {reading.reached}", "they have expired", Lack.OLDER)
    if "branch" in await files.folders(""):
        reading.lacks("the table's branches", "only the main branch is read", Lack.NAMES)


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
    names = {each.manifests.rpartition("/")[2] for each in metadata.snapshots}
    written: dict[str, float] = {}
    """When each list of manifests was: after the snapshots before its own were published."""
    with suppress(UnreadableTableError):
        async for page in files.pages(iceberg.METADATA_FOLDER):
            found = {path.rpartition("/")[2]: each.modified for path, each in page.items()}
            written |= {name: found[name] for name in found.keys() & names}

    async def read(snapshot: iceberg.IcebergSnapshot) -> Found:
        manifests = await manifests_read(snapshot, metadata, files)
        commit, added = iceberg.past_snapshot(snapshot, manifests, metadata)
        return replace(commit, stored=written.get(snapshot.manifests.rpartition("/")[2])), added

    async def use(snapshot: iceberg.IcebergSnapshot, result: Found | Exception) -> bool:
        if isinstance(result, Exception):
            return reading.fail(f"snapshot {snapshot.id}", result)
        return reading.add(result)

    main = metadata.snapshots
    others = len(metadata.listed - {each.id for each in main})
    is_whole = await _in_order(main, read, use, AT_ONCE_WITH_MANIFESTS)
    if is_whole and main and (main[-1].parent is not None or main[-1].age[0] > 1 + others):
        reading.lacks(f"snapshots before {main[-1].id}", "they have expired", Lack.OLDER)
    if others:
        why = "they are of branches, staged or rolled back, and only the main branch is read"
        reading.lacks(f"{others} snapshots", why, Lack.NAMES)
    has_hashes = metadata.properties.get("write.object-storage.enabled", "false").lower() == "true"
    if has_hashes or "write.location-provider.impl" in metadata.properties:
        why = "their folders aren't those of partitions (object storage, a location provider), so lost ones can't be found"
        reading.lacks("data files", why, Lack.PLACES)


async def _hudi(files: TableFiles, reading: _Reading) -> None:
    table = read_properties(await files.read(PROPERTIES))
    listed = await _timeline(files, table, reading)
    found = instants(listed, table.layout)
    timed = [each for each in found if seconds_of(each.time) is not None]
    clock = _HudiClock.of(listed, timed, table, reading)
    completed = sorted((each for each in timed if each.state == "completed" and each.writes), key=clock.ended)
    ends = [clock.ended(each) for each in completed]
    places = {each.time: at for at, each in enumerate(completed)}

    of_file = {_completed_path(table, each): each for each in completed}

    async def read(file: File) -> Found:
        instant = of_file[file.path]
        body, began = await files.read(file.path), clock.began(instant.time)
        commit = past_commit(instant, read_metadata(body), began, clock.ended(instant))
        if not clock.by_names:
            return replace(commit, is_known=clock.has_ends and began is not None), []
        seen = bisect_right(ends, began or 0.0) - 1
        return replace(commit, number=places[instant.time], base=seen), []

    async def use(file: File, result: Found | Exception) -> bool:
        if isinstance(result, Exception):
            return reading.fail(f"instant {of_file[file.path].time}", result)
        return reading.add(result)

    newest_first = (listed[each.files[-1].name] for each in reversed(completed))
    is_whole = await _in_order(newest_first, read, use, AT_ONCE)
    async for page in files.pages(table.archive):
        if is_whole and page:
            reading.lacks(
                f"instants before {found[0].time if found else 'now'}", "Hudi has archived them", Lack.OLDER
            )
        break
    since = min((each.began for each in reading.commits if each.began is not None), default=0.0)
    late = [each for each in timed if (clock.began(each.time) or 0.0) >= since]
    await _hudi_losses(files, reading, table, late, clock)


async def _timeline(files: TableFiles, table: HudiTable, reading: _Reading) -> dict[str, File]:
    """List the timeline, where the store seeks from before the period only, if the table's newest write is in it."""
    since = "1"
    if files.seeks:
        since = time_of(reading.now - 2 * reading.span - 2 * MAX_ZONE_SECONDS)
    listed: dict[str, File] = {}
    for after in {since: None, "1": None}:  # other folders and files begin with no digit
        listed.clear()
        async for page in files.pages_of_folder(table.timeline, table.timeline + after):
            listed |= {path.rpartition("/")[2]: each for path, each in page.items()}
            if files.seeks and page and next(reversed(page)) > table.timeline + ":":
                break
        writes = [each.modified for name, each in listed.items() if name.endswith("commit")]
        if max(writes, default=0.0) > reading.now - reading.span:
            break
    return listed


@dataclass(frozen=True, slots=True)
class _HudiClock:
    """Times of instants, which Hudi writes in a time zone of its writers (rule 5)."""

    listed: dict[str, File]
    zone: float
    completion_zone: float
    by_names: bool
    """Whether instants and their completions are of one clock, so that their order is the table's own."""
    has_ends: bool
    """Whether it is known when instants were completed."""

    @classmethod
    def of(
        cls, listed: dict[str, File], timed: Sequence[Instant], table: HudiTable, reading: _Reading
    ) -> _HudiClock:
        """Find the zones from the files' times: a file is written when its instant begins, or is completed."""
        begins, ends = [], []
        for each in timed:
            at = seconds_of(each.time)
            if at is not None and each.files[0].state != "completed":
                begins.append(listed[each.files[0].name].modified - at)
            done = None if each.completion is None else seconds_of(each.completion)
            if done is not None:
                ends.append(listed[each.files[-1].name].modified - done)
        zone, completion_zone = _zone(begins or ends), _zone(ends or begins)
        if table.is_utc and zone:
            zone = completion_zone = None
        if zone is None and timed:
            why = "the files' times don't fit to them: the table was copied, or a clock is wrong"
            reading.lacks("the times of instants", why, Lack.TIMES, Lack.LOSSES)
        elif zone != completion_zone and ends:
            why = "instants and their completions are in different time zones, as Hudi 1.0.1 writes them"
            reading.lacks("the times of instants", why, Lack.TIMES)
        by_names = table.layout == 2 and zone is not None and zone == completion_zone
        has_ends = zone is not None or table.layout == 2
        shift = zone or 0.0
        return cls(listed, shift, shift if completion_zone is None else completion_zone, by_names, has_ends)

    def began(self, time: str) -> float | None:
        found = seconds_of(time)
        return None if found is None else found + self.zone

    def ended(self, instant: Instant) -> float:
        by_name = None if instant.completion is None else seconds_of(instant.completion)
        if by_name is not None:
            return by_name + self.completion_zone
        if self.has_ends:
            return self.listed[instant.files[-1].name].modified
        return self.began(instant.time) or 0.0


def _zone(offsets: Sequence[float]) -> float | None:
    """The time zone, from times of files less those in their names; None: the files were copied."""
    if not offsets:
        return 0.0
    zone = ZONE_SECONDS * round(median(offsets) / ZONE_SECONDS)
    is_one = median(abs(each - zone) for each in offsets) < ZONE_SECONDS / 3
    return zone if is_one and abs(zone) <= MAX_ZONE_SECONDS else None


async def _hudi_losses(
    files: TableFiles, reading: _Reading, table: HudiTable, late: Sequence[Instant], clock: _HudiClock
) -> None:
    """Instants that were rolled back, and those that are pending without a sign of life."""
    since = clock.began(late[0].time) if late else None
    rollbacks = [each for each in late if each.completes_as == "rollback" and each.state == "completed"]

    async def read(rollback: Instant) -> tuple[list[str], frozenset[str]]:
        return rolled_back(await files.read(_completed_path(table, rollback)))

    async def use(rollback: Instant, result: tuple[list[str], frozenset[str]] | Exception) -> bool:
        if isinstance(result, Exception):
            reading.lacks(f"rollback {rollback.time}", str(result), Lack.LOSSES)
            return True
        for name in result[0]:
            began = clock.began(name)
            if began is not None and since is not None and began >= since:
                reading.lost.append(LostTry(name, began, result[1], clock.began(rollback.time)))
        return True

    await _in_order(rollbacks[-MAX_COMMITS:], read, use, AT_ONCE_WITH_MANIFESTS)
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


async def _look_for_files(files: TableFiles, form: str, reading: _Reading) -> list[Leftover] | None:
    """List the folders of the commits, and those beside them, which lost tries may have made (rule 4).

    When did each commit begin to write, and which data files does no commit name?
    """
    if not reading.commits:
        return []
    beside = await _beside(files, form, reading)
    names = frozenset(path.rpartition("/")[2] for path in reading.files)
    folders = [*reading.folders.items(), *((each, _partition(each)) for each in beside)]
    if len(folders) > MAX_FOLDERS:
        what = f"files in {len(folders) - MAX_FOLDERS} of {len(folders)} folders"
        reading.lacks(what, f"{MAX_FOLDERS} are listed at most", Lack.PLACES)
    found = _FoundFiles(reading, reading.commits[0].published, copied=reading.is_copied)

    async def read(folder: tuple[str, str]) -> None:
        is_beside = folder[0] not in reading.folders
        async for page in (files.pages if is_beside else files.pages_of_folder)(folder[0]):
            # Beside: a commit may say another folder than its file has.
            known = names if is_beside else frozenset[str]()
            found.add(
                folder[1], {path: each for path, each in page.items() if path.rpartition("/")[2] not in known}
            )
            if found.why_useless:
                return
            if is_beside and found.listed > MAX_PLACES:
                raise UnreadableTableError(f"more than {MAX_PLACES:,} files were listed")

    async def use(folder: tuple[str, str], result: Exception | None) -> bool:
        if result is not None:
            reading.lacks(f"the files in {folder[0] or 'the root'}", str(result), Lack.PLACES)
        return not found.why_useless

    await _in_order(folders[:MAX_FOLDERS], read, use, AT_ONCE_WITH_MANIFESTS)
    if found.why_useless:
        reading.lacks("files that no commit names", found.why_useless, Lack.NAMES)
        return None
    if not found.first and any(at >= 0 for at in reading.files.values()):
        reading.lacks("data files", "none of those that commits name is in its folder any more", Lack.PLACES)
    for at, modified in found.first.items():
        commit = reading.commits[at]
        if commit.began is None:
            reading.commits[at] = replace(commit, began=min(modified, commit.ended))
    return found.leftovers


async def _beside(files: TableFiles, form: str, reading: _Reading) -> list[str]:
    """Find the folders beside those of the commits: other partitions and buckets, and random prefixes of Delta's."""
    if len(reading.folders) > MAX_FOLDERS:
        return []
    parts = [each.split("/") for each in reading.folders if each]
    parents = dict.fromkeys("/".join(each[:depth]) for each in parts for depth in range(len(each)))
    if form == "iceberg":
        parents.pop("", None)  # which has the folders of data and of metadata, whatever they are called
    known, beside = {*parents, *reading.folders}, list[str]()

    async def use(parent: str, found: list[str] | Exception) -> bool:
        if isinstance(found, Exception):
            reading.lacks(f"the folders in {parent or 'the root'}", str(found), Lack.PLACES)
            return True
        paths = (f"{parent}/{each}".lstrip("/") for each in found if not OWN_FOLDERS.fullmatch(each))
        beside.extend(each for each in paths if each not in known)
        return True

    await _in_order(parents, files.folders, use, AT_ONCE_WITH_MANIFESTS)
    return beside


@dataclass(slots=True)
class _FoundFiles:
    """What the folders of the commits have."""

    reading: _Reading
    since: float
    """Older files are of older commits."""
    copied: bool
    first: dict[int, float] = field(default_factory=dict)
    """When the first file of each commit was written."""
    leftovers: list[Leftover] = field(default_factory=list)
    listed: int = 0

    def add(self, partition: str, page: dict[str, File]) -> None:
        self.listed += len(page)
        self.reading.progress(f"{len(self.reading.commits):,} commits read, {self.listed:,} files listed")
        for path, file in page.items():
            at = self.reading.files.get(path)
            if at is not None and at >= 0:
                self.copied |= _is_copied(file, self.reading.commits[at])
                self.first[at] = min(self.first.get(at, file.modified), file.modified)
            elif at is None and file.modified > self.since and _is_data(path):
                self.leftovers.append(Leftover(partition, file.size, file.modified))

    @property
    def why_useless(self) -> str | None:
        if self.copied:
            return "the table was copied, so its files' times say nothing"
        too_many = len(self.leftovers) > MAX_LEFTOVERS
        return f"there are more than {MAX_LEFTOVERS:,}" if too_many else None


def _partition(folder: str) -> str:
    return "/".join(each for each in folder.split("/") if "=" in each)


def _is_data(path: str) -> bool:
    return path.endswith(DATA_FILES) and path.rpartition("/")[2][0] not in "._"


def _is_copied(file: File, commit: PastCommit) -> bool:
    if commit.stored is not None:
        return file.modified > commit.stored + LATE_SECONDS
    return file.modified > commit.ended + COPIED_SECONDS


# -- many files at once ------------------------------------------------------------------------------------------------


async def _in_order(
    items: Iterable[_Item] | AsyncIterable[_Item],
    read: Callable[[_Item], Awaitable[_Result]],
    use: Callable[[_Item, _Result | Exception], Awaitable[bool]],
    at_once: int,
) -> bool:
    """Read items at the same time, and use them in their order, until `use` returns False. Returns whether all were used.

    What can't be read is passed as its error. Of files with a known size, `MAX_BYTES_AT_ONCE` are read at the same time.
    """
    ahead, listed = anyio.create_memory_object_stream[_Item](LISTED_AHEAD)
    waiting, results = anyio.create_memory_object_stream[_Slot](at_once)
    free, used_up = anyio.Condition(), 0

    async def fill(slot: _Slot) -> None:
        try:
            slot.result = await read(slot.item)
        except _UNREADABLE as error:
            slot.result = error
        slot.ready.set()

    async def look_ahead() -> None:
        async with ahead:
            async for item in _each(items):
                await ahead.send(item)

    async def feed() -> None:
        nonlocal used_up
        async with waiting, listed:
            async for item in listed:
                slot = _Slot(item, item.size if isinstance(item, File) else 0)
                async with free:
                    while used_up and used_up + slot.size > MAX_BYTES_AT_ONCE:
                        await free.wait()
                    used_up += slot.size
                await waiting.send(slot)
                tasks.start_soon(fill, slot)

    async with results, anyio.create_task_group() as tasks:
        tasks.start_soon(look_ahead)
        tasks.start_soon(feed)
        async for slot in results:
            await slot.ready.wait()
            if not await use(slot.item, slot.result):
                tasks.cancel_scope.cancel()
                return False
            async with free:
                used_up -= slot.size
                free.notify()
    return True


@dataclass(slots=True)
class _Slot:
    """An item that is read, and what was read."""

    item: Any
    size: int
    result: Any = None
    ready: anyio.Event = field(default_factory=anyio.Event)


async def _each(items: Iterable[_Item] | AsyncIterable[_Item]) -> AsyncIterator[_Item]:
    if isinstance(items, AsyncIterable):
        async for each in items:
            yield each
    else:
        for each in items:
            yield each
