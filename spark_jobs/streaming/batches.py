"""A transaction for each micro-batch: what `CommitGate.foreach_batch` returns.

- *Writer name.* On the wire a writer is `<writer>:<query id>`. Spark keeps the query id in its checkpoint. A restarted query
  is the same writer, so its replayed batch is recognised. A query with a new checkpoint is another writer, because its
  batches count from 0 again.
- *Lost query id.* A query that begins behind batch 0, and that neither ledger nor table knows, is refused if they have its job
  under another query id, or its query id under another job: its batches may be those of that writer. Two names of one query in
  one driver are two writes of its body. `new_writer` accepts it.
- *Older checkpoint.* A run of a query begins with its last committed batch (the driver died before Spark noted it), or a later
  one. If it begins with an earlier one, its checkpoint is of an older day, or a copy. Spark may cut the batches otherwise then,
  so to skip them may lose rows: it is refused. An operator who has stated the last batch (`ledger correct`) wants the skip. Later
  batches of a run are skipped: another driver runs the same query.
- *Abort.* All Spark jobs of the body carry a tag of the attempt. An abort cancels them at once, those of other threads
  included, and keeps cancelling until the body has ended (`Engine.operations`).
- *Admission.* With "auto" the batch's first transaction is queued or optimistic by the rule in `admission.py`, from the
  scope of the batch and from what this driver's writers experienced on the table.
- *Retry.* After an error with `retriable`, the batch gets a new transaction with `queued` admission. Its scope is everything
  that the last attempt touched, read back from Kafka: markers of executors and of cancelled tasks included. So it starts
  when the winner has ended, instead of computing and losing again. After `max_attempts` the error is raised and the query
  fails.
- *Alone.* If the format's own check refuses a commit because of another one of the gate, no marker shows why they conflict, and
  both could lose in turn. So the retry's scope is the whole table. The same holds from the second refusal on, whatever the cause.
- *Plan.* A sink plans a batch once, before its first transaction, which is opened with the plan's scope. Each attempt stages
  the same plan. If several Spark jobs read the batch, it is persisted first, so the plan and its attempts read the same rows
  without computing them again (`computed_once`). The batch is planned again before an attempt if its table was changed
  (`BaseChanged`, and so `LostToGate`), or if rows were lost (`RowsLost`): then it is also computed again.
- *Once.* A batch that the agent knows to be committed is skipped. So is a batch that the table has, if the sink can look it
  up (`sinks/contract.py`). It looks before the compute and under the grant, which decides. A first attempt that follows a batch
  which this function has just committed isn't looked up before: the table has it only if another process runs the same query.
- *Stop.* If the query or Spark is stopped, a wait ends within a second, nothing is retried, and one error says what became of
  the batch. Spark 4 ends a stopped query without an error of its own if its batch failed by an interrupt (`INTERRUPTED`).
- *No commit.* If the body returns without `txn.commit()`, Spark records the batch as done, and the transaction is abandoned.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from lakewarden.events import CORRECTION, Admission, ConflictRule, Marker, canonical_table
from lakewarden.handlers.writers_log import namesakes, without_query
from lakewarden.spark_jobs.engine.engine import Engine, Query
from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.engine.kinds import engine_of, require_spark
from lakewarden.spark_jobs.gate import errors, refusals
from lakewarden.spark_jobs.gate.gate import TransactionGate, intent_of
from lakewarden.spark_jobs.gate.grant import PublishOutcome
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.observer import GateEvent, epoch_seconds, first_line, notify, reason_of
from lakewarden.spark_jobs.gate.outcome import CommitLookup
from lakewarden.spark_jobs.gate.scope import ALONE, BatchScope, as_markers
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.contract import Plan, Sink, Write
from lakewarden.spark_jobs.sinks.partitions import as_lost, computed_once, require_computed_once
from lakewarden.spark_jobs.sinks.table_locations import is_location, location_of
from lakewarden.spark_jobs.streaming.admission import AdmissionMode, Choice, TableHistory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOOTPRINT_TIMEOUT_SECONDS = 10.0
"""For reading back what an aborted attempt touched. After it, the retry's scope is smaller, which is still correct."""

MAX_PLAN_TRIES = 3
"""How often a batch is planned for one attempt. Rows are lost only when an executor ends."""

BACKOFF_SECONDS = 2.0
"""Longest back-off before a retry without a winner to wait for: the agent or its lock failed, no other writer is involved."""

INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: java.lang.InterruptedException"
"""Spark finds the interrupt of its own `query.stop()` in the text of Python's error, by these names.

It searches by a recursive pattern, which overflows the stack of the query's thread if a long text follows.
"""

NOT_ON_EXECUTORS = re.compile(r"ModuleNotFoundError: No module named '(lakewarden|pypaimon)\b")

OUTCOMES = {
    PublishOutcome.NOT_PUBLISHED: "it isn't committed, and is written when the query is started again",
    PublishOutcome.PUBLISHED: "it is committed, and skipped when the query is started again",
    PublishOutcome.UNKNOWN: "it may be committed: a sink that can looks it up when the query is started again",
}

FAILED = {
    PublishOutcome.NOT_PUBLISHED: "not committed",
    PublishOutcome.PUBLISHED: "committed",
    PublishOutcome.UNKNOWN: "unknown",
}

log = EventLogger("lakewarden.batches")

Scope: TypeAlias = "Callable[[DataFrame], BatchScope | Iterable[Marker | str] | None]"
"""Returns the markers, or partition paths, that a batch is going to touch. None: unknown."""


_HISTORIES: Final[defaultdict[tuple[str, str, str], TableHistory]] = defaultdict(TableHistory)
"""What the writers of this process experienced, by brokers, topic prefix and table: of all its gates."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which table a query writes, and how its transactions are opened."""

    table: str
    conflict_rule: ConflictRule = "file-group"
    lock: str | None = None
    admission: AdmissionMode = "auto"
    priority: int = 0
    new_writer: bool = False
    """Whether a query whose id is new is accepted, whatever its job has committed under another one."""


def target_of(
    write: Sink | Write,
    *,
    table: str | None,
    conflict_rule: ConflictRule | None,
    lock: str | None,
    admission: AdmissionMode,
    priority: int,
    new_writer: bool = False,
) -> Target:
    """Return the arguments, and for those that are None what the sink declares. A table may be named as in a catalog.

    Raises `ValueError` if neither names the table, or if both do and differ: the sink would write one table under the lock
    of another.
    """
    declared = getattr(write, "table", None)
    own = None if declared is None else table_uri(declared)
    given = None if table is None else table_uri(table)
    uri = given or own
    if uri is None:
        raise ValueError(
            f"no table: pass `table`, or a sink that has an attribute `table`; {type(write).__name__} has none"
        )
    if own is not None and uri != own:
        raise ValueError(
            f"`table` is not the table that the sink writes; leave it out; table={given} sink={own}"
        )
    return Target(
        uri,
        conflict_rule or getattr(write, "conflict_rule", None) or "file-group",
        lock or getattr(write, "lock", None),
        admission,
        priority,
        new_writer,
    )


@dataclass(slots=True)
class _Batch:
    """One micro-batch, and the transaction that its last attempt opened."""

    rows: DataFrame
    number: int
    writer: str
    engine: Engine
    query: Query | None = None
    follows: bool = False
    """Whether it is the batch after the one that this function has just committed."""
    scope: BatchScope | None = None
    plan: Plan | None = None
    same: DataFrame | None = None
    """The rows that the sink has planned, if they are the same ones in all jobs."""
    kept: ExitStack = field(default_factory=ExitStack)
    """Keeps them."""
    prepared: Transaction | None = None
    """Transaction of the last attempt. It isn't in `opened` if it failed to open."""
    opened: list[Transaction] = field(default_factory=list)
    sequence: int | None = None
    """Offset of the batch's first intent."""
    winners: set[str] = field(default_factory=set)
    """Transactions to which the batch lost a conflict."""

    refused: int = 0
    """Commits that the format's own check refused."""

    @property
    def run(self) -> str | None:
        """The id of the query's run. A restarted query has another one."""
        return None if self.query is None else self.query.run

    def what_stopped(self) -> str | None:
        return self.engine.what_stopped(self.rows, self.query)

    def may_end(self) -> bool:
        """Whether its process may end now: it isn't publishing, and nothing remains to be reported."""
        return self.prepared is None or self.prepared.endable

    def forget_rows(self) -> None:
        """Let the rows be computed again, and planned."""
        self.kept.close()
        self.same = None


def _made_again(gate: TransactionGate, write: Sink | Write, target: Target, **options: Any) -> BatchWriter:
    require_spark("foreach_batch").watch()
    return BatchWriter(gate, write, target, **options)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try to write the micro-batch: its number from 1, and how its transaction is admitted."""

    number: int
    admission: Admission
    scope: tuple[Marker, ...]
    reason: str

    def rule(self, declared: ConflictRule) -> ConflictRule:
        """Return the conflict rule. By `deleted-file`, the appends of others wouldn't wait for a retry that is alone."""
        return "file-group" if declared == "deleted-file" and ALONE in self.scope else declared


class BatchWriter:
    """The function that `foreachBatch` calls: `(batch_df, batch_id)`."""

    def __init__(
        self,
        gate: TransactionGate,
        write: Sink | Write,
        target: Target,
        *,
        writer: str,
        max_attempts: int,
        scope: Scope | None,
    ) -> None:
        if max_attempts < 1:
            raise errors.InvalidArgument("max_attempts", max_attempts, "give a number from 1")
        self._gate = gate
        self._write = write
        self._committed: CommitLookup | None = getattr(write, "committed", None)
        self._target = target
        self._writer = writer
        self._max_attempts = max_attempts
        self._scope = scope
        self._history = _HISTORIES[*gate.place, target.table]
        self._last_written: tuple[str, int] | None = None
        """Writer and number of the last batch, if this function has committed it."""
        self._query: Query | None = None
        """The query of the last batch."""
        self._last_sequence: int | None = None
        """Offset of the first intent of the last batch. What disturbed this one is read back from there."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch, with retries. Return when it is committed, now or before, or when the body doesn't commit."""
        micro_batch = _Batch(batch, batch_id, self._writer, engine_of(batch))
        with micro_batch.engine.running(micro_batch.may_end):
            self._write_batch(micro_batch)

    def __reduce__(self) -> tuple[object, ...]:
        """Spark Connect pickles it, and calls it in a process of its own."""
        make = partial(_made_again, writer=self._writer, max_attempts=self._max_attempts, scope=self._scope)
        return make, (self._gate, self._write, self._target)

    def _write_batch(self, micro_batch: _Batch) -> None:
        batch, batch_id, engine = micro_batch.rows, micro_batch.number, micro_batch.engine
        try:
            self._query = micro_batch.query = engine.query_of(batch, self._writer, self._query)
            micro_batch.writer = wire_name(self._writer, micro_batch.query)
            written, self._last_written = self._last_written, None
            micro_batch.follows = written == (micro_batch.writer, batch_id - 1)
            with micro_batch.kept:
                self._plan(micro_batch)
                self._write_with_retries(micro_batch)
        except Exception as error:
            stopped = micro_batch.what_stopped()
            if stopped is None:
                self._report_failure(micro_batch, error)
                self._require_on_executors(error)
                raise
            raise self._stopped(micro_batch, stopped, error) from None

    def _stopped(self, batch: _Batch, stopped: str, error: Exception) -> errors.GateError:
        """Return the one line for a batch that was stopped; the error by which it ended is logged."""
        found = batch.opened[-1].outcome if batch.opened else PublishOutcome.NOT_PUBLISHED
        facts = {"table": self._target.table, "writer": batch.writer, "batch_id": batch.number}
        log.step(
            logging.INFO,
            "batch.stopped",
            f"{without_query(batch.writer)} batch {batch.number}: {stopped} was stopped; {OUTCOMES[found]}",
            {**facts, "stopped": stopped, "error": java_text(error)},
        )
        named = " ".join(f"{name}={value}" for name, value in facts.items())
        interrupted = f"; {INTERRUPTED}" if stopped == "the query" else ""
        return errors.GateError(
            f"{stopped} was stopped while the batch was written: {OUTCOMES[found]}; {named}{interrupted}"
        )

    def _require_on_executors(self, error: Exception) -> None:
        """Raise `UnsupportedSpark` if the error is that of a Python worker which lacks a package of the driver."""
        missing = None if isinstance(error, ImportError) else NOT_ON_EXECUTORS.search(str(error))
        if missing is not None:
            raise errors.UnsupportedSpark(
                f"the executors' Python has no {missing[1]}, which this write needs there: install lakewarden on them as on the "
                f"driver (docs/writers.md, On a cluster); table={self._target.table} writer={self._writer}"
            ) from error

    def _write_with_retries(self, micro_batch: _Batch) -> None:
        begins = micro_batch.query is not None and not self._has_begun(micro_batch)
        choice = self._choose(micro_batch)
        attempt = _Attempt(1, choice.admission, choice.scope, choice.reason)
        while True:
            try:
                self._run_attempt(micro_batch, attempt)
                break
            except errors.AlreadyCommitted as skipped:
                last = self._later_batch(micro_batch, skipped) if begins else None
                if last is not None:
                    raise refusals.older_checkpoint(skipped, last) from None
                self._history.begun[micro_batch.writer] = micro_batch.run
                _report_skipped(micro_batch, skipped)
                return
            except Exception as raised:
                error = as_lost(raised, self._facts(micro_batch), micro_batch.same) or raised
                if not self._is_retried(error, micro_batch, attempt):
                    raise
                attempt = self._next_attempt(micro_batch, attempt, error)
        if not micro_batch.opened[-1].discardable:
            self._last_written = (micro_batch.writer, micro_batch.number)
        self._learn(micro_batch, choice)

    def _run_attempt(self, batch: _Batch, attempt: _Attempt) -> None:
        intent = intent_of(
            table=self._target.table,
            writer=batch.writer,
            batch_id=batch.number,
            admission=attempt.admission,
            scope=attempt.scope,
            priority=self._target.priority,
            conflict_rule=attempt.rule(self._target.conflict_rule),
            lock=self._target.lock,
            attempt=attempt.number,
            reason=attempt.reason,
            ends_itself=None if batch.query is None else batch.query.ends_itself,
        )
        batch.prepared = prepared = self._gate.prepare(intent)
        prepared.waits.interrupt_if(batch.what_stopped)
        with self._gate.block_of(prepared) as txn:
            batch.opened[:] = [txn]
            batch.sequence = txn.sequence if batch.sequence is None else batch.sequence
            self._require_own_batches(batch, txn)
            jobs = batch.engine.operations(batch.rows, f"lakewarden-{txn.id}")
            try:
                with jobs:
                    txn.on_abort(lambda _: jobs.cancel_until_ended())
                    if self._committed is not None:
                        txn.recognise(self._committed, now=attempt.number > 1 or not batch.follows)
                    same = batch.same
                    if same is not None:
                        txn.before_commit(lambda: require_computed_once(same, txn.facts))
                    if batch.plan is None:
                        self._write(batch.rows, txn)
                    else:
                        batch.plan.stage(txn)
            except Exception:
                if not txn.aborted and batch.what_stopped() is None:
                    jobs.wait_until_gone()  # when one task fails, others may still write
                raise
            finally:
                if txn.aborted:
                    gone = jobs.wait_until_gone()
                    txn.jobs_stopped(gone=gone)

    def _require_own_batches(self, batch: _Batch, txn: Transaction) -> None:
        """Raise `GateError` if the query's id is new, and its batches may be committed under another name."""
        begun = self._history.begun
        begins = batch.number > 0 and batch.writer not in begun
        known = txn.waits.namesakes
        if begins and known is not None and not self._target.new_writer:
            in_table = [*getattr(self._write, "writers", tuple)()]
            others = (*known, *namesakes(batch.writer, in_table))
            # One run of a query may write the table under two names. A copy of its checkpoint is another run.
            doubtful = [each for each in others if begun.get(each, "") != batch.run]
            if doubtful and txn.writer not in in_table:
                raise refusals.new_query(batch.number, doubtful, txn.facts)
        begun[batch.writer] = batch.run

    def _has_begun(self, batch: _Batch) -> bool:
        """Whether this run of the query has written or skipped a batch before."""
        return self._history.begun.get(batch.writer) == batch.run

    def _later_batch(self, batch: _Batch, found: errors.AlreadyCommitted) -> int | None:
        """Return a later committed batch than the one that was found, unless an operator has stated it."""
        if found.committed_transaction is not None:
            stated = found.committed_transaction.startswith(CORRECTION)
            later = found.last_batch is not None and found.last_batch > batch.number
            return found.last_batch if later and not stated else None
        if self._committed is None or batch.prepared is None:  # a function that looks its batches up itself
            return None
        following = batch.number + 1
        try:
            in_table = self._committed(batch.prepared.writer, following) is not None
        except errors.GateError:  # the table has none with this number, but a later one
            in_table = True
        return following if in_table else None

    def _plan(self, batch: _Batch, tries: int = MAX_PLAN_TRIES) -> None:
        """Plan the batch. The rows that the sink plans stay as they are until the batch has ended."""
        if self._scope is not None:
            batch.scope = as_batch_scope(self._scope(batch.rows))
            return
        if self._target.admission == "optimistic" or not isinstance(self._write, Sink):
            return
        facts, rows = self._facts(batch), batch.rows
        if self._write.reads_twice:
            rows = batch.same = batch.kept.enter_context(computed_once(batch.same or rows, facts))
        try:
            batch.plan = self._write.plan(rows)
        except Exception as error:
            if tries == 1 or as_lost(error, facts, batch.same) is None:
                raise
            batch.forget_rows()
            self._plan(batch, tries - 1)
        else:
            batch.scope = batch.plan.scope

    def _facts(self, batch: _Batch) -> str:
        return f"table={self._target.table} writer={batch.writer} batch_id={batch.number}"

    def _choose(self, batch: _Batch) -> Choice:
        markers = None if batch.scope is None else batch.scope.markers
        if self._target.admission == "auto":
            return self._history.choose(batch.writer, markers)
        return Choice(
            self._target.admission, markers or (), "asked for by the job", scope_known=markers is not None
        )

    def _learn(self, batch: _Batch, choice: Choice) -> None:
        txn = batch.opened[-1]
        since, self._last_sequence = self._last_sequence, batch.sequence
        if self._target.admission != "auto" or txn.discardable:
            return
        if not batch.winners and not txn.waits.delayed:
            touched = txn.footprint(FOOTPRINT_TIMEOUT_SECONDS) if choice.predicted else ()
            self._history.undisturbed(batch.writer, choice, touched)
            return
        needlessly = None
        if since is not None:
            scope = () if batch.scope is None else batch.scope.markers
            needlessly = txn.touches.met_none_of(scope, batch.winners, since, FOOTPRINT_TIMEOUT_SECONDS)
        self._history.disturbed(
            batch.writer,
            choice,
            lost=bool(batch.winners),
            needlessly=needlessly,
            touched=() if choice.scope_known else txn.footprint(FOOTPRINT_TIMEOUT_SECONDS),
        )

    def _next_attempt(self, batch: _Batch, last: _Attempt, error: errors.GateError) -> _Attempt:
        touched = dict.fromkeys(last.scope)
        for txn in batch.opened:
            touched.update(dict.fromkeys(txn.footprint(FOOTPRINT_TIMEOUT_SECONDS)))
        if isinstance(error, errors.CommitAborted):
            batch.winners.update(entry.other_transaction for entry in error.conflicts)
        if isinstance(error, errors.RowsLost):
            batch.forget_rows()
        if isinstance(error, errors.RowsLost | errors.BaseChanged):
            self._plan(batch)
            touched.update(dict.fromkeys(batch.scope.markers if batch.scope else ()))
        batch.refused += isinstance(error, errors.BaseChanged)
        reason = "it declares what its last attempt touched"
        if isinstance(error, errors.LostToGate) or batch.refused > 1:
            touched = {ALONE: None}
        if ALONE in touched:
            reason = "it declares the whole table: its last commit was refused, and no marker had shown why"
        log.step(
            logging.INFO,
            "batch.retry",
            f"{without_query(batch.writer)} batch {batch.number}: begins again, queued, attempt {last.number + 1}",
            {
                "table": self._target.table,
                "writer": batch.writer,
                "batch_id": batch.number,
                "attempt": last.number + 1,
                "scope": len(touched),
            },
        )
        if not (isinstance(error, errors.CommitAborted) and error.conflicts):
            time.sleep(random.uniform(0, min(BACKOFF_SECONDS, 0.1 * 2**last.number)))
        return _Attempt(last.number + 1, "queued", tuple(touched), reason)

    def _is_retried(self, error: Exception, batch: _Batch, attempt: _Attempt) -> TypeGuard[errors.GateError]:
        if not isinstance(error, errors.GateError):
            return False
        # After a wait of its own, a transaction around this one must end first: that one is retried.
        own = (self._target.table, batch.writer)
        waited = isinstance(error, errors.GrantTimeout) and (error.table, error.writer) == own
        final = waited or not error.retriable or attempt.number >= self._max_attempts
        return not final and not batch.what_stopped()

    def _report_failure(self, batch: _Batch, error: Exception) -> None:
        """Log the error that ends the query. A transaction whose outcome is unknown has logged it."""
        txn = batch.prepared
        if isinstance(error, errors.OutcomeUnknown) or (
            txn is not None and txn.outcome is PublishOutcome.UNKNOWN
        ):
            return
        found = batch.opened[-1].outcome if batch.opened else PublishOutcome.NOT_PUBLISHED
        attempt = 1 if txn is None else txn.intent.attempt
        said = first_line(error) if isinstance(error, errors.GateError) else reason_of(error, touched=True)
        notify(
            self._gate.observer,
            GateEvent(
                epoch_seconds(),
                "failed",
                self._target.table,
                batch.writer,
                "" if txn is None else txn.id,
                batch.number,
                attempt,
                {"outcome": FAILED[found], "attempts": attempt, "error": said},
            ),
        )


def _report_skipped(batch: _Batch, skipped: errors.AlreadyCommitted) -> None:
    """Log a batch that is not written. Nothing else shows it: the query continues as after a commit."""
    found_in = "the agent's ledger" if skipped.committed_transaction is not None else "the table"
    log.warning(
        "batch.skipped",
        table=skipped.table,
        writer=skipped.writer,
        batch_id=batch.number,
        committed_transaction=skipped.committed_transaction,
        version=skipped.version,
        detail=f"the batch is already committed, according to {found_in}; it is not written again; {skipped.remedy}",
    )


def as_batch_scope(found: BatchScope | Iterable[Marker | str] | None) -> BatchScope | None:
    """Return what a scope function returned as one type. A partition path stands for all of its file groups."""
    if found is None or isinstance(found, BatchScope):
        return found
    return BatchScope(as_markers(found))


def wire_name(writer: str, query: Query | None) -> str:
    """Return `<writer>:<query id>` for a batch of a streaming query, and `writer` if no query runs."""
    return writer if query is None else f"{writer}:{query.id}"


def table_uri(table: str) -> str:
    """Return the canonical URI of a table: from its URI, its absolute path, or its name in a catalog of the Spark session.

    The protocol knows tables by their location, so that writers with different catalogs, or with none, exclude each other.

    Raises `ValueError` if there is no such table, or if its catalog doesn't give a location.
    """
    if not is_location(table):
        require_spark(f"the table name {table!r}, which is neither a URI nor an absolute path,")
        table = location_of(table)
    return canonical_table(table)
