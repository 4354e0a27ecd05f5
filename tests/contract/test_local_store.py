"""Properties of the local store alone: paths, versions, file locks, and crashes during a write."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from lakewarden.agent.stores import LocalStore, disk
from lakewarden.agent.stores.disk import ObjectPath
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)

SECONDS = 60.0
"""Only ends a hang."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@asynccontextmanager
async def opened(root: Path, seconds: float = SECONDS) -> AsyncGenerator[LocalStore]:
    async with LocalStore(root, request_timeout_seconds=seconds) as store:
        yield store


def write(root: Path, body: bytes, condition: IfAbsent | IfMatch) -> Won:
    outcome = disk.swap(ObjectPath(root, (), "t.json"), body, condition)
    assert isinstance(outcome, Won), outcome
    return outcome


# --- paths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        "file:///etc/lakewarden.json",
        "file://{root}/../outside.json",
        "file://{root}/%2e%2e/outside.json",
        "file://{root}/a/%2E./%2e%2e/outside.json",
        "file://{root}/..%2Foutside.json",
        "file://{root}evil/outside.json",
        "file://{root}",
        "file://otherhost{root}/t.json",
        "s3:/{root}/t.json",
        "file://{root}/link/outside.json",
        "file://{root}/link-to-file.json",
        "file://{root}/.t.json.lakewarden-lock",
        "file://{root}/.t.json.lakewarden-tmp",
        "file://{root}/file/t.json",
        "file://{root}/folder",
        "file://{root}/" + "n" * 250,
    ],
)
async def test_nothing_outside_the_root_is_read_or_written(root: Path, spelling: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("secret")
    (root / "link").symlink_to(outside)
    (root / "link-to-file.json").symlink_to(secret)
    (root / "file").write_text("a file")
    (root / "folder").mkdir()
    uri = spelling.format(root=root)
    async with opened(root) as store:
        read = await store.read(uri)
        outcomes: list[ReadOutcome | WriteOutcome] = [
            await store.write(uri, b"x", IfAbsent()),
            await store.write(uri, b"x", IfMatch("1")),
        ]

    # A name that is too long only with the lock file's suffix can be read, and is absent.
    assert isinstance(read, Refused | Absent), read
    assert all(isinstance(outcome, Refused) for outcome in outcomes), outcomes
    assert sorted(path.name for path in root.parent.iterdir()) == ["outside", "root"]
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert secret.read_text() == "secret"


async def test_a_lock_file_that_is_a_link_is_not_followed(root: Path) -> None:
    """Otherwise a user with write access to the folder could make the agent create files elsewhere."""
    (root / ".t.json.lakewarden-lock").symlink_to(root.parent / "made-elsewhere")
    (root / ".t.json.lakewarden-tmp").symlink_to(root.parent / "made-elsewhere")
    async with opened(root) as store:
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfAbsent()), Refused)
    assert not (root.parent / "made-elsewhere").exists()


async def test_a_root_that_is_a_link_accepts_the_link_and_its_target(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    async with opened(link) as store:
        outcome = await store.write(f"file://{link}/t.json", b"x", IfAbsent())
        assert isinstance(outcome, Won)
        assert await store.read(f"file://{root}/t.json") == Found(b"x", outcome.version)
        assert await store.read(f"file://localhost{root}/t.json") == Found(b"x", outcome.version)


def test_a_missing_root_is_an_error_at_construction(root: Path) -> None:
    with pytest.raises(ValueError, match="create it or choose another"):
        LocalStore(root / "missing", request_timeout_seconds=1)


async def test_a_removed_root_is_refused_and_not_absent(root: Path) -> None:
    """An unmounted disk must not look like a table without a lock."""
    async with opened(root) as store:
        root.rmdir()
        assert isinstance(await store.read(f"file://{root}/t.json"), Refused)
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfAbsent()), Refused)


async def test_a_named_pipe_instead_of_the_object_is_refused_without_blocking(root: Path) -> None:
    os.mkfifo(root / "t.json")
    async with opened(root) as store:
        assert isinstance(await store.read(f"file://{root}/t.json"), Refused)
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfMatch("1")), Refused)


async def test_a_huge_file_instead_of_the_object_is_refused_without_reading_it(root: Path) -> None:
    with (root / "t.json").open("wb") as file:
        file.truncate(1 << 40)
    async with opened(root) as store:
        assert isinstance(await store.read(f"file://{root}/t.json"), Refused)


# --- versions ------------------------------------------------------------------------------------------------------


def test_the_same_bytes_written_again_are_another_version(root: Path) -> None:
    """ABA: a client that read the first A must not be able to overwrite the second A."""
    first = write(root, b"A", IfAbsent())
    second = write(root, b"B", IfMatch(first.version))
    third = write(root, b"A", IfMatch(second.version))

    assert len({first.version, second.version, third.version}) == 3
    assert isinstance(disk.swap(ObjectPath(root, (), "t.json"), b"C", IfMatch(first.version)), Lost)


@pytest.mark.parametrize(
    "now", [0, 1_700_000_000_000_000_000], ids=["clock at zero", "clock does not advance"]
)
def test_versions_rise_whatever_the_clock_shows(
    root: Path, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: now)
    versions = [write(root, b"A", IfAbsent()).version]
    for _ in range(50):
        versions.append(write(root, b"A", IfMatch(versions[-1])).version)

    times = [int(version.partition("-")[0]) for version in versions]
    assert times == sorted(set(times))


@pytest.mark.parametrize("resolution", [1, 100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000])
def test_versions_rise_on_file_systems_with_coarse_times(
    root: Path, resolution: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime

    def coarse(file: int, *, ns: tuple[int, int]) -> None:
        real(file, ns=(ns[0] // resolution * resolution, ns[1] // resolution * resolution))

    monkeypatch.setattr(os, "utime", coarse)
    versions = [write(root, b"A", IfAbsent()).version]
    for _ in range(20):
        versions.append(write(root, b"A", IfMatch(versions[-1])).version)

    assert len(set(versions)) == len(versions)


def test_a_file_system_without_modification_times_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime
    monkeypatch.setattr(os, "utime", lambda file, *, ns: real(file, ns=(0, 0 * ns[0])))
    outcome = disk.swap(ObjectPath(root, (), "t.json"), b"A", IfAbsent())

    assert isinstance(outcome, Refused)
    assert "modification times" in outcome.why


async def test_a_change_by_a_program_that_ignores_the_file_lock_is_another_version(root: Path) -> None:
    async with opened(root) as store:
        written = await store.write(f"file://{root}/t.json", b"ours", IfAbsent())
        (root / "t.json").write_bytes(b"foreign")

        assert isinstance(written, Won)
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfMatch(written.version)), Lost)


# --- file locks ----------------------------------------------------------------------------------------------------


def hold_lock(root: Path) -> int:
    descriptor = os.open(root / ".t.json.lakewarden-lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


async def test_a_write_that_waits_for_the_file_lock_blocks_no_other_request(root: Path) -> None:
    held = hold_lock(root)
    outcomes: list[WriteOutcome] = []
    async with opened(root) as store, anyio.create_task_group() as tasks:

        async def blocked() -> None:
            outcomes.append(await store.write(f"file://{root}/t.json", b"x", IfAbsent()))

        tasks.start_soon(blocked)
        for _ in range(20):
            await anyio.sleep(0.005)
            assert await store.read(f"file://{root}/t.json") == Absent()
            assert isinstance(await store.write(f"file://{root}/u.json", b"x", IfAbsent()), Won | Lost)
        assert outcomes == []
        os.close(held)

    assert isinstance(outcomes[0], Won)


async def test_a_file_lock_held_beyond_the_timeout_is_throttled(root: Path) -> None:
    """Nothing was written, so a retry is safe."""
    held = hold_lock(root)
    async with opened(root, seconds=0.2) as store:
        # The outcome is unknown if the timeout ends during a try.
        while isinstance(outcome := await store.write(f"file://{root}/t.json", b"x", IfAbsent()), Unknown):
            pass
    os.close(held)

    assert isinstance(outcome, Throttled)
    assert not (root / "t.json").exists()


async def test_a_hanging_disk_is_unknown_after_the_timeout_and_the_write_may_be_applied_later(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread can't be cancelled."""
    hanging, may_continue = threading.Event(), threading.Event()
    real = os.fsync

    def hang(descriptor: int) -> None:
        hanging.set()
        may_continue.wait(SECONDS)
        real(descriptor)

    async with opened(root, seconds=0.2) as impatient, opened(root) as store:
        monkeypatch.setattr(os, "fsync", hang)
        while not hanging.is_set():  # on a busy machine the timeout may end before the thread has started
            assert isinstance(await impatient.write(f"file://{root}/t.json", b"late", IfAbsent()), Unknown)
        assert await store.read(f"file://{root}/t.json") == Absent()
        monkeypatch.setattr(os, "fsync", real)
        may_continue.set()
        # The write is applied in an abandoned thread, so there is no event to wait for.
        while not isinstance(found := await store.read(f"file://{root}/t.json"), Found):
            await anyio.sleep(0.005)

    assert found.body == b"late"


async def test_a_hanging_disk_uses_a_bounded_number_of_threads(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system is unavailable for an hour, and a thousand locks are due every few seconds."""
    may_continue = threading.Event()
    hanging: list[int] = []
    outcomes: list[ReadOutcome] = []

    def hang(_: ObjectPath) -> ReadOutcome:
        hanging.append(threading.get_ident())
        may_continue.wait()
        return Absent()

    async def read(store: LocalStore) -> None:
        outcomes.append(await store.read(f"file://{root}/t.json"))

    monkeypatch.setattr(disk, "read", hang)
    try:
        async with opened(root, seconds=0.2) as store:
            while not any(isinstance(each, Throttled) for each in outcomes):
                async with anyio.create_task_group() as tasks:
                    for _ in range(16):
                        tasks.start_soon(read, store)
            while len(hanging) < 16:  # a thread counts for the store before it calls `hang`
                await anyio.sleep(0.005)
            threads = len(hanging)
            may_continue.set()
            while await store.read(f"file://{root}/t.json") != Absent():
                await anyio.sleep(0.005)
    finally:
        may_continue.set()

    assert threads == 16
    assert {type(each) for each in outcomes} == {Unknown, Throttled}
    assert any(
        isinstance(each, Throttled) and "16 earlier disk operations have not ended" in each.why
        for each in outcomes
    )


def test_a_lock_file_removed_between_opening_and_locking_is_not_used(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe's clean-up removes the lock file. A lock on the removed file would exclude no other process."""
    removals = 3
    real = fcntl.flock

    def remove_first(descriptor: int, how: int) -> None:
        nonlocal removals
        real(descriptor, how)
        if removals:
            removals -= 1
            (root / ".t.json.lakewarden-lock").unlink()

    monkeypatch.setattr(fcntl, "flock", remove_first)

    assert isinstance(disk.swap(ObjectPath(root, (), "t.json"), b"x", IfAbsent()), Won)
    assert removals == 0
    assert (root / ".t.json.lakewarden-lock").exists()


# --- failures during a write ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, number, expected",
    [
        ("fsync", errno.EIO, Unknown),
        ("fsync", errno.ENOSPC, Refused),
        ("utime", errno.EPERM, Refused),
        ("rename", errno.EIO, Unknown),
        ("rename", errno.EACCES, Unknown),
    ],
)
def test_a_failing_disk_leaves_the_old_object_and_returns_the_matching_outcome(
    root: Path, call: str, number: int, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(root, b"old", IfAbsent())

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        outcome = disk.swap(ObjectPath(root, (), "t.json"), b"new", IfMatch(old.version))

    assert type(outcome) is expected, outcome
    assert disk.read(ObjectPath(root, (), "t.json")) == Found(b"old", old.version)
    assert isinstance(write(root, b"next", IfMatch(old.version)), Won)


def test_a_failed_sync_of_the_folder_after_the_rename_is_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new object is visible, but might not survive a power failure."""
    old = write(root, b"old", IfAbsent())
    real = os.fsync
    synced = []

    def fail_second(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.EIO, "i/o error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    outcome = disk.swap(ObjectPath(root, (), "t.json"), b"new", IfMatch(old.version))

    assert isinstance(outcome, Unknown)
    found = disk.read(ObjectPath(root, (), "t.json"))
    assert isinstance(found, Found)
    assert found.body == b"new"


DIE_AT = """
import os, sys
from pathlib import Path
from lakewarden.agent.stores import disk
from lakewarden.handlers.lease.conditional import IfMatch

root, version, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
calls = 0

def counted(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os._exit(9)
        return real(*args, **kwargs)
    setattr(os, name, call)

for name in ("open", "close", "stat", "fstat", "fdopen", "unlink", "utime", "fsync", "rename"):
    counted(name)
disk.swap(disk.ObjectPath(root, (), "t.json"), b"new", IfMatch(version))
os._exit(0)
"""


def test_a_crash_before_any_system_call_leaves_the_old_or_the_new_object(root: Path) -> None:
    """A process exits before the first system call of a swap, another before the second, and so on."""
    seen: list[bytes] = []
    for at in range(1, 60):
        (root / "t.json").unlink(missing_ok=True)
        old = write(root, b"old", IfAbsent())
        command = [sys.executable, "-c", DIE_AT, str(root), old.version, str(at)]
        died = subprocess.run(command, check=False).returncode
        found = disk.read(ObjectPath(root, (), "t.json"))
        assert isinstance(found, Found)
        assert found.body in {b"old", b"new"}
        assert (found.version == old.version) == (found.body == b"old")
        write(root, b"after", IfMatch(found.version))
        seen.append(found.body)
        if died == 0:
            break

    assert seen == sorted(seen, reverse=True), "after the new object appeared it stays"
    assert seen[0] == b"old"
    assert seen[-1] == b"new"
    assert len(seen) > 10


def test_the_body_is_synced_before_the_rename_and_the_folder_after(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def recorded(name: str) -> Callable[..., object]:
        real: Callable[..., object] = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            order.append(name)
            return real(*args, **kwargs)

        return call

    for name in ("utime", "fsync", "rename"):
        monkeypatch.setattr(os, name, recorded(name))
    write(root, b"x", IfAbsent())

    assert order == ["utime", "fsync", "rename", "fsync"]
