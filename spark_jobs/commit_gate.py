"""`CommitGate`, the gate that users create: the transactions of `gate/`, and micro-batches on top of them.

It stands above `gate/` and `streaming/` because it needs both, and neither needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakewarden.events import ConflictRule
from lakewarden.spark_jobs.engine.kinds import require_spark
from lakewarden.spark_jobs.gate.gate import TransactionGate, intent_of
from lakewarden.spark_jobs.sinks.contract import Sink, Write
from lakewarden.spark_jobs.streaming.admission import AdmissionMode
from lakewarden.spark_jobs.streaming.batches import BatchWriter, Scope, target_of

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
        writer: str,
        table: str | None = None,
        max_attempts: int = 5,
        admission: AdmissionMode = "auto",
        scope: Scope | None = None,
        priority: int = 0,
        conflict_rule: ConflictRule | None = None,
        lock: str | None = None,
        new_writer: bool = False,
    ) -> Callable[[DataFrame, int], None]:
        """Return a function for `DataStreamWriter.foreachBatch` that calls `write(batch_df, txn)` in one transaction per batch.

        - `writer`: name of the job, the same after a restart and different from every other job's
        - `table`: URI or absolute path, or a name in a catalog of the Spark session
          ([spellings](docs/protocol.md#the-canonical-uri-of-a-table)); None: the sink's own
        - `max_attempts`: attempts of one batch, the first included; after the last one its error is raised and the query fails
        - `admission`: [below](#admission); or `"queued"`: wait before computing, or `"optimistic"`: compute at once
        - `scope`: a function from the batch to the partitions, or markers, that it will touch; None: the sink's own, unless
          `"optimistic"`
        - `priority`: the lower loses a conflict; at most the agent's `max_priority` (0); `TABLE_SERVICE_PRIORITY` for
          table services
        - `conflict_rule`: the [rule](docs/conflicts.md#what-a-conflict-is) by which two transactions conflict; None: the
          sink's own, else `"file-group"`
        - `lock`: where this writer believes the table's lock to be; None: the sink's own; refused if the agent
          [keeps it elsewhere](docs/lock.md#which-object-is-a-tables-lock)
        - `new_writer`: accept a query [whose id is new](docs/recovery.md#who-a-writer-is), whatever its job has committed under
          another one

        `streaming/batches.py` describes aborts, retries and batches that are already committed. A sink declares its table,
        conflict rule, lock and scope itself (`sinks/contract.py`); an argument that is given takes precedence. A plain
        function needs `table`. `streaming/admission.py` says what the admission "auto" becomes.

        Raises `InvalidArgument`, and `UnsupportedSpark` where Spark is missing or not supported (`engine/kinds.py`).
        """
        engine = require_spark("foreach_batch")
        target = target_of(
            write,
            table=table,
            conflict_rule=conflict_rule,
            lock=lock,
            admission=admission,
            priority=priority,
            new_writer=new_writer,
        )
        intent_of(
            table=target.table,
            writer=writer,
            admission="optimistic" if admission == "auto" else admission,
            priority=priority,
            conflict_rule=target.conflict_rule,
            lock=target.lock,
        )
        engine.require_portable({"write": write, "scope": scope, **self.options})
        return BatchWriter(self, write, target, writer=writer, max_attempts=max_attempts, scope=scope)
