"""Compare-and-swap of one file, between processes and across crashes. Blocking; `local.py` runs it in threads.

The rules, and what each is for:

- **One swap at a time.** Read, compare and replace happen under `flock` on a file beside the object. The lock
  file is empty, is never replaced while the object lives, and after locking we check that its name still
  leads to what we locked, because somebody may have removed it in between. The system frees the lock of a
  process that dies.
- **Old or new, never half.** The new body goes to a temporary file, is synced, then renamed over the object, then
  the folder is synced. Before the rename nothing has happened; from the rename on the write has, although
  we can't promise that it survives a power cut until the folder is synced.
- **A version never repeats.** It is the object's modification time in nanoseconds and the hash of its body. Under
  the lock every write sets that time later than the one before, whatever the clock says, so the same bytes
  written twice are two versions (inode numbers would not do: file systems reuse them at once). Time and body
  arrive with one rename and are read through one descriptor, so all processes see the same pair.
- **Below the root.** Folders are opened one by one from the root without following symbolic links, and everything
  after that is relative to the opened folder: a link put there later leads nowhere either.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from lakewarden.agent.stores.port import MAX_OBJECT_BYTES, too_long
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Unknown,
    Won,
    WriteOutcome,
)

LOCK_SUFFIX: Final = ".lakewarden-lock"
TEMPORARY_SUFFIX: Final = ".lakewarden-tmp"

_LOCK_ATTEMPTS: Final = 8
"""How often a lock file may vanish between opening and locking it before we let the caller wait a little."""

_MTIME_STEPS_NS: Final = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
"""Steps for a later modification time: the resolutions of file systems, from nanoseconds to FAT's two seconds."""

_PERMANENT_ERRNOS: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTSUP,
    }
)
"""What no retry mends: permissions, a full disk, something else in the way. Anything else may pass."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object as folders and a name below a root that is trusted as it is."""

    root: Path
    folders: tuple[str, ...]
    name: str

    @property
    def lock_name(self) -> str:
        """The file that is locked for this object."""
        return f".{self.name}{LOCK_SUFFIX}"

    @property
    def temporary_name(self) -> str:
        """One name is enough: only the holder of the lock writes there, and a crash leaves at most one behind."""
        return f".{self.name}{TEMPORARY_SUFFIX}"

    def __str__(self) -> str:
        return str(self.root.joinpath(*self.folders, self.name))


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process is in the middle of a swap: nothing was done, try again in a moment."""


class _RefusedError(Exception):
    """Nothing was done, and somebody has to change something first."""


def read(path: ObjectPath) -> ReadOutcome:
    """Body and version of one moment. Takes no lock: a file that was renamed into place never changes again."""
    try:
        with _folder(path, create=False) as folder:
            return _read_in(folder, path) or Absent()
    except FileNotFoundError:
        return Absent()
    except _RefusedError as error:
        return Refused(str(error))
    except OSError as error:
        return _failure(error)


def swap(path: ObjectPath, body: bytes, condition: Condition) -> WriteOutcome | Busy:
    """Replace the object if the condition holds; returns only when that is on the disk."""
    try:
        with _folder(path, create=isinstance(condition, IfAbsent)) as folder, _locked(folder, path) as held:
            if not held:
                return Busy()
            current = _read_in(folder, path)
            if (lost := _compare(current, condition)) is not None:
                return lost
            version = _write_temporary(folder, path, body, after=_mtime_ns(current))
            return _rename_into_place(folder, path, version)
    except FileNotFoundError:
        return (
            Lost("no object is there")
            if isinstance(condition, IfMatch)
            else Unknown("a folder vanished meanwhile")
        )
    except _RefusedError as error:
        return Refused(str(error))
    except OSError as error:
        return _failure(error)


def remove(path: ObjectPath) -> Refused | Unknown | Busy | None:
    """Delete an object and its lock file (a probe's: see `port.PROBE_FOLDER`)."""
    try:
        with _folder(path, create=False) as folder, _locked(folder, path) as held:
            if not held:
                return Busy()
            for name in (path.name, path.temporary_name, path.lock_name):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
            os.fsync(folder)
    except FileNotFoundError:
        return None
    except _RefusedError as error:
        return Refused(str(error))
    except OSError as error:
        return _failure(error)
    return None


@contextmanager
def _folder(path: ObjectPath, *, create: bool) -> Iterator[int]:
    """The object's folder as a descriptor, reached from the root without following a link."""
    try:
        descriptor = os.open(path.root, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise _RefusedError(f"the allowed root does not exist; create it: root={path.root}") from error
    try:
        for part in path.folders:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
                    os.fsync(descriptor)
            below = _open_folder(part, descriptor, path)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _open_folder(part: str, parent: int, path: ObjectPath) -> int:
    try:
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise _RefusedError(
                "a symbolic link or a file stands in the way below the allowed root; use the real path: "
                f"at={part!r} path={path}"
            ) from error
        raise


@contextmanager
def _locked(folder: int, path: ObjectPath) -> Iterator[bool]:
    """Whether this object's lock was free; held for as long as the block runs."""
    for _ in range(_LOCK_ATTEMPTS):
        # Opened for reading only, so that users who share the folder can lock each other out.
        descriptor = os.open(path.lock_name, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666, dir_fd=folder)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                break
            if _is_current(path.lock_name, folder, descriptor):
                yield True
                return
        finally:
            os.close(descriptor)
    yield False


def _is_current(name: str, folder: int, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read_in(folder: int, path: ObjectPath) -> Found | None:
    try:
        # Without O_NONBLOCK a pipe under this name would hold us until somebody writes to it.
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _RefusedError(f"the object is a symbolic link; use the real path: path={path}") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _RefusedError(f"not a regular file: path={path}")
        if status.st_size > MAX_OBJECT_BYTES:
            raise _RefusedError(too_long(status.st_size))
        body = file.read(MAX_OBJECT_BYTES)
    return Found(body, _version(status.st_mtime_ns, body))


def _compare(current: Found | None, condition: Condition) -> Lost | None:
    match condition:
        case IfAbsent():
            return None if current is None else Lost(f"an object is there already: found={current.version}")
        case IfMatch(version=version):
            if current is None:
                return Lost("no object is there")
            if current.version != version:
                return Lost(f"another version is there: found={current.version} expected={version}")
            return None
        case _:
            assert_never(condition)


def _write_temporary(folder: int, path: ObjectPath, body: bytes, *, after: int) -> str:
    """Everything that can be done, and synced, before the object changes; returns the version it will have."""
    with suppress(FileNotFoundError):
        os.unlink(path.temporary_name, dir_fd=folder)
    descriptor = os.open(
        path.temporary_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        modified = _advance_mtime(descriptor, after)
        os.fsync(descriptor)
    return _version(modified, body)


def _advance_mtime(descriptor: int, after: int) -> int:
    """Give the file a modification time later than `after`, as the file system will tell it."""
    now = time.time_ns()
    for later in _MTIME_STEPS_NS:
        wanted = max(now, after + later)
        os.utime(descriptor, ns=(wanted, wanted))
        if (kept := os.fstat(descriptor).st_mtime_ns) > after:
            return kept
    raise _RefusedError("this file system keeps no modification times to tell versions by; use another")


def _rename_into_place(folder: int, path: ObjectPath, version: str) -> WriteOutcome:
    """The moment the write happens. From here on a failure leaves it open whether it did."""
    try:
        os.rename(path.temporary_name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        return Unknown(f"while renaming the object into place: {error}")
    return Won(version)


def _version(modified_ns: int, body: bytes) -> str:
    return f"{modified_ns}-{hashlib.sha256(body).hexdigest()}"


def _mtime_ns(current: Found | None) -> int:
    return 0 if current is None else int(current.version.partition("-")[0])


def _failure(error: OSError) -> Refused | Unknown:
    if error.errno in _PERMANENT_ERRNOS:
        return Refused(f"the local disk refuses: {error}")
    return Unknown(f"the local disk failed: {error}")
