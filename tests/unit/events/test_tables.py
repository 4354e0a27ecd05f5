from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from lakewarden.events import canonical_table, require_canonical
from tests.unit.events.building import tables


@pytest.mark.parametrize(
    "spelled, canonical",
    [
        ("s3a://lake/orders", "s3://lake/orders"),
        ("s3n://lake/orders", "s3://lake/orders"),
        ("S3A://lake/orders", "s3://lake/orders"),
        ("s3://lake/orders/", "s3://lake/orders"),
        ("s3://lake//sales///orders//", "s3://lake/sales/orders"),
        ("s3://lake/./orders/.", "s3://lake/orders"),
        ("s3://Lake/Orders", "s3://Lake/Orders"),
        ("s3://lake/a%2Fb", "s3://lake/a%2Fb"),
        ("s3://lake/a=b/c_d", "s3://lake/a=b/c_d"),
        ("s3://lake/日本", "s3://lake/日本"),
        ("gs://lake/orders", "gs://lake/orders"),
        ("abfss://fs@account.dfs.core.windows.net/t", "abfs://fs@account.dfs.core.windows.net/t"),
        ("abfss://fs@Account.DFS.core.windows.net:443/T", "abfs://fs@account.dfs.core.windows.net/T"),
        ("abfs://fs@account.dfs.core.windows.net:/t", "abfs://fs@account.dfs.core.windows.net/t"),
        ("abfs://fs@127.0.0.1:10000/t", "abfs://fs@127.0.0.1:10000/t"),
        ("s3://lake/a b/50%/u\u0308", "s3://lake/a b/50%/u\u0308"),
        ("/data/a b/50%/u\u0308", "file:///data/a b/50%/u\u0308"),
        ("/data/orders/", "file:///data/orders"),
        ("file:/data/orders", "file:///data/orders"),
        ("file:///data//orders", "file:///data/orders"),
        ("file://localhost/data/orders", "file:///data/orders"),
    ],
)
def test_all_spellings_of_a_table_have_one_canonical_uri(spelled: str, canonical: str) -> None:
    """Two jobs that used different keys for one table would not be coordinated."""
    assert canonical_table(spelled) == canonical


@pytest.mark.parametrize(
    "spelled",
    [
        "",
        "orders",
        "./orders",
        "s3:/lake/orders",
        "://lake/orders",
        "s3://lake",
        "s3://lake/",
        "s3:///orders",
        "/",
        "file:///",
        "file://host/data",
        "s3://lake/../secrets",
        "s3://lake/orders/..",
        "/data/../etc",
        "s3://lake/a\nb",
        "s3://lake/a\x00b",
        "s3://lake/a\x7fb",
        "s3://lake/a\udcffb",
        "s3://lake/a#b",
        "s3://lake/a?b",
        "file:///data/a%20b",
        "/data/a%20b",
    ],
)
def test_a_table_without_a_canonical_uri_is_refused(spelled: str) -> None:
    """A relative path, a bucket without a path, a path that leaves its root."""
    with pytest.raises(ValueError, match=r"table|file URI"):
        canonical_table(spelled)


@given(tables)
def test_a_canonical_uri_stays_the_same(table: str) -> None:
    """The agent checks the URIs that writers have made canonical."""
    assert require_canonical(table) == table


@given(st.text(max_size=60) | st.text("/.:s3afile", max_size=30).map(lambda end: "s3a://b/" + end))
@example("S3N://b/./a//")
def test_making_a_uri_canonical_twice_changes_nothing(text: str) -> None:
    """The client and the agent both do it."""
    try:
        once = canonical_table(text)
    except ValueError:
        return

    assert canonical_table(once) == once
    assert "//" not in once.split("://", 1)[1].removeprefix("/")
    assert ".." not in once.split("/")
    assert not once.endswith("/")


def test_the_error_names_the_canonical_spelling() -> None:
    """The author of the writer sees only the message."""
    with pytest.raises(ValueError, match="write 's3://lake/orders'"):
        require_canonical("s3a://lake/orders")
