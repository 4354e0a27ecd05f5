"""The probe finds every store that doesn't keep its promise, and asks little of those that do."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from lakewarden.agent.stores import LocalStore, MemoryStore, StoreProbeError, probe
from lakewarden.agent.stores.memory import DelayedDelivery, Fault, Request
from lakewarden.agent.stores.probe import _different_version
from lakewarden.handlers.lease.conditional import (
    Condition,
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

FOLDER = "memory://twin/table/.hoodie/.locks"


class Counting(MemoryStore):
    """An honest store that counts what it is asked."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        super().__init__(request_timeout_seconds=1.0, objects=self.objects)

    async def read(self, uri: str) -> ReadOutcome:
        self.asked.append("read")
        return await super().read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        self.asked.append(type(condition).__name__)
        return await super().write(uri, body, condition)

    async def delete(self, uri: str) -> None:
        self.asked.append("delete")
        await super().delete(uri)


class Dishonest(Counting):
    """A store that takes one header for decoration, as some that call themselves S3-compatible do."""

    def __init__(self, ignored: type[Condition]) -> None:
        super().__init__()
        self._ignored = ignored

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        if not isinstance(condition, self._ignored):
            return await super().write(uri, body, condition)
        self.asked.append(type(condition).__name__)
        self.objects[uri] = body
        found = await MemoryStore.read(self, uri)
        assert isinstance(found, Found)
        return Won(found.version)


class Answering(Counting):
    """A store that gives one answer to a certain write, whatever it asks."""

    def __init__(self, answer: WriteOutcome, at: int) -> None:
        super().__init__()
        self._answer = answer
        self._at = at

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        outcome = await super().write(uri, body, condition)
        return self._answer if len(self.asked) == self._at else outcome


async def test_an_honest_store_is_asked_four_times_and_left_as_it_was() -> None:
    async with Counting() as store:
        await probe(store, FOLDER)

    assert store.asked == ["IfAbsent", "IfAbsent", "IfMatch", "delete"]
    assert store.objects == {}


@pytest.mark.parametrize(
    "ignored, named",
    [
        (IfAbsent, r"if-absent \(If-None-Match: \*; Google: generation 0\)"),
        (IfMatch, r"if-match \(If-Match: <etag>; Google: its generation\)"),
    ],
)
async def test_a_store_that_ignores_a_condition_is_named_and_left_as_it_was(
    ignored: type[Condition], named: str
) -> None:
    async with Dishonest(ignored) as store:
        with pytest.raises(
            StoreProbeError, match=f"ignores the condition {named}.*keep the lock in a store with"
        ):
            await probe(store, FOLDER)

    assert len(store.asked) <= 4
    assert store.objects == {}


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "answer, said",
    [
        (
            Refused("access denied: status=403 code=AccessDenied"),
            "refuses to write there; check bucket or container, credentials",
        ),
        (
            Unknown("no answer in time"),
            "could not be reached, or not in time; check endpoint, network and what gives credentials",
        ),
        (
            Throttled("slow down"),
            "could not be reached, or not in time; check endpoint, network and what gives credentials",
        ),
    ],
)
async def test_a_store_that_can_not_be_asked_is_another_error(
    answer: WriteOutcome, said: str, at: int
) -> None:
    async with Answering(answer, at) as store:
        with pytest.raises(StoreProbeError, match=said) as caught:
            await probe(store, FOLDER)

    assert "ignores" not in str(caught.value)
    assert len(store.asked) <= 4
    assert store.objects == {}, "a write that may have landed is cleaned up too"


async def test_a_store_that_finds_something_under_an_unused_name_is_not_trusted() -> None:
    async with Answering(Lost("an object is there already"), 1) as store:
        with pytest.raises(StoreProbeError, match="under a name nobody used before"):
            await probe(store, FOLDER)


@pytest.mark.parametrize(
    "version, form",
    [
        ("1795275010399894", r"\d{16}"),
        ('"0x8DE28F3A1B2C3D4"', r'"0x[0-9A-F]{15}"'),
        ('"9dd4e461268c8034f5c8564e155c67a6"', r'"[0-9a-f]{32}"'),
        ('"abc-2"', r'"abc-\d"'),
        ("abc", r"ab[a-z]"),
    ],
)
def test_a_version_that_is_not_there_has_the_form_of_one_that_is(version: str, form: str) -> None:
    """A store may answer 400 to what can't be a version of its own, and that says nothing about conditions."""
    other = _different_version(version)

    assert other != version
    assert re.fullmatch(form, other)


async def test_two_probes_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with LocalStore(tmp_path, request_timeout_seconds=5.0) as store, anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(probe, store, f"file://{tmp_path}/locks")

    assert files_below(tmp_path) == []


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class StopAt:
    """Cancels the probe inside one of its requests."""

    def __init__(self, scope: anyio.CancelScope, at: int) -> None:
        self._scope = scope
        self._left = at

    async def before(self, _request: Request) -> Fault | DelayedDelivery | None:
        return None

    async def after(self, _request: Request, _outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()
            await anyio.lowlevel.checkpoint()
        return None


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_cancelled_probe_removes_its_key(at: int) -> None:
    objects: dict[str, bytes] = {}
    with anyio.CancelScope() as scope:
        async with MemoryStore(
            request_timeout_seconds=1.0, objects=objects, faults=StopAt(scope, at)
        ) as store:
            await probe(store, FOLDER)

    assert scope.cancelled_caught
    assert objects == {}
