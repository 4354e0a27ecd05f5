"""A holder that loses its lock, or its life: its command does not outlive the lease."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.real.lock_places import Place, held, runs, until
from tests.real.writers import PATIENCE_SECONDS

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def test_a_lock_that_another_owner_has_taken_ends_the_command(place: Place) -> None:
    with place.holding("echo up; sleep 300") as holder:
        ours = place.record().owner
        place.write(held(owner="intruder"))
        _, told = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert told == (
        f"lakewarden: lost {place.lock}: another owner is in the lock object; the holder is owner intruder; "
        "the command is being ended\n"
    )
    assert ours != "intruder"
    assert place.record().owner == "intruder"


def test_a_command_that_ignores_the_loss_is_killed(local: Place) -> None:
    with local.holding("trap '' TERM; echo up; while :; do sleep 0.1; done") as holder:
        children = psutil.Process(holder.pid).children(recursive=True)
        local.write(held(owner="intruder"))
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert not any(runs(each.pid) for each in children)


def test_a_stopped_holder_does_not_let_its_command_outlive_the_lease(local: Place, tmp_path: Path) -> None:
    """SIGSTOP, a debugger, a machine under water: the guard ends the command, and its children, before the lease has ended."""
    ticks = tmp_path / "ticks"
    endless = f"echo up; while :; do date +%s%3N >> {ticks}; sleep 0.05; done"
    with local.holding(endless) as holder:
        holder.send_signal(signal.SIGSTOP)
        session = [
            each for each in psutil.Process(holder.pid).children() if "date" in " ".join(each.cmdline())
        ]
        until(lambda: not any(runs(each.pid) for each in session))
        ended, lease_end = time.time() * 1000, local.record().valid_until
        holder.send_signal(signal.SIGCONT)
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert session
    last = int(ticks.read_text().split()[-1])
    assert last < lease_end - 200
    assert last <= ended
    assert holder.returncode == 76


def test_a_killed_holder_takes_its_command_and_all_that_it_started_along(
    local: Place, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    with local.holding(f"sleep 301 & echo $! $$ > {pids}; echo up; wait") as holder:
        holder.kill()
        holder.wait()
        started = [int(each) for each in pids.read_text().split()]
        until(lambda: not any(runs(each) for each in started))

    assert len(started) == 2
    assert not local.record().expired


def test_a_holder_whose_lock_was_given_back_by_hand_ends_its_command(local: Place) -> None:
    with local.holding("echo up; sleep 300") as holder:
        owner = local.record().owner
        assert local.run("release", local.table, "--if-owner", owner).returncode == 0
        _, told = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert "another process released it in this owner's name" in told
