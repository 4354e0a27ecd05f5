"""Many simultaneous requests to a store that serves one at a time, on a virtual clock: none times out."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import Stores
from lakewarden.handlers.lease.conditional import Absent, IfAbsent, ReadOutcome, Won, WriteOutcome
from tests.servers.memory_store import Faults, MemoryStore, Request

pytestmark = pytest.mark.anyio

LOCKS = 1_000
SERVED_SECONDS = 0.01
TIMEOUT_SECONDS = 2.0
"""All of them together take 10 s."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


class OneAtATime(Faults):
    """Serves requests one at a time, as a shared processor does."""

    def __init__(self) -> None:
        self._busy = anyio.Lock()

    async def before(self, _request: Request) -> None:
        async with self._busy:
            await anyio.sleep(SERVED_SECONDS)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_store(root: str, settings: Settings) -> MemoryStore:
        return MemoryStore(request_timeout_seconds=TIMEOUT_SECONDS, faults=OneAtATime())

    monkeypatch.setattr("lakewarden.agent.stores.open.open_store", open_store)


@pytest.mark.usefixtures("slow")
async def test_a_thousand_simultaneous_requests_succeed_at_the_first_try() -> None:
    reads: list[ReadOutcome] = []
    writes: list[WriteOutcome] = []

    async with AsyncExitStack() as stack:
        store = await Stores(Settings.load(tables=("s3://b/*",)), stack).for_lock("s3://b/locks/t.json")

        async def create(uri: str) -> None:
            reads.append(await store.read(uri))
            writes.append(await store.write(uri, b"body", IfAbsent()))

        async with anyio.create_task_group() as tasks:
            for number in range(LOCKS):
                tasks.start_soon(create, f"s3://b/locks/{number}.json")

    assert reads == [Absent()] * LOCKS
    assert [type(each) for each in writes] == [Won] * LOCKS


@pytest.mark.usefixtures("slow")
async def test_a_cancelled_request_leaves_the_queue() -> None:
    async with AsyncExitStack() as stack:
        store = await Stores(Settings.load(tables=("s3://b/*",)), stack).for_lock("s3://b/locks/t.json")
        for _ in range(3):
            with anyio.move_on_after(10 * SERVED_SECONDS):
                async with anyio.create_task_group() as tasks:
                    for number in range(LOCKS):
                        tasks.start_soon(store.read, f"s3://b/locks/{number}.json")

        with anyio.fail_after(2 * SERVED_SECONDS):
            assert await store.read("s3://b/locks/t.json") == Absent()
