from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given, strategies as st

from lakewarden.handlers.lease.lock_object import (
    NEWEST_MILLISECONDS,
    OLDEST_MILLISECONDS,
    LockRecord,
    Malformed,
    owner_prefix,
    parse,
    render,
)


@pytest.mark.parametrize("expired", [False, True])
def test_a_lock_is_written_byte_for_byte_as_hudi_writes_it(expired: bool) -> None:
    """Hudi 1.2.0's own provider uses the same object: three fields, this order, no space, no newline."""
    written = render(LockRecord(expired, 1_700_000_000_000, "o"))

    assert written == b'{"expired":%s,"validUntil":1700000000000,"owner":"o"}' % str(expired).lower().encode()


@given(st.booleans(), st.integers(OLDEST_MILLISECONDS, NEWEST_MILLISECONDS - 1), st.text(min_size=1))
def test_what_is_written_is_read_back(expired: bool, valid_until: int, owner: str) -> None:
    """The read-back of an unknown write must recognise our own record."""
    record = LockRecord(expired, valid_until, owner)

    assert parse(render(record)) == record


@pytest.mark.parametrize(
    "body",
    [
        b'{"owner":"o","validUntil":1700000000000,"expired":false}',
        b' {\n "expired" : false , "validUntil":1700000000000, "owner":"o" }\n',
        b'{"expired":false,"validUntil":1700000000000,"owner":"o","host":"h","nested":{"a":[1]}}',
        b'\xef\xbb\xbf{"expired":false,"validUntil":1700000000000,"owner":"o"}',
    ],
)
def test_any_order_spaces_and_unknown_fields_are_read(body: bytes) -> None:
    """Other versions and other writers."""
    assert parse(body) == LockRecord(expired=False, valid_until=1_700_000_000_000, owner="o")


@pytest.mark.parametrize(
    "body, why",
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"hello", "JSON"),
        (b"\xff\xfe\xfd", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b"{}", "expired, validUntil, owner"),
        (b'{"expired":false,"owner":"o"}', "validUntil"),
        (b'{"expired":"false","validUntil":1700000000000,"owner":"o"}', "expired"),
        (b'{"expired":0,"validUntil":1700000000000,"owner":"o"}', "expired"),
        (b'{"expired":null,"validUntil":1700000000000,"owner":"o"}', "expired"),
        (b'{"expired":false,"validUntil":"1700000000000","owner":"o"}', "validUntil"),
        (b'{"expired":false,"validUntil":1700000000000.5,"owner":"o"}', "validUntil"),
        (b'{"expired":false,"validUntil":true,"owner":"o"}', "validUntil"),
        (b'{"expired":false,"validUntil":1700000000,"owner":"o"}', "milliseconds"),
        (b'{"expired":false,"validUntil":-1,"owner":"o"}', "milliseconds"),
        (b'{"expired":false,"validUntil":1700000000000000,"owner":"o"}', "milliseconds"),
        (b'{"expired":false,"validUntil":"2026-11-21T00:00:00Z","owner":"o"}', "validUntil"),
        (b'{"expired":false,"validUntil":1700000000000,"owner":""}', "owner"),
        (b'{"expired":false,"validUntil":1700000000000,"owner":7}', "owner"),
    ],
)
def test_anything_else_is_malformed_with_its_reason(body: bytes, why: str) -> None:
    """Another program may rely on it, so it is reported and never overwritten."""
    found = parse(body)

    assert isinstance(found, Malformed)
    assert why in found.why


@given(
    st.binary(max_size=100)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_no_bytes_make_the_parser_raise(body: bytes) -> None:
    """Any program can write anything there."""
    assert isinstance(parse(body), LockRecord | Malformed)


@pytest.mark.parametrize(
    "expired, wall_ms, held",
    [
        (False, 1_700_000_000_000, True),
        (False, 1_700_000_000_500, True),
        (False, 1_700_000_000_501, False),
        (True, 1_600_000_000_000, False),
    ],
)
def test_a_contender_respects_it_until_its_end_is_past_by_the_drift(
    expired: bool, wall_ms: int, held: bool
) -> None:
    """Holder and contender have different clocks."""
    record = LockRecord(expired, 1_700_000_000_000, "o")

    assert record.held_at(wall_ms, drift_ms=500) is held


def test_the_prefix_of_an_owner_id_shows_log_term_and_table_and_is_half_a_uuid() -> None:
    """Two tables may share a lock object, and another cluster may have a copy of the log."""
    parts = [
        ("k/t.decisions", "a", "s3://x/t"),
        ("m/t.decisions", "a", "s3://x/t"),
        ("k/u.decisions", "a", "s3://x/t"),
    ]
    parts += [
        ("k/t.decisions", "b", "s3://x/t"),
        ("k/t.decisions", "a", "s3://x/u"),
        ("k/t.decisions", "as", "3://x/t"),
    ]

    prefixes = {owner_prefix(*each) for each in parts}

    assert len(prefixes) == len(parts)
    assert all(uuid.UUID(prefix + "9a8b-0123456789ab") for prefix in prefixes)
