"""What a writer is told when it may not commit. One root; a class of its own only where the caller acts differently.

Every message says what happened, to which table and writer, and what to do next. `retriable` says whether a new
transaction with the same data can succeed; `CommitGate.foreach_batch` retries those by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakewarden.events import Abort, AbortReason, ConflictEntry

MAX_NAMED = 5
"""Overlaps named in a message; the rest are counted, and all are in `CommitAborted.conflicts`."""


class GateError(Exception):
    """Root of everything the gate raises on purpose. Nothing was committed, unless the class says otherwise."""

    retriable: bool = False


class CommitAborted(GateError):
    """The agent stopped this transaction. Throw the work away; begin anew if `retriable`."""

    def __init__(self, abort: Abort) -> None:
        self.abort = abort
        self.table = abort.table
        self.writer = abort.writer
        self.transaction = abort.transaction
        self.reason = abort.reason
        self.retriable = abort.retriable
        self.conflicts: tuple[ConflictEntry, ...] = abort.conflicts
        self.other_writers = tuple(sorted({entry.other_writer for entry in abort.conflicts}))
        super().__init__(_abort_message(abort, self.other_writers))

    def __reduce__(self) -> tuple[type[CommitAborted], tuple[Abort]]:
        """Pickled by what it was made of: an exception pickles its message otherwise."""
        return type(self), (self.abort,)


class AlreadyCommitted(GateError):
    """This writer's batch is in the table already: skip it. `foreach_batch` does so by itself."""

    def __init__(
        self, *, table: str, writer: str, batch_id: int | None, transaction: str | None, version: str | None
    ) -> None:
        """`transaction` is None where the table told, and not the agent."""
        self.table, self.writer, self.batch_id = table, writer, batch_id
        self.committed_transaction, self.version = transaction, version
        text = "found in the table" if transaction is None else f"committed_transaction={transaction}"
        super().__init__(
            f"batch {batch_id} of writer {writer!r} is committed already: skip it; "
            f"table={table} {text} version={version}"
        )


class GrantTimeout(GateError):
    """An agent answered before, but our turn didn't come in time. See `lakewarden status` for who is ahead."""


class LeaseLost(GateError):
    """The grant's lease ran out before the publish began. Nothing was published; a new transaction can succeed."""

    retriable = True


class AgentUnreachable(GateError):
    """Kafka or the agent didn't answer. Nothing may be committed without them: check both, then restart the query."""


class OutcomeUnknown(GateError):
    """The publish failed, and whether it reached the table is not known: it may be there, or still come.

    `retriable` where the sink can ask its table (`sinks.py`): a new transaction waits until the grant has lapsed, and
    asks. Elsewhere look into the table before the batch is written again.
    """

    def __init__(self, message: str, *, retriable: bool) -> None:
        self.retriable = retriable
        super().__init__(message)


class BaseChanged(GateError):
    """A writer that doesn't ask the agent changed the files that this batch was computed from. Compute it again."""

    retriable = True


_REASON_TEXTS: dict[AbortReason, str] = {
    "conflict": "commit aborted: {overlaps} also written by {others}",
    "writer-lost": "commit aborted: the agent heard no heartbeat of this writer in time",
    "lease-lost": "commit aborted: the agent lost the table's lock",
    "outcome-unknown": "commit aborted: a grant of {others} ran out and nobody said whether it was committed",
    "superseded": "commit aborted: the same writer opened a newer transaction: it runs twice, or was restarted",
    "not-allowed": "commit refused: the agent doesn't serve this table or its lock; allow it with --allow",
    "unknown-transaction": "commit aborted: the agent doesn't know this transaction",
}


def _abort_message(abort: Abort, others: tuple[str, ...]) -> str:
    text = _REASON_TEXTS[abort.reason].format(
        overlaps=named_overlaps(abort.conflicts),
        others=", ".join(f"writer {name!r}" for name in others) or "another writer",
    )
    detail = f" ({abort.detail})" if abort.detail else ""
    advice = "begin a new transaction with the same data" if abort.retriable else "don't retry as it is"
    return (
        f"{text}{detail}; {advice}; table={abort.table} writer={abort.writer} "
        f"transaction={abort.transaction} reason={abort.reason} retriable={str(abort.retriable).lower()}"
    )


def named_overlaps(conflicts: Iterable[ConflictEntry]) -> str:
    """The first few overlaps in words, and how many more there are."""
    pairs = sorted({(entry.partition, entry.file_group) for entry in conflicts})
    if not pairs:
        return "the same data"
    named = [
        (f"partition {partition}" if partition else "the table")
        if group == "*"
        else f"{partition or '.'}/{group}"
        for partition, group in pairs[:MAX_NAMED]
    ]
    more = f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else ""
    return ", ".join(named) + more
