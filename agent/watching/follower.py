"""What the watcher needs of each table format: one look at a table, and what is to be reported after it.

A `NumberedFollower` follows a table whose commits are files with consecutive numbers: docs/decisions/0046-observed-commits.md.

- An idle look is one request: a read of the commit after the last one, which is absent.
- Every `RECHECK_SECONDS` one listing shows whether the log is still the one that it was.
- The first look finds the newest commit, and reports nothing.
- **One odd piece stays one odd piece.** A commit that can't be read is read again for `UNREADABLE_SECONDS`, or for
  `RECHECK_SECONDS` if the store refuses it: it may still be written, or the store may recover. Then it is reported as a commit of
  the whole table, and the follower goes on after it. So does one of whose pieces one can't be read, at once.
- Only a table of an unknown version is not followed any further.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, final

import structlog

from lakewarden.agent.clock import monotonic
from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.handlers.hudi.watching import Observation
from lakewarden.handlers.observations import (
    UNREADABLE_SECONDS,
    File,
    LogPosition,
    ObservedCommit,
    Piece,
    UnknownVersion,
    UnreadableCommit,
    unread_commit,
)
from lakewarden.handlers.unreadable import Unreadable, why_unreadable

log = structlog.get_logger(__name__)

RECHECK_SECONDS = 60.0
"""Between two looks whether a table is still the one that it was."""
ACTIVE_SECONDS = 60.0
"""A table of which a commit was seen is looked at more often for so long."""
MAX_COMMITS = 100
"""Commits that one look reads. The next look reads on."""

Seen: TypeAlias = Observation | ObservedCommit


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a table has found."""

    active: bool
    """Whether the next look follows soon."""
    seen: Sequence[Seen] = ()
    complete: bool = True
    """Whether it has read all commits that it found. If not, the age of those that the next look reads isn't known by it."""
    problems: Sequence[tuple[str, str]] = field(default=())
    """Files that could not be read, and why. They are read again."""


READ_ERRORS: Final = (UnreadableCommit, UnreadableTableError, MemoryError)
"""What costs one commit. Anything else is a defect."""


@dataclass(slots=True)
class Patience:
    """How long one commit is tried that can't be read."""

    _tried: tuple[object, float] | None = None
    """The commit, and since when."""

    def is_over(self, commit: object, error: Exception, now: float) -> bool:
        if self._tried is None or self._tried[0] != commit:
            self._tried = commit, now
        limit = RECHECK_SECONDS if type(error) is UnreadableTableError else UNREADABLE_SECONDS
        return now - self._tried[1] >= limit


def problems_of(path: str, commits: Iterable[ObservedCommit]) -> Iterator[tuple[str, str]]:
    """Return the pieces of commits that can't be read."""
    for commit in commits:
        yield from ((path, f"{each.what}: {each.why}") for each in commit.unread)


@contextmanager
def absence_unreadable() -> Iterator[None]:
    """Raise `UnreadableCommit` if a file is absent that a commit names, or if no request can have its path."""
    try:
        yield
    except AbsentFileError as error:
        raise UnreadableCommit(f"a file is absent that it names: {error}") from error
    except Unreadable:
        raise
    except ValueError as error:
        raise UnreadableCommit("it names a file by a path that no store has") from error


async def piece_of(files: TableFiles, path: str) -> Piece:
    """Read a file that a commit names, or return why it isn't to be had. Raises if the store doesn't answer."""
    try:
        with absence_unreadable():
            return await files.read(path)
    except UnreadableCommit as error:
        return error


class TableFollower(Protocol):
    """Follows one table. It raises `UnreadableTableError`, or the errors of the format's own rules."""

    format: str
    """The prefix of the transactions that it reports."""

    @property
    def began(self) -> bool:
        """Whether a look has succeeded, and its position is known."""
        ...

    async def look(self) -> Look: ...


class NumberedFollower(ABC):
    """Follows one table. A format says how its commits are named and read."""

    format: str
    """The prefix of the transactions that it reports."""

    def __init__(self, uri: str, files: TableFiles) -> None:
        self._uri, self._files = uri, files
        self._position: LogPosition | None = None
        self._listed_at = self._changed_at = float("-inf")
        self._patience = Patience()

    @abstractmethod
    def _path(self, number: int) -> str:
        """The file of a commit."""

    @abstractmethod
    async def _listed(self, since: int) -> Mapping[str, File]:
        """The files of commits from this one on, and maybe others."""

    @abstractmethod
    def _newest(self, listed: Mapping[str, File]) -> int | None:
        """The newest commit of a listing."""

    @abstractmethod
    async def _start(self) -> int:
        """Find the newest commit, and what is needed to read later ones."""

    @abstractmethod
    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:
        """What is to be reported of the commit. Raises `UnreadableCommit`, and changes nothing then."""

    @property
    @final
    def began(self) -> bool:
        return self._position is not None

    @final
    async def look(self) -> Look:
        now = monotonic()
        if self._position is not None and now - self._listed_at >= RECHECK_SECONDS:
            await self._recheck(self._position, now)
        if self._position is None:
            number = await self._start()
            self._position, self._listed_at = LogPosition(number), now
            log.info("watch.table", table=self._uri, format=self.format, commit=number)
            return Look(active=False)
        found: list[ObservedCommit] = []
        problems: list[tuple[str, str]] = []
        for _ in range(MAX_COMMITS):
            number = self._position.number + 1
            path = self._path(number)
            try:
                body = await self._files.read(path)
                with absence_unreadable():
                    commits = await self._read(number, body)
                problems += problems_of(path, commits)
            except AbsentFileError:
                return Look(now - self._changed_at < ACTIVE_SECONDS, found, problems=problems)
            except UnknownVersion:
                self._position = None
                raise
            except READ_ERRORS as error:
                is_over, why = self._patience.is_over(number, error, now), why_unreadable(error)
                if type(error) is UnreadableTableError and not (found or is_over):
                    raise
                problems.append((path, why))
                if not is_over:
                    break  # what was read is reported first
                commits = self._unreadable(number, why)
            self._position.advance()
            self._changed_at = now
            found += commits
        return Look(now - self._changed_at < ACTIVE_SECONDS, found, complete=False, problems=problems)

    def _unreadable(self, number: int, why: str) -> list[ObservedCommit]:
        """What is to be reported of a commit that stays unreadable."""
        return [unread_commit(str(number), why)]

    async def _recheck(self, known: LogPosition, now: float) -> None:
        listed = await self._listed(known.number)
        self._listed_at = now
        own = listed.get(self._path(known.number))
        lost = known.why_lost(
            self._newest(listed),
            identity=None if own is None else own.version,
            has_next=self._path(known.number + 1) in listed,
        )
        if lost is not None:
            log.warning("watch.position-lost", table=self._uri, why=lost)
            self._position = None
