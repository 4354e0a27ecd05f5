"""The probe recognises a store that ignores conditions, with four requests at most."""

import re
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from lakewarden.agent.stores import LocalStore, StoreProbeError, probe
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
from tests.servers.memory_store import Fault, MemoryStore, Request

FOLDER = "memory://twin/table/.hoodie/.locks"


class Counting(MemoryStore):
    """A correct store that records its requests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent: list[str] = []
        super().__init__(request_timeout_seconds=1.0, objects=self.objects)

    async def read(self, uri: str) -> ReadOutcome:
        self.sent.append("read")
        return await super().read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        self.sent.append(type(condition).__name__)
        return await super().write(uri, body, condition)

    async def delete(self, uri: str) -> None:
        self.sent.append("delete")
        await super().delete(uri)


class IgnoringOneCondition(Counting):
    """A store that ignores one condition, as some S3-compatible stores do."""

    def __init__(self, ignored: type[Condition]) -> None:
        super().__init__()
        self._ignored = ignored

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        if not isinstance(condition, self._ignored):
            return await super().write(uri, body, condition)
        self.sent.append(type(condition).__name__)
        self.objects[uri] = body
        found = await MemoryStore.read(self, uri)
        assert isinstance(found, Found)
        return Won(found.version)


class Answering(Counting):
    """A store that returns a fixed outcome for one of the writes."""

    def __init__(self, answer: WriteOutcome, at: int) -> None:
        super().__init__()
        self._answer = answer
        self._at = at

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        outcome = await super().write(uri, body, condition)
        return self._answer if len(self.sent) == self._at else outcome


async def test_a_correct_store_gets_four_requests_and_is_left_unchanged() -> None:
    async with Counting() as store:
        await probe(store, FOLDER)

    assert store.sent == ["IfAbsent", "IfAbsent", "IfMatch", "delete"]
    assert store.objects == {}


@pytest.mark.parametrize(
    "ignored, description",
    [
        (IfAbsent, r"if-absent \(If-None-Match: \*; Google: generation 0\)"),
        (IfMatch, r"if-match \(If-Match: <etag>; Google: its generation\)"),
    ],
)
async def test_the_error_names_the_ignored_condition_and_the_store_is_left_unchanged(
    ignored: type[Condition], description: str
) -> None:
    async with IgnoringOneCondition(ignored) as store:
        with pytest.raises(
            StoreProbeError, match=f"ignores the condition {description}.*keep the lock in a store with"
        ):
            await probe(store, FOLDER)

    assert len(store.sent) <= 4
    assert store.objects == {}


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "answer, message",
    [
        (
            Refused("access denied: status=403 code=AccessDenied"),
            "can't be written to; check bucket or container, credentials",
        ),
        (
            Unknown("no answer within the timeout"),
            "could not be reached in time; check endpoint, network and the credentials service",
        ),
        (
            Throttled("slow down"),
            "could not be reached in time; check endpoint, network and the credentials service",
        ),
    ],
)
async def test_a_store_that_does_not_answer_the_probe_is_another_error(
    answer: WriteOutcome, message: str, at: int
) -> None:
    async with Answering(answer, at) as store:
        with pytest.raises(StoreProbeError, match=message) as caught:
            await probe(store, FOLDER)

    assert "ignores" not in str(caught.value)
    assert len(store.sent) <= 4
    assert store.objects == {}, "a write that may have been applied is deleted too"


async def test_a_store_that_reports_an_object_under_an_unused_key_is_not_trusted() -> None:
    async with Answering(Lost("the object exists already"), 1) as store:
        with pytest.raises(StoreProbeError, match="under a key that was never used"):
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
def test_the_probes_wrong_version_has_the_form_of_a_right_one(version: str, form: str) -> None:
    """A store may answer 400 to a malformed version, which does not show whether it honours conditions."""
    other = _different_version(version)

    assert other != version
    assert re.fullmatch(form, other)


async def test_concurrent_probes_do_not_interfere(tmp_path: Path) -> None:
    async with (
        LocalStore(tmp_path, request_timeout_seconds=60.0) as store,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(10):
            tasks.start_soon(probe, store, f"file://{tmp_path}/locks")

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class CancelAt:
    """Cancels the probe during one of its requests."""

    def __init__(self, scope: anyio.CancelScope, at: int) -> None:
        self._scope = scope
        self._left = at

    async def before(self, _request: Request) -> Fault | None:
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
            request_timeout_seconds=1.0, objects=objects, faults=CancelAt(scope, at)
        ) as store:
            await probe(store, FOLDER)

    assert scope.cancelled_caught
    assert objects == {}
