"""Child processes that end with their parent, even if SIGKILL ends the parent.

`bound(argv)` puts a short launcher before a command. The launcher requests SIGKILL at its parent's death
(`PR_SET_PDEATHSIG`), then executes the command. `preexec_fn` is not used because it may deadlock in a process with threads.
On systems other than Linux the command is not bound, and its parent must stop it.

For the kernel, the *thread* that started a child is its parent. Start a child from the main thread only, because the end of a
worker thread would kill it.
"""

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
os.execvp(sys.argv[2], sys.argv[2:])
"""


def bound(argv: Sequence[str]) -> list[str]:
    """The command for `subprocess.Popen` that runs `argv` and ends with this process."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "start bound children from the main thread: they end with the thread that started them"
        )
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv]
