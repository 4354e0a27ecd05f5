from __future__ import annotations

from hypothesis import given, strategies as st

from lakewarden.events import MAX_EVENT_BYTES, Marker, MarkerCreated, encode, event_chunks
from tests.unit.events.building import made


@given(
    st.lists(st.tuples(st.text("ä/=1", max_size=1024), st.text("x", min_size=1, max_size=900)), max_size=300)
)
def test_markers_are_split_into_records_that_fit(pairs: list[tuple[str, str]]) -> None:
    markers = [Marker(partition=p, file_group=g, operation="create") for p, g in pairs]

    chunks = list(event_chunks(markers))

    assert [marker for chunk in chunks for marker in chunk] == list(dict.fromkeys(markers))
    for chunk in chunks:
        assert len(encode(made(MarkerCreated, markers=chunk))) < MAX_EVENT_BYTES
