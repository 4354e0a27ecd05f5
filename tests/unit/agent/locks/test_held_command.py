"""The start of a command under a lock. tests/real/locks/test_lock_hold.py tests the rest with real locks."""

import os
import signal

import anyio

from lakewarden.agent.locks import hold


async def test_a_cancellation_during_the_start_leaves_no_unknown_command() -> None:
    """After a cancellation the lock is released, so the caller must know of a command that was started."""
    command = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        command = await hold.start(["sleep", "60"], os.environ)

    assert command is not None
    assert not command.ended
    statuses: list[int] = []
    command.signal(signal.SIGKILL)
    await command.wait(statuses.append)
    assert statuses == [128 + signal.SIGKILL]
