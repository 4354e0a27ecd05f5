from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, strategies as st

from lakewarden.events import MAX_EVENT_BYTES, Marker, MarkerCreated, encode, event_chunks

AT = datetime(2026, 3, 1, tzinfo=UTC)


@given(
    st.lists(st.tuples(st.text("ä/=1", max_size=1024), st.text("x", min_size=1, max_size=900)), max_size=300)
)
def test_markers_are_split_into_records_that_fit(pairs: list[tuple[str, str]]) -> None:
    markers = [Marker(partition=p, file_group=g, operation="create") for p, g in pairs]

    chunks = list(event_chunks(markers))

    assert [marker for chunk in chunks for marker in chunk] == list(dict.fromkeys(markers))
    for chunk in chunks:
        event = MarkerCreated(
            event_id="e", table="file:///t/t", transaction="t", writer="w", at=AT, markers=chunk
        )
        assert len(encode(event)) < MAX_EVENT_BYTES
