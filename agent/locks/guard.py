"""A process that ends a command under a lock when its holder, `lakewarden lock hold`, can't do so.

    python -m lakewarden.agent.locks.guard        reads lines "<session> <until>" from stdin, and "done" as the last one

The guard kills the command's session in two cases:

- The last `until` (seconds of `clock.monotonic`) has passed. A holder that is stopped or hangs can't prevent it.
- stdin ends without "done", because the holder was killed. The command itself dies with the holder (`bound_child.py`); the guard
  kills the processes that the command has started.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time

from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks.posix_session import posix_session_members, signal_posix_session

LONGEST_SLEEP_SECONDS = 0.5
"""Timers don't run while the machine is suspended. After it resumes, the guard compares the clock within this time."""
KILL_SECONDS = 5.0
"""For how long the guard repeats the kill, because a process may start others meanwhile."""


def main() -> None:
    """Watch until "done" is read, or until the command was killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    session, until, rest = 0, math.inf, b""
    while (now := monotonic()) < until:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], min(until - now, LONGEST_SLEEP_SECONDS))
        if not ready:
            continue
        received = os.read(sys.stdin.fileno(), 65_536)
        if not received:
            break
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            if line == b"done":
                return
            session_id, _, end = line.partition(b" ")
            session, until = int(session_id), float(end)
    if session:
        _kill(session)


def _kill(session: int) -> None:
    deadline = monotonic() + KILL_SECONDS
    while posix_session_members(session) and monotonic() < deadline:
        signal_posix_session(session, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
