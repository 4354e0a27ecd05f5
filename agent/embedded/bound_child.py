"""Child processes that end with their parent, even if SIGKILL ends the parent.

`bound(argv)` puts a short launcher before a command. The launcher requests SIGKILL at its parent's death
(`PR_SET_PDEATHSIG`), then executes the command. `preexec_fn` is not used because it may deadlock in a process with threads.
On systems other than Linux the command is not bound, and its parent must stop it.

With `after`, the read end of a pipe, the launcher executes the command only when the parent has written a byte to the pipe. If
the parent closes it instead, or dies, the command doesn't run.

For the kernel, the *thread* that started a child is its parent. Start a child from the main thread only, because the end of a
worker thread would kill it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent ended before its child was started")
if sys.argv[2]:
    if not os.read(int(sys.argv[2]), 1):
        sys.exit("the parent ended before it let its child start")
    os.close(int(sys.argv[2]))
os.execvp(sys.argv[3], sys.argv[3:])
"""


def bound(argv: Sequence[str], *, after: int | None = None) -> list[str]:
    """The command for `subprocess.Popen` that runs `argv` and ends with this process. `after` must be among its `pass_fds`."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "start bound children from the main thread: they end with the thread that started them"
        )
    gate = "" if after is None else str(after)
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), gate, *argv]
