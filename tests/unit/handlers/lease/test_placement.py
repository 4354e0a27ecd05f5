from __future__ import annotations

import hashlib

import pytest

from lakewarden.handlers.lease.placement import LockPlace, NotAllowed, Placement

TABLE = "s3://lake/sales/orders"


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
    ],
)
def test_a_table_is_allowed_only_if_a_glob_covers_its_whole_uri(
    allow: str, table: str, allowed: bool
) -> None:
    """Events come from the network: they must not make the agent write anywhere else."""
    assert Placement((allow,)).allows(table) is allowed


def test_without_a_glob_nothing_is_allowed() -> None:
    """An agent without `--allow` serves no table."""
    found = Placement(()).locate(TABLE, None)

    assert isinstance(found, NotAllowed)
    assert f"--allow {TABLE}" in found.why


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
    assert Placement(("*",), root).locate(table, None) == LockPlace(uri, shared=False)


def test_a_local_table_has_no_default_lock_object_without_a_lock_root() -> None:
    """It has no bucket, so the lock would be in the root of the file system."""
    found = Placement(("file:///data/*",)).locate("file:///data/t", None)

    assert isinstance(found, NotAllowed)
    assert "--lock-root" in found.why


def test_the_hash_is_that_of_the_whole_uri() -> None:
    """`a-b` and `a/b` have the same cleaned path, and are two tables."""
    places = {
        Placement(("*",)).locate(table, None) for table in ("s3://lake/a-b", "s3://lake/a/b", "s3://lake/a b")
    }

    assert len(places) == 3


def test_a_hudi_tables_own_lock_is_shared_with_its_java_writers() -> None:
    """The intent names the table's own lock object."""
    lock = TABLE + "/.hoodie/.locks/table_lock.json"

    assert Placement(("s3://lake/sales/orders",)).locate(TABLE, lock) == LockPlace(lock, shared=True)


@pytest.mark.parametrize(
    "lock, allowed",
    [
        ("s3://locks/prod/mine.json", True),
        ("s3://locks/prod/deep/er/mine.json", True),
        ("s3://lake/sales/other/mine.json", True),
        ("s3://lake/sales/other/.hoodie/.locks/table_lock.json", True),
        ("s3://locks/prod", False),
        ("s3://locks/production/mine.json", False),
        ("s3://elsewhere/mine.json", False),
        ("s3://lake/mine.json", False),
        ("file:///etc/mine.json", False),
        ("s3://locks/prod/../secret/mine.json", False),
        ("s3://lake/sales/..", False),
        ("s3://lake/sales/../../elsewhere/mine.json", False),
        ("s3://locks/prod/./mine.json", False),
        ("s3://locks/prod//mine.json", False),
        ("s3://locks/prod/", False),
        ("s3a://locks/prod/mine.json", False),
        ("/locks/prod/mine.json", False),
        ("mine.json", False),
        ("s3://locks/prod/a\nb.json", False),
    ],
)
def test_a_named_lock_must_be_under_the_lock_root_or_in_an_allowed_folder(lock: str, allowed: bool) -> None:
    """An intent must not make the agent write elsewhere, and one object must have one spelling."""
    placement = Placement(("s3://lake/sales/*",), "s3://locks/prod")

    found = placement.locate(TABLE, lock)

    assert isinstance(found, LockPlace if allowed else NotAllowed), found
    if isinstance(found, LockPlace):
        assert found.uri == lock
        assert found.shared is lock.endswith("table_lock.json")
    else:
        assert TABLE in found.why


def test_a_named_lock_of_a_table_that_is_not_allowed_is_refused() -> None:
    """The table is checked first."""
    placement = Placement(("s3://lake/sales/*",), "s3://locks/prod")

    assert isinstance(placement.locate("s3://other/t", "s3://locks/prod/mine.json"), NotAllowed)
