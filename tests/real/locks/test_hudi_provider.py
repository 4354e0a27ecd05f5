"""Hudi's lock provider and the product on one lock object: the agent, `lakewarden lock hold`, and a JVM with Hudi's release.

`tests/servers/hudi` lists which parts are Hudi's. All processes use the same clock, so these tests compare to the millisecond
that no lease is broken. They never assert how long a wait takes.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from lakewarden.events import CommitGranted, LockAcquired, LockRefused
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from lakewarden.handlers.lease.placement import HUDI_LOCK, HUDI_PROPERTIES
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import GateError
from tests.processes import environment
from tests.real.writers import World
from tests.servers.hudi import HudiWriters, hudi_class_path
from tests.servers.program import NoServerError
from tests.servers.s3 import S3Server
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.real, pytest.mark.wide]

LEASE_SECONDS = 30
"""On both sides, in tests in which no lease should end."""
SHORT_LEASE_SECONDS = 20
"""Twice the minimum that Hudi accepts. A tenth of it bounds a request, and a busy machine may need more than a second."""
OURS: dict[str, Any] = {
    "validity_seconds": LEASE_SECONDS,
    "hudi_validity_seconds": LEASE_SECONDS,
    "drift_seconds": 0.5,
    "session_timeout_seconds": 30.0,
}
OURS_SHORT = {"hudi_validity_seconds": SHORT_LEASE_SECONDS}
SHOW_OWNER = ("sh", "-c", "echo $LAKEWARDEN_LOCK_OWNER; exec sleep 300")
"""A command of `lock hold` that prints the owner, and runs until a signal."""
HUDI_DRIFT_MS = 500
"""A constant of Hudi."""
OUR_DRIFT_MS = 2_000 * OURS["drift_seconds"]
HOUR_MS = 3_600_000
HUDI_WRITERS = 2
PAUSE = 8.0
"""The average pause between turns, as a multiple of the length of a turn, so that the lock is mostly free on any machine."""
CONTENTION_SECONDS = 15
CONTENTION_PATIENCE_SECONDS = 450.0
LEAST_TURNS = Counter(hudi=10, agent=3, hold=2)
SECTION = """\
cd "$1" || exit 3
mkdir inside || exit 1  # another process is inside
count=$(cat counter)
sleep 0.05
echo $((count + 1)) > counter
echo "$2" >> history
rmdir inside || exit 2
"""


@dataclass(frozen=True, slots=True)
class Lake:
    """A bucket with tables, read and written without either side's code."""

    server: S3Server
    bucket: str

    def table(self, name: str) -> str:
        """The URI of a Hudi table, which has the file by which the agent recognises one."""
        table = f"s3://{self.bucket}/warehouse/{name}"
        self.server.put(table + HUDI_PROPERTIES, b"hoodie.table.name=t\n")
        return table

    def values(self, **more: Any) -> dict[str, Any]:
        """Settings of the product."""
        return {"s3_endpoint": self.server.endpoint, **OURS, **more}

    def body(self, table: str) -> bytes:
        """The contents of the table's lock object."""
        return self.server.get(table + HUDI_LOCK)

    def record(self, table: str) -> LockRecord:
        record = parse(self.body(table))
        assert isinstance(record, LockRecord), record
        return record

    def put(self, table: str, record: LockRecord) -> None:
        """Write the lock object as the product does."""
        self.server.put(table + HUDI_LOCK, render(record))

    async def show(self, table: str) -> dict[str, Any]:
        """The output of `lakewarden lock show`."""
        arguments = ["show", table, "--hudi", "--output", "json"]
        done = await anyio.run_process(_command(*arguments), env=environment(self.values()))
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown

    @asynccontextmanager
    async def hold(self, table: str, *command: str, **more: Any) -> AsyncIterator[Hold]:
        """Start `lakewarden lock hold`, which waits for the lock. It is killed at the end of the block."""
        patience = f"{CONTENTION_PATIENCE_SECONDS:g}"
        arguments = ["hold", table, "--hudi", "--wait", patience, "--seconds", "300"]
        arguments += ["--", *command]
        env = environment(self.values(**more))
        async with await anyio.open_process(_command(*arguments), env=env) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            out, err = (BufferedByteReceiveStream(stream) for stream in (process.stdout, process.stderr))
            try:
                yield Hold(process, out, err)
            finally:
                if process.returncode is None:
                    process.kill()


@dataclass(frozen=True, slots=True)
class Hold:
    """A process of `lock hold`."""

    process: anyio.abc.Process
    out: BufferedByteReceiveStream
    err: BufferedByteReceiveStream

    async def stdout_line(self) -> str:
        return await _line(self.out)

    async def wait_until_waiting(self) -> str:
        """Wait for the line on stderr that names the holder. A line about a slow store may precede it."""
        while "held by another" not in (line := await _line(self.err)):
            pass
        return line

    async def wait_ended(self) -> int:
        with anyio.fail_after(CONTENTION_PATIENCE_SECONDS):
            return await self.process.wait()


@pytest.fixture(scope="module")
def class_path() -> str:
    """Fails instead of skipping: without Hudi's provider these tests prove nothing."""
    try:
        return hudi_class_path()
    except NoServerError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def hudi(
    class_path: str, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HudiWriters]:
    """Hudi writers for all tests, with leases as long as the product's."""
    folder = tmp_path_factory.mktemp("hudi")
    writers = HudiWriters(class_path, s3_server, folder, lease_seconds=LEASE_SECONDS)
    yield writers
    writers.kill()


@pytest.fixture
def mortal(class_path: str, s3_server: S3Server, tmp_path: Path) -> Iterator[HudiWriters]:
    """Hudi writers that a test may kill, with short leases."""
    writers = HudiWriters(class_path, s3_server, tmp_path, lease_seconds=SHORT_LEASE_SECONDS)
    yield writers
    writers.kill()


@pytest.fixture
def lake(s3_credentials: S3Server) -> Lake:
    return Lake(s3_credentials, s3_credentials.bucket())


@pytest.fixture
def scene(scene: World, lake: Lake) -> World:
    """A world for agents on that bucket."""
    scene.overrides |= lake.values(tables=(lake.table("*"),), lock_root=None)
    return scene


async def test_both_sides_write_the_same_bytes(hudi: HudiWriters, lake: Lake) -> None:
    """Hudi may renew the lock between the two reads."""
    table, began_ms = lake.table("bytes"), time.time() * 1000
    owner = await hudi.lock("w", table)
    held = lake.body(table)
    await hudi.unlock("w")
    released = lake.body(table)

    record, after = parse(held), parse(released)
    assert isinstance(record, LockRecord)
    assert (record.expired, record.owner) == (False, owner)
    assert isinstance(after, LockRecord)
    assert (after.expired, after.owner) == (True, owner)
    assert began_ms < record.valid_until <= after.valid_until
    assert (render(record), render(after)) == (held, released)


async def test_hudi_respects_the_products_lock_until_it_is_released_or_has_expired(
    hudi: HudiWriters, lake: Lake
) -> None:
    table = lake.table("states")
    now = time.time_ns() // 1_000_000
    lake.put(table, LockRecord(expired=False, valid_until=now + HOUR_MS, owner="ours, held"))
    assert await hudi.lock("w", table, seconds=1) is None
    assert "Lock already held by ours, held" in hudi.log

    lake.put(table, LockRecord(expired=True, valid_until=now + HOUR_MS, owner="ours, released"))
    released = await hudi.lock("w", table)
    assert released == lake.record(table).owner
    await hudi.unlock("w")

    lake.put(table, LockRecord(expired=False, valid_until=now - HUDI_DRIFT_MS, owner="ours, lapsed"))
    lapsed = await hudi.lock("w", table)
    assert lapsed == lake.record(table).owner != released
    await hudi.unlock("w")


async def test_lock_hold_and_hudi_wait_for_each_other(hudi: HudiWriters, lake: Lake) -> None:
    table = lake.table("hold")
    theirs = await hudi.lock("w", table)
    async with lake.hold(table, *SHOW_OWNER) as hold:
        waiting, shown = await hold.wait_until_waiting(), await lake.show(table)
        await hudi.unlock("w")
        holding, ours = await hold.stdout_line(), lake.record(table)
        refused = await hudi.lock("w", table, seconds=1)
        hold.process.send_signal(signal.SIGINT)
        status = await hold.wait_ended()
    again = await hudi.lock("w", table)
    await hudi.unlock("w")

    assert f"held by another owner: {theirs}, until " in waiting
    assert (shown["state"], shown["owner"]) == ("held", theirs)
    assert (holding, status) == (ours.owner, 128 + signal.SIGINT)
    assert refused is None
    assert f"Lock already held by {ours.owner}" in hudi.log
    assert again not in (None, theirs, ours.owner)


async def test_the_agent_and_hudi_wait_for_each_other(hudi: HudiWriters, lake: Lake, scene: World) -> None:
    table = lake.table("agent")
    theirs = await hudi.lock("w", table)
    async with scene.agent():
        writer = scene.writer("ours", table)
        await writer.begin(lock=table + HUDI_LOCK, heartbeat_seconds=100)
        await writer.request_commit()
        refusals = await scene.wait_for(LockRefused)
        early = scene.events(CommitGranted)
        await hudi.unlock("w")
        grant = await writer.wait_for(CommitGranted)
        refused = await hudi.lock("w", table, seconds=1)
        await writer.complete(grant.grant)
        again = await hudi.lock("w", table)
        await hudi.unlock("w")

    assert {each.holder for each in refusals} == {theirs}
    assert early == []
    assert refused is None
    assert f"Lock already held by {grant.lock_owner}" in hudi.log
    assert again not in (None, theirs, grant.lock_owner)


async def test_hudis_writers_the_agent_and_lock_hold_never_hold_the_lock_at_once(
    hudi: HudiWriters, lake: Lake, scene: World, tmp_path: Path
) -> None:
    table = lake.table("turns")
    script, shared = tmp_path / "section.sh", tmp_path / "shared"
    script.write_text(SECTION)
    shared.mkdir()
    (shared / "counter").write_text("0\n")
    history = shared / "history"
    history.touch()
    section = ["sh", str(script), str(shared)]
    statuses: Counter[tuple[str, int]] = Counter()
    over = threading.Event()

    def commit() -> None:
        took = 0.0
        with CommitGate(scene.bootstrap_servers, topic_prefix=scene.prefix, heartbeat_seconds=1.0) as gate:
            for batch in itertools.count():
                if over.wait(random.uniform(0, 2 * PAUSE) * took):
                    return
                with (
                    suppress(GateError),
                    gate.transaction(
                        table=table, writer="ours", batch_id=batch, lock=table + HUDI_LOCK
                    ) as txn,
                    txn.commit() as grant,
                ):
                    grant.check()
                    began = time.monotonic()
                    statuses["agent", subprocess.run([*section, "agent"], check=False).returncode] += 1
                    took = time.monotonic() - began

    async def hold() -> None:
        while not over.is_set():
            async with lake.hold(table, *section, "hold") as holding:
                statuses["hold", await holding.wait_ended()] += 1

    async with scene.agent(), anyio.create_task_group() as tasks:
        numbers = [
            hudi.start_cycles(f"w{each}", table, [*section, "hudi"], PAUSE) for each in range(HUDI_WRITERS)
        ]
        tasks.start_soon(anyio.to_thread.run_sync, commit)
        tasks.start_soon(hold)
        try:
            least_until = time.monotonic() + CONTENTION_SECONDS
            await until(
                lambda: (
                    time.monotonic() >= least_until and not LEAST_TURNS - Counter(history.read_text().split())
                ),
                seconds=CONTENTION_PATIENCE_SECONDS,
            )
        finally:
            over.set()
        await hudi.stop_cycles(*numbers)
    statuses.update(("hudi", status) for number in numbers for status in hudi.cycle_statuses(number))

    turns = Counter(history.read_text().split())
    print(f"{dict(turns)} turns")
    assert statuses == {(side, 0): count for side, count in turns.items()}
    assert int((shared / "counter").read_text()) == turns.total()
    assert [each.name for each in shared.iterdir() if each.is_dir()] == []


async def test_the_lock_of_a_killed_hudi_writer_is_acquired_after_its_lease_and_the_drift(
    mortal: HudiWriters, lake: Lake, scene: World
) -> None:
    held, granted = lake.table("held"), lake.table("granted")
    for table in (held, granted):
        await mortal.lock(table, table)
    async with scene.agent(), lake.hold(held, "true") as hold:
        writer = scene.writer("ours", granted)
        await writer.begin(lock=granted + HUDI_LOCK, heartbeat_seconds=100)
        await writer.request_commit()
        await scene.wait_for(LockRefused)
        await hold.wait_until_waiting()
        mortal.kill()
        left = {table: lake.record(table) for table in (held, granted)}

        assert await hold.wait_ended() == 0
        [acquired] = await scene.wait_for(LockAcquired)
        await writer.wait_for(CommitGranted)

    written = {held: lake.record(held).valid_until, granted: acquired.valid_until}
    for table, record in left.items():
        assert not record.expired
        assert written[table] - LEASE_SECONDS * 1000 > record.valid_until + OUR_DRIFT_MS


async def test_hudi_acquires_the_lock_of_a_killed_holder_after_its_lease_and_the_drift(
    hudi: HudiWriters, lake: Lake, scene: World
) -> None:
    held, granted = lake.table("held"), lake.table("granted")
    with scene.process(**OURS_SHORT) as agent:
        async with lake.hold(held, *SHOW_OWNER, **OURS_SHORT) as hold:
            await agent.ready()
            writer = scene.writer("ours", granted)
            await writer.begin(lock=granted + HUDI_LOCK, heartbeat_seconds=100)
            await writer.obtain_grant()
            assert await hold.stdout_line() == lake.record(held).owner
            hold.process.kill()
            agent.kill()
            left = {table: lake.record(table) for table in (held, granted)}

        async with anyio.create_task_group() as tasks:
            for table in left:
                tasks.start_soon(hudi.lock, table, table)

    for table, record in left.items():
        assert not record.expired
        acquired_by_hudi = lake.record(table)
        assert acquired_by_hudi.owner != record.owner
        assert acquired_by_hudi.valid_until - LEASE_SECONDS * 1000 > record.valid_until + HUDI_DRIFT_MS


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lakewarden.agent", "lock", *arguments]


async def _line(stream: BufferedByteReceiveStream) -> str:
    with anyio.fail_after(PATIENCE_SECONDS):
        return (await stream.receive_until(b"\n", 4096)).decode()
