"""Transactions that are opened in the bodies of others.

Jobs that nest in the order of the tables never wait for each other in a circle. Under a grant, all other writers of the outer
table would wait for the inner transaction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lakewarden.spark_jobs.gate import refusals
from lakewarden.spark_jobs.gate.transaction import Transaction

_OUTER: ContextVar[tuple[Transaction, ...]] = ContextVar(
    "open transactions of the body that runs", default=()
)


@contextmanager
def inside_others(txn: Transaction) -> Iterator[None]:
    """Raise `GateError` if `txn` may not be opened inside the transactions whose bodies run here. The block is its body."""
    outer = _OUTER.get()
    for other in outer:
        same = other.table == txn.table and txn.intent.admission == "queued"
        if not other.waits.ended and (other.has_grant or same or other.table > txn.table):
            raise refusals.nested(other.facts, txn.facts)
    if outer:
        txn.nest = outer[0].nest
        txn.nest[:] = [*(other for other in txn.nest if not other.waits.ended), txn]
    _OUTER.set((*outer, txn))
    try:
        yield
    finally:
        _OUTER.set(tuple(other for other in _OUTER.get() if other is not txn))
