"""What only the local disk can get wrong: paths, versions, crashes in between, and waiting for each other."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections import Counter
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

SECONDS = 5.0


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

    # A name that is too long only once the lock's suffix is on it is simply not there.
    assert isinstance(read, Refused | Absent), read
    assert all(isinstance(outcome, Refused) for outcome in outcomes), outcomes
    assert sorted(path.name for path in root.parent.iterdir()) == ["outside", "root"]
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert secret.read_text() == "secret"


async def test_a_lock_file_that_is_a_link_is_not_followed(root: Path) -> None:
    """Whoever may write into the folder could otherwise have us create files elsewhere."""
    (root / ".t.json.lakewarden-lock").symlink_to(root.parent / "made-elsewhere")
    (root / ".t.json.lakewarden-tmp").symlink_to(root.parent / "made-elsewhere")
    async with opened(root) as store:
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfAbsent()), Refused)
    assert not (root.parent / "made-elsewhere").exists()


async def test_a_root_that_is_a_link_may_be_spelled_either_way(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    async with opened(link) as store:
        outcome = await store.write(f"file://{link}/t.json", b"x", IfAbsent())
        assert isinstance(outcome, Won)
        assert await store.read(f"file://{root}/t.json") == Found(b"x", outcome.version)
        assert await store.read(f"file://localhost{root}/t.json") == Found(b"x", outcome.version)


def test_a_root_that_is_no_folder_is_an_error_at_once(root: Path) -> None:
    with pytest.raises(ValueError, match="create it or name another"):
        LocalStore(root / "missing", request_timeout_seconds=1)


async def test_a_root_that_went_away_is_refused_and_not_absent(root: Path) -> None:
    """An unmounted disk must not look like a table that nobody has locked."""
    async with opened(root) as store:
        root.rmdir()
        assert isinstance(await store.read(f"file://{root}/t.json"), Refused)
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfAbsent()), Refused)


async def test_a_pipe_under_the_objects_name_does_not_hang_us(root: Path) -> None:
    os.mkfifo(root / "t.json")
    async with opened(root) as store:
        assert isinstance(await store.read(f"file://{root}/t.json"), Refused)
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfMatch("1")), Refused)


async def test_a_huge_file_under_the_objects_name_is_not_read(root: Path) -> None:
    with (root / "t.json").open("wb") as file:
        file.truncate(1 << 40)
    async with opened(root) as store:
        assert isinstance(await store.read(f"file://{root}/t.json"), Refused)


# --- versions ------------------------------------------------------------------------------------------------------


def test_the_same_bytes_written_again_are_another_version(root: Path) -> None:
    """ABA: someone who read the first A must not be able to write over the second."""
    first = write(root, b"A", IfAbsent())
    second = write(root, b"B", IfMatch(first.version))
    third = write(root, b"A", IfMatch(second.version))

    assert len({first.version, second.version, third.version}) == 3
    assert isinstance(disk.swap(ObjectPath(root, (), "t.json"), b"C", IfMatch(first.version)), Lost)


@pytest.mark.parametrize("now", [0, 1_700_000_000_000_000_000], ids=["clock at zero", "clock stands still"])
def test_versions_rise_whatever_the_clock_says(root: Path, now: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_file_system_without_times_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.utime
    monkeypatch.setattr(os, "utime", lambda file, *, ns: real(file, ns=(0, 0 * ns[0])))
    outcome = disk.swap(ObjectPath(root, (), "t.json"), b"A", IfAbsent())

    assert isinstance(outcome, Refused)
    assert "modification times" in outcome.why


async def test_a_change_by_somebody_who_takes_no_lock_is_another_version(root: Path) -> None:
    async with opened(root) as store:
        mine = await store.write(f"file://{root}/t.json", b"mine", IfAbsent())
        (root / "t.json").write_bytes(b"them")

        assert isinstance(mine, Won)
        assert isinstance(await store.write(f"file://{root}/t.json", b"x", IfMatch(mine.version)), Lost)


# --- waiting for each other ----------------------------------------------------------------------------------------


def hold_lock(root: Path) -> int:
    descriptor = os.open(root / ".t.json.lakewarden-lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


async def test_a_write_waits_for_the_file_lock_without_stopping_anybody_else(root: Path) -> None:
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


async def test_a_file_lock_that_stays_held_is_throttled_within_the_timeout(root: Path) -> None:
    """Nothing was written, and somebody else is slow: that is what throttled says."""
    held = hold_lock(root)
    async with opened(root, seconds=0.2) as store:
        with anyio.fail_after(30):
            # Unknown, where the time was up in the middle of a try.
            while isinstance(
                outcome := await store.write(f"file://{root}/t.json", b"x", IfAbsent()), Unknown
            ):
                pass
    os.close(held)

    assert isinstance(outcome, Throttled)
    assert not (root / "t.json").exists()


async def test_a_disk_that_hangs_is_unknown_within_the_timeout(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the write may land later: the thread can't be called back."""
    may_go_on = threading.Event()
    real = os.fsync

    def hang(descriptor: int) -> None:
        may_go_on.wait(SECONDS)
        real(descriptor)

    async with opened(root, seconds=0.2) as store:
        monkeypatch.setattr(os, "fsync", hang)
        assert isinstance(await store.write(f"file://{root}/t.json", b"late", IfAbsent()), Unknown)
        assert await store.read(f"file://{root}/t.json") == Absent()
        monkeypatch.setattr(os, "fsync", real)
        may_go_on.set()
        with anyio.fail_after(SECONDS):
            # What is waited for happens in a thread that was given up on, so there is no event to wait for.
            while not isinstance(found := await store.read(f"file://{root}/t.json"), Found):
                await anyio.sleep(0.005)

    assert found.body == b"late"


async def test_a_disk_that_hangs_keeps_a_bounded_number_of_threads(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system went away for an hour, and a thousand locks are asked for every few seconds."""
    may_go_on = threading.Event()
    hanging = Counter[str]()
    outcomes: list[ReadOutcome] = []

    def hang(_: ObjectPath) -> ReadOutcome:
        hanging["threads"] += 1
        may_go_on.wait()
        return Absent()

    async def ask(store: LocalStore) -> None:
        outcomes.append(await store.read(f"file://{root}/t.json"))

    monkeypatch.setattr(disk, "read", hang)
    try:
        async with opened(root, seconds=0.2) as store:
            while not any(isinstance(each, Throttled) for each in outcomes):
                async with anyio.create_task_group() as tasks:
                    for _ in range(16):
                        tasks.start_soon(ask, store)
            threads = hanging["threads"]
            may_go_on.set()
            while await store.read(f"file://{root}/t.json") != Absent():
                await anyio.sleep(0.005)
    finally:
        may_go_on.set()

    assert threads == 16
    assert {type(each) for each in outcomes} == {Unknown, Throttled}
    assert any(
        isinstance(each, Throttled) and "has not answered 16 requests" in each.why for each in outcomes
    )


def test_a_lock_file_removed_while_we_opened_it_is_not_trusted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe's clean-up removes it; whoever locked the removed one would be alone with it."""
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


# --- failures in between -------------------------------------------------------------------------------------------


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
def test_a_failing_disk_leaves_the_old_object_and_says_what_is_known(
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


def test_a_folder_that_can_not_be_synced_after_the_rename_is_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new object is there for everybody to see, but might not survive a power cut."""
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
    def call(*given, **named):
        global calls
        calls += 1
        if calls == at:
            os._exit(9)
        return real(*given, **named)
    setattr(os, name, call)

for name in ("open", "close", "stat", "fstat", "fdopen", "unlink", "utime", "fsync", "rename"):
    counted(name)
disk.swap(disk.ObjectPath(root, (), "t.json"), b"new", IfMatch(version))
os._exit(0)
"""


def test_dying_before_any_one_system_call_leaves_the_old_or_the_new(root: Path) -> None:
    """Every point at which a swap can be cut off, one after the other."""
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

    assert seen == sorted(seen, reverse=True), "once the new one is there it stays"
    assert seen[0] == b"old"
    assert seen[-1] == b"new"
    assert len(seen) > 10


def test_the_body_is_synced_before_the_rename_and_the_folder_after(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def recorded(name: str) -> Callable[..., object]:
        real: Callable[..., object] = getattr(os, name)

        def call(*given: object, **named: object) -> object:
            order.append(name)
            return real(*given, **named)

        return call

    for name in ("utime", "fsync", "rename"):
        monkeypatch.setattr(os, name, recorded(name))
    write(root, b"x", IfAbsent())

    assert order == ["utime", "fsync", "rename", "fsync"]
