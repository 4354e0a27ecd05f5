"""The processes of a POSIX session: a program that was started in a session of its own, and all that it has started.

A session has several process groups. Signals go to the session because some programs move to another process group, such as
Spark's Python workers. A process that calls `setsid` leaves the session and is not found.
"""

import os
import signal
from contextlib import suppress

import psutil


def posix_session_members(session: int) -> list[int]:
    """The ids of a session's processes, without zombies."""
    found = []
    for each in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(each.pid) == session and each.status() not in (
                psutil.STATUS_ZOMBIE,
                psutil.STATUS_DEAD,
            ):
                found.append(each.pid)
    return found


def signal_posix_session(session: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session. A process that has just ended is no error."""
    for pid in posix_session_members(session):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
