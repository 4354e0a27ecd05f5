"""How a transaction looks up in its table whether a batch is committed."""

from __future__ import annotations

from typing import Protocol


class CommitLookup(Protocol):
    """Returns the version in which `writer` committed batch `batch_id`, or None if the table doesn't have it.

    It raises if it can't know.
    """

    def __call__(self, writer: str, batch_id: int, /) -> str | None: ...
