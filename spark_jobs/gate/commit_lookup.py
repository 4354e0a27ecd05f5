"""The question that a transaction may ask of its table: whether a batch has been committed."""

from __future__ import annotations

from typing import Protocol


class CommitLookup(Protocol):
    """Asks the table: the version in which `writer` committed batch `batch_id`, or None where it hasn't."""

    def __call__(self, writer: str, batch_id: int, /) -> str | None: ...
