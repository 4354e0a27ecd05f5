from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from lakewarden import events
from lakewarden.events import (
    DECISION_RECORD,
    EVENT,
    MAX_EVENT_BYTES,
    MAX_MARKERS_PER_EVENT,
    WRITER_EVENT,
    CommitIntent,
    Event,
    Marker,
    MarkerCreated,
    Undecodable,
    WriterHeartbeat,
    decode,
    encode,
)
from tests.unit.events.building import AT, COMMON, EVENTS, TABLE, an_intent, any_event


def changed(event: Event, **fields: Any) -> bytes:
    return json.dumps({**json.loads(encode(event)), **fields}).encode()


def refused(value: bytes | None, key: bytes | None = None) -> Undecodable:
    found = decode(WRITER_EVENT, value, key=key)
    assert isinstance(found, Undecodable), found
    return found


def test_every_event_of_the_protocol_has_a_strategy_here() -> None:
    """A new event must be covered by the tests of this module."""
    union = get_args(get_args(events.Event)[0])

    assert set(union) == set(EVENTS)


@given(any_event)
def test_decoding_an_encoded_event_returns_the_same_event(event: Event) -> None:
    """Agents and writers read what other agents and writers publish."""
    assert decode(EVENT, encode(event), key=event.table.encode()) == event


@given(any_event)
def test_an_encoded_event_is_a_json_object_with_type_and_protocol(event: Event) -> None:
    """A dashboard in another language reads the same record."""
    fields = json.loads(encode(event))

    assert fields["type"] == event.type
    assert fields["protocol"] == (1 if fields.get("turn") is None else 2)


@pytest.mark.parametrize(
    "partition, file_group",
    [
        ("", "f1"),
        ("dt=2026-03-01/hour=05", "a_b"),
        ("país=España/名=日本", "fil-é-id"),
        ("a%2Fb", "*"),
        ("_", "/"),
        ("__HIVE_DEFAULT_PARTITION__", '"quoted\\"'),
        ("a\nb", "\u2028"),
    ],
)
def test_partition_and_file_group_are_preserved_exactly(partition: str, file_group: str) -> None:
    """Real tables have Hive-style, empty, escaped and non-Latin partitions."""
    marker = Marker(partition=partition, file_group=file_group, operation="merge")
    event = MarkerCreated(**COMMON, markers=(marker,))

    found = decode(WRITER_EVENT, encode(event))

    assert isinstance(found, MarkerCreated)
    assert found.markers == (marker,)


def test_building_an_event_with_an_unknown_field_raises() -> None:
    """A misspelled field in our own code must fail before it is published."""
    with pytest.raises(ValidationError, match="extra"):
        an_intent(colour="red")


def test_an_event_is_immutable() -> None:
    """Several consumers share an event, and none may change it for the others."""
    with pytest.raises(ValidationError, match="frozen"):
        an_intent().priority = 7  # type: ignore[misc]


def test_a_decision_on_the_writers_topic_is_refused() -> None:
    """A program publishes to the wrong topic."""
    admitted = events.Admitted(**COMMON, agent="a", cause_offset=3)

    assert "admitted" in refused(encode(admitted)).reason
    assert decode(DECISION_RECORD, encode(admitted)) == admitted


COMPLETED = events.CommitCompleted(**COMMON, grant="g")
ABANDONED = events.TransactionAbandoned(**COMMON, reason="r" * 1000)
MARKER = {"partition": "", "file_group": "f", "operation": "merge"}
LIMITS: list[tuple[Event, str, list[object]]] = [
    # A writer of the next major version, or of a later one, sends its events to this agent.
    (an_intent(), "protocol", [0, 2, "one", 1.0, True, None]),
    (an_intent(), "type", ["commit-imagined"]),
    # A writer in another language has a bug. A value of another type is not converted.
    (an_intent(), "event_id", ["", "e" * 513]),
    (an_intent(), "transaction", ["", "\U0001f40b" * 129]),
    (an_intent(), "writer", ["two\nlines", "x" * 513, "é" * 257, 7]),
    (an_intent(), "batch_id", [2**63, -(2**63) - 1, "7", [7], True, 7.0]),
    (an_intent(), "priority", [10**4000, False]),
    (an_intent(), "at", ["2026-03-01T12:00:00", "yesterday", 1_780_000_000]),
    (an_intent(), "heartbeat_seconds", [0, 301, "5"]),
    (an_intent(), "admission", ["vip"]),
    (an_intent(), "conflict_rule", ["none"]),
    (an_intent(), "scope", [[MARKER | {"file_group": ""}], [MARKER | {"operation": "rename"}]]),
    (an_intent(), "scope", [[MARKER | {"partition": "p" * 1025}]]),
    (an_intent(), "lock", [""]),
    (an_intent(), "admission_reason", ["x" * 1001]),
    (an_intent(), "observed", ["true", 1]),
    # The ledger and later answers repeat what a completion names, so it must fit into a record.
    (COMPLETED, "grant", ["", "g" * 129, "é" * 65]),
    (COMPLETED, "version", ["v" * 1025]),
    (COMPLETED, "batch_id", [2**63]),
    # The writer counts the deadline of its grant from when it sent this seq.
    (WriterHeartbeat(**COMMON, seq=1), "seq", [-1, "many", 1.5, None, 2**63]),
    # A writer sends a whole stack trace.
    (ABANDONED, "reason", ["r" * 1001]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [(event, field, value) for event, field, values in LIMITS for value in values],
)
def test_a_field_outside_its_limits_is_refused_and_the_reason_names_it(
    event: Event, field: str, value: object
) -> None:
    """The dead letter must show where."""
    found = refused(changed(event, **{field: value}))

    assert (field if field != "type" else value) in found.reason  # type: ignore[operator]
    assert found.transaction == (None if field == "transaction" else "t-1")


@pytest.mark.parametrize("field", ["event_id", "table", "transaction", "writer", "at"])
def test_an_event_without_a_common_field_is_refused(field: str) -> None:
    """The agent's indexes and messages need all of them."""
    fields = json.loads(encode(an_intent()))
    del fields[field]

    assert field in refused(json.dumps(fields).encode()).reason


def test_an_abandonment_with_a_reason_of_exactly_the_limit_is_decoded() -> None:
    assert decode(WRITER_EVENT, encode(ABANDONED)) == ABANDONED


@pytest.mark.parametrize("name", ["n" * 512, "é" * 256, "\U0001f40b" * 128, "\x01" * 512])
def test_a_name_of_exactly_the_limit_is_decoded(name: str) -> None:
    """The limit counts bytes: a name in any script has the same room in Kafka."""
    event = an_intent(event_id=name, transaction=name, writer=name)

    assert decode(WRITER_EVENT, encode(event)) == event


def test_other_texts_are_limited_in_code_points_and_integers_are_kept_exactly() -> None:
    """A whale is one character, two UTF-16 units, four bytes. A decoder with floats would round the number."""
    marker = events.Marker(partition="\U0001f40b" * 1024, file_group="\U0001f40b" * 1024, operation="merge")
    event = an_intent(scope=(marker,), batch_id=2**63 - 1)

    assert decode(WRITER_EVENT, encode(event)) == event


def test_an_abort_for_a_reason_that_a_later_version_added_is_decoded() -> None:
    """Reasons are added without notice. A writer that could not read the abort would go on computing."""
    abort = events.Abort(**COMMON, agent="a", cause_offset=3, reason="eclipse", retriable=True)

    assert decode(DECISION_RECORD, encode(abort)) == abort


def test_what_an_agent_publishes_has_no_limit_that_an_input_could_break() -> None:
    """An older agent granted under an id made of the transaction's: the log still has it."""
    granted = events.CommitGranted(
        **COMMON, agent="\U0001f40b" * 200, cause_offset=3, grant="g" * 600, lease_seconds=1.0, seq=2**70
    )

    assert decode(DECISION_RECORD, encode(granted)) == granted


@pytest.mark.parametrize("key", [b"s3://lake/sales/returns", b"", b"\xff\xfe", TABLE.encode() + b"/"])
def test_a_record_whose_key_is_not_its_table_is_refused(key: bytes) -> None:
    """It may be in another partition than the other events of its table. Then their order is undefined."""
    found = refused(encode(an_intent()), key=key)

    assert "key" in found.reason
    assert (found.table, found.transaction) == (TABLE, "t-1")


def test_a_table_that_is_not_canonical_is_refused_and_returned_canonically() -> None:
    """A Hudi writer uses s3a. The agent publishes the abort under the canonical name."""
    found = refused(changed(an_intent(), table="s3a://lake//sales/orders/"))

    assert "not canonical" in found.reason
    assert found.table == TABLE
    assert (found.transaction, found.writer, found.event_id) == ("t-1", "ingest", "e-1")


def test_an_empty_record_is_refused() -> None:
    """A producer publishes a tombstone, which the topic does not use."""
    assert refused(None).reason == "empty record"


def test_an_oversize_record_is_refused_before_it_is_parsed() -> None:
    """A broker with a larger limit must not make the agent parse hundreds of megabytes."""
    found = refused(b'{"transaction": "t-1", "x": "' + b"x" * MAX_EVENT_BYTES + b'"}')

    assert str(MAX_EVENT_BYTES) in found.reason
    assert found.transaction is None


def test_a_record_of_exactly_the_limit_is_decoded() -> None:
    """The limit is the largest size that is accepted."""
    body = changed(an_intent(), padding="")
    padded = changed(an_intent(), padding="x" * (MAX_EVENT_BYTES - len(body)))

    assert len(padded) == MAX_EVENT_BYTES
    assert decode(WRITER_EVENT, padded) == an_intent()


def test_an_event_with_too_many_markers_is_refused() -> None:
    """A writer must split a long list into several events, because one event must not block the table's owner for long."""
    over = [MARKER] * (MAX_MARKERS_PER_EVENT + 1)

    found = refused(changed(MarkerCreated(**COMMON, markers=()), markers=over))

    assert "markers" in found.reason
    assert str(MAX_MARKERS_PER_EVENT) in found.reason
    with pytest.raises(ValidationError, match=str(MAX_MARKERS_PER_EVENT)):
        MarkerCreated(**COMMON, markers=tuple(Marker.model_validate(each) for each in over))


def test_the_maximum_number_of_markers_fits_into_a_record() -> None:
    """The limit in markers and the limit in bytes must agree for names of usual length."""
    markers = tuple(
        Marker(partition="month=03/day=01", file_group=f"{n:08d}-5e5f-4c2e", operation="merge")
        for n in range(MAX_MARKERS_PER_EVENT)
    )

    assert len(encode(MarkerCreated(**COMMON, markers=markers))) < MAX_EVENT_BYTES


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"hello",
        b"\xff\xfe\x00",
        b"null",
        b"[1, 2]",
        b'"text"',
        b'{"type": "commit-intent"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seq": ' + b"9" * 5_000 + b"}",
    ],
)
def test_bytes_that_are_not_an_event_are_refused(value: bytes) -> None:
    """A producer can publish any bytes. One bad record must not stop the partition."""
    found = refused(value, key=b"")

    assert found.reason
    assert found.transaction is None


@given(st.binary(max_size=200))
def test_decoding_never_raises(value: bytes) -> None:
    """The same for arbitrary bytes."""
    decode(EVENT, value, key=b"k")


@given(
    st.dictionaries(
        st.sampled_from(["type", "protocol", "table", "transaction", "writer", "event_id", "at", "seq"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers(), max_size=2),
    )
)
def test_the_names_read_from_a_refused_record_are_valid_in_an_abort(fields: dict[str, object]) -> None:
    """The agent aborts the transaction of a refused record. If it could not encode the abort, it would stop."""
    found = decode(WRITER_EVENT, json.dumps({**fields, "protocol": 99}).encode())

    assert isinstance(found, Undecodable)
    if found.transaction is not None and found.table is not None:
        abort = events.Abort(
            event_id="e-2",
            table=found.table,
            transaction=found.transaction,
            writer=found.writer or "",
            at=AT,
            agent="a",
            cause=found.event_id,
            cause_offset=0,
            reason="not-allowed",
            retriable=False,
        )
        assert decode(DECISION_RECORD, encode(abort)) == abort


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "x" * 600, "", 7, None, ["t"]])
def test_a_name_that_is_not_valid_in_an_abort_is_not_returned(name: object) -> None:
    """A lone surrogate can't be encoded. Publishing an abort with it would raise in the agent."""
    found = refused(json.dumps({"type": "commit-intent", "transaction": name, "table": TABLE}).encode())

    assert found.transaction is None


def test_omitted_fields_have_the_defaults_of_the_protocol() -> None:
    """A writer in another language omits the fields that have a default."""
    fields = {"type": "commit-intent", "protocol": 1, **COMMON, "at": "2026-03-01T12:00:00Z"}

    found = decode(WRITER_EVENT, json.dumps(fields).encode())

    assert found == an_intent()
    assert isinstance(found, CommitIntent)
    assert (found.admission, found.priority, found.conflict_rule, found.scope, found.lock) == (
        "optimistic",
        0,
        "file-group",
        (),
        None,
    )
