"""Server programs for tests: built once into a cache, started as processes that die with this one."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lakewarden.agent.bound_child import bound

_BUILD_SECONDS: Final = 900


class NoServerError(Exception):
    """No server can be had here; the message says what was tried."""


def cache() -> Path:
    """Where built servers are kept, a version each."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakewarden"


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Several test sessions may start at once; one builds `path` and the others wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built_by_go(name: str, module: str, version: str, tried: list[str]) -> Path | None:
    """The program: from the PATH, from the cache, or built into it. None says why in `tried`."""
    if found := shutil.which(name):
        return Path(found)
    binary = cache() / "bin" / f"{name}-{version}"
    go = shutil.which("go")
    if not binary.exists() and go is None:
        tried.append(f"{name}: not on the PATH, not in {binary.parent}, and no go to build it")
        return None
    with one_at_a_time(binary):
        if not binary.exists():
            assert go is not None
            with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
                environment = {"GOBIN": folder, "GOFLAGS": "-mod=mod"}
                if not built([go, "install", f"{module}@{version}"], environment, folder, tried):
                    return None
                (Path(folder) / name).replace(binary)
    return binary


def built(command: Sequence[str], environment: Mapping[str, str], folder: str, tried: list[str]) -> bool:
    """Whether a command that builds something succeeded."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        tried.append(f"{' '.join(command)}: not done within {_BUILD_SECONDS} s")
        return False
    if done.returncode != 0:
        tried.append(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return done.returncode == 0


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process that ends when this one does, whatever ends it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            bound(command),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it at once."""
    process.kill()
    process.wait()


def free_port() -> int:
    """A port that is free now; another process may take it before it is used."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
