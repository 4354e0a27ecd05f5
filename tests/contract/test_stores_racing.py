"""Several processes that write one object, on the local disk and on servers for S3, Google and Azure (see `test_stores.py`)."""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import anyio
import pytest

from lakewarden.agent.stores import LocalStore
from lakewarden.handlers.lease.conditional import Found, IfMatch, Won
from tests.contract.racers import (
    Place,
    count_up,
    is_whole,
    place_in,
    race_for_rounds,
    rewrite_forever,
    with_variables,
)

PROCESSES = 4
ROUNDS = 15
STEPS = 25
SECONDS = 150.0

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.contract.racers"])


@pytest.fixture(params=["local", "s3", "gs", "az"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_in(request.param, request, tmp_path)


def run_all(target: Callable[..., None], place: Place, times: int) -> dict[int, Any]:
    """Run the target in several processes and return their results. No process survives a failure."""
    gate, results = FORKS.Barrier(PROCESSES), FORKS.Queue()
    processes: list[ForkServerProcess] = [
        FORKS.Process(
            target=with_variables,
            args=(dict(os.environ), target, place, racer, times, gate, results),
            daemon=True,
        )
        for racer in range(PROCESSES)
    ]
    try:
        for process in processes:
            process.start()
        by_racer = dict(results.get(timeout=SECONDS) for _ in processes)
        for process in processes:
            process.join(SECONDS)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        results.close()
        results.join_thread()
    return by_racer


@pytest.mark.timeout(2 * SECONDS)
def test_in_every_round_exactly_one_process_wins(place: Place) -> None:
    by_racer = run_all(race_for_rounds, place, ROUNDS)

    for number, outcomes in enumerate(zip(*by_racer.values(), strict=True)):
        winners = [outcome for outcome in outcomes if outcome.endswith("won")]
        assert len(winners) == 1, (number, outcomes)


@pytest.mark.timeout(2 * SECONDS)
async def test_a_counter_incremented_by_many_processes_loses_no_update(place: Place) -> None:
    counts = await anyio.to_thread.run_sync(run_all, count_up, place, STEPS)
    async with place.open() as store:
        found = await store.read(place / "counter.json")

    assert isinstance(found, Found)
    # An unknown write may have been applied and then repeated, so it can only add. A lost update would subtract.
    unknown = sum(each.get("unknown", 0) for each in counts.values())
    number = int(found.body.split(b",")[0].rpartition(b" ")[2])
    assert PROCESSES * STEPS <= number <= PROCESSES * STEPS + unknown, counts


@pytest.mark.timeout(2 * SECONDS)
async def test_a_process_killed_during_a_write_leaves_a_whole_object_and_no_file_lock(tmp_path: Path) -> None:
    """The process is killed with SIGKILL at different moments of a write."""
    uri = f"file://{tmp_path}/locks/t.json"
    started = tmp_path / "started"
    for number in range(8):
        started.unlink(missing_ok=True)
        process = FORKS.Process(target=rewrite_forever, args=(str(tmp_path), uri), daemon=True)
        process.start()
        while not started.exists():
            assert process.is_alive()
            await anyio.sleep(0.005)
        await anyio.sleep(0.0013 * number)
        process.kill()
        process.join()
        process.close()

        async with LocalStore(tmp_path, request_timeout_seconds=SECONDS) as store:
            found = await store.read(uri)
            assert isinstance(found, Found)
            assert is_whole(found.body)
            assert isinstance(await store.write(uri, found.body, IfMatch(found.version)), Won)


@pytest.mark.usefixtures("s3_server", "gcs_server", "azure_server")
def test_the_test_servers_end_with_a_pytest_process_that_is_killed(tmp_path: Path) -> None:
    """No fixture is torn down after SIGKILL; the kernel ends the servers."""
    process = multiprocessing.get_context("spawn").Process(
        target=hold_servers, args=(str(tmp_path),), daemon=False
    )
    process.start()
    ready = tmp_path / "pids"
    deadline = time.monotonic() + SECONDS
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = [int(pid) for pid in ready.read_text().split()]
    process.kill()
    process.join()
    process.close()

    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if is_running(pid)]


def hold_servers(folder: str) -> None:
    import psutil

    from tests.servers.azure import running_azure_server
    from tests.servers.gcs import running_gcs_server
    from tests.servers.s3 import running_s3_server

    with running_s3_server(), running_gcs_server(), running_azure_server():
        pids = [str(child.pid) for child in psutil.Process().children(recursive=True)]
        ready = Path(folder, "pids.new")
        ready.write_text(" ".join(pids))
        ready.rename(Path(folder, "pids"))
        time.sleep(SECONDS)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie counts as ended: in a container there may be no process that reaps it.
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
