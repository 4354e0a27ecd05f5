"""The gate: a transaction computes only after its admission, and publishes only under a grant. Start reading here.

    gate = CommitGate("kafka:9092")
    with gate.transaction(table="s3://lake/flights", writer="arrivals", batch_id=7) as txn:  # waits for the admission
        txn.touch("month=1/day=3", "*", "merge")  # publishes a marker, before the files are written
        staged = compute()
        with txn.commit() as grant:  # waits for the grant
            grant.version = publish(staged)

What the gate guarantees:

- *No agent, no work.* The body starts after an agent has admitted the intent (else `AgentUnreachable`).
- *No grant, no publish.* The block of `commit()` starts under a grant whose lease has time left on this writer's clock
  (else `LeaseLost` or `GrantTimeout`).
- *An abort stops the body.* The next `touch`, `check` or `commit` raises `CommitAborted`, and callbacks of `on_abort` run
  immediately. An error that the abort caused in the body becomes its `__cause__`. Once the publish has begun, an abort
  only makes `grant.check()` raise.
- *Only known outcomes are reported.* The gate publishes `commit-completed` or `transaction-abandoned` if it knows the
  outcome, and neither if it doesn't.

| file | what it is for |
| --- | --- |
| `transaction.py` | one transaction: the calls of its body |
| `waiting.py`, `outcome.py`, `footprint.py` | its waits, the outcome of its publish, what it touched |
| `on_abort.py`, `nesting.py` | callbacks of an abort; transactions in the bodies of others |
| `async_gate.py` | `AsyncGate`, the same for asyncio |
| `progress.py` | its states and the races between decisions and the body; no I/O |
| `grant.py` | a grant, and until when its lease counts, on this writer's clock |
| `event_publisher.py` | the events that a transaction publishes, heartbeats included |
| `channel.py`, `kafka.py`, `kafka_options.py` | the driver's connection to Kafka |
| `executor.py` | markers that executors publish themselves |
| `observer.py`, `logs.py` | `GateEvent`, and log lines |
| `errors.py`, `refusals.py` | the errors, and their texts |

`TransactionGate` is what `streaming/` builds on. `CommitGate` (`commit_gate.py`) adds `foreach_batch` to it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Required, Self, TypedDict, Unpack
from uuid import uuid4

from lakewarden import events
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import CommitAborted, GateError, InvalidArgument, invalid_arguments
from lakewarden.spark_jobs.gate.event_publisher import Intent, Timing
from lakewarden.spark_jobs.gate.grant import monotonic_seconds
from lakewarden.spark_jobs.gate.kafka import SEND_TIMEOUT_SECONDS
from lakewarden.spark_jobs.gate.kafka_options import KafkaSettings
from lakewarden.spark_jobs.gate.nesting import inside_others
from lakewarden.spark_jobs.gate.observer import Observer
from lakewarden.spark_jobs.gate.scope import as_scope
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.gate.waiting import Waits


class TransactionOptions(TypedDict, total=False):
    """The arguments of `TransactionGate.transaction`."""

    table: Required[str]
    writer: Required[str]
    batch_id: int | None
    admission: events.Admission
    scope: Iterable[events.Marker | str]
    priority: int
    conflict_rule: events.ConflictRule
    lock: str | None
    attempt: int
    reason: str
    ends_itself: bool | None


def intent_of(**options: Unpack[TransactionOptions]) -> Intent:
    """Return the intent that these arguments describe. Raises `InvalidArgument`, by the limits of the event."""
    values: dict[str, Any] = {**options}
    values["table"] = _table(options["table"])
    values["scope"] = as_scope(options.get("scope", ()))
    attempt, reason = options.get("attempt", 1), options.get("reason", "")
    if type(attempt) is not int or attempt < 1:
        raise InvalidArgument("attempt", attempt, "give a number from 1")
    if not isinstance(reason, str):
        raise InvalidArgument("reason", reason, "give a text")
    event = {name: value for name, value in values.items() if name not in ("attempt", "reason")}
    with invalid_arguments():
        events.CommitIntent.model_validate(
            {**event, "event_id": "none", "transaction": "none", "at": datetime.now(UTC)}, strict=True
        )
    return Intent(**values)


def _table(table: str) -> str:
    if not isinstance(table, str):
        raise InvalidArgument("table", table, "give its URI, as 's3://lake/trips', or an absolute path")
    try:
        return events.canonical_table(table)
    except ValueError as error:
        raise InvalidArgument("table", table, str(error)) from None


_OF_PROCESS: Final[dict[str, TransactionGate]] = {}
"""Gates of other processes that were made again in this one."""


def _of_process(
    identity: str, kind: type[TransactionGate], servers: str, options: dict[str, Any]
) -> TransactionGate:
    if identity not in _OF_PROCESS:
        _OF_PROCESS[identity] = kind(servers, **options)
        _OF_PROCESS[identity].identity = identity
    return _OF_PROCESS[identity]


class TransactionGate:
    """Opens transactions. One per driver is enough: its queries and threads share one connection to Kafka.

    `observer` receives a `GateEvent` for every step of every transaction. The gate calls it from several threads, so it
    must be thread-safe and quick.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic_prefix: str = events.DEFAULT_PREFIX,
        kafka: KafkaSettings | None = None,
        heartbeat_seconds: float = 5.0,
        admission_timeout_seconds: float = 30.0,
        queue_timeout_seconds: float = 600.0,
        grant_timeout_seconds: float = 600.0,
        margin_seconds: float = 1.0,
        send_timeout_seconds: float = SEND_TIMEOUT_SECONDS,
        observer: Observer | None = None,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """`kafka` has the options of the connection: docs/writers.md.

        - `heartbeat_seconds`: the agent takes a writer for lost after three missed heartbeats
        - `admission_timeout_seconds`: for the answer to an optimistic intent. Must exceed a grant lease (20 s), by which a writer
          that died delays its successor
        - `queue_timeout_seconds`: for the admission of a queued transaction
        - `grant_timeout_seconds`: for the grant, with everything staged
        - `send_timeout_seconds`: for Kafka's acknowledgement of one record
        - `margin_seconds`: by how much a lease ends earlier for the writer than for the agent
        """
        options = {
            name: value for name, value in locals().items() if name not in ("self", "bootstrap_servers")
        }
        self.options: dict[str, Any] = options
        self.identity = uuid4().hex
        """The same in each process that this gate is pickled to, and made from its arguments again, once."""
        self.observer = observer
        self._clock = clock
        self._timing = Timing(
            heartbeat_seconds=heartbeat_seconds,
            admission_timeout_seconds=admission_timeout_seconds,
            queue_timeout_seconds=queue_timeout_seconds,
            grant_timeout_seconds=grant_timeout_seconds,
            margin_seconds=margin_seconds,
        )
        self._channel = Channel(
            bootstrap_servers, topics=events.Topics(topic_prefix), kafka=kafka, timeout=send_timeout_seconds
        )
        self._losers: set[tuple[str, str]] = set()
        """(table, writer) of those that lost a conflict and have not committed since. The agent may queue their next intent."""
        self._open: dict[str, Waits] = {}
        """By id."""
        atexit.register(self.close)

    @property
    def place(self) -> tuple[str, str]:
        """The brokers and the topics' prefix."""
        return self._channel.bootstrap_servers, self._channel.topics.prefix

    def __reduce__(self) -> tuple[object, ...]:
        return _of_process, (self.identity, type(self), self._channel.bootstrap_servers, self.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to Kafka. The heartbeats of open transactions end, and the agent aborts them."""
        atexit.unregister(self.close)
        self._channel.close()

    def transaction(
        self,
        *,
        table: str,
        writer: str,
        batch_id: int | None = None,
        admission: events.Admission = "optimistic",
        scope: Iterable[events.Marker | str] = (),
        priority: int = 0,
        conflict_rule: events.ConflictRule = "file-group",
        lock: str | None = None,
        attempt: int = 1,
        reason: str = "",
    ) -> AbstractContextManager[Transaction]:
        """Open a transaction; the block is its body.

        - `table`: URI or absolute path
        - `writer`: name of the job, the same after a restart; 1 to 512 characters on one line
        - `batch_id`: number of the data, the same at a repetition. Up to the writer's last committed one, `AlreadyCommitted` is
          raised: skip the batch. None: never recognised
        - `admission`: `"optimistic"`: start at once; `"queued"`: wait until no transaction ahead overlaps `scope`. The agent may
          also queue a writer that lost a conflict
        - `scope`: what it will touch: partitions, as `["day=1"]`, each with all of its files, or markers
        - `priority`: of two in conflict, the lower one loses; `TABLE_SERVICE_PRIORITY` for table services
        - `conflict_rule`: the [rule](docs/conflicts.md#what-a-conflict-is) by which two transactions conflict
        - `lock`: URI of the table's lock, if the agent is to refuse another one
        - `attempt`, `reason`: for logs and `explain`: which try it is, and why with this admission

        Raises `InvalidArgument`.
        """
        intent = intent_of(
            table=table,
            writer=writer,
            batch_id=batch_id,
            admission=admission,
            scope=scope,
            priority=priority,
            conflict_rule=conflict_rule,
            lock=lock,
            attempt=attempt,
            reason=reason,
        )
        return self.block_of(self.prepare(intent))

    def prepare(self, intent: Intent) -> Transaction:
        """Return a transaction that is not open yet, for `block_of`."""
        may_queue = intent.admission == "queued" or (intent.table, intent.writer) in self._losers
        return Transaction(
            self._channel,
            intent,
            self._timing,
            self._clock,
            self.observer,
            may_queue=may_queue,
            beside=self._open,
        )

    @contextmanager
    def block_of(self, txn: Transaction) -> Iterator[Transaction]:
        """Open the transaction before the block, and end it after the block."""
        with inside_others(txn):
            self._open[txn.id] = txn.waits
            try:
                yield from self._block_of(txn)
            finally:
                del self._open[txn.id]

    def _block_of(self, txn: Transaction) -> Iterator[Transaction]:
        key = (txn.table, txn.intent.writer)
        try:
            txn.open()
            yield txn
        except BaseException as error:
            outcome = txn.finish(error)
            verdict = self._verdict(txn, key)
            if verdict is not None and isinstance(outcome, Exception) and not isinstance(outcome, GateError):
                # The abort made the body fail, by cancelling its jobs for example. Raise the reason; the error is its cause.
                raise verdict from error
            if outcome is error:
                raise
        else:
            outcome = txn.finish(None)
            verdict = self._verdict(txn, key)
            if verdict is not None:
                raise verdict  # the body suppressed it, or never checked; the caller must not take the batch for committed
        if outcome is not None:
            raise outcome
        if not txn.discardable:
            self._losers.discard(key)

    def _verdict(self, txn: Transaction, key: tuple[str, str]) -> CommitAborted | None:
        verdict = txn.verdict()
        if verdict is not None and verdict.reason == "conflict":
            self._losers.add(key)
        return verdict
