"""The processes of a POSIX session: a program that was started in a session of its own, and all that it has started.

A session has several process groups. Signals go to the session because some programs move to another process group, such as
Spark's Python workers. A process that calls `setsid` leaves the session and is not found.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def posix_session_members(session: int) -> list[int]:
    """The ids of a session's processes, without zombies."""
    if sys.platform == "linux":
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _posix_session_of(entry) == session
        ]
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,sess=,stat="],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = (line.split() for line in listing.stdout.splitlines())
    return [
        int(row[0]) for row in rows if len(row) > 2 and row[1] == str(session) and not row[2].startswith("Z")
    ]


def _posix_session_of(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text()
    except OSError:
        return None
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else int(session)


def signal_posix_session(session: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session. A process that has just ended is no error."""
    for pid in posix_session_members(session):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
