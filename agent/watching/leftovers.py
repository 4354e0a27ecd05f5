"""Lists the data files of a table: those that no commit names, and when each commit began to write.

The folders of the commits are listed, and those beside them, which lost tries may have made: but for those of other tables. A
large folder is listed in parts at the same time, where the store's listing can begin anywhere: the names of its known files say
where. A file that a link shows in two folders is one.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lakewarden.agent.watching.files import TableFiles, UnreadableTableError
from lakewarden.agent.watching.reading import (
    AT_ONCE_WITH_MANIFESTS,
    COPIED_SECONDS,
    MAX_PLACES,
    Reading,
    each_of,
    read_in_order,
)
from lakewarden.handlers.assessment import Lack, Leftover, PastCommit
from lakewarden.handlers.observations import File

MAX_FOLDERS = 500
"""Folders in which data files are listed."""
MAX_LEFTOVERS = 100_000
PART_FILES = 5_000
"""Files of a part of a folder."""
LISTED_AT_ONCE = 16
"""Pages of 1,000 files, of about 1 MB each."""
LATE_SECONDS = 10.0
"""A data file that is so much younger than its commit's file was copied: it was there before, and the store's clock is one."""
DATA_FILES = (".parquet", ".orc", ".avro", ".lance", ".blob", ".vortex")
OWN_FOLDERS = re.compile(
    r"[._][^=]*|branch|changelog|consumer|index|manifest|metadata|schema|service|snapshot|statistics|tag"
)
"""Folders that have no data files, but the format's own."""
OTHER_TABLE = re.compile(r"(.*?/)(_delta_log/|\.hoodie/|snapshot/snapshot-\d|metadata/[^/]*\.metadata\.json)")
"""The files by which a table is known that lies in a folder beside those of the commits."""
HIDDEN = re.compile(r"(.*/)?[._][^=/]*/.*")
"""Files below a folder that no format reads."""


class _Part(NamedTuple):
    """A folder, or the files in it after one name, up to another one."""

    folder: str
    partition: str | None
    after: str | None = None
    until: str | None = None
    is_beside: bool = False


async def look_for_files(files: TableFiles, form: str, reading: Reading) -> list[Leftover] | None:
    """Return the data files that no commit names, or None if that can't be known, and set when commits began."""
    if not reading.commits:
        return []
    beside = await _beside(files, form, reading)
    if (folders := len(reading.folders) + len(beside)) > MAX_FOLDERS:
        what = f"files in {folders - MAX_FOLDERS} of {folders} folders"
        reading.lacks(what, f"{MAX_FOLDERS} are listed at most", Lack.PLACES)
    beside = beside[: max(0, MAX_FOLDERS - len(reading.folders))]
    found = _FoundFiles(reading, reading.is_copied)

    async def read(part: _Part) -> None:
        async for page in (files.pages if part.is_beside else files.pages_of_folder)(part.folder, part.after):
            found.add(part, page)
            is_over = part.until is not None and bool(page) and next(reversed(page)) >= part.until
            if found.why_useless or is_over:
                return
            if part.is_beside and found.listed > MAX_PLACES:
                raise UnreadableTableError(f"more than {MAX_PLACES:,} files were listed")

    async def use(part: _Part, result: Exception | None) -> bool:
        if result is not None:
            found.is_whole = False
            reading.lacks(f"the files in {part.folder or 'the root'}", str(result), Lack.PLACES)
        return not found.why_useless

    parts = [*_parts(files, reading)]
    parts += [_Part(each, _partition(each, reading), is_beside=True) for each in beside]
    await read_in_order(each_of(parts), read, use, LISTED_AT_ONCE)
    if found.copied:
        newest = reading.commits[-1].version
        reading.lacks(
            f"commits after {newest}",
            "the table was copied, or clocks differ; a copy may lack them",
            Lack.BEYOND,
        )
    if found.why_useless:
        reading.lacks("files that no commit names", found.why_useless, Lack.NAMES)
        return None
    if found.is_whole and not found.first and any(at >= 0 for at in reading.files.values()):
        reading.lacks("data files", "none of those that commits name is in its folder any more", Lack.PLACES)
    for at, modified in found.first.items():
        commit = reading.commits[at]
        if commit.began is None:
            reading.commits[at] = replace(commit, began=min(modified, commit.ended))
    return found.leftovers()


def _parts(files: TableFiles, reading: Reading) -> Iterator[_Part]:
    """Yield the folders of the commits, large ones in parts."""
    borders: dict[str, list[str]] = defaultdict(list)
    if files.seeks:
        names = sorted(reading.files)
        for path in names[PART_FILES::PART_FILES]:
            borders[path.rpartition("/")[0]].append(path)
    for folder in [*reading.folders][:MAX_FOLDERS]:
        ends = borders[folder]
        for after, until in zip([None, *ends], [*ends, None], strict=True):
            yield _Part(folder, reading.folders[folder], after, until)


async def _beside(files: TableFiles, form: str, reading: Reading) -> list[str]:
    """Find the folders beside those of the commits: other partitions and buckets, and random prefixes of Delta's."""
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

    if len(reading.folders) <= MAX_FOLDERS:
        await read_in_order(each_of(parents), files.folders, use, AT_ONCE_WITH_MANIFESTS)
    return beside


@dataclass(slots=True)
class _FoundFiles:
    """What the folders of the commits have."""

    reading: Reading
    copied: bool
    first: dict[int, float] = field(default_factory=dict)
    """When the first file of each commit was written."""
    unnamed: dict[tuple[str, str], tuple[str, Leftover]] = field(default_factory=dict)
    """The paths that no commit names, by their names and versions: links make a file several paths."""
    others: set[str] = field(default_factory=set)
    """Folders of other tables."""
    listed: int = 0
    is_whole: bool = True
    """Whether all folders could be listed."""

    def add(self, part: _Part, page: dict[str, File]) -> None:
        self.listed += len(page)
        self.reading.progress(f"{len(self.reading.commits):,} commits read, {self.listed:,} files listed")
        since = self.reading.commits[0].published  # older files are of older commits
        for path, file in page.items():
            if part.until is not None and path > part.until:
                return
            at = self.reading.files.get(path)
            if at is not None and at >= 0:
                self.copied |= _is_copied(file, self.reading.commits[at])
                self.first[at] = min(self.first.get(at, file.modified), file.modified)
            elif part.is_beside and (other := OTHER_TABLE.match(path)):
                self.others.add(other[1])
            elif at is None and file.modified > since and _is_data(path, is_beside=part.is_beside):
                found = Leftover(part.partition, file.size, file.modified)
                self.unnamed.setdefault((path.rpartition("/")[2], file.version), (path, found))

    def leftovers(self) -> list[Leftover]:
        """Those of this table. A commit may name one of a folder beside by another path."""
        named = {path.rpartition("/")[2] for path in self.reading.files}
        return [
            each
            for (name, _), (path, each) in self.unnamed.items()
            if not self._is_of_another(path)
            and (name not in named or path.rpartition("/")[0] in self.reading.folders)
        ]

    def _is_of_another(self, path: str) -> bool:
        return any(path[: slash.end()] in self.others for slash in re.finditer("/", path))

    @property
    def why_useless(self) -> str | None:
        if self.copied:
            return "the table was copied, or clocks differ, so its files' times say nothing"
        too_many = len(self.unnamed) > MAX_LEFTOVERS
        return f"there are more than {MAX_LEFTOVERS:,}" if too_many else None


def _partition(folder: str, reading: Reading) -> str | None:
    """The partition of a folder beside the commits', or None if a partitioned table's folder doesn't say it."""
    found = "/".join(each for each in folder.split("/") if "=" in each)
    return found if found or set(reading.folders.values()) <= {""} else None


def _is_data(path: str, *, is_beside: bool) -> bool:
    is_hidden = is_beside and HIDDEN.fullmatch(path)
    return path.endswith(DATA_FILES) and path.rpartition("/")[2][0] not in "._" and not is_hidden


def _is_copied(file: File, commit: PastCommit) -> bool:
    if commit.stored is not None:
        return file.modified > commit.stored + LATE_SECONDS
    return file.modified > commit.ended + COPIED_SECONDS
