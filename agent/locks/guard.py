"""The second pair of eyes on a command that runs under a lock: a process of its own that ends the command when its holder can't.

    python -m lakewarden.agent.locks.guard        told on stdin: "<session> <until>" a line, at last "done"

Nobody's lock is relied upon after its end, so the command's session is killed when the last `until` (seconds of
`clock.monotonic`) has come, which a stopped or stuck holder can't prevent, and when stdin ends without a "done": the
holder was killed. A SIGKILL of the holder takes the command itself along at once (`bound_child.py`), this takes what
the command has started.
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
"""A timer stands still while the machine sleeps; after waking the clock is looked at within this time."""
KILL_SECONDS = 5.0
"""How long what is being killed is looked for again, as it may start more."""


def main() -> None:
    """Watch until told that all is done."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    session, until, rest = 0, math.inf, b""
    while (now := monotonic()) < until:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], min(until - now, LONGEST_SLEEP_SECONDS))
        if not ready:
            continue
        told = os.read(sys.stdin.fileno(), 65_536)
        if not told:
            break
        *lines, rest = (rest + told).split(b"\n")
        for line in lines:
            if line == b"done":
                return
            number_, _, end = line.partition(b" ")
            session, until = int(number_), float(end)
    if session:
        _kill(session)


def _kill(session: int) -> None:
    give_up = monotonic() + KILL_SECONDS
    while posix_session_members(session) and monotonic() < give_up:
        signal_posix_session(session, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
