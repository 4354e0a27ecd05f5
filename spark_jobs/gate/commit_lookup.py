"""How a transaction looks up in its table whether a batch is committed."""

from collections.abc import Iterable
from typing import Protocol

from lakewarden.spark_jobs.gate.errors import GateError

EXPIRED = None
"""In place of a batch: the table no longer shows what is older."""


class CommitLookup(Protocol):
    """Returns the version in which `writer` committed batch `batch_id`, or None if the table doesn't have it.

    It raises if it can't know. The table has a batch if the commit of the batch belongs to the history of the table's present
    version: a rollback takes commits out of that history.
    """

    def __call__(self, writer: str, batch_id: int, /) -> str | None: ...


def find_batch(history: Iterable[tuple[int | None, str]], batch_id: int, facts: str) -> str | None:
    """Return the version of a batch, or None if the history doesn't have it.

    `history`: the batches of one writer with their versions, the newest first. They rise, so the search ends at the first
    smaller one. Behind `EXPIRED`, a later batch shows that this one was committed.

    Raises `GateError` if the history has a later batch, and provably not this one. Then neither to skip the batch nor to write it
    is right: rows of it are missing, or would come after later ones.
    """
    later: tuple[int, str] | None = None
    for number, version in history:
        if number is EXPIRED:
            return later[1] if later else None
        if number == batch_id:
            return version
        if number < batch_id:
            break
        later = (number, version)
    if later is None:
        return None
    raise GateError(
        f"the table has batch {later[0]} of this writer, in version {later[1]}, and not batch {batch_id}: a rollback removed "
        "that one, or it had no rows; nothing was published; to write both again, roll the table back to before that version, "
        f"then restart the query; to skip the batches up to {later[0]}, run `lakewarden ledger correct` with --batch-id "
        f"{later[0]}; {facts}"
    )
