"""How the agent answers an event that it refuses.

The agent refuses an event that it can't decode, or whose table isn't allowed or belongs to another Kafka partition.

| its transaction | answer |
| --- | --- |
| has ended | none: it has its answer, also if the table has been stopped since |
| is unknown, or its table is stopped | `abort(not-allowed)`, once |
| is granted | none: a granted transaction is never aborted for it. If the event was its completion, its grant lapses |
| is open | `abort(not-allowed)`, because part of what it touches is unknown |
| is open, and of another writer | none: the event is not of this transaction |
"""

from __future__ import annotations

from typing import Literal

from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import OPEN, Phase


def answer_to_refused(
    state: TableState | None, transaction: str, writer: str | None, *, stopped: bool
) -> Literal["abort", "abort once", "nothing"]:
    """The answer to a refused event of this transaction and writer. `state` and `stopped`: of its table."""
    if state is not None and transaction in state.closed:
        return "nothing"
    found = None if state is None or stopped else state.transactions.get(transaction)
    if found is None:
        return "abort once"
    if found.phase not in OPEN - {Phase.GRANTED} or found.writer != writer:
        return "nothing"
    return "abort"
