"""What `assess` has read of a table's history, and how it reads many files at once.

The rules of reading:

1. The newest commit comes first. Reading ends at `--days` before the newest one, so a limit cuts off the oldest ones.
2. A commit that can't be read costs that commit: reading goes on, and its `Unread` says so. After `MAX_UNREAD` of them it ends.
3. **Times may be wrong.** The order of commits is the format's, never that of times. A commit from before the period ends the
   reading only if its file is from before, too, by the store's clock; else if `CONFIRMING` commits in a row are, and the history
   isn't called whole then. A time that is later than its file's, or doesn't fit into the order of the others, is replaced by a
   neighbour's, and reported. A commit has not begun before the one that it has read.
4. **Copies.** If most commits, or the first one, are a minute older than their files, the table was copied, or its writers'
   clocks aren't the store's. Then files' times say nothing: no data file is looked for. And a copy may lack the newest commits,
   so the end of its history is not known.
5. **The end.** A newer commit than all that are there may be named by another file: a hint, a checksum, a checkpoint. Then the
   newest ones are missing. If a hint names none, they may be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio

from lakewarden.agent.watching.files import UnreadableTableError
from lakewarden.handlers.assessment import DataFile, Lack, LostTry, PastCommit, Unread
from lakewarden.handlers.observations import File
from lakewarden.handlers.unreadable import FIRST_MS, Unreadable

MAX_COMMITS = 50_000
MAX_PLACES = 300_000
"""Partitions and data files of all commits that are kept, about 100 MB."""
MAX_UNREAD = 100
"""Commits that can't be read before reading ends."""
CONFIRMING = 50
"""Commits in a row from before the period that end it, if files don't (rule 3)."""
AT_ONCE = 256
"""Commits of Delta and Hudi that are read at the same time: each is one small file."""
AT_ONCE_WITH_MANIFESTS = 32
READ_AHEAD = 1_000
"""Files that are waited for, or were read before those before them: a page of a listing."""
MAX_BYTES_AT_ONCE = 16 * 1024 * 1024
"""Limit of what these files have together, if their sizes are known."""
COPIED_SECONDS = 60.0
"""A file that is so much younger than its commit's time was copied."""
SKEW_SECONDS = 3600.0
"""Clocks of writers differ by so much without being called wrong."""

UNREADABLE = (Unreadable, UnreadableTableError)
"""What costs a piece of a table."""
_NOT_PLAIN = frozenset({"", ".", ".."})
"""Parts of a path that name another folder: `s3://` has an empty one, too."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Found = tuple[PastCommit, list[DataFile]]
Progress = Callable[[str], None]


@dataclass(slots=True)
class Reading:
    """What was read, the newest commit first."""

    span: float
    """Seconds of history to read."""
    now: float
    progress: Progress
    commits: list[PastCommit] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    """The data files, by path, with the place of their commit in `commits`. -1: of a commit that was not read."""
    folders: dict[str, str | None] = field(default_factory=dict)
    """Their folders, with the partition. None: the folder doesn't say it, as with random prefixes of Delta."""
    places: int = 0
    lost: list[LostTry] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    failed: int = 0
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
        if self.newest is None or commit.ended >= self.newest - self.span:
            kept = [*self.before, found]
            self.before.clear()
            return all(self._keep(*each) for each in kept)
        if None not in (commit.stored, self.stored) and self.stored - commit.stored > self.span:  # type: ignore[operator]
            return False
        self.before.append(found)
        return len(self.before) < CONFIRMING

    def _keep(self, commit: PastCommit, files: list[DataFile]) -> bool:
        self.places += len(commit.partitions) + len(files)
        if len(self.commits) >= MAX_COMMITS or (self.places > MAX_PLACES and self.commits):
            why = f"at most {MAX_COMMITS:,} commits, or {MAX_PLACES:,} files and partitions, are read"
            self.lacks(f"commits before {self.commits[-1].version}", why, Lack.BEYOND)
            return False
        outside = 0
        for path, partition in files:
            if path.startswith("/") or not _NOT_PLAIN.isdisjoint(path.split("/")):
                outside += 1
                continue
            folder = path.rpartition("/")[0]
            self.files[path] = len(self.commits)
            self.folders.setdefault(folder, partition if not partition or "=" in folder else None)
        if outside:
            what = f"{outside} files of commit {commit.version}"
            # NAMES: one may be in the table, by an absolute path or another spelling.
            self.lacks(what, "they are outside of the table's folder", Lack.PLACES, Lack.NAMES)
        self.commits.append(commit)
        self.progress(f"{len(self.commits):,} commits read")
        return True

    def reach(self, number: int, what: str) -> None:
        """The next commit that is there. Those between it and the one before are missing."""
        if self.reached is not None and number < self.reached - 1:
            first, last = number + 1, self.reached - 1
            numbers = f"{what} {first}" if first == last else f"{what}s {first} to {last}"
            self.lacks(numbers, "older ones are there, so the table's log is damaged", Lack.COMMITS)
        self.reached = number

    def expect(self, named: int | None, newest: int, what: str) -> None:
        """Another file names this commit, or has lost its name (rule 5)."""
        if named is None:
            self.lacks(
                f"{what}s after {newest}", "the hint that names the last of them has no number", Lack.BEYOND
            )
        elif named > newest:
            why = "another file of the table names the last of them, but they are gone"
            self.lacks(f"{what}s {newest + 1} to {named}", why, Lack.COMMITS)

    def fail(self, what: str, error: Exception) -> bool:
        """A commit can't be read (rule 2). Returns whether to read on."""
        self.failed += 1
        self.lacks(what, str(error), Lack.COMMITS)
        if self.failed >= MAX_UNREAD:
            self.lacks(f"commits before {what}", f"{MAX_UNREAD} commits could not be read", Lack.BEYOND)
        return self.failed < MAX_UNREAD

    def lacks(self, what: str, why: str, *lacks: Lack) -> None:
        self.unread.append(Unread(what, why, frozenset(lacks)))

    def put_in_order(self) -> None:
        """Put the commits in order, with times that fit into it (rule 3)."""
        if self.before and self.commits:
            why = "their times are from before the period, those of their files are not"
            self.lacks(f"commits before {self.commits[-1].version}", why, Lack.BEYOND, Lack.TIMES)
        self.commits.reverse()
        last = len(self.commits) - 1
        self.files = {path: last - at if at >= 0 else at for path, at in self.files.items()}
        sound = [at for at, each in enumerate(self.commits) if self._is_plausible(each)]
        in_order = [sound[at] for at in _longest_rising([self.commits[at].ended for at in sound])]
        for at, each in enumerate(self.commits):
            # The times before and after it, or its own if it is in order.
            place = bisect_left(in_order, at)
            bounds = [self.commits[other].ended for other in in_order[max(0, place - 1) : place + 1]]
            if any(abs(each.ended - bound) <= SKEW_SECONDS for bound in bounds):
                continue
            fitting = min(bounds, default=self.now if each.stored is None else each.stored)
            began = fitting - each.seconds if each.is_known and each.seconds is not None else None
            why = "it doesn't fit to its file's, or between those of the commits before and after, so a clock is wrong"
            self.commits[at] = _doubted(each, f"the time of commit {each.version}", why, fitting, began)

    def check_starts(self) -> None:
        """A commit that would have begun before the one that it has read has adopted older files, or misstates its duration."""
        ends = {each.number: each.ended for each in self.commits if each.number is not None}
        for at, each in enumerate(self.commits):
            base = None if each.base is None else ends.get(each.base)
            if None in (base, each.began) or each.began >= base - SKEW_SECONDS:  # type: ignore[operator]
                continue
            if each.is_known:
                why = "it would have begun before the commit that it has read"
                each = _doubted(each, f"how long commit {each.version} took", why, each.ended, None)  # noqa: PLW2901
            self.commits[at] = replace(each, began=None, is_known=False)

    @property
    def is_copied(self) -> bool:
        late = [
            each.stored is not None and each.stored - each.ended > COPIED_SECONDS for each in self.commits
        ]
        # A copied table may have been written to since: then its first commit is late.
        return any(late[:1]) or sum(late) > len(late) / 2

    def _is_plausible(self, commit: PastCommit) -> bool:
        """A commit isn't from the future, and not younger than its file."""
        latest = self.now + 86_400
        if commit.stored is not None:
            latest = min(latest, commit.stored + SKEW_SECONDS)
        return FIRST_MS / 1000 <= commit.ended <= latest


def _doubted(commit: PastCommit, what: str, why: str, ended: float, began: float | None) -> PastCommit:
    piece = Unread(what, why, frozenset({Lack.TIMES}), commit.number)
    return replace(commit, ended=ended, began=began, unread=(*commit.unread, piece))


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


async def read_in_order(
    items: AsyncIterable[_Item],
    read: Callable[[_Item], Awaitable[_Result]],
    use: Callable[[_Item, _Result | Exception], Awaitable[bool]],
    at_once: int,
) -> bool:
    """Read items at the same time, and use them in their order, until `use` returns False. Returns whether all were used.

    What can't be read is passed as its error. Of files, whose size is known, `MAX_BYTES_AT_ONCE` are read and not yet used.
    """
    running: deque[tuple[_Item, int, anyio.TaskHandle[Any]]] = deque()
    limiter, held = anyio.CapacityLimiter(at_once), 0

    async def attempt(item: _Item) -> _Result | Exception:
        try:
            async with limiter:
                return await read(item)
        except UNREADABLE as error:
            return error

    async def use_first() -> bool:
        nonlocal held
        item, size, task = running.popleft()
        result = await task
        held -= size
        return await use(item, result)

    async with anyio.create_task_group() as tasks:
        async for item in items:
            size = item.size if isinstance(item, File) else 0
            while running and (len(running) >= READ_AHEAD or held + size > MAX_BYTES_AT_ONCE):
                if not await use_first():
                    tasks.cancel()
                    return False
            running.append((item, size, tasks.start_soon(attempt, item)))
            held += size
        while running:
            if not await use_first():
                tasks.cancel()
                return False
    return True


async def each_of(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield items that are there already."""
    for each in items:
        yield each
