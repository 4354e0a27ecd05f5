"""Start a program that can't outlive us, even if we are killed with SIGKILL.

`bound(argv)` puts a short launcher before a command: it asks the kernel for SIGKILL at its parent's death
(`PR_SET_PDEATHSIG`), then becomes the command. A launcher rather than `preexec_fn`, which may deadlock in a process
with threads. On systems other than Linux the command starts unbound, and whoever starts it must stop it.

The kernel counts the *thread* that started the child as its parent, so start one from the main thread only: a worker
thread that ends would take the child with it.
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
        sys.exit("the parent ended before its child had started")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def bound(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` bound to this process's life. Hand it to `subprocess.Popen` as it is."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "start bound children from the main thread: they end with the thread that starts them"
        )
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv]
