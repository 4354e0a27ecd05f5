"""The contract for sinks: what a table format's sink must do so that each batch is in its table exactly once.

A sink writes a batch in a transaction: `sink(batch, txn)` stages it, then publishes inside `txn.commit()`. Kafka's log alone
can't make this exactly once, because a driver may die after its publish and before it reports the commit. The table has the
answer. A sink that can look it up also has `committed(writer, batch_id)`, which the gate calls at three moments:

1. *Before anything is computed.* If the table has the batch, the gate reports it to the agent and skips it.
2. *Under the grant, before the publish.* An older process of the same writer may have published it meanwhile. From here on no
   other transaction has a grant.
3. *After a publish that raised.* If the table has the batch, it is committed, and the error becomes a warning. If not, the
   outcome stays unknown (`OutcomeUnknown`), because the publish may still take effect.

What such a sink must do:

- Publish the writer's name and the batch id in the same atomic step as the data.
- Let `committed` read what is durable now, past any cache, and raise if it can't. None means that the batch is not there.
- Remove staged files only while `txn.discardable`.

Two examples: `sinks/paimon/sink.py`, and `docs/examples/parquet_sink.py` for a table format of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakewarden.spark_jobs.gate.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Write(Protocol):
    """Writes one batch: it publishes its markers, stages the batch, and publishes it inside `txn.commit()`."""

    def __call__(self, batch: DataFrame, txn: Transaction, /) -> object: ...


class Sink(Write, Protocol):
    """A `Write` that can look up what its table contains, so that each batch is in it exactly once."""

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        """Return the version in which `writer` (`txn.writer`, the name on the wire) committed the batch, or None."""
        ...
