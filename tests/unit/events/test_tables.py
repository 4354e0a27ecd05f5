from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
        ("/data/orders/", "file:///data/orders"),
        ("file:/data/orders", "file:///data/orders"),
        ("file:///data//orders", "file:///data/orders"),
        ("file://localhost/data/orders", "file:///data/orders"),
    ],
)
def test_one_table_has_one_name_whoever_writes_it_down(spelled: str, canonical: str) -> None:
    """Two jobs that spell the table differently would coordinate with nobody."""
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
    ],
)
def test_what_can_not_be_named_is_refused(spelled: str) -> None:
    """A relative path, a bare bucket, a way out of the root: there is no table to lock."""
    with pytest.raises(ValueError, match=r"table|file URI"):
        canonical_table(spelled)


@given(tables)
def test_a_canonical_name_is_its_own_canonical_name(table: str) -> None:
    """The agent checks what writers have already made canonical."""
    assert require_canonical(table) == table


@given(st.text(max_size=60) | st.text("/.:s3afile", max_size=30).map(lambda end: "s3a://b/" + end))
@example("S3N://b/./a//")
def test_making_canonical_twice_is_making_it_once(text: str) -> None:
    """Client and agent both do it."""
    try:
        once = canonical_table(text)
    except ValueError:
        return

    assert canonical_table(once) == once
    assert "//" not in once.split("://", 1)[1].removeprefix("/")
    assert ".." not in once.split("/")
    assert not once.endswith("/")


def test_a_name_that_is_not_canonical_is_refused_with_the_right_spelling() -> None:
    """The message is all that the writer's author sees."""
    with pytest.raises(ValueError, match="write 's3://lake/orders'"):
        require_canonical("s3a://lake/orders")
