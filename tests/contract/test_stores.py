"""The contract of all stores: in memory, on the local disk, and on servers for S3, Google and Azure.

versitygw, MinIO and Azurite honour every condition. fake-gcs-server honours conditions in Google's JSON API, but refuses the
writes of the XML API, which obstore uses. `tests/servers/gcs.py` translates between the two. `test_cloud_requests.py`
compares the bytes that obstore sends to Google.
"""

from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import MAX_OBJECT_BYTES, LocalStore, LocationError, open_store, probe
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
from tests.contract.racers import Place, increment, place_in
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.anyio

STORES = [
    pytest.param("memory on asyncio", marks=pytest.mark.unit),
    pytest.param("memory on trio", marks=pytest.mark.unit),
    pytest.param("local on asyncio", marks=pytest.mark.unit),
    pytest.param("local on trio", marks=pytest.mark.unit),
    "s3 on asyncio",
    "gs on asyncio",
    "az on asyncio",
]


@pytest.fixture(params=STORES)
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend(which: str) -> str:
    return which.rpartition(" ")[2]


@pytest.fixture
def place(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_in(which.partition(" ")[0], request, tmp_path)


def won(outcome: object) -> str:
    assert isinstance(outcome, Won), outcome
    return outcome.version


def test_each_server_creates_buckets(
    s3_server: S3Server, gcs_server: GcsServer, azure_server: AzureServer
) -> None:
    """The fixtures are arguments here, not only used through `place`, so that the suite starts these servers first."""
    client = s3_server.new_client()
    client.put_object(Bucket=s3_server.bucket(), Key="k", Body=b"x")
    client.close()
    assert s3_server.used
    assert gcs_server.bucket()
    assert azure_server.container()


async def test_a_second_write_if_absent_loses_and_changes_nothing(place: Place) -> None:
    async with place.open() as store:
        version = won(await store.write(place / "t.json", b"first", IfAbsent()))
        second = await store.write(place / "t.json", b"second", IfAbsent())

        assert isinstance(second, Lost)
        assert await store.read(place / "t.json") == Found(b"first", version)


async def test_a_write_over_the_version_that_was_read_wins_and_over_a_stale_one_loses(place: Place) -> None:
    async with place.open() as store:
        first = won(await store.write(place / "t.json", b"first", IfAbsent()))
        second = won(await store.write(place / "t.json", b"second", IfMatch(first)))
        third = await store.write(place / "t.json", b"third", IfMatch(first))

        assert second != first
        assert isinstance(third, Lost)
        assert await store.read(place / "t.json") == Found(b"second", second)


async def test_a_write_over_an_absent_object_loses_and_creates_nothing(place: Place) -> None:
    """An operator deleted the lock object: its holder has lost the lock, and must not recreate the object."""
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
async def test_any_body_up_to_the_limit_is_read_back_unchanged(place: Place, body: bytes) -> None:
    async with place.open() as store:
        version = won(await store.write(place / "t.json", body, IfAbsent()))

        assert await store.read(place / "t.json") == Found(body, version)


async def test_a_body_beyond_the_limit_is_refused(place: Place) -> None:
    async with place.open() as store:
        outcome = await store.write(place / "t.json", b"x" * (MAX_OBJECT_BYTES + 1), IfAbsent())

        assert isinstance(outcome, Refused)
        assert await store.read(place / "t.json") == Absent()


async def test_a_name_is_percent_decoded_once(place: Place) -> None:
    """Hudi does the same, so that a Java writer and the agent use the same object."""
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
async def test_an_ambiguous_location_is_refused(place: Place, name: str) -> None:
    async with place.open() as store:
        assert isinstance(await store.read(place / name), Refused)
        assert isinstance(await store.write(place / name, b"x", IfAbsent()), Refused)
        assert isinstance(await store.write(place / name, b"x", IfMatch("1")), Refused)


async def test_one_of_many_concurrent_creations_wins(place: Place) -> None:
    async with place.open() as store:
        outcomes: dict[int, object] = {}

        async def create(racer: int) -> None:
            outcomes[racer] = await store.write(place / "t.json", b"%d" % racer, IfAbsent())

        async with anyio.create_task_group() as tasks:
            for racer in range(12):
                tasks.start_soon(create, racer)
        found = await store.read(place / "t.json")

    winners = [racer for racer, outcome in outcomes.items() if isinstance(outcome, Won)]
    assert len(winners) == 1, outcomes
    assert isinstance(found, Found)
    assert found.body == b"%d" % winners[0]
    assert all(isinstance(outcome, Won | Lost | Unknown | Throttled) for outcome in outcomes.values()), (
        outcomes
    )


async def test_a_counter_incremented_by_many_tasks_loses_no_update(place: Place) -> None:
    async with place.open() as store:
        async with anyio.create_task_group() as tasks:
            for racer in range(5):
                tasks.start_soon(increment, store, place / "counter.json", racer, 10)
        found = await store.read(place / "counter.json")

    assert isinstance(found, Found)
    assert found.body.startswith(b'{"number": 50,')


async def test_cancellation_passes_through_and_leaves_the_old_or_the_new_object(place: Place) -> None:
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
    """Deleting the object of a held lock would release it."""
    async with place.open() as store:
        won(await store.write(place / "t.json", b"x", IfAbsent()))
        with pytest.raises(ValueError, match=r"only keys below \.lakewarden-probe/ can be deleted"):
            await store.delete(place / "t.json")

        assert isinstance(await store.read(place / "t.json"), Found)


async def test_a_probes_key_is_deleted_and_deleting_it_twice_is_no_error(place: Place) -> None:
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


async def test_using_a_store_that_is_not_open_is_an_error(place: Place) -> None:
    with pytest.raises(RuntimeError, match="use it inside 'async with'"):
        await place.open().read(place / "t.json")


@pytest.mark.parametrize("uri", ["hdfs://host/x", "/tmp/x", "wasbs://c@a/x", "://x", ""])
def test_an_unknown_scheme_is_an_error(uri: str) -> None:
    with pytest.raises(LocationError, match=r"file://, s3://, gs://, az://, abfs://|has the form scheme://"):
        open_store(uri, Settings())


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_timeout_must_be_positive_and_finite(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        LocalStore("/x", request_timeout_seconds=seconds)
