"""`lakewarden lock hold`: acquire the lock, run a command under it, release it."""

import signal
from pathlib import Path

import pytest

from lakewarden.handlers.lease.lock_object import LockRecord, parse
from tests.printed import as_shown
from tests.real.lock_places import NOWHERE, ROOMY, Place, failed, held, runs, shown
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.real]

OWNER = "2467e5b4-fb48-41bf-88c4-10d7a1a66d11"


def test_a_command_runs_under_the_lock_and_its_exit_status_is_returned(place: Place, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = ("--", "sh", "-c", f"env > {seen}; exit 7")
    done = place.run("hold", place.table, "--seconds", "60", *command, **ROOMY)

    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    record = place.record()
    assert record.expired
    variables = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "LAKEWARDEN_" in line)
    assert variables["LAKEWARDEN_LOCK_OWNER"] == record.owner
    assert variables["LAKEWARDEN_LOCK_URI"] == place.lock
    assert variables["LAKEWARDEN_TABLE"] == place.table
    after = shown(place)
    assert (after["state"], after["owner"], after["lock"]) == ("released", record.owner, place.lock)


def test_the_lock_object_is_held_while_the_command_runs(local: Place) -> None:
    done = local.run("hold", local.table, "--wait", "60", "--seconds", "60", "--", "cat", str(local.file))

    assert done.returncode == 0
    during = parse(done.stdout.encode())
    assert isinstance(during, LockRecord)
    assert not during.expired
    assert local.record().owner == during.owner
    assert local.record().expired


@pytest.mark.wide
def test_the_exit_status_of_a_killed_command_is_that_of_a_shell(local: Place) -> None:
    done = local.run(
        "hold", local.table, "--wait", "60", "--seconds", "60", "--", "sh", "-c", "kill -KILL $$"
    )

    assert done.returncode == 128 + signal.SIGKILL
    assert local.record().expired


def test_a_held_lock_is_not_waited_for_without_the_option_wait(place: Place, tmp_path: Path) -> None:
    place.write(held(owner=OWNER))
    ran = tmp_path / "ran"

    one_try = place.run("hold", place.table, "--seconds", "9", "--", "touch", str(ran), **ROOMY)

    failed(one_try, 75, f"held by another owner: {OWNER}, until 20")
    as_shown(
        "docs/lock.md", "lakewarden lock hold s3://lake/warehouse/orders --seconds 60 -- true", one_try.stderr
    )
    assert not ran.exists()
    assert place.record().owner == OWNER


def test_a_held_lock_is_waited_for_as_long_as_the_option_says(local: Place, tmp_path: Path) -> None:
    local.write(held(owner="another"))
    ran = tmp_path / "ran"

    waited = local.run(
        "hold", local.table, "--seconds", "9", "--wait", "12", "--", "touch", str(ran), **ROOMY
    )

    assert waited.returncode == 75
    assert waited.stderr.splitlines()[0].startswith(f"lakewarden: waiting for {local.lock}: held by another")
    assert waited.stderr.splitlines()[-1].startswith(
        f"lakewarden: could not acquire {local.lock}: held by another"
    )
    assert not ran.exists()
    assert local.record().owner == "another"


@pytest.mark.wide
def test_a_lock_that_expires_in_time_is_acquired(local: Place) -> None:
    local.write(held(2, owner="another"))

    done = local.run("hold", local.table, "--seconds", "60", "--wait", "60", "--", "true")

    assert done.returncode == 0
    assert local.record().owner != "another"


@pytest.mark.wide
def test_a_malformed_object_and_a_missing_program_are_errors_and_overwrite_nothing(local: Place) -> None:
    local.write(b"{}")

    failed(local.run("hold", local.table, "--seconds", "9", "--", "true"), 1, "not a lock record")
    failed(local.run("hold", local.table, "--seconds", "9", "--", "no-such-program"), 1, "no such program")

    assert local.file.read_bytes() == b"{}"


@pytest.mark.wide
def test_a_lock_in_a_store_that_does_not_answer_can_not_be_acquired(on_s3: Place) -> None:
    done = on_s3.run(
        "hold", on_s3.table, "--seconds", "9", "--s3-endpoint", f"http://{NOWHERE}", "--", "true"
    )

    failed(done, 75, "could not be read")


def test_a_command_is_ended_after_its_time_before_the_lock_is_released(local: Place) -> None:
    done = local.run("hold", local.table, "--wait", "60", "--seconds", "1", "--", "sleep", "300")

    failed(done, 76, "ending the command after 1 s")
    as_shown(
        "docs/lock.md",
        "lakewarden lock hold s3://lake/warehouse/orders --seconds 2 -- sleep 300",
        done.stderr,
    )
    assert local.record().expired


@pytest.mark.wide
def test_a_signal_is_passed_on_and_the_lock_is_held_until_the_command_has_ended(
    local: Place, tmp_path: Path
) -> None:
    """The command may need a while to stop in order."""
    seen = tmp_path / "seen"
    orderly = f"trap 'cat {local.file} > {seen}; exit 5' TERM; echo up; while :; do sleep 0.1; done"
    with local.holding(orderly) as holder:
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 5
    during = parse(seen.read_bytes())
    assert isinstance(during, LockRecord)
    assert not during.expired
    assert local.record().expired


@pytest.mark.wide
def test_what_the_command_has_left_running_is_killed(local: Place, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    left = f"(trap '' TERM; while :; do sleep 0.1; done) 2>/dev/null & echo $! > {pid}; exit 3"

    done = local.run("hold", local.table, "--wait", "60", "--seconds", "60", "--", "sh", "-c", left)

    assert done.returncode == 3
    wait_until(lambda: not runs(int(pid.read_text())))
    assert local.record().expired


@pytest.mark.wide
def test_a_command_that_ignores_sigterm_after_its_time_is_killed(local: Place, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"

    done = local.run("hold", local.table, "--wait", "60", "--seconds", "8", "--", "sh", "-c", stubborn)

    failed(done, 76, "ending the command after 8 s")
    assert not runs(int(pid.read_text()))
    assert local.record().expired
