"""Tables and lock objects on the local disk and on S3 for tests of `lakewarden lock`, read and written without the product."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from tests.processes import environment
from tests.servers.s3 import S3Server
from tests.waiting import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "lakewarden.agent", "lock"]
QUICK = {"validity_seconds": 15, "drift_seconds": 0.2}
ROOMY = {"validity_seconds": 150}
"""Long leases and timeouts, for tests that don't wait for the end of a lease: they suit a busy machine."""
NOWHERE = "127.0.0.1:9"


@dataclass
class Place:
    """A table and its lock object."""

    table: str
    lock: str
    settings: dict[str, Any]
    server: S3Server | None = None

    def environment(self, **settings: Any) -> dict[str, str]:
        return environment({**self.settings, **settings})

    def run(self, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        return run(*arguments, env=self.environment(**settings))

    @contextmanager
    def started(self, *arguments: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environment(**settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    @contextmanager
    def holding(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """Start `lakewarden lock hold` with a /bin/sh command, and wait until the command has printed "up"."""
        with self.started(
            "hold", self.table, "--wait", "60", "--seconds", "300", "--", "sh", "-c", command
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "up\n"
            yield holder

    @property
    def file(self) -> Path:
        """The file of a local lock object."""
        return Path(self.lock.removeprefix("file://"))

    def write(self, body: bytes, uri: str | None = None) -> None:
        """Write the lock object, or another one, whole at once."""
        uri = uri or self.lock
        if self.server is not None:
            self.server.put(uri, body)
            return
        path = Path(uri.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.written")
        written.write_bytes(body)
        written.replace(path)

    def read(self) -> LockRecord | Malformed:
        return parse(self.file.read_bytes() if self.server is None else self.server.get(self.lock))

    def record(self) -> LockRecord:
        found = self.read()
        assert isinstance(found, LockRecord), found
        return found


def held(seconds: float = 7_200, owner: str = "another") -> bytes:
    """A lock record of another owner that is valid for `seconds`."""
    return render(LockRecord(expired=False, valid_until=round((time.time() + seconds) * 1000), owner=owner))


def run(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )


def failed(done: subprocess.CompletedProcess[str], status: int, message: str) -> None:
    assert done.returncode == status, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stdout == ""


def shown(place: Place, *more: str) -> dict[str, Any]:
    done = place.run("show", place.table, "--output", "json", *more)
    assert (done.returncode, done.stderr) == (0, "")
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
