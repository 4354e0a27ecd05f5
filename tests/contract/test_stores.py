"""One contract, kept by every store: in memory, on the local disk, and on real servers for S3, Google and Azure.

versitygw or MinIO and Azurite honour every condition. fake-gcs-server honours them in Google's JSON API and refuses the
writes of the XML API, which obstore uses; `tests/servers/gcs.py` puts a front before it that turns the one into the
other. What obstore really sends to Google is compared byte by byte in `test_cloud_requests.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.stores import (
    MAX_OBJECT_BYTES,
    ConditionalStore,
    LocationError,
    open_store,
    probe,
)
from lakewarden.agent.stores.s3 import S3Options
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    Refused,
    Throttled,
    Unknown,
    Won,
)
from tests.contract.racers import increment
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.anyio

SECONDS = 10.0
STORES = [
    pytest.param("memory on asyncio", marks=pytest.mark.unit),
    pytest.param("memory on trio", marks=pytest.mark.unit),
    pytest.param("local on asyncio", marks=pytest.mark.unit),
    pytest.param("local on trio", marks=pytest.mark.unit),
    "s3 on asyncio",
    "gs on asyncio",
    "az on asyncio",
]


@dataclass(slots=True)
class Place:
    """A store to open, and a folder in it that nobody has used."""

    kind: str
    folder: str
    root: Path | None = None
    endpoint: str | None = None

    def open(self) -> ConditionalStore:
        s3 = S3Options(endpoint_url=self.endpoint, region="us-east-1")
        return open_store(
            self.folder, request_timeout_seconds=SECONDS, root=self.root, s3=s3, endpoint=self.endpoint
        )

    def __truediv__(self, name: str) -> str:
        return f"{self.folder}/{name}"


@pytest.fixture(params=STORES)
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend(which: str) -> str:
    return which.rpartition(" ")[2]


@pytest.fixture
def place(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match which.split(maxsplit=1)[0]:
        case "memory":
            yield Place("memory", "memory://twin/locks")
        case "local":
            yield Place("local", f"file://{tmp_path}/new/locks", root=tmp_path)
        case "s3":
            s3 = request.getfixturevalue("s3_credentials")
            yield Place("s3", f"s3://{s3.bucket()}/locks", endpoint=s3.endpoint)
        case "gs":
            gcs = request.getfixturevalue("gcs_credentials")
            yield Place("gs", f"gs://{gcs.bucket()}/locks", endpoint=gcs.endpoint)
        case _:
            azure = request.getfixturevalue("azure_credentials")
            yield Place("az", f"az://{azure.container()}/locks", endpoint=azure.endpoint)


def won(outcome: object) -> str:
    assert isinstance(outcome, Won), outcome
    return outcome.version


def test_the_servers_are_real_ones(
    s3_server: S3Server, gcs_server: GcsServer, azure_server: AzureServer
) -> None:
    """Named here and not only through `place`, so that the suite knows from the start that it needs them."""
    client = s3_server.new_client()
    client.put_object(Bucket=s3_server.bucket(), Key="k", Body=b"x")
    client.close()
    assert s3_server.used
    assert gcs_server.bucket()
    assert azure_server.container()


async def test_what_was_never_written_is_absent(place: Place) -> None:
    async with place.open() as store:
        assert await store.read(place / "t.json") == Absent()


async def test_a_first_write_if_absent_wins_and_is_read_back_with_its_version(place: Place) -> None:
    async with place.open() as store:
        version = won(await store.write(place / "t.json", b"first", IfAbsent()))

        assert await store.read(place / "t.json") == Found(b"first", version)


async def test_a_second_write_if_absent_loses_and_changes_nothing(place: Place) -> None:
    async with place.open() as store:
        version = won(await store.write(place / "t.json", b"first", IfAbsent()))
        second = await store.write(place / "t.json", b"second", IfAbsent())

        assert isinstance(second, Lost)
        assert await store.read(place / "t.json") == Found(b"first", version)


async def test_a_write_over_the_version_that_was_read_wins_and_makes_another_version(place: Place) -> None:
    async with place.open() as store:
        first = won(await store.write(place / "t.json", b"first", IfAbsent()))
        second = won(await store.write(place / "t.json", b"second", IfMatch(first)))

        assert second != first
        assert await store.read(place / "t.json") == Found(b"second", second)


async def test_a_write_over_a_stale_version_loses_and_changes_nothing(place: Place) -> None:
    async with place.open() as store:
        first = won(await store.write(place / "t.json", b"first", IfAbsent()))
        second = won(await store.write(place / "t.json", b"second", IfMatch(first)))
        third = await store.write(place / "t.json", b"third", IfMatch(first))

        assert isinstance(third, Lost)
        assert await store.read(place / "t.json") == Found(b"second", second)


async def test_a_write_over_what_is_not_there_loses_and_creates_nothing(place: Place) -> None:
    """Somebody deleted the lock under its holder: the holder has lost it, and must not bring it back."""
    async with place.open() as store:
        version = won(await store.write(place / "other.json", b"first", IfAbsent()))

        assert isinstance(await store.write(place / "t.json", b"x", IfMatch(version)), Lost)
        assert isinstance(await store.write(place / "no/folder/t.json", b"x", IfMatch(version)), Lost)
        assert await store.read(place / "t.json") == Absent()


async def test_objects_are_independent(place: Place) -> None:
    async with place.open() as store:
        one = won(await store.write(place / "one.json", b"1", IfAbsent()))
        two = won(await store.write(place / "two.json", b"2", IfAbsent()))
        won(await store.write(place / "one.json", b"1'", IfMatch(one)))

        assert await store.read(place / "two.json") == Found(b"2", two)


@pytest.mark.parametrize(
    "body", [b"", b"\x00\xff\r\n" * 100, b"x" * MAX_OBJECT_BYTES], ids=["empty", "binary", "longest"]
)
async def test_any_body_up_to_the_bound_comes_back_as_it_was(place: Place, body: bytes) -> None:
    async with place.open() as store:
        version = won(await store.write(place / "t.json", body, IfAbsent()))

        assert await store.read(place / "t.json") == Found(body, version)


async def test_a_body_past_the_bound_is_refused(place: Place) -> None:
    async with place.open() as store:
        outcome = await store.write(place / "t.json", b"x" * (MAX_OBJECT_BYTES + 1), IfAbsent())

        assert isinstance(outcome, Refused)
        assert await store.read(place / "t.json") == Absent()


async def test_a_name_is_percent_decoded_once(place: Place) -> None:
    """As Hudi does: a Java writer and we must arrive at the same object."""
    async with place.open() as store:
        version = won(await store.write(place / "a%20b/%C3%A4%2541+.json", b"x", IfAbsent()))

        assert await store.read(place / "a b/ä%2541+.json") == Found(b"x", version)


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "a/../../up",
        "%2e%2e/up",
        ".%2E/up",
        "a//b",
        "",
        "./a",
        "a%2Fb",
        "a%00b",
        "a%zz",
        "a?b",
        "a#b",
        "a\nb",
    ],
)
async def test_a_location_that_could_mean_two_things_is_refused(place: Place, name: str) -> None:
    async with place.open() as store:
        assert isinstance(await store.read(place / name), Refused)
        assert isinstance(await store.write(place / name, b"x", IfAbsent()), Refused)
        assert isinstance(await store.write(place / name, b"x", IfMatch("1")), Refused)


async def test_of_many_who_create_at_once_one_wins(place: Place) -> None:
    async with place.open() as store:
        outcomes: dict[int, object] = {}

        async def create(who: int) -> None:
            outcomes[who] = await store.write(place / "t.json", b"%d" % who, IfAbsent())

        async with anyio.create_task_group() as tasks:
            for who in range(12):
                tasks.start_soon(create, who)
        found = await store.read(place / "t.json")

    winners = [who for who, outcome in outcomes.items() if isinstance(outcome, Won)]
    assert len(winners) == 1, outcomes
    assert isinstance(found, Found)
    assert found.body == b"%d" % winners[0]
    assert all(isinstance(outcome, Won | Lost | Unknown | Throttled) for outcome in outcomes.values()), (
        outcomes
    )


async def test_a_number_counted_up_by_many_tasks_loses_no_step(place: Place) -> None:
    async with place.open() as store:
        async with anyio.create_task_group() as tasks:
            for who in range(5):
                tasks.start_soon(increment, store, place / "counter.json", who, 10)
        found = await store.read(place / "counter.json")

    assert isinstance(found, Found)
    assert found.body.startswith(b'{"number": 50,')


async def test_cancellation_passes_through_and_leaves_the_old_or_the_new(place: Place) -> None:
    async with place.open() as store:
        version = won(await store.write(place / "t.json", b"old", IfAbsent()))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write(place / "t.json", b"new", IfMatch(version))
        with anyio.CancelScope() as reading:
            reading.cancel()
            await store.read(place / "t.json")
        found = await store.read(place / "t.json")

    assert scope.cancelled_caught
    assert reading.cancelled_caught
    assert isinstance(found, Found)
    assert found.body in {b"old", b"new"}


async def test_only_a_probes_key_can_be_deleted(place: Place) -> None:
    """Deleting a held lock would free it for everybody."""
    async with place.open() as store:
        won(await store.write(place / "t.json", b"x", IfAbsent()))
        with pytest.raises(ValueError, match=r"only keys below \.lakewarden-probe/ are ever deleted"):
            await store.delete(place / "t.json")

        assert isinstance(await store.read(place / "t.json"), Found)


async def test_a_probes_key_is_deleted_and_deleting_nothing_is_no_error(place: Place) -> None:
    async with place.open() as store:
        key = place / ".lakewarden-probe/k.json"
        won(await store.write(key, b"x", IfAbsent()))
        await store.delete(key)

        assert await store.read(key) == Absent()
        with capture_logs() as logs:
            await store.delete(key)
        assert logs == []
        won(await store.write(key, b"y", IfAbsent()))


async def test_a_probe_passes_and_leaves_no_object(place: Place) -> None:
    async with place.open() as store:
        with capture_logs() as logs:
            await probe(store, place.folder)
            await probe(store, place.folder + "/")

    assert [entry for entry in logs if entry["event"] == "store.probe_key_left_behind"] == []
    if place.root:
        assert [path for path in place.root.rglob("*") if path.is_file()] == []


async def test_a_store_that_is_not_open_says_so(place: Place) -> None:
    with pytest.raises(RuntimeError, match="use it inside 'async with'"):
        await place.open().read(place / "t.json")


async def test_ms_per_request_are_printed(place: Place) -> None:
    """Printed, not asserted: the machine decides."""
    count = 100
    async with place.open() as store:
        version = won(await store.write(place / "t.json", b"0", IfAbsent()))
        started = time.perf_counter()
        for number in range(count):
            version = won(
                await store.write(place / "t.json", b'{"expired":false,"n":%d}' % number, IfMatch(version))
            )
        written = time.perf_counter()
        for _ in range(count):
            await store.read(place / "t.json")
        read = time.perf_counter()

    writes, reads = 1000 * (written - started) / count, 1000 * (read - written) / count
    print(f"{place.kind}: {writes:.2f} ms a write, {reads:.2f} ms a read")


@pytest.mark.parametrize("uri", ["hdfs://host/x", "/tmp/x", "wasbs://c@a/x", "://x", ""])
def test_an_unknown_scheme_is_a_clear_error(uri: str) -> None:
    with pytest.raises(
        LocationError, match=r"file://, memory://, s3://, gs://, az://, abfs://|written scheme://"
    ):
        open_store(uri, request_timeout_seconds=1)


def test_local_objects_need_a_root() -> None:
    with pytest.raises(LocationError, match="need an allowed root folder"):
        open_store("file:///tmp/x", request_timeout_seconds=1)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_bounds_nothing_is_an_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        open_store("memory://x/y", request_timeout_seconds=seconds)
