"""The start of a command under a lock. tests/real/locks/test_lock_hold.py tests the rest with real locks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks import held_command


async def test_a_cancellation_during_the_start_leaves_no_unknown_command() -> None:
    """After a cancellation the lock is released, so the caller must know of a command that was started."""
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


async def test_the_command_does_not_run_before_the_guard_knows_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that is killed in between leaves a guard that can't end what the command has started."""
    ran = tmp_path / "ran"
    set_deadline, ran_before = held_command.HeldCommand.set_deadline, []

    async def late(command: held_command.HeldCommand, until: float) -> None:
        await anyio.sleep(1)  # far longer than a shell needs to start
        ran_before.append(ran.exists())
        await set_deadline(command, until)

    monkeypatch.setattr(held_command.HeldCommand, "set_deadline", late)

    command = await held_command.start(["sh", "-c", f"touch {ran}"], os.environ, monotonic() + 60)

    statuses: list[int] = []
    await command.wait(statuses.append)
    await command.stop_guard()
    assert (ran_before, statuses, ran.exists()) == ([False], [0], True)


async def test_a_command_whose_guard_does_not_get_its_session_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    started: list[held_command.HeldCommand] = []

    async def fail(command: held_command.HeldCommand, _until: float) -> None:
        started.append(command)
        raise OSError("the guard has no pipe")

    monkeypatch.setattr(held_command.HeldCommand, "set_deadline", fail)

    with pytest.raises(OSError, match="no pipe"):
        await held_command.start(["sh", "-c", f"touch {ran}"], os.environ, monotonic() + 60)

    statuses: list[int] = []
    await started[0].wait(statuses.append)
    await started[0].stop_guard()
    assert (statuses, ran.exists()) == ([1], False)
