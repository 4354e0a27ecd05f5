"""What is aborted when the transactions need more memory than the agent's budget.

An agent counts the bytes of all its tables together. The count is an estimate (`used_bytes`), the same on each machine: per
marker, partition and transaction a constant, plus the characters of their names.

At the budget, live:

1. The open transaction whose abort frees most is aborted (`not-allowed`, retriable, naming the setting), then the next one,
   until `FREE_SHARE` of the budget is free. A granted transaction is never chosen. An observed one goes on, and the agent
   forgets it: later conflicts with it are found by the table format's own check only.
2. Landed transactions are kept for the transactions that began before them. So the oldest transaction of a table counts with
   all landed ones of that table.
3. If nothing can be aborted, running grants and landed transactions alone exceed the budget. The table with the largest index
   then loses its index (below).

During a replay nothing is decided. Two partitions are replayed beside each other in another order than they were live, or come
from two agents, so their sum may exceed a budget that each agent kept:

4. The footprint of a transaction that the log has as aborted with `not-allowed` later, and never as granted, is not entered.
5. At the budget, the table with the largest index loses it, and enters no markers until the end of the replay.

A table that lost its index doesn't know who conflicts with whom:

6. All its open transactions, except a granted one, are aborted as in rule 1: at once, or at the end of the replay.
7. Its landed transactions are dropped. No open transaction is left that began before them.
8. While the granted one runs, no transaction of the table is admitted, so none begins before it lands.

Each abort is published, so a later replay doesn't depend on budgets.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lakewarden import events
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.replay import Subject, subject
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import Phase, Transaction

FREE_SHARE = 0.05
"""Share of the budget. So the search for what to abort is rare, however many events arrive at the budget."""
TRANSACTION_BYTES = 2_000
"""Bytes of an open or landed transaction without its markers."""


@dataclass(frozen=True, slots=True)
class Excess:
    """What to free in one table, and how many bytes that frees at most."""

    freed: int
    transaction: str | None
    """The transaction to abort. None: the table loses its index."""


def used_bytes(state: TableState) -> int:
    """Estimated bytes of a table's open and landed transactions, with their markers."""
    return state.footprints.bytes + TRANSACTION_BYTES * len(state.transactions)


def largest_transaction(state: TableState) -> Excess | None:
    """The open transaction of a table whose abort frees most (rules 1 and 2)."""
    computing = [each for each in state.open() if each.phase not in (Phase.QUEUED, Phase.OBSERVED)]
    oldest = min(computing, key=lambda each: each.began, default=None)
    landed = sum(_bytes(each) for each in state.landed())
    found: Excess | None = None
    for each in state.open():
        freed = _bytes(each) + (landed if each is oldest else 0)
        if each.phase is not Phase.GRANTED and (found is None or freed > found.freed):
            found = Excess(freed, each.id)
    return found


def largest_index(state: TableState) -> Excess | None:
    """The index of a table, if it has any (rules 3 and 5)."""
    return Excess(state.footprints.bytes, None) if state.footprints.bytes else None


def largest_excess(states: Iterable[TableState], *, live: bool) -> tuple[str, Excess] | None:
    """The table in which most can be freed, and what: a transaction if `live`, otherwise an index."""
    largest: tuple[str, Excess] | None = None
    for state in sorted(states, key=lambda each: (used_bytes(each), each.uri), reverse=True):
        if largest is not None and used_bytes(state) <= largest[1].freed:
            break
        found = largest_transaction(state) if live else largest_index(state)
        if found is not None and (largest is None or found.freed > largest[1].freed):
            largest = state.uri, found
    return largest


def without_footprint(decided: Iterable[events.DecisionEventUnion]) -> dict[Subject, int]:
    """The transactions whose footprint a replay doesn't enter (rule 4), each with the offset up to which it has none.

    `decided`: the decisions in the log that count. An intent that uses the id again, after the event that was answered with
    `not-allowed`, opens another transaction.
    """
    refused: dict[Subject, int] = {}
    granted: set[Subject] = set()
    for each in decided:
        if isinstance(each, events.Abort) and each.reason == "not-allowed":
            refused[subject(each)] = max(each.cause_offset, refused.get(subject(each), -1))
        elif isinstance(each, events.CommitGranted):
            granted.add(subject(each))
    return {each: until for each, until in refused.items() if each not in granted}


def without_markers(event: events.WriterEventUnion) -> events.WriterEventUnion:
    """The event with an empty footprint (rule 4)."""
    match event:
        case events.CommitIntent():
            return event.model_copy(update={"scope": ()})
        case events.MarkerCreated() | events.CommitRequested():
            return event.model_copy(update={"markers": ()})
        case _:
            return event


def abort_over_budget(context: StepContext, transaction: str | None, limit: int) -> None:
    """Abort a transaction, or drop the table's index and abort all open transactions but a granted one (rules 6 to 8)."""
    state = context.state
    if transaction is None:
        for each in state.open():
            if each.phase is not Phase.GRANTED:
                _abort(context, each, limit)
        drop_index(state)
        state.without_index = False
    elif (found := state.transactions.get(transaction)) is not None and found.phase is not Phase.GRANTED:
        _abort(context, found, limit)


def _abort(context: StepContext, transaction: Transaction, limit: int) -> None:
    context.abort(
        transaction,
        "not-allowed",
        detail=f"what the open transactions of this agent touch needs more than {limit // 1_000_000} MB, the limit of "
        "memory_mb; retry in smaller batches, or raise the setting",
    )


def _bytes(transaction: Transaction) -> int:
    return TRANSACTION_BYTES + transaction.bytes
