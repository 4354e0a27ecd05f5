"""Starting a command under a lock; what becomes of it then is shown with real locks (`tests/real/locks/test_lock_hold.py`)."""

from __future__ import annotations

import os
import signal

import anyio

from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks import held_command


async def test_a_cancellation_during_the_start_leaves_no_command_that_nobody_knows_of() -> None:
    """The lock is given back on the way out, unless a command runs under it."""
    command = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        command = await held_command.start(["sleep", "60"], os.environ, monotonic() + 60)

    assert command is not None
    assert not command.ended
    statuses: list[int] = []
    command.signal(signal.SIGKILL)
    await command.wait(statuses.append)
    await command.stop_guard()
    assert statuses == [128 + signal.SIGKILL]
