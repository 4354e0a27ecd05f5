"""Whether a staged write still belongs to its table: what the history of the newest metadata says of the base."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs.sinks.iceberg import staging
from lakewarden.spark_jobs.sinks.iceberg.staging import StagedTable


def metadata(chain: list[int], *, others: tuple[int, ...] = (), cut: bool = False) -> Any:
    """Metadata whose main branch has these snapshots, the oldest first. `cut`: older ones have expired."""
    parents = [0 if cut else None, *chain]
    listed = {
        each: SimpleNamespace(
            snapshotId=lambda each=each: each,
            parentId=lambda parent=parent: parent,
            sequenceNumber=lambda each=each: each,
            operation=lambda: "append",
        )
        for each, parent in zip(chain, parents, strict=False)
    } | dict.fromkeys(others, SimpleNamespace())
    return SimpleNamespace(
        currentSnapshot=lambda: listed[chain[-1]],
        snapshot=listed.get,
        metadataFileLocation=lambda: f"{chain}",
        uuid=lambda: "u",
        location=lambda: "s3://lake/t",
        schema=lambda: SimpleNamespace(sameSchema=lambda _: True),
        spec=lambda: SimpleNamespace(specId=lambda: 0),
        lastSequenceNumber=lambda: chain[-1],
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
    monkeypatch: pytest.MonkeyPatch, now: Any, append: str | None, upsert: str | None
) -> None:
    """What was rolled back or replaced is another matter: it is computed again, as for an upsert."""
    monkeypatch.setattr(staging, "another_is_in_its_place", lambda *_: False)
    monkeypatch.setattr(staging, "lists_newest_only", lambda _: False)
    for validated, expected in ((False, append), (True, upsert)):
        staged: Any = object.__new__(StagedTable)
        staged._metadata, staged._base = metadata([1, 2]), SimpleNamespace(snapshotId=lambda: 2)
        staged._validated, staged._spark = validated, None
        staged._table = SimpleNamespace(operations=lambda: None)

        reason = staged._replaced(now)

        assert reason is None if expected is None else expected in reason
