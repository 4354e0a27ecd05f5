"""Whether a staged write still belongs to its table: what the history of the newest metadata says of the base."""

from __future__ import annotations

from typing import Any

import pytest

from lakewarden.spark_jobs.sinks.iceberg.metadata import Metadata, Snapshot
from lakewarden.spark_jobs.sinks.iceberg.staging import StagedTable


def metadata(chain: list[int], *, others: tuple[int, ...] = (), cut: bool = False) -> Metadata:
    """Metadata whose main branch has these snapshots, the oldest first. `cut`: older ones have expired."""
    parents = [0 if cut else None, *chain]
    listed = {
        each: Snapshot(each, parent, each, {}) for each, parent in zip(chain, parents, strict=False)
    } | {each: Snapshot(each, None, each, {}) for each in others}
    return Metadata(
        file=f"{chain}",
        uuid="u",
        location="s3://lake/t",
        format_version=2,
        updated_ms=1,
        properties={},
        schema={},
        spec=0,
        specs={0: ()},
        newest=listed[chain[-1]],
        snapshots=listed,
    )


GONE = "no longer in the table's history"


@pytest.mark.parametrize(
    ("now", "append", "upsert"),
    [
        pytest.param(metadata([1, 2, 3]), None, None, id="commits came after it"),
        pytest.param(metadata([2, 3], cut=True), None, None, id="older ones have expired"),
        pytest.param(metadata([3, 4], cut=True), None, GONE, id="it has expired"),
        pytest.param(metadata([1, 3], others=(2,)), GONE, GONE, id="it was rolled back"),
        pytest.param(metadata([1, 3]), GONE, GONE, id="it was rolled back, and removed"),
        pytest.param(
            metadata([1, 3], others=(2,), cut=True), GONE, GONE, id="rolled back, and older ones have expired"
        ),
        pytest.param(metadata([5, 6]), GONE, GONE, id="the table was replaced"),
    ],
)
def test_an_append_needs_no_base_that_has_only_expired(
    monkeypatch: pytest.MonkeyPatch, now: Metadata, append: str | None, upsert: str | None
) -> None:
    """What was rolled back or replaced is another matter: it is computed again, as for an upsert."""
    monkeypatch.setattr(StagedTable, "__abstractmethods__", frozenset())
    monkeypatch.setattr(StagedTable, "_is_recreated", lambda _: False)
    for validated, expected in ((False, append), (True, upsert)):
        staged: Any = object.__new__(StagedTable)  # type: ignore[type-abstract]
        staged._metadata, staged._validated = metadata([1, 2]), validated

        reason = staged._replaced(now)

        assert reason is None if expected is None else expected in reason
