from __future__ import annotations

import hashlib

import pytest

from lakewarden.handlers.lease.conditional import Absent, Found, ReadOutcome, Refused, Throttled, Unknown
from lakewarden.handlers.lease.placement import (
    ConfiguredLocation,
    LockLocation,
    LookAgain,
    LookedUp,
    LookUp,
    NotAllowed,
    Placement,
    judge_look_up,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS

TABLE = "s3://lake/sales/orders"
OWN = TABLE + "/.hoodie/.locks/table_lock.json"


@pytest.mark.parametrize(
    "allow, table, allowed",
    [
        ("s3://lake/sales/orders", TABLE, True),
        ("s3://lake/sales", TABLE, True),
        ("s3://lake/sales/", TABLE, True),
        ("s3://lake/sal", TABLE, False),
        ("s3://lake/sales/orders/deeper", TABLE, False),
        ("s3://lake/*", TABLE, True),
        ("s3://lake/*/orders", TABLE, True),
        ("s3://*", TABLE, True),
        ("s3://lake/s*", TABLE, True),
        ("s3://lake/sales/order?", TABLE, True),
        ("s3://lak", TABLE, False),
        ("s3://lake/*", "s3://lake-evil/x", False),
        ("S3://lake/*", TABLE, False),
        ("file:///data", "file:///data/t", True),
        ("file:///data", "file:///database/t", False),
        ("file:///data/*", "file:///data/a/b", True),
        ("", TABLE, False),  # an agent without `--tables` serves no table
    ],
)
def test_a_table_is_allowed_only_if_a_glob_covers_its_whole_uri(
    allow: str, table: str, allowed: bool
) -> None:
    """Events come from the network: they must not make the agent write anywhere else."""
    assert Placement(tuple(allow.split())).allows(table) is allowed


def digest(table: str) -> str:
    return hashlib.sha256(table.encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    "table, root, uri",
    [
        (TABLE, None, f"s3://lake/locks/sales-orders-{digest(TABLE)}.json"),
        *(
            (
                f"{bucket}/sales/orders",
                None,
                f"{bucket}/locks/sales-orders-{digest(f'{bucket}/sales/orders')}.json",
            )
            for bucket in ("gs://lake", "az://lake", "abfs://lake@account.dfs.core.windows.net")
        ),
        (TABLE, "s3://locks/prod/", f"s3://locks/prod/locks/sales-orders-{digest(TABLE)}.json"),
        (
            "file:///data/a b/_x-/ü=1",
            "file:///var/locks",
            f"file:///var/locks/locks/data-a-b-_x--1-{digest('file:///data/a b/_x-/ü=1')}.json",
        ),
        ("s3://lake/日本", None, f"s3://lake/locks/-{digest('s3://lake/日本')}.json"),
    ],
)
def test_the_default_lock_object_is_the_one_of_the_protocol(table: str, root: str | None, uri: str) -> None:
    """Two agents with the same configuration must use the same object."""
    assert Placement(("*",), root).location(table, hudi=False) == LockLocation(uri, shared=False)


@pytest.mark.parametrize("root", [None, "s3://locks", f"s3://locks/{'p' * 400}/", "file:///var/locks"])
def test_the_name_of_a_lock_object_fits_into_every_store(root: str | None) -> None:
    """A disk adds 17 characters for the files beside it. Tables that differ at their ends only have different locks."""
    tables = [f"s3://lake/{'a/' * 500}{end}" for end in ("x", "y")]
    places = [Placement(("*",), root).location(table, hudi=False) for table in tables]

    for location in places:
        assert isinstance(location, LockLocation)
        key = location.uri.partition("://")[2].partition("/")[2]
        assert len(key) <= 1024
        assert len(key.rpartition("/")[2]) <= (238 if location.uri.startswith("file:") else 1024)
    assert places[0] != places[1]


def test_a_local_table_has_no_default_lock_object_without_a_lock_root() -> None:
    """It has no bucket, so the lock would be in the root of the file system."""
    found = Placement(("file:///data/*",)).location("file:///data/t", hudi=False)

    assert isinstance(found, NotAllowed)
    assert "--lock-root" in found.why


def test_a_hudi_tables_own_lock_is_shared_with_its_java_writers() -> None:
    assert Placement(()).location(TABLE, hudi=True) == LockLocation(OWN, shared=True)


PLACES = (
    ConfiguredLocation("s3://lake/sales/orders", "s3://locks/special/orders.json"),
    ConfiguredLocation("s3://lake/hudi/*", "hudi"),
    ConfiguredLocation("s3://lake/sales/*", "default"),
    ConfiguredLocation("s3://lake/copies/*", OWN),
)


@pytest.mark.parametrize(
    "table, place",
    [
        (TABLE, LockLocation("s3://locks/special/orders.json", shared=False)),
        ("s3://lake/hudi/t", LockLocation("s3://lake/hudi/t/.hoodie/.locks/table_lock.json", shared=True)),
        (
            "s3://lake/sales/t",
            LockLocation(f"s3://lake/locks/sales-t-{digest('s3://lake/sales/t')}.json", shared=False),
        ),
        ("s3://lake/copies/t", LockLocation(OWN, shared=True)),
        ("s3://lake/else/t", None),
    ],
)
def test_the_first_configured_place_that_covers_the_table_counts(
    table: str, place: LockLocation | None
) -> None:
    assert Placement((), None, PLACES).configured(table) == place


@pytest.mark.parametrize("answer", [Found(b"hoodie.table.name=t", "v"), Found(b"", "v")])
def test_a_table_with_hudis_properties_has_hudis_lock(answer: Found) -> None:
    assert judge(LookUp(), answer) == LockLocation(OWN, shared=True)


def test_a_table_without_them_has_the_usual_lock() -> None:
    assert judge(LookUp(), Absent()) == LockLocation(
        f"s3://lake/locks/sales-orders-{digest(TABLE)}.json", shared=False
    )


@pytest.mark.parametrize("answer", [Unknown("timeout"), Throttled("503"), Refused("403")])
def test_any_other_answer_shows_nothing_and_is_asked_again(answer: ReadOutcome) -> None:
    """A store that is down must not make a Hudi table look like another one."""
    look_up, waits, reported = LookUp(), [], 0
    for _ in range(20):
        again = judge(look_up, answer)
        assert isinstance(again, LookAgain)
        look_up, reported = again.look_up, reported + again.reported
        waits.append(again.seconds)

    assert waits[0] < waits[1] < waits[2] <= waits[-1] <= SETTINGS.renew_interval
    assert reported == 4


def test_a_refusal_lasts_after_refusal_seconds_and_a_new_series_begins() -> None:
    look_up, lasting = LookUp(), 0
    for now in range(0, 500, 10):
        again = judge(look_up, Refused("403"), now=float(now))
        assert isinstance(again, LookAgain)
        look_up, lasting = again.look_up, lasting + again.too_long

    assert lasting == 3


def test_a_table_whose_uri_names_no_object_has_no_place() -> None:
    found = judge(LookUp(), Refused("an encoded slash", unusable=True))

    assert isinstance(found, NotAllowed)
    assert "an encoded slash" in found.why


def judge(look_up: LookUp, answer: ReadOutcome, now: float = 0.0) -> LookedUp:
    return judge_look_up(Placement(()), TABLE, look_up, answer, SETTINGS, now=now, jitter=0.0)
