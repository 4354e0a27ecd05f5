"""A holder that loses its lock, is suspended or is killed: what becomes of its command."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.real.lock_places import Place, held, runs
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.real]


def test_the_command_is_ended_when_another_owner_has_acquired_the_lock(place: Place) -> None:
    with place.holding("echo up; sleep 300") as holder:
        ours = place.record().owner
        place.write(held(owner="intruder"))
        _, stderr = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert stderr == (
        f"lakewarden: lost {place.lock}: another owner is in the lock object; the holder is owner intruder; "
        "the command is being ended\n"
    )
    assert ours != "intruder"
    assert place.record().owner == "intruder"


@pytest.mark.wide
def test_a_command_that_ignores_sigterm_after_a_loss_is_killed(local: Place) -> None:
    with local.holding("trap '' TERM; echo up; while :; do sleep 0.1; done") as holder:
        children = psutil.Process(holder.pid).children(recursive=True)
        local.write(held(owner="intruder"))
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert not any(runs(each.pid) for each in children)


@pytest.mark.wide
def test_the_command_of_a_suspended_holder_is_ended_when_it_resumes(local: Place, tmp_path: Path) -> None:
    """SIGSTOP, a debugger: until then, the command goes on (docs/lock.md)."""
    with local.holding("echo up; while :; do sleep 0.1; done") as holder:
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: local.record().valid_until < time.time() * 1000)
        local.write(held(owner="another"))
        holder.send_signal(signal.SIGCONT)
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert local.record().owner == "another"


@pytest.mark.wide
def test_the_command_is_killed_with_the_holder(local: Place, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with local.holding(f"echo $$ > {pid}; echo up; sleep 301") as holder:
        holder.kill()
        holder.wait()
        wait_until(lambda: not runs(int(pid.read_text())))

    assert not local.record().expired


@pytest.mark.wide
def test_the_command_is_ended_when_the_lock_was_released_manually(local: Place) -> None:
    with local.holding("echo up; sleep 300") as holder:
        owner = local.record().owner
        assert local.run("release", local.table, "--if-owner", owner).returncode == 0
        _, stderr = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert "another process released it in this owner's name" in stderr
