"""The port for table formats: what a sink must be able to tell for each batch to be in its table once.

A sink writes a batch in a transaction: `sink(batch, txn)` stages, and publishes inside `txn.commit()`. The log alone
can't make that exactly once: a driver may die after its publish and before it said so. The table knows. A sink that
can ask it has `committed(writer, batch_id)` as well, and the gate asks at the three moments when it matters:

- *Before anything is computed.* A batch that is there already is reported to the agent and not written.
- *Under the grant, before the publish.* An older process of this writer may have got there meanwhile; from here on
  nobody else of this name has a grant.
- *After a publish that failed.* Found, it is committed, and its error is a warning. Not found, its outcome stays
  unknown (`OutcomeUnknown`): it may still be on its way.

What the sink owes for it:

1. The publish writes the writer's name and the batch id in the same atomic step as the data. Two steps are two places
   to die between.
2. `committed` reads what is durable now, past any cache, and raises where it can't: None means "not there".
3. What was staged is removed only while `txn.discardable`.

`paimon.py` is one, `docs/examples/parquet_sink.py` another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakewarden.spark_jobs.gate.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Write(Protocol):
    """What writes one batch: computes, touches, and publishes inside `txn.commit()`."""

    def __call__(self, batch: DataFrame, txn: Transaction, /) -> object: ...


class Sink(Write, Protocol):
    """A `Write` whose table can tell what is in it: each batch once. See the module for what it owes."""

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        """The version in which `writer` (`txn.writer`, as it is on the wire) committed the batch, or None."""
        ...
