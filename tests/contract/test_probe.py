"""The probe recognises a store that gives one wrong answer to one of a lock's requests, with ten requests at most."""

import re
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from lakewarden.agent.stores import LocalStore, StoreProbeError, StoreRefusedError, probe
from lakewarden.agent.stores.probe import _different_version
from lakewarden.handlers.lease.conditional import (
    Absent,
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
from tests.servers.memory_store import Fault, MemoryStore, Request, version_of

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


REQUESTS = [
    "read",
    "IfAbsent",
    "IfAbsent",
    "IfMatch",
    "read",
    "IfMatch",
    "IfMatch",
    "IfMatch",
    "read",
    "delete",
]
WINS = (1, 5, 7)


async def test_a_correct_store_gets_ten_requests_and_is_left_unchanged() -> None:
    async with Counting() as store:
        await probe(store, FOLDER)

    assert store.sent == REQUESTS
    assert store.objects == {}


WRITE_LIES = (
    "won, and nothing written",
    "won, whatever the condition",
    "won, under another version",
    "lost, and nothing written",
    "lost, and written under its condition",
    "lost, and written whatever the condition",
    "refused",
    "refused, and written",
    "throttled",
    "unknown",
    "unknown, and written",
)
READ_LIES = ("absent", "another body", "another version", "refused", "throttled", "unknown")


class Lying(Counting):
    """A store that lies in one request, or (`always`) in each one of its kind from there on."""

    def __init__(self, at: int, lie: str, *, always: bool = False) -> None:
        super().__init__()
        self._at, self._lie, self._always = at, lie, always
        self.lied = False

    def _lies(self) -> bool:
        at = len(self.sent)
        now = at == self._at or (self._always and at > self._at and REQUESTS[at] == REQUESTS[self._at])
        self.lied = self.lied or now
        return now

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        if not self._lies():
            return await super().write(uri, body, condition)
        self.sent.append(type(condition).__name__)
        outcome: WriteOutcome = Lost("not sent")
        if "whatever the condition" in self._lie:
            self.objects[uri] = body
        elif "nothing" not in self._lie and self._lie not in {"refused", "throttled", "unknown"}:
            outcome = await MemoryStore.write(self, uri, body, condition)
        match self._lie.partition(",")[0]:
            case "won" if "another version" in self._lie and not isinstance(outcome, Won):
                return outcome  # the condition did not hold: the truth
            case "won":
                return Won(version_of(b"another" if "another version" in self._lie else body))
            case "lost":
                return Lost("the object exists")
            case answer:
                return FAULTS[answer]

    async def read(self, uri: str) -> ReadOutcome:
        if not self._lies():
            return await super().read(uri)
        self.sent.append("read")
        found = await MemoryStore.read(self, uri)
        match self._lie:
            case "absent":
                return Absent()
            case "another body":
                return Found(b"another", found.version if isinstance(found, Found) else version_of(b""))
            case "another version":
                body = found.body if isinstance(found, Found) else b""
                return Found(body, version_of(b"another"))
            case answer:
                return FAULTS[answer]


FAULTS: dict[str, Refused | Throttled | Unknown] = {
    "refused": Refused("status=403 code=AccessDenied"),
    "throttled": Throttled("status=429"),
    "unknown": Unknown("no answer within the timeout"),
}


def lies() -> list[tuple[int, str]]:
    """Every request with every wrong answer to it. Some answers are right for some requests."""
    found = []
    for at, kind in enumerate(REQUESTS[:-1]):
        for lie in READ_LIES if kind == "read" else WRITE_LIES:
            is_truth = (
                (at == 0 and lie == "absent")
                or (at == 1 and lie == "won, whatever the condition")  # there is no object yet
                or (at in WINS and lie == "won, whatever the condition")
                or (
                    kind != "read"
                    and at not in WINS
                    and lie in {"lost, and nothing written", "won, under another version"}
                )
                or (at not in WINS and lie == "lost, and written under its condition")
            )
            if not is_truth:
                found.append((at, lie))
    return found


@pytest.mark.parametrize("at, lie", lies(), ids=str)
@pytest.mark.parametrize("always", [False, True], ids=["once", "from then on"])
async def test_a_store_that_lies_in_one_request_is_refused(at: int, lie: str, always: bool) -> None:
    async with Lying(at, lie, always=always) as store:
        with pytest.raises(StoreProbeError):
            await probe(store, FOLDER)

    assert store.lied
    assert len(store.sent) <= len(REQUESTS)
    assert store.objects == {}, "the probe's key is deleted"


@pytest.mark.parametrize(
    "at, lie, error, message",
    [
        (0, "refused", StoreRefusedError, "can't be read or written to.*to list the bucket"),
        (1, "refused", StoreRefusedError, "can't be read or written to"),
        (2, "refused", StoreRefusedError, "accepts a new object and then refuses.*retention, Object Lock"),
        (5, "refused", StoreRefusedError, "accepts a new object and then refuses.*retention, Object Lock"),
        (
            5,
            "lost, and nothing written",
            StoreProbeError,
            "rejects a write under the object's current version",
        ),
        (
            7,
            "lost, and nothing written",
            StoreProbeError,
            "rejects a write under the object's current version",
        ),
        (6, "won, whatever the condition", StoreProbeError, "ignores the condition if-match"),
        (8, "another body", StoreProbeError, "another content or version"),
    ],
)
async def test_the_error_names_the_request_that_a_lock_needs(
    at: int, lie: str, error: type[StoreProbeError], message: str
) -> None:
    async with Lying(at, lie) as store:
        with pytest.raises(StoreProbeError, match=message) as raised:
            await probe(store, FOLDER)

    assert type(raised.value) is error


class CachingAbsence(Counting):
    """A store behind a cache that keeps the answer for an absent object."""

    def __init__(self) -> None:
        super().__init__()
        self._absent: set[str] = set()

    async def read(self, uri: str) -> ReadOutcome:
        found = await super().read(uri)
        if isinstance(found, Absent):
            self._absent.add(uri)
        return Absent() if uri in self._absent else found


async def test_a_cache_that_keeps_absence_is_refused() -> None:
    """The first look at a lock is at an absent object, and the reads after its acquisition must find it."""
    async with CachingAbsence() as store:
        with pytest.raises(StoreProbeError, match="no object right after it accepted a write"):
            await probe(store, FOLDER)


class WaitingBetweenWrites(Counting):
    """A store that throttles a write that comes too soon after another one to the same object, as Google does."""

    seconds_between_writes = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._written_at = float("-inf")

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        if anyio.current_time() < self._written_at + self.seconds_between_writes:
            self.sent.append(type(condition).__name__)
            return Throttled("status=429")
        outcome = await super().write(uri, body, condition)
        if isinstance(outcome, Won):
            self._written_at = anyio.current_time()
        return outcome


async def test_the_probe_keeps_to_the_rate_at_which_a_store_accepts_writes_of_one_object() -> None:
    async with WaitingBetweenWrites() as store:
        await probe(store, FOLDER)

    assert store.sent == REQUESTS


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

    assert len(store.sent) <= len(REQUESTS)
    assert store.objects == {}


@pytest.mark.parametrize("at", [2, 3, 4, 6, 7, 8])
@pytest.mark.parametrize(
    "answer, message",
    [
        (
            Refused("access denied: status=403 code=AccessDenied"),
            "can't be read or written to; check bucket or container, credentials|then refuses a request that a lock needs",
        ),
        (
            Unknown("no answer within the timeout"),
            "no answer shows whether this store can hold locks; check endpoint, network, proxies and the credentials",
        ),
        (
            Throttled("slow down"),
            "no answer shows whether this store can hold locks; check endpoint, network, proxies and the credentials",
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
    assert len(store.sent) <= len(REQUESTS)
    assert store.objects == {}, "a write that may have been applied is deleted too"


async def test_a_store_that_reports_an_object_under_an_unused_key_is_not_trusted() -> None:
    async with Answering(Lost("the object exists already"), 2) as store:
        with pytest.raises(StoreProbeError, match="under a key that was never used"):
            await probe(store, FOLDER)


@pytest.mark.parametrize(
    "version, form",
    [
        ("1795275010399894", r"\d{16}"),
        ('"0x8DE28F3A1B2C3D4"', r'"0x[0-9A-F]{15}"'),
        ('"9dd4e461268c8034f5c8564e155c67a6"', r'"[0-9a-f]{32}"'),
        ('"abc-2"', r'"abc-\d"'),
        ("abc", r"ab[a-z0-9]"),
        ('"abc"', r'"ab[a-z0-9]"'),
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


@pytest.mark.parametrize("at", range(1, 10))
async def test_a_cancelled_probe_removes_its_key(at: int) -> None:
    objects: dict[str, bytes] = {}
    with anyio.CancelScope() as scope:
        async with MemoryStore(
            request_timeout_seconds=1.0, objects=objects, faults=CancelAt(scope, at)
        ) as store:
            await probe(store, FOLDER)

    assert scope.cancelled_caught
    assert objects == {}
