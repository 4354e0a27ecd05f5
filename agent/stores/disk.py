"""Compare-and-swap of one file, safe between processes and across crashes. Blocking; `local.py` runs it in threads.

- **One swap at a time.** Read, compare and replace run under `flock` on a file beside the object. This lock file is empty and
  is never replaced while the object exists. After locking, the process checks that the name still refers to the locked file,
  because another process may have removed it in between. The system releases the lock of a process that dies.
- **Old or new, never half.** The new body is written to a temporary file, synced and renamed over the object; then the folder
  is synced. Before the rename the object is unchanged. After it the write is done, but only the synced folder survives a power
  failure.
- **A version never repeats.** It consists of the object's modification time in nanoseconds and the hash of its body. Each
  write sets a later time than the previous one, whatever the clock shows, so the same bytes written twice are two versions.
  Inode numbers would not do, since file systems reuse them immediately. Time and body change with one rename and are read
  through one descriptor, so all processes see the same pair.
- **Only below the root.** Folders are opened one by one from the root without following symbolic links, and every further
  operation is relative to the opened folder. A link that is created later has no effect either.
"""

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
"""How often a lock file may vanish between opening and locking before `swap` returns `Busy`."""

_MTIME_STEPS_NS: Final = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
"""Steps for a later modification time: the resolutions of file systems, from a nanosecond to FAT's two seconds."""

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
"""Errors that a retry can't fix: permissions, a full disk, another kind of file at the path. Others may be transient."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object's folders and name below a trusted root."""

    root: Path
    folders: tuple[str, ...]
    name: str

    @property
    def lock_name(self) -> str:
        return f".{self.name}{LOCK_SUFFIX}"

    @property
    def temporary_name(self) -> str:
        """The temporary file. One name suffices: only the holder of the file lock writes it, and a crash leaves at most one."""
        return f".{self.name}{TEMPORARY_SUFFIX}"

    def __str__(self) -> str:
        return str(self.root.joinpath(*self.folders, self.name))


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process is swapping this object. Nothing was done; retry after a short pause."""


class _RefusedError(Exception):
    """Nothing was done, and a retry can't succeed until the cause is removed."""

    unusable = True


class _MissingRootError(_RefusedError):
    """The root folder does not exist. The disk may be mounted later."""

    unusable = False


def read(path: ObjectPath) -> ReadOutcome:
    """Read body and version. No lock is needed: a file never changes after it was renamed into place."""
    try:
        with _folder(path, create=False) as folder:
            return _read_in(folder, path) or Absent()
    except FileNotFoundError:
        return Absent()
    except (_RefusedError, OSError) as error:
        return _failure(error)


def swap(path: ObjectPath, body: bytes, condition: Condition) -> WriteOutcome | Busy:
    """Replace the object if the condition holds. `Won` means that the change is synced to the disk."""
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
            Lost("the object does not exist")
            if isinstance(condition, IfMatch)
            else Unknown("a folder of the object was removed during the write")
        )
    except (_RefusedError, OSError) as error:
        return _failure(error)


def remove(path: ObjectPath) -> Refused | Unknown | Busy | None:
    """Delete a probe's object and its lock file (see `port.PROBE_FOLDER`)."""
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
    except (_RefusedError, OSError) as error:
        return _failure(error)
    return None


@contextmanager
def _folder(path: ObjectPath, *, create: bool) -> Iterator[int]:
    """Open the object's folder from the root, without following a symbolic link."""
    try:
        descriptor = os.open(path.root, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise _MissingRootError(f"the root folder does not exist; create it: root={path.root}") from error
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
                "a folder of the object's path is a symbolic link or a file; use the real path: "
                f"at={part!r} path={path}"
            ) from error
        raise


@contextmanager
def _locked(folder: int, path: ObjectPath) -> Iterator[bool]:
    """Lock the object for the block; yields False if another process has the lock."""
    for _ in range(_LOCK_ATTEMPTS):
        # Opened for reading only, so that the lock also works between users who share the folder.
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
        # Without O_NONBLOCK, opening a named pipe would block until another process opens it for writing.
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
            raise _RefusedError(f"the object is not a regular file; remove it: path={path}")
        if status.st_size > MAX_OBJECT_BYTES:
            raise _RefusedError(too_long(status.st_size))
        body = file.read(MAX_OBJECT_BYTES)
    return Found(body, _version(status.st_mtime_ns, body))


def _compare(current: Found | None, condition: Condition) -> Lost | None:
    match condition:
        case IfAbsent():
            return None if current is None else Lost(f"the object exists already: found={current.version}")
        case IfMatch(version=version):
            if current is None:
                return Lost("the object does not exist")
            if current.version != version:
                return Lost(f"the object has another version: found={current.version} expected={version}")
            return None
        case _:
            assert_never(condition)


def _write_temporary(folder: int, path: ObjectPath, body: bytes, *, after: int) -> str:
    """Write and sync the temporary file, with a modification time later than `after`; returns its version."""
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
    """Set a modification time that is later than `after` in the file system's resolution; returns it."""
    now = time.time_ns()
    for step in _MTIME_STEPS_NS:
        mtime = max(now, after + step)
        os.utime(descriptor, ns=(mtime, mtime))
        if (stored := os.fstat(descriptor).st_mtime_ns) > after:
            return stored
    raise _RefusedError(
        "this file system stores no modification times, so versions can repeat; use another one"
    )


def _rename_into_place(folder: int, path: ObjectPath, version: str) -> WriteOutcome:
    """Perform the write. After a failure here it is unknown whether the write was applied."""
    try:
        os.rename(path.temporary_name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        return Unknown(f"renaming the object into place failed: {error}")
    return Won(version)


def _version(modified_ns: int, body: bytes) -> str:
    return f"{modified_ns}-{hashlib.sha256(body).hexdigest()}"


def _mtime_ns(current: Found | None) -> int:
    return 0 if current is None else int(current.version.partition("-")[0])


def _failure(error: _RefusedError | OSError) -> Refused | Unknown:
    if isinstance(error, _RefusedError):
        return Refused(str(error), unusable=error.unusable)
    if error.errno in _PERMANENT_ERRNOS:
        return Refused(f"the local disk refused the operation: {error}")
    return Unknown(f"the local disk failed: {error}")
