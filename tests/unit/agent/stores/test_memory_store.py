"""The in-memory store: faults before and after the store acts, on a virtual clock."""

from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from tests.servers.memory_store import Fault, MemoryStore, Request

pytestmark = pytest.mark.anyio

URI = "memory://store/locks/t.json"
SECONDS = 3.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


class Once:
    """A fault for the first request, and none for the others."""

    def __init__(
        self,
        before: Fault | None = None,
        after: Unknown | None = None,
        latency: float = 0.0,
    ) -> None:
        self._before, self._after, self._latency = before, after, latency

    async def before(self, _request: Request) -> Fault | None:
        latency, self._latency = self._latency, 0.0
        await anyio.sleep(latency)
        fault, self._before = self._before, None
        return fault

    async def after(self, _request: Request, _outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        lost, self._after = self._after, None
        return lost


def client(faults: Once | None = None, objects: dict[str, bytes] | None = None) -> MemoryStore:
    return MemoryStore(request_timeout_seconds=SECONDS, faults=faults, objects=objects)


@pytest.mark.parametrize("fault", [Throttled("slow down"), Unknown("500"), Refused("403")])
async def test_a_fault_before_acting_changes_nothing(fault: Fault) -> None:
    async with client(Once(before=fault)) as store:
        assert await store.write(URI, b"x", IfAbsent()) == fault
        assert await store.read(URI) == Absent()


async def test_a_fault_after_acting_is_a_lost_answer() -> None:
    async with client(Once(after=Unknown("connection reset"))) as store:
        assert await store.write(URI, b"x", IfAbsent()) == Unknown("connection reset")
        assert isinstance(await store.read(URI), Found)


async def test_a_request_slower_than_the_timeout_is_unknown() -> None:
    async with client(Once(latency=SECONDS - 0.1)) as store:
        assert isinstance(await store.write(URI, b"x", IfAbsent()), Won)
    async with client(Once(latency=SECONDS + 0.1)) as store:
        started = anyio.current_time()
        assert isinstance(await store.write(URI, b"x", IfAbsent()), Unknown)
        assert anyio.current_time() - started == pytest.approx(SECONDS)
        assert await store.read(URI) == Absent()


async def test_the_same_bytes_have_the_same_version_as_on_s3() -> None:
    """A lock that relies on unique versions fails its tests with this store."""
    async with client() as store:
        first = await store.write(URI, b"A", IfAbsent())
        assert isinstance(first, Won)
        second = await store.write(URI, b"B", IfMatch(first.version))
        assert isinstance(second, Won)
        third = await store.write(URI, b"A", IfMatch(second.version))

        assert third == first
        assert isinstance(await store.write(URI, b"C", IfMatch(second.version)), Lost)
