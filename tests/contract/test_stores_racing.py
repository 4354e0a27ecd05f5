"""Several processes at one object, on the local disk and on real servers for S3, Google and Azure (see `test_stores.py`)."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import anyio
import pytest

from lakewarden.agent.stores import LocalStore
from lakewarden.handlers.lease.conditional import Found, IfMatch, Won
from tests.contract.racers import Ground, count_up, is_whole, race_for_rounds, rewrite_forever

PROCESSES = 4
ROUNDS = 15
STEPS = 25
SECONDS = 90.0

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["local", "s3", "gs", "az"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    match request.param:
        case "local":
            yield Ground(f"file://{tmp_path}/locks", root=str(tmp_path))
        case "s3":
            s3 = request.getfixturevalue("s3_credentials")
            yield Ground(f"s3://{s3.bucket()}/locks", endpoint=s3.endpoint)
        case "gs":
            gcs = request.getfixturevalue("gcs_credentials")
            yield Ground(f"gs://{gcs.bucket()}/locks", endpoint=gcs.endpoint)
        case _:
            azure = request.getfixturevalue("azure_credentials")
            yield Ground(f"az://{azure.container()}/locks", endpoint=azure.endpoint)


def run_all(target: Callable[..., None], ground: Ground, times: int) -> dict[int, Any]:
    """What each process told, once all have ended; none outlives a failure."""
    gate, results = SPAWN.Barrier(PROCESSES), SPAWN.Queue()
    processes: list[SpawnProcess] = [
        SPAWN.Process(target=target, args=(ground, who, times, gate, results), daemon=True)
        for who in range(PROCESSES)
    ]
    try:
        for process in processes:
            process.start()
        told = dict(results.get(timeout=SECONDS) for _ in processes)
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
    return told


@pytest.mark.timeout(2 * SECONDS)
def test_in_every_round_exactly_one_process_wins(ground: Ground) -> None:
    told = run_all(race_for_rounds, ground, ROUNDS)

    for number, verdicts in enumerate(zip(*told.values(), strict=True)):
        winners = [verdict for verdict in verdicts if verdict.endswith("won")]
        assert len(winners) == 1, (number, verdicts)


@pytest.mark.timeout(2 * SECONDS)
async def test_a_number_counted_up_by_many_processes_loses_no_step(ground: Ground) -> None:
    told = await anyio.to_thread.run_sync(run_all, count_up, ground, STEPS)
    async with ground.open() as store:
        found = await store.read(f"{ground.folder}/counter.json")

    assert isinstance(found, Found)
    # An unknown write may have landed and been counted again, so it can only add; a lost update would subtract.
    unknown = sum(each.get("unknown", 0) for each in told.values())
    number = int(found.body.split(b",")[0].rpartition(b" ")[2])
    assert PROCESSES * STEPS <= number <= PROCESSES * STEPS + unknown, told
    print(f"{ground.folder.partition(':')[0]}: {told}")


@pytest.mark.timeout(2 * SECONDS)
async def test_a_process_killed_anywhere_leaves_a_whole_object_and_a_free_lock(tmp_path: Path) -> None:
    """SIGKILL, again and again, in the middle of writing: the old object or the new one, and no lock that stays."""
    uri = f"file://{tmp_path}/locks/t.json"
    started = tmp_path / "started"
    for number in range(8):
        started.unlink(missing_ok=True)
        process = SPAWN.Process(target=rewrite_forever, args=(str(tmp_path), uri), daemon=True)
        process.start()
        while not started.exists():
            assert process.is_alive()
            await anyio.sleep(0.005)
        await anyio.sleep(0.0013 * number)
        process.kill()
        process.join()
        process.close()

        async with LocalStore(tmp_path, request_timeout_seconds=2.0) as store:
            found = await store.read(uri)
            assert isinstance(found, Found)
            assert is_whole(found.body)
            assert isinstance(await store.write(uri, found.body, IfMatch(found.version)), Won)


@pytest.mark.usefixtures("s3_server", "gcs_server", "azure_server")
def test_the_servers_die_with_their_session(tmp_path: Path) -> None:
    """Also when pytest is killed with SIGKILL, which no fixture survives."""
    process = SPAWN.Process(target=hold_servers, args=(str(tmp_path),), daemon=False)
    process.start()
    told = tmp_path / "pids"
    deadline = time.monotonic() + SECONDS
    while not told.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = [int(pid) for pid in told.read_text().split()]
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
    # Killed but not yet reaped is dead enough: in a container nobody may reap it.
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
