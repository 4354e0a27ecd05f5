"""The contract between the gate and a table format's sink: what a sink declares, and when the gate calls it.

A sink knows one table format and nothing of Kafka. The gate knows the protocol and nothing of formats.

| a sink has | the gate |
| --- | --- |
| `table`, `conflict_rule`, `lock` | opens the transaction with them; an argument of `foreach_batch` takes precedence |
| `plan(batch)`: what the batch touches, and a function that publishes it | calls it first; opens the transaction with the scope |
| `__call__(batch, txn)`: both steps in a transaction that is open | calls it for `optimistic` batches: no scope is declared |
| `committed(writer, batch_id)`: is it in the table? | calls it before the compute, under the grant, after a failed publish |
| `writers()`: whose batches does the table show? | calls it if the ledger doesn't know a query that begins behind batch 0 |

**Plan.** A batch is prepared once, and every attempt stages the same plan. So a plan holds only what follows from the batch's
rows and the table's layout. Whatever another commit may change (base, snapshot, sequence number, index) is read by `stage`:
after the admission, and after the markers that protect it. `stage` raises `BaseChanged` if the table has another layout than
the plan. Then the gate plans again, as after `LostToGate`, which is one, and after `RowsLost`, for which it computes the rows
again. If several Spark jobs read the batch (`reads_twice`), the gate keeps its rows for all of them (`computed_once`).
A scope is found by at most one query. None means: unknown, or never worth waiting for.

**Staging.** Nothing that is written before the grant is visible to readers of the table. `txn.touch_all(…)` precedes the first
file; the gate doesn't publish again what the scope declared. `txn.check()` comes between steps that start no Spark job
(planning, listing), because nothing else stops them.

**Publishing.** Only the last step is under the grant: in the block of `txn.commit()`, or, if the format publishes in a callback,
between `txn.request_grant()` and the report of the outcome. `grant.check()` comes right before that step. The format's own
conflict check stays. If it finds a conflict under the grant, the sink raises `BaseChanged` (`conflict_found`), which
means that nothing was published. Any other error leaves the outcome unknown, unless the sink reports it (`gate/grant.py`).

**Each batch once.** A driver may die after its publish and before its report, and then only the table has the answer. The sink
publishes the writer's name and the batch id in the same atomic step as the data. `committed` reads what is durable now, past
any cache, and raises if it can't. None means that the batch is not there. A store may carry out a request of a dead driver
after this look. So the last step is a compare-and-swap on a version in which the sink has found no commit of this writer since.

**Discarding.** Before it stages, a sink registers a function that removes what it stages (`txn.on_discard`). The gate calls it
when the transaction has ended without a commit, if nothing of it is, or can still come, in the table. By then the batch's Spark
jobs have ended, and their tag is removed: an abort doesn't cancel jobs of the clean-up. A driver that is killed discards
nothing, and files that no commit refers to only cost space.

A test suite holds every sink to this (`tests/spark/sinks/test_contract.py`). Two examples: `sinks/paimon/sink.py`, and
`docs/examples/parquet_sink.py` for a table format of your own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from weakref import WeakSet

from lakewarden.events import ConflictRule
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.scope import BatchScope
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.partitions import computed_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = EventLogger("lakewarden.sinks")

_BEGUN: WeakSet[Sink] = WeakSet()


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that is prepared."""

    scope: BatchScope | None
    """What it is going to touch."""
    stage: Callable[[Transaction], object]
    """Publishes the markers, stages the batch, and publishes it. Each attempt calls it, with its own transaction."""


class Write(Protocol):
    """Writes one batch: it publishes its markers, stages the batch, and publishes it inside `txn.commit()`."""

    def __call__(self, batch: DataFrame, txn: Transaction, /) -> object: ...


@runtime_checkable
class Sink(Write, Protocol):
    """A `Write` that declares its table and its scope, and can look up what its table contains. A subclass gets the defaults.

    It has a `plan`, or a `__call__` and perhaps a `scope`.
    """

    @property
    @abstractmethod
    def table(self) -> str:
        """URI of the table."""
        ...

    @property
    def conflict_rule(self) -> ConflictRule:
        """The conflict rule of this sink's transactions."""
        return "file-group"

    @property
    def lock(self) -> str | None:
        """URI of the table's lock object, or None if it is the usual one."""
        return None

    @property
    def reads_twice(self) -> bool:
        """Whether several Spark jobs read a batch."""
        return True

    def plan(self, batch: DataFrame, /) -> Plan:
        """Prepare the batch."""
        return Plan(self.scope(batch), partial(self, batch))

    def scope(self, batch: DataFrame, /) -> BatchScope | None:
        """Return what the batch is going to touch, or None."""
        return None if type(self).plan is Sink.plan else self.plan(batch).scope

    def __call__(self, batch: DataFrame, txn: Transaction, /) -> None:
        """Look the batch up, prepare it, and publish it."""
        self.begin(txn)
        kept = computed_once(batch, txn.facts, txn) if self.reads_twice else nullcontext(batch)
        with kept as rows:
            self.plan(rows).stage(txn)

    def begin(self, txn: Transaction) -> None:
        """Look the batch up (`recognise`). `__call__` calls it first.

        Warn once if the transaction wasn't opened with what the sink declares. A function around the sink hides that.
        """
        if self not in _BEGUN:
            _BEGUN.add(self)
            hidden = []
            if txn.intent.conflict_rule == "file-group" != self.conflict_rule:
                hidden.append(f"conflict_rule={self.conflict_rule!r}")
            if txn.intent.lock is None is not self.lock:
                hidden.append(f"lock={self.lock!r}")
            if hidden:
                log.warning(
                    "sink.hidden",
                    table=txn.table,
                    writer=txn.writer,
                    detail=f"the transaction was opened without what the sink declares, {' and '.join(hidden)}: pass that to "
                    "`foreach_batch` or `transaction`, if a function around the sink hides it",
                )
        txn.recognise(self.committed)

    def writers(self) -> Iterable[str]:
        """Return the writers whose batches the table shows."""
        return ()

    @abstractmethod
    def committed(self, writer: str, batch_id: int, /) -> str | None:
        """Return the version in which `writer` committed the batch, or None. The sink publishes that name: `txn.writer`."""
        ...


def as_columns(columns: Sequence[str], argument: str, table: str) -> tuple[str, ...]:
    """Return the columns. Raise `TypeError` for a text, which would be a list of its letters."""
    if isinstance(columns, str):
        raise TypeError(
            f"{argument}={columns!r} is a text: give a list of columns, [{columns!r}]; table={table}"
        )
    return tuple(columns)
