"""Two clients, one lock, and a pause that is longer than the lease: what a lock prevents, and what it can't prevent.

    pip install '.[agent]'
    python pause.py

Each client is a process. It uses the lock of lakewarden's agent (`LockKeeper`) on a local folder. SIGSTOP and SIGCONT pause it
as a garbage collection, a hibernated machine or a hypervisor would. The table is one file, `table.json`, with the names of
its commits; a publish replaces the file. docs/pause.md explains the output.
"""
# ruff: noqa: INP001, T201 - a script, whose output is read

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from lakewarden.agent.clock import moment, monotonic
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper
from lakewarden.agent.stores import LocalStore
from lakewarden.handlers.lease.conditional import (
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import render
from lakewarden.handlers.lease.machine import Confirmed, Lease, LeaseEnded, LeaseSettings, LockDenied
from lakewarden.handlers.lease.placement import LockLocation

LEASE = LeaseSettings(validity=6.0, renew_interval=0.5, drift=0.2, margin=1.5, poll_seconds=1.0)
REQUEST_TIMEOUT_SECONDS = 1.0
ACTS = {
    "before-check": "1. Paused before its last check: the lock is enough",
    "after-check": "2. Paused between its last check and its publish: no lock closes this window",
    "conditional": "3. The same pause, and a conditional publish: the table closes the window",
}


class Store(LocalStore):
    """A store whose client is paused only between two requests: within one, it has a lock on the file, and all others wait."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS)
        self._requesting = anyio.Lock()

    async def read(self, uri: str) -> ReadOutcome:
        """Read body and version."""
        async with self._requesting:
            return await super().read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """Write conditionally."""
        async with self._requesting:
            return await super().write(uri, body, condition)

    async def pause(self) -> None:
        """Suspend this process, until another one resumes it."""
        async with self._requesting:
            os.kill(os.getpid(), signal.SIGSTOP)


class Client:
    """One writer: it reads the table, acquires the lock, checks its own clock, and publishes."""

    def __init__(self, name: str, act: str, folder: Path, store: Store) -> None:
        self._name, self._act, self._store = name, act, store
        self._table = folder / "table.json"
        self._lock_uri = (folder / "lock.json").as_uri()
        place = LockLocation(self._lock_uri, shared=False)
        self._keeper = LockKeeper(place, LEASE, self._open, self._on_lock_event)
        self._lease: Lease | None = None
        self._acquired, self._ended, self._waiting = anyio.Event(), anyio.Event(), False
        self._end_reason = ""

    async def run(self) -> None:
        """Run the client from its first command to its last."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keeper.run)
            await _await_command("begin")
            base = await self._read_table()
            self._keeper.acquire(None)
            await self._acquired.wait()
            if self._name == "A" and self._act == "before-check":
                await self._store.pause()
            await _await_command("publish")
            if self._check():
                if self._name == "A" and self._act != "before-check":
                    await self._store.pause()  # the worst moment
                await self._publish(base)
            else:
                await self._after_the_lease()
            await _await_command("finish")
            self._keeper.release()
            await self._keeper.wait_released()
            tasks.cancel_scope.cancel()

    async def _open(self) -> Store:
        return self._store

    def _on_lock_event(self, event: KeeperEvent, _relied_on: bool) -> None:  # noqa: FBT001 - the keeper's callback
        match event:
            case Confirmed(what="acquired", lease=lease):
                self._lease = lease
                how = (
                    "replaces the expired lock, if it is unchanged: won"
                    if self._waiting
                    else "acquires the lock: won"
                )
                seconds = LEASE.validity - LEASE.drift
                self._report("acquired", f"{how}; the lease counts for {seconds:.1f} s, longer if renewed")
                self._acquired.set()
            case Confirmed(lease=lease):
                self._lease = lease
            case LockDenied() if self._lease is None and not self._waiting:
                self._waiting = True
                self._report("denied", "finds the lock held; waits until its lease has expired")
            case LeaseEnded(why=why):
                self._end_reason = why
                self._ended.set()
            case _:
                pass

    def _check(self) -> bool:
        """Return whether this client may publish, by its own clock and nothing else: the last check before the publish."""
        assert self._lease is not None
        left = self._lease.expires_at - monotonic()
        if left > 0:
            self._report(
                "may-publish", f"checks its own clock: {left:.1f} s of its lease are left; may publish"
            )
        else:
            self._report(
                "may-not-publish",
                f"checks its own clock: its lease expired {-left:.1f} s ago; publishes nothing",
            )
        return left > 0

    async def _after_the_lease(self) -> None:
        """Show what else stops a client whose lease expired while it was paused."""
        lease = self._lease
        assert lease is not None
        await self._ended.wait()
        self._report("lease-ended", f"its lock keeper reports the same: {self._end_reason}")
        # A keeper whose lease has expired reads the lock before it writes. A client that checks no clock would just renew:
        renewal = replace(lease.record, valid_until=moment().wall_ms + round(LEASE.validity * 1000))
        outcome = await self._store.write(self._lock_uri, render(renewal), IfMatch(lease.version))
        assert isinstance(outcome, Lost), outcome
        self._report("renewal-lost", "renews the lock anyway, if it is unchanged: lost")

    async def _read_table(self) -> Found:
        found = await self._store.read(self._table.as_uri())
        assert isinstance(found, Found), found
        return found

    async def _publish(self, base: Found) -> None:
        """Replace the table by what this client read before, plus its own commit."""
        commits = [*json.loads(base.body), f"{self._name}'s commit"]
        body = json.dumps(commits).encode()
        if self._act != "conditional":
            self._table.write_bytes(body)
            self._report("published", f"publishes: the table is now {commits}")
            return
        match await self._store.write(self._table.as_uri(), body, IfMatch(base.version)):
            case Won():
                self._report(
                    "published",
                    f"publishes, if the table is unchanged: won; the table is now {commits}",
                )
            case Lost():
                self._report("publish-lost", "publishes, if the table is unchanged: lost; must compute again")
            case outcome:
                raise AssertionError(outcome)

    def _report(self, step: str, text: str) -> None:
        print(json.dumps({"t": monotonic(), "client": self._name, "step": step, "text": text}), flush=True)


async def _await_command(command: str) -> None:
    line = await anyio.to_thread.run_sync(sys.stdin.readline)
    assert line.strip() == command, line


async def client(name: str, act: str, folder: Path) -> None:
    """Run one client."""
    async with Store(folder) as store:
        await Client(name, act, folder, store).run()


class Stage:
    """Starts the clients, pauses one, and prints their reports in order."""

    def __init__(self, act: str, folder: Path) -> None:
        self._act, self._folder = act, folder
        self._began: float | None = None

    def play(self) -> None:
        """Run one act."""
        with self._start("A") as a, self._start("B") as b:
            _send_command(a, "begin")
            self._expect(a, "acquired")
            if self._act != "before-check":
                _send_command(a, "publish")
                self._expect(a, "may-publish")
            _, status = os.waitpid(a.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
            self._print("-", "A is paused")
            _send_command(b, "begin")
            self._expect(b, "denied")
            self._expect(b, "acquired")
            _send_command(b, "publish")
            self._expect(b, "may-publish")
            self._expect(b, "published")
            self._print("-", "A resumes")
            a.send_signal(signal.SIGCONT)
            if self._act == "before-check":
                _send_command(a, "publish")
                for step in ("may-not-publish", "lease-ended", "renewal-lost"):
                    self._expect(a, step)
            else:
                self._expect(a, "published" if self._act == "after-check" else "publish-lost")
            for each in (a, b):
                _send_command(each, "finish")
        commits = json.loads((self._folder / "table.json").read_bytes())
        lost = "" if "B's commit" in commits else "; B's commit, which its publish reported as done, is lost"
        self._print("-", f"the table is {commits}{lost}")

    @contextmanager
    def _start(self, name: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, __file__, name, self._act, str(self._folder)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with client:
            try:
                yield client
            except BaseException:
                client.kill()
                raise

    def _expect(self, client: subprocess.Popen[str], step: str) -> None:
        """Print the client's next report, which must be of this step."""
        assert client.stdout is not None
        line = client.stdout.readline()
        assert line, f"a client ended before it reported {step!r}"
        report = json.loads(line)
        assert report["step"] == step, report
        self._print(report["client"], report["text"], report["t"])

    def _print(self, name: str, text: str, at: float | None = None) -> None:
        at = monotonic() if at is None else at
        self._began = at if self._began is None else self._began
        print(f"{at - self._began:6.2f} s  {name}  {text}", flush=True)


def _send_command(client: subprocess.Popen[str], command: str) -> None:
    assert client.stdin is not None
    client.stdin.write(f"{command}\n")
    client.stdin.flush()


async def _create_table(folder: Path) -> None:
    async with LocalStore(folder, request_timeout_seconds=60.0) as store:
        outcome = await store.write((folder / "table.json").as_uri(), b"[]", IfAbsent())
        assert isinstance(outcome, Won), outcome


def main() -> None:
    """Run the three acts. With arguments: run one client of an act."""
    if len(sys.argv) > 1:
        anyio.run(client, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
        return
    for act, title in ACTS.items():
        print(f"{title}\n")
        with tempfile.TemporaryDirectory(prefix="lakewarden-pause-") as folder:
            anyio.run(_create_table, Path(folder))
            Stage(act, Path(folder)).play()
        print()


if __name__ == "__main__":
    main()
