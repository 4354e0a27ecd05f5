"""Processes of `lakewarden` that don't import the product: they are forked from a process that has imported it.

The imports of the command line take a second of CPU time, and a run of the tests starts some hundred commands and agents. So
`subprocess` forks them here, wherever a test asks for `python -m lakewarden.agent …` or `lakewarden …`. Such a process is a
child of the test's process, with its own arguments, environment, folder and outputs, and ends as any other. It also ends with
the process that runs the tests.

Python itself is started for unit tests, on systems other than Linux, and with other variables that Python reads at its start.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODULE = "lakewarden.agent"
COMMANDS = ([sys.executable, "-m", MODULE], [str(Path(sys.executable).with_name("lakewarden"))])
READ_AT_START = ("PYTHON", "LANG", "LC_")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MESSAGE_BYTES = 1 << 17

_start_python: Any = subprocess._fork_exec  # type: ignore[attr-defined]
_lock = threading.Lock()
_zygote: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


def fork_commands(yes: bool) -> None:
    """Have `subprocess` fork the product's processes from now on, or start Python."""
    subprocess._fork_exec = _fork if yes and sys.platform == "linux" else _start_python  # type: ignore[attr-defined]


def _fork(args: list[Any], executables: Any, *more: Any) -> int:
    """Take the place of `_posixsubprocess.fork_exec`: return the identifier of a new child."""
    command = [os.fsdecode(each) for each in args]
    _, _, cwd, env, stdin, _, _, stdout, _, stderr, *_ = more
    own = next((own for own in COMMANDS if command[: len(own)] == own), None)
    variables = dict(os.environ)
    if env is not None:
        variables = dict(os.fsdecode(each).split("=", 1) for each in env)
    files = [each if each != -1 else number for number, each in enumerate((stdin, stdout, stderr))]
    request = {
        "words": command[len(own or ()) :],
        "folder": os.fspath(cwd or Path.cwd()),
        "variables": variables,
    }
    message = json.dumps(request).encode()
    if own is None or len(message) > MESSAGE_BYTES or _of_python(variables) != _AT_START:
        return int(_start_python(args, executables, *more))
    libc = ctypes.CDLL(None)
    with _lock:
        zygote = _started()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # the new process gets this one as its parent
        try:
            socket.send_fds(zygote, [message], files)
            return int(zygote.recv(MESSAGE_BYTES))
        finally:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def _of_python(variables: Any) -> dict[str, str]:
    """What an interpreter reads at its start. Outputs are unbuffered here, anyway."""
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(READ_AT_START) and name != "PYTHONUNBUFFERED"
    }


_AT_START = _of_python(os.environ)


def _started() -> socket.socket:
    global _zygote  # noqa: PLW0603 - one for each process that runs tests
    if _zygote is None:
        ours, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(its_end.fileno()), str(os.getpid())]
        nothing = subprocess.DEVNULL
        _zygote = (
            ours,
            subprocess.Popen(command, pass_fds=[its_end.fileno()], stdin=nothing, stdout=nothing),
        )
        its_end.close()
        atexit.register(_end)
    return _zygote[0]


def _end() -> None:
    if _zygote is not None:
        _zygote[0].close()
        _zygote[1].wait()


def _serve(requests: socket.socket, parent: int) -> None:
    """Fork a process for each request. Return in that process, which then is a child of `parent`."""
    while True:
        text, files, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 3)
        if not text:
            sys.exit()
        reader, writer = os.pipe()
        if not (between := os.fork()):
            if child := os.fork():
                os.write(writer, str(child).encode())
                os._exit(0)
            break
        for each in (writer, *files):
            os.close(each)
        os.waitpid(between, 0)
        requests.send(os.read(reader, 20))
        os.close(reader)
    between = os.getppid()
    requests.close()
    os.close(reader)
    os.close(writer)
    while between == os.getppid() != parent:
        time.sleep(0.0005)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _become(json.loads(text), files)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take arguments, variables, folder and files as `exec` does."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in set(files) - {0, 1, 2}:
        os.close(file)
    os.environ.clear()
    os.environ.update(request["variables"])
    time.tzset()
    os.chdir(request["folder"])
    sys.argv[1:] = request["words"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = _output(1, "strict")
    sys.stderr = _output(2, "backslashreplace")


def _output(number: int, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, "wb", closefd=False)
    return io.TextIOWrapper(raw, errors=errors, write_through=True)


def main() -> None:
    """Be the process that others are forked from. It is sent what to run, and the files to use."""
    from lakewarden.agent.cli import entry

    for imported_when_needed in ("cli.app", "serving.http_endpoint", "stores.s3", "web.server"):
        importlib.import_module(f"lakewarden.agent.{imported_when_needed}")
    del sys.path[0]
    sys.argv[0] = str(Path(sys.executable).with_name("lakewarden"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    entry.main()


if __name__ == "__main__":
    main()
