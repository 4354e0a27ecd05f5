"""The in-memory twin: faults on both sides of the store, under a virtual clock."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from lakewarden.agent.stores import MemoryStore
from lakewarden.agent.stores.memory import DelayedDelivery, Fault, Request
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

pytestmark = pytest.mark.anyio

URI = "memory://twin/locks/t.json"
SECONDS = 3.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


class Once:
    """One fault for the first request, none for the others."""

    def __init__(
        self,
        before: Fault | DelayedDelivery | None = None,
        after: Unknown | None = None,
        latency: float = 0.0,
    ) -> None:
        self._before, self._after, self._latency = before, after, latency

    async def before(self, _request: Request) -> Fault | DelayedDelivery | None:
        latency, self._latency = self._latency, 0.0
        await anyio.sleep(latency)
        fault, self._before = self._before, None
        return fault

    async def after(self, _request: Request, _outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        lost, self._after = self._after, None
        return lost


def twin(faults: Once | None = None, objects: dict[str, bytes] | None = None) -> MemoryStore:
    return MemoryStore(request_timeout_seconds=SECONDS, faults=faults, objects=objects)


@pytest.mark.parametrize("fault", [Throttled("slow down"), Unknown("500"), Refused("403")])
async def test_a_fault_before_acting_changes_nothing(fault: Fault) -> None:
    async with twin(Once(before=fault)) as store:
        assert await store.write(URI, b"x", IfAbsent()) == fault
        assert await store.read(URI) == Absent()


async def test_a_fault_after_acting_is_a_lost_answer() -> None:
    async with twin(Once(after=Unknown("connection reset"))) as store:
        assert await store.write(URI, b"x", IfAbsent()) == Unknown("connection reset")
        assert isinstance(await store.read(URI), Found)


async def test_latency_up_to_the_timeout_is_waited_for_and_past_it_is_unknown() -> None:
    async with twin(Once(latency=SECONDS - 0.1)) as store:
        assert isinstance(await store.write(URI, b"x", IfAbsent()), Won)
    async with twin(Once(latency=SECONDS + 0.1)) as store:
        started = anyio.current_time()
        assert isinstance(await store.write(URI, b"x", IfAbsent()), Unknown)
        assert anyio.current_time() - started == pytest.approx(SECONDS)
        assert await store.read(URI) == Absent()


async def test_a_late_write_lands_after_its_caller_gave_up() -> None:
    """The request that was on its way all along: given up after three seconds, it arrives after ten."""
    async with twin(Once(before=DelayedDelivery(10.0))) as store:
        assert isinstance(await store.write(URI, b"late", IfAbsent()), Unknown)
        assert await store.read(URI) == Absent()
        await anyio.sleep(10.0)
        found = await store.read(URI)

    assert isinstance(found, Found)
    assert found.body == b"late"


async def test_a_late_write_still_has_to_meet_its_condition() -> None:
    """Which is what makes a lock safe against it: a write in between changes the version."""
    objects = {URI: b"old"}
    async with twin(objects=objects) as other, twin(Once(before=DelayedDelivery(10.0)), objects) as store:
        old = await other.read(URI)
        assert isinstance(old, Found)
        assert isinstance(await store.write(URI, b"late", IfMatch(old.version)), Unknown)
        new = await store.write(URI, b"new", IfMatch(old.version))
        await anyio.sleep(10.0)

        assert isinstance(new, Won)
        assert await store.read(URI) == Found(b"new", new.version)


async def test_versions_are_made_of_the_body_as_on_s3() -> None:
    """Whoever relies on more than S3 gives is found out here: the same bytes are the same version again."""
    async with twin() as store:
        first = await store.write(URI, b"A", IfAbsent())
        assert isinstance(first, Won)
        second = await store.write(URI, b"B", IfMatch(first.version))
        assert isinstance(second, Won)
        third = await store.write(URI, b"A", IfMatch(second.version))

        assert third == first
        assert isinstance(await store.write(URI, b"C", IfMatch(second.version)), Lost)


async def test_two_stores_with_the_same_objects_share_them() -> None:
    objects: dict[str, bytes] = {}
    async with twin(objects=objects) as one, twin(objects=objects) as two:
        assert isinstance(await one.write(URI, b"x", IfAbsent()), Won)
        assert isinstance(await two.write(URI, b"y", IfAbsent()), Lost)


async def test_a_store_may_stand_in_for_any_scheme() -> None:
    async with twin() as store:
        assert isinstance(await store.write("s3a://bucket/t%20x.json", b"x", IfAbsent()), Won)
        assert isinstance(await store.read("s3://bucket/t x.json"), Found)
