"""Two clients, one lock, and a pause that is longer than the lease: what a lock can do about it, and what it can't.

    pip install 'lakewarden[agent]'
    python pause.py

Each client is a process with the lock of lakewarden's agent (`LockKeeper`) on a local folder; SIGSTOP and SIGCONT are
the pause, as a garbage collection, a hibernated machine or a hypervisor would make it. The table is one file, `table.json`,
with the names of its commits; a publish replaces the file. docs/pause.md tells the story.
"""
# ruff: noqa: INP001, T201 - a script for people, who read what it prints

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
from lakewarden.agent.stores import ConditionalStore, LocalStore
from lakewarden.handlers.lease.conditional import Found, IfAbsent, IfMatch, Lost, Won
from lakewarden.handlers.lease.lock_object import render
from lakewarden.handlers.lease.machine import Confirmed, Lease, LeaseEnded, LeaseSettings, LockDenied
from lakewarden.handlers.lease.placement import LockPlace

LEASE = LeaseSettings(validity=4.0, renew_interval=0.4, drift=0.2, margin=0.5, poll_seconds=1.0)
REQUEST_TIMEOUT_SECONDS = 0.3
ACTS = {
    "before-check": "1. Paused before its last check: the lock is enough",
    "after-check": "2. Paused between its last check and its publish: no lock closes this window",
    "conditional": "3. The same pause, and a publish under a condition: the table closes it",
}


class Client:
    """One writer: takes the lock, works, checks its own clock, publishes."""

    def __init__(self, name: str, act: str, folder: Path, store: ConditionalStore) -> None:
        self._name, self._act, self._store = name, act, store
        self._table = folder / "table.json"
        self._lock_uri = (folder / "lock.json").as_uri()
        place = LockPlace(self._lock_uri, shared=False)
        self._keeper = LockKeeper(place, LEASE, self._open, self._hear)
        self._lease: Lease | None = None
        self._held, self._ended, self._waiting = anyio.Event(), anyio.Event(), False
        self._why_ended = ""

    async def run(self) -> None:
        """The whole life of the client."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keeper.run)
            await _told_to("begin")
            base = await self._read_table()
            self._keeper.acquire(None)
            await self._held.wait()
            await _told_to("publish")
            if self._check():
                if self._name == "A" and self._act != "before-check":
                    os.kill(os.getpid(), signal.SIGSTOP)  # the worst moment for a pause
                await self._publish(base)
            else:
                await self._after_the_lease()
            await _told_to("finish")
            self._keeper.release()
            await self._keeper.wait_released()
            tasks.cancel_scope.cancel()

    async def _open(self) -> ConditionalStore:
        return self._store

    def _hear(self, told: KeeperEvent, _relied_on: bool) -> None:  # noqa: FBT001 - the keeper's callback
        match told:
            case Confirmed(what="acquired", lease=lease):
                self._lease = lease
                how = (
                    "replaces the lapsed lock, if it is as read: won"
                    if self._waiting
                    else "takes the lock: won"
                )
                seconds = LEASE.validity - LEASE.drift
                self._say("acquired", f"{how}; may rely on it for {seconds:.1f} s, longer if renewed")
                self._held.set()
            case Confirmed(lease=lease):
                self._lease = lease
            case LockDenied() if self._lease is None and not self._waiting:
                self._waiting = True
                self._say("denied", "finds the lock held; waits until that lease has ended")
            case LeaseEnded(why=why):
                self._why_ended = why
                self._ended.set()
            case _:
                pass

    def _check(self) -> bool:
        """The last look before the publish: at this client's own clock, and at nothing else."""
        assert self._lease is not None
        left = self._lease.expires_at - monotonic()
        if left > 0:
            self._say(
                "may-publish", f"looks at its own clock: {left:.1f} s of its lease are left; may publish"
            )
        else:
            self._say(
                "may-not-publish",
                f"looks at its own clock: its lease ended {-left:.1f} s ago; publishes nothing",
            )
        return left > 0

    async def _after_the_lease(self) -> None:
        """What else the one that overslept is told."""
        lease = self._lease
        assert lease is not None
        await self._ended.wait()
        self._say("lease-ended", f"its keeper says so too: {self._why_ended}")
        # A keeper that knows its lease to be over reads before it writes. A client without a clock would just renew:
        renewal = replace(lease.record, valid_until=moment().wall_ms + round(LEASE.validity * 1000))
        outcome = await self._store.write(self._lock_uri, render(renewal), IfMatch(lease.version))
        assert isinstance(outcome, Lost), outcome
        self._say("renewal-lost", "renews it all the same, if the lock is as it left it: lost")

    async def _read_table(self) -> Found:
        found = await self._store.read(self._table.as_uri())
        assert isinstance(found, Found), found
        return found

    async def _publish(self, base: Found) -> None:
        """Replace the table by what this client read before its work, and its own commit."""
        commits = [*json.loads(base.body), f"{self._name}'s commit"]
        body = json.dumps(commits).encode()
        if self._act != "conditional":
            self._table.write_bytes(body)
            self._say("published", f"publishes: the table is now {commits}")
            return
        match await self._store.write(self._table.as_uri(), body, IfMatch(base.version)):
            case Won():
                self._say(
                    "published",
                    f"publishes, if the table is as read: won; the table is now {commits}",
                )
            case Lost():
                self._say("publish-lost", "publishes, if the table is as read: lost; has to compute again")
            case unclear:
                raise AssertionError(unclear)

    def _say(self, what: str, text: str) -> None:
        print(json.dumps({"t": monotonic(), "who": self._name, "what": what, "text": text}), flush=True)


async def _told_to(command: str) -> None:
    line = await anyio.to_thread.run_sync(sys.stdin.readline)
    assert line.strip() == command, line


async def client(name: str, act: str, folder: Path) -> None:
    """A client's process."""
    async with LocalStore(folder, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS) as store:
        await Client(name, act, folder, store).run()


class Stage:
    """Starts the clients, pauses one, and prints what happens in the order in which it does."""

    def __init__(self, act: str, folder: Path) -> None:
        self._act, self._folder = act, folder
        self._began: float | None = None

    def play(self) -> None:
        """One act."""
        with self._start("A") as a, self._start("B") as b:
            _tell(a, "begin")
            self._hear(a, "acquired")
            if self._act == "before-check":
                a.send_signal(signal.SIGSTOP)
            else:
                _tell(a, "publish")
                self._hear(a, "may-publish")
            _, status = os.waitpid(a.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
            self._say("-", "A is paused")
            _tell(b, "begin")
            self._hear(b, "denied")
            self._hear(b, "acquired")
            _tell(b, "publish")
            self._hear(b, "may-publish")
            self._hear(b, "published")
            self._say("-", "A wakes up")
            a.send_signal(signal.SIGCONT)
            if self._act == "before-check":
                _tell(a, "publish")
                for what in ("may-not-publish", "lease-ended", "renewal-lost"):
                    self._hear(a, what)
            else:
                self._hear(a, "published" if self._act == "after-check" else "publish-lost")
            for each in (a, b):
                _tell(each, "finish")
        commits = json.loads((self._folder / "table.json").read_bytes())
        gone = "" if "B's commit" in commits else ", and B's commit, which B was told is in it, is gone"
        self._say("-", f"the table is {commits}{gone}")

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

    def _hear(self, client: subprocess.Popen[str], what: str) -> None:
        assert client.stdout is not None
        line = client.stdout.readline()
        assert line, f"a client ended before it said {what!r}"
        said = json.loads(line)
        assert said["what"] == what, said
        self._say(said["who"], said["text"], said["t"])

    def _say(self, who: str, text: str, at: float | None = None) -> None:
        at = monotonic() if at is None else at
        self._began = at if self._began is None else self._began
        print(f"{at - self._began:6.2f} s  {who}  {text}", flush=True)


def _tell(client: subprocess.Popen[str], command: str) -> None:
    assert client.stdin is not None
    client.stdin.write(f"{command}\n")
    client.stdin.flush()


async def _create_table(folder: Path) -> None:
    async with LocalStore(folder, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS) as store:
        outcome = await store.write((folder / "table.json").as_uri(), b"[]", IfAbsent())
        assert isinstance(outcome, Won), outcome


def main() -> None:
    """The three acts; with arguments, one client of an act."""
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
