"""`CommitGate`, the gate that users create: the transactions of `gate/`, and micro-batches on top of them.

It stands above `gate/` and `streaming/` because it needs both, and neither needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakewarden.events import Admission, ConflictRule
from lakewarden.spark_jobs.gate.gate import TransactionGate
from lakewarden.spark_jobs.sinks.contract import Sink, Write
from lakewarden.spark_jobs.streaming.batches import BatchWriter, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CommitGate(TransactionGate):
    """A driver's connection to the agents. Create one per driver; its queries and threads share it.

    `foreach_batch` is for streaming queries, `transaction` for every other write. Close the gate at the end, or use it as
    a context manager; Python's exit closes it otherwise.
    """

    def foreach_batch(
        self,
        write: Sink | Write,
        *,
        table: str,
        writer: str,
        max_attempts: int = 5,
        admission: Admission = "optimistic",
        scope: Scope | None = None,
        priority: int = 0,
        conflict_rule: ConflictRule | None = None,
        lock: str | None = None,
    ) -> Callable[[DataFrame, int], None]:
        """Return a function for `DataStreamWriter.foreachBatch` that calls `write(batch_df, txn)` in one transaction per batch.

        `streaming/batches.py` describes aborts, retries and batches that are already committed. `sinks/contract.py`
        describes what a sink needs so that each batch is in the table exactly once. Without `conflict_rule` the sink's
        own rule applies (`write.conflict_rule`), else "file-group".
        """
        rule: ConflictRule = conflict_rule or getattr(write, "conflict_rule", None) or "file-group"
        return BatchWriter(
            self,
            write,
            table=table,
            writer=writer,
            max_attempts=max_attempts,
            admission=admission,
            scope=scope,
            priority=priority,
            conflict_rule=rule,
            lock=lock,
        )
