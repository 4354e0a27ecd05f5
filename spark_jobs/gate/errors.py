"""The errors that a writer gets if it may not commit.

All are `GateError`s. There is a class of its own where the caller would act differently. Every message says what happened, to
which table and writer, and what to do next. `retriable` says whether a new transaction with the same data can succeed;
`CommitGate.foreach_batch` retries those itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from pydantic import ValidationError

from lakewarden.events import (
    ALL_FILE_GROUPS,
    WHOLE_TABLE,
    AbandonCause,
    Abort,
    AbortReason,
    ConflictEntry,
)
from lakewarden.handlers.maker import Winner
from lakewarden.handlers.writers_log import without_gate

MAX_NAMED = 5
"""Overlaps listed in a message. The others are counted; `CommitAborted.conflicts` has all of them."""

MAX_SHOWN = 80
"""Characters of a wrong argument in a message."""


class GateError(Exception):
    """Base class of the gate's errors. Nothing was committed, unless the subclass says otherwise."""

    cause: ClassVar[AbandonCause] = "failed"
    """What a transaction that ends with it is reported as."""

    retriable: bool = False


class CommitAborted(GateError):
    """The agent aborted the transaction; `reason` and `conflicts` say why.

    If retriable: nothing, or raise `max_attempts`. Otherwise do what the message says.
    """

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
        """Pickle the abort. By default an exception pickles its message as the argument of its class."""
        return type(self), (self.abort,)


def correction(table: str, writer: str, last: int | None) -> str:
    """The command that states a writer's last batch."""
    names = f"--table {shlex.quote(table)} --writer {shlex.quote(writer)}"
    return f"`lakewarden ledger correct {names} --batch-id {'none' if last is None else last} --reason …`"


def repetition(table: str, writer: str, batch_id: int | None) -> str:
    """How to write a batch again, although the ledger or the table has it: the batch before is stated to be the last one."""
    before = batch_id - 1 if batch_id else None
    return f"stop the query, run {correction(table, writer, before)}, and repeat the batch; later batches are also written again"


class AlreadyCommitted(GateError):
    """The batch is in the table.

    Skip it; `foreach_batch` does.
    """

    def __init__(
        self,
        *,
        table: str,
        writer: str,
        batch_id: int | None,
        transaction: str | None,
        version: str | None,
        last_batch: int | None = None,
    ) -> None:
        """`transaction` is the one that committed the batch, or None if the batch was found in the table.

        `last_batch`: the writer's last one in the agent's ledger.
        """
        self.table, self.writer, self.batch_id, self.last_batch = table, writer, batch_id, last_batch
        self.committed_transaction, self.version = transaction, version
        source = "" if transaction is None else f" committed_transaction={transaction}"
        found = ", found in the table" if transaction is None else ""
        super().__init__(
            f"batch {batch_id} of writer {writer!r} is already committed{found}: skip it; {self.remedy}; "
            f"table={table}{source} version={version}"
        )

    @property
    def remedy(self) -> str:
        """What to do if the rows are missing, in one line."""
        return f"if the table lacks its rows, {repetition(self.table, self.writer, self.batch_id)}"


class GrantTimeout(GateError):
    """An agent answered, but the admission or the grant didn't come in time.

    `lakewarden status` shows the transactions ahead. Restart the query. If the error names other transactions of the driver,
    it is [retriable](docs/recipes.md#several-tables-from-one-query).
    """

    def __init__(self, message: str, *, table: str = "", writer: str = "", retriable: bool = False) -> None:
        self.table, self.writer, self.retriable = table, writer, retriable
        super().__init__(message)


class LeaseLost(GateError):
    """The grant lease ended before the publish. Nothing was published.

    Retried. If it happens often, no heartbeat reached the agent for a grant lease (20 s), or the publish takes longer than
    `max_grant_seconds` (600).
    """

    retriable = True


class AgentUnreachable(GateError):
    """Kafka doesn't answer, its topics don't exist, or no agent admitted the transaction in time. Nothing was committed.

    Check the brokers that it names. Start an agent that allows the table. Restart the query.
    """


class InvalidArgument(GateError, ValueError):
    """An argument has a wrong type or value. Nothing was sent.

    Correct the argument that the message names.
    """

    def __init__(self, name: str, value: object, why: str) -> None:
        shown = " ".join(repr(value).split())
        super().__init__(f"{name}={shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + '…'}: {why}")


@contextmanager
def invalid_arguments() -> Iterator[None]:
    """Raise what pydantic refuses in the block as `InvalidArgument`."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        hint = "; 'auto' is a choice of foreach_batch" if first["loc"][0] == "admission" else ""
        name = ".".join(map(str, first["loc"]))
        raise InvalidArgument(name, first["input"], first["msg"] + hint) from None


class InvalidKafkaOptions(GateError):
    """An option in `kafka={…}` is unknown, invalid, or the gate's own. Nothing was sent.

    Correct the option that the message names.
    """


class UnsupportedSpark(GateError):
    """PySpark is missing or too old, or what is used does not work on Spark Connect.

    Install or change what the message names.
    """


class OutcomeUnknown(GateError):
    """The publish failed. It may have reached the table, or may still reach it.

    Retried if the sink can ask its table, when the grant has lapsed. Otherwise check the table before you restart.
    """

    def __init__(self, message: str, *, retriable: bool) -> None:
        self.retriable = retriable
        super().__init__(message)


class BaseChanged(GateError):
    """A commit without the gate's label changed what this batch was computed from, or the table changed. Nothing was published.

    Retried. Make its writer use the gate ([tables that change](docs/recovery.md#a-table-that-changes-under-a-running-query)).
    """

    cause: ClassVar[AbandonCause] = "base-changed"
    retriable = True

    def __init__(self, message: str, *, lost_to: str | None = None) -> None:
        """`lost_to`: the commit that changed it, and who made it, as far as the table says it."""
        self.lost_to = lost_to
        super().__init__(message)


class LostToGate(BaseChanged):
    """The format's own check refused the commit because of another one of the gate, and no marker had shown the conflict.

    Retried, alone on the table ([what the formats refuse](docs/format-conflicts.md)).
    """

    cause = "lost-to-gate"


class RowsLost(GateError):
    """Rows of the batch were lost while it was written, and rows that are computed again may be others. Nothing was published.

    Retried: the batch is computed and its scope found again. If it happens often, look why executors end.
    """

    retriable = True


def base_changed(reason: str, facts: str, winner: Winner | None = None) -> BaseChanged:
    """Return the error for a batch that must be computed again, for this reason."""
    text = f"{reason}; nothing was published; the batch must be computed again; {facts}"
    if winner is not None and winner.transaction is not None:
        return LostToGate(text, lost_to=winner.text)
    return BaseChanged(text, lost_to=None if winner is None else winner.text)


def conflict_found(text: str, facts: str, winner: Winner | None) -> BaseChanged:
    """Return the error for a batch whose commit the format's own check refused: `text`, because of `winner` if it is known."""
    if winner is None:
        cause = "another commit, whose writer isn't known"
    elif winner.transaction is None:
        cause = f"a commit without the gate's label ({winner.text})"
    else:
        cause = f"another commit of the gate ({winner.text})"
    return base_changed(f"the batch conflicts with {cause}: {text}", facts, winner)


def committed_meanwhile(facts: str, winner: Winner | None = None) -> BaseChanged:
    """Return the error for a writer of which the table has a commit that its batch's look-up didn't find."""
    return base_changed(
        "another commit of this writer came after its batch was looked up: a request of an earlier process was carried out late, "
        "or the writer runs twice",
        facts,
        winner,
    )


class CommitReplaced(GateError):
    """Another commit replaced a snapshot of this writer, and its batch can't be restored.

    Write the batch that it names again ([Paimon](docs/paimon.md#when-it-fails)).
    """


_REASON_TEXTS: dict[AbortReason | str, str] = {
    "conflict": "commit aborted: {overlaps} also written by {others}",
    "writer-lost": "commit aborted: no heartbeat of this writer reached the agent in time",
    "lease-lost": "commit aborted: the agent lost the table's lock",
    "outcome-unknown": "commit aborted: {overlaps} may also have been written by {others}, whose grant lapsed",
    "superseded": "commit aborted: the same writer opened a newer transaction; it was restarted, or two processes use its name",
    "not-allowed": "commit refused: the agent doesn't serve this table; allow it with --tables",
    "unknown-transaction": "commit aborted: the log no longer has the intent of this transaction",
    "lock-refused": "commit aborted: the store of the table's lock refuses the agent; check the agent's credentials, clock and "
    "permissions",
    "timed-out": "commit aborted: the transaction was open for longer than the agent allows (max_transaction_seconds)",
    "operator": "commit aborted by an operator",
}


def _abort_message(abort: Abort, others: tuple[str, ...]) -> str:
    advice = "begin a new transaction with the same data" if abort.retriable else "don't retry it unchanged"
    return (
        f"{_cause(abort, others)}; {advice}; table={abort.table} writer={abort.writer} "
        f"transaction={abort.transaction} reason={abort.reason} retriable={str(abort.retriable).lower()}"
    )


def _cause(abort: Abort, others: tuple[str, ...]) -> str:
    if abort.reason == "not-allowed" and abort.detail:
        return f"commit refused: {abort.detail}"
    if abort.reason == "outcome-unknown" and not abort.conflicts:  # the lapse of this transaction's own grant
        text = "commit aborted: its outcome is unknown"
    elif abort.reason == "lease-lost" and (abort.detail or "").startswith("requested by operator"):
        text = "commit aborted: the agent withdrew the grant"
    else:
        text = _REASON_TEXTS.get(abort.reason, "commit aborted").format(
            overlaps=named_overlaps(abort.conflicts),
            others=", ".join(map(_other, others)) or "another writer",
        )
    return f"{text} ({abort.detail})" if abort.detail else text


def _other(name: str) -> str:
    return f"{name!r}, without the gate" if without_gate(name) else f"writer {name!r}"


def named_overlaps(conflicts: Iterable[ConflictEntry]) -> str:
    """Return the first few overlaps as text, and the number of the others."""
    pairs = sorted({(entry.partition, entry.file_group) for entry in conflicts})
    if not pairs:
        return "the same data"
    named = [
        ("the table" if partition in ("", WHOLE_TABLE) else f"partition {partition}")
        if group == ALL_FILE_GROUPS
        else f"{partition or '.'}/{group}"
        for partition, group in pairs[:MAX_NAMED]
    ]
    more = f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else ""
    return ", ".join(named) + more
