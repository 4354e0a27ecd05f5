"""The agents: `agent/serving/agent.py` and everything below it, in a process with simulated clock, randomness, Kafka and store.

Only these are replaced:

- in `agent/clock.py`, the one place that reads time and randomness: those of the process
- aiokafka's three clients, where `agent/kafka.py` and `agent/serving/session.py` name them
- `Stores` of `agent/serving/agent.py`: stores that are already open, and answer by the production table (`../store.py`)
- `PartitionOwner` and its `Tables`: subclasses that report their decisions and stops to the oracles (`ObservedOwner`)
- where the scenario has errors: the entries to deciding and to building records (`errors.py`)
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import structlog
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import ConsumerRecord, TopicPartition

from lakewarden.agent import clock, kafka
from lakewarden.agent.locks.table_locks import Ownership, Shared
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving import agent as agent_module, session as session_module
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition import owner as owner_module, tables as tables_module
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.partition.tables import Tables
from lakewarden.agent.serving.session import KafkaSession
from lakewarden.events import (
    DECISION_RECORD,
    WRITER_EVENT,
    Abort,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    LedgerRecord,
    LocksHandedOver,
    PartitionTaken,
    TransactionAbandoned,
    Undecodable,
    WriterEventUnion,
    decode,
)
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.stopping import NO_STEP, FailedStep
from lakewarden.handlers.table.transactions import OPEN, Phase
from tests.all_states import all_states
from tests.simulation.store import StoreClient
from tests.simulation.whole import clients
from tests.simulation.whole.broker import Record
from tests.simulation.whole.drawing import SETTINGS
from tests.simulation.whole.errors import PLANNED
from tests.simulation.whole.histories import Reading
from tests.simulation.whole.processes import current_process
from tests.simulation.whole.scenario import FORGED, STRANGER, TOPICS
from tests.simulation.whole.strangers import FORBIDDEN
from tests.simulation.whole.upgrade import without_unknown
from tests.unit.handlers.table.world import facts

if TYPE_CHECKING:
    from tests.simulation.whole.run import World

NOTICE_SECONDS = 3.0
"""Without faults, an owner has read a record after this time."""


CLOCK = {
    "time": SimpleNamespace(
        clock_gettime=lambda _: current_process().node.now(),
        time_ns=lambda: current_process().node.wall_ms() * 1_000_000,
    ),
    "datetime": SimpleNamespace(
        now=lambda zone: datetime.fromtimestamp(current_process().node.wall_ms() / 1000, zone)
    ),
    "uuid": SimpleNamespace(uuid4=lambda: uuid.UUID(int=current_process().random.getrandbits(128))),
    "random": SimpleNamespace(random=lambda: current_process().random.random()),  # noqa: PLW0108 - of the process that runs then
}
"""What `agent/clock.py` imports."""


async def _no_connection(*_: object, **__: object) -> None:
    raise KafkaConnectionError


class SimStores:
    """Replaces `Stores` of `agent/locks/keeper.py`: one store, open, which honours conditions."""

    def __init__(self, *_: object) -> None:
        self._client = StoreClient(current_process().store)

    async def for_lock(self, uri: str) -> StoreClient:
        del uri
        return self._client


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Run production code in simulated processes while the context is active. The world gets the owners of partitions."""

    def make_owner(*arguments: Any) -> ObservedOwner:
        world.owners.append(ObservedOwner(world, *arguments))
        return world.owners[-1]

    configured = structlog.get_config() if structlog.is_configured() else None
    with ExitStack() as stack:
        for where, what, instead in (
            *((clock, name, module) for name, module in CLOCK.items()),
            (kafka, "AIOKafkaConsumer", clients.SimConsumer),
            (kafka, "AIOKafkaProducer", clients.SimProducer),
            (kafka, "AIOKafkaAdminClient", clients.SimAdmin),
            (session_module, "AIOKafkaConsumer", clients.SimConsumer),
            (agent_module, "Stores", SimStores),
            (session_module, "PartitionOwner", make_owner),
            (agent_module, "KafkaSession", partial(ObservedSession, world)),
            (
                session_module,
                "ended_tasks",
                lambda _: {},
            ),  # The simulated clients have other tasks than aiokafka's.
            (owner_module, "Tables", ObservedTables),
            *world.errors.patches(tables_module),
        ):
            stack.enter_context(patch.object(where, what, instead))
        # The agent opens a connection only to find out why Kafka doesn't answer.
        stack.enter_context(patch.object(kafka, "create_conn", _no_connection, create=True))
        structlog.configure(
            processors=[_into_trace],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.reset_defaults()
            if configured is not None:
                structlog.configure(**configured)


def _into_trace(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    process = current_process()
    what = event.pop("event")
    if what == "table.stopped" and PLANNED not in event["reason"]:
        process.report_violation("no crash", f"a table is stopped: {event['reason']}")
    if what == "kafka.waiting" and PLANNED in event["problem"]:
        process.report_violation("an error stops one table", f"it ended a session: {event['problem']}")
    event.pop("exc_info", None)
    fields = " ".join(f"{name}={value}" for name, value in event.items())
    process.node.log(f"{what} {fields}")
    raise structlog.DropEvent


class ObservedTables(Tables):
    """The tables of a partition. `on_stop` is called after the stop of one, with whether it failed at an intent."""

    on_stop: Callable[[str, bool], None] | None = None

    def stop(self, uri: str, error: Exception, failed: FailedStep = NO_STEP) -> None:
        stopped_before = uri in self.stopped
        super().stop(uri, error, failed)
        if not stopped_before and self.on_stop is not None:
            self.on_stop(uri, failed.intent is not None)


class ObservedSession(KafkaSession):
    """A session that must have recorded a lost ledger again at its end, if Kafka answers in time.

    If other agents have written beyond what an owner knows of the ledger, it can't see that entries before are lost.
    """

    def __init__(self, world: World, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._broker = world.broker
        self._oracles = world.oracles

    async def _restore_ledgers(self, seconds: float) -> float:
        read = [each for each in self._owners.values() if each.phase in ("replaying", "live", "paused")]
        known = [(each, each.position) for each in read if each.seen.ledger_lost or not self._is_hidden(each)]
        node, ledger = current_process().node, self._oracles.knowledge.ledger
        lost_at, began = dict(ledger.lost_at), node.now()
        recording = await super()._restore_ledgers(seconds)
        if node.now() - began - recording >= seconds:
            return recording
        for owner, position in known:
            lacking = ledger.unrecorded(owner.records.term, position)
            if lacking is not None and lost_at.get(owner.number) == ledger.lost_at[owner.number]:
                (_, writer), batch = lacking
                self._oracles.violated(
                    "an incomplete log is noticed",
                    f"{node.name} knows batch {batch} of {writer} and doesn't record it again in the ledger",
                )
        return recording

    def _is_hidden(self, owner: PartitionOwner) -> bool:
        where, (beginning, end) = TopicPartition(TOPICS.ledger, owner.number), owner.seen.ledger_extent
        return self._broker.beginnings[where] <= beginning and self._broker.ends([where])[where] >= end


class ObservedOwner(PartitionOwner):
    """A partition's owner that reports each decision to the oracles when it is made."""

    def __init__(self, world: World, ownership: Ownership, lasting: Lasting, memory: MemoryBudget) -> None:
        observed: Any = SimpleNamespace(put=self._publish)
        self._publisher = ownership.shared.publisher
        shared = replace(ownership.shared, publisher=observed)
        super().__init__(replace(ownership, shared=shared), lasting, memory)
        assert isinstance(self.tables, ObservedTables)
        self.tables.on_stop = self._on_stop
        read_decisions = self.replay.read_decisions

        def read_known(start: Position, records: Iterable[ConsumerRecord]) -> None:
            newer = self.node.name in self._oracles.upgraded
            read_decisions(start, without_unknown(records) if newer else records)

        setattr(self.replay, "read_decisions", read_known)  # noqa: B010 - mypy refuses the assignment to a method
        self.settings = lasting.settings
        self.node = current_process().node
        self.broker = world.broker
        self._world = world
        self._oracles = world.oracles
        self._ended: set[str] = set()
        """Transactions that this owner has ended, in the log or on the way to it."""
        self._granted: set[str] = set()
        """Transactions that this owner has granted, likewise."""
        self._ignored: set[int] = set()
        """Offsets of strangers' intents that this owner ignored, because it knew the transaction, and of reports that a second
        watcher repeats after the end of their transaction."""
        self._stale: set[int] = set()
        """Offsets of lost events that this owner has read."""
        self._others_read = -1
        """Offset of the last record of another agent in the ledger that this owner has read."""
        self._replayed_requests: dict[str, bool] = {}
        """By transaction of which it has read a request or an intent in its replay: whether it has read the intent."""
        self.loaded_at = 0.0
        self._overlooks = False
        """Whether the log has an event that this owner can't read."""

    def _publish(self, record: Outgoing) -> None:
        if record.topic != TOPICS.decisions:
            self._publisher.put(record)
            return
        caught_up = self._caught_up
        read_until = None if caught_up is None else self.node.clock.when(caught_up.until)
        self._oracles.on_decision(self.node, record.value, read_until)
        decision = decode(DECISION_RECORD, record.value)
        if not isinstance(decision, PartitionTaken | LocksHandedOver | Undecodable):
            self._check_published(decision)
        self._publisher.put(record)
        if b'"commit-granted"' in record.value:
            self._world.after_grant(self.node)

    def _consume_event(self, record: ConsumerRecord, event: WriterEventUnion, read_at: float) -> None:
        state = self.tables.states.get(event.table)
        known = state is not None and (
            event.transaction in state.transactions or event.transaction in state.closed
        )
        if known and isinstance(event, CommitIntent) and event.writer == STRANGER:
            self._ignored.add(record.offset)
        if state is not None and _is_repeated(state, event):
            self._ignored.add(record.offset)
        if self.phase == "replaying" and isinstance(event, CommitIntent | CommitRequested):
            self._replayed_requests[event.transaction] = isinstance(
                event, CommitIntent
            ) or self._replayed_requests.get(event.transaction, False)
        super()._consume_event(record, event, read_at)

    def finish_replay(self, position: int) -> None:
        replaying = self.phase == "replaying"
        super().finish_replay(position)
        if replaying and self.phase == "live":
            unknown = [name for name, known in self._replayed_requests.items() if not known]
            self._oracles.check_unknown_requests(self.node, self.number, unknown, self._ended)

    def load(self, start: int, end: int, *arguments: Any, **more: Any) -> None:
        self._oracles.knowledge.on_loaded(self.records.term, end)
        self._oracles.knowledge.on_start(self.number, start)
        now = self.loaded_at = self.node.timeline.now
        self._oracles.knowledge.ledger.on_loaded(
            self.records.term, now, partition=self.number, span=(start, end)
        )
        super().load(start, end, *arguments, **more)

    def live_for(self) -> float:
        """For how long it has had its state."""
        return self.node.timeline.now - self.loaded_at

    def consume(self, records: Iterable[ConsumerRecord], read_at: float) -> None:
        log = self.broker.logs[TopicPartition(TOPICS.writers, self.number)]
        records = list(records)
        for record in records:
            if record.offset >= len(log):
                self._stale.add(record.offset)
            elif log[record.offset] is not record:
                self._overlook(log[record.offset])
        super().consume(records, read_at)
        if self.phase == "live":
            self._check_memory()

    def _check_memory(self) -> None:
        """Check this agent's memory budget, as far as its live owners have read the log."""
        mine = [each for each in self._world.owners if each.node is self.node and each.phase == "live"]
        read = [Reading(each.number, each.position, each._ended | each._granted) for each in mine]
        self._oracles.check_memory(self.node, read, self.settings.memory_bytes)

    def note_written(self, record: Record) -> None:
        """A record was written to a log, while records may be lost: this owner may have read another one at its offset."""
        mine = record.topic == TOPICS.writers and record.partition == self.number
        if not mine or self.node.state == "dead" or self.phase in ("released", "refused"):
            return
        if record.offset < self.position or record.offset in self._stale:
            self._overlook(record)

    def _overlook(self, record: Record) -> None:
        self._overlooks = True
        event = decode(WRITER_EVENT, record.value)
        misplaced = FORGED.encode() in record.value
        if not isinstance(event, Undecodable) and not self.replaced and not misplaced:
            self._oracles.knowledge.on_overlooked(event.transaction)

    def _check_published(self, decision: DecisionEventUnion) -> None:
        if isinstance(decision, Abort | AlreadyCommitted):
            self._ended.add(decision.transaction)
        elif isinstance(decision, CommitGranted):
            self._granted.add(decision.transaction)
        if not isinstance(decision, Abort) and decision.table in self.tables.stopped.reasons:
            self._oracles.violated(
                "an error stops one table",
                f"{self.node.name} decides {decision.type} of the stopped table {decision.table}",
            )

    def _on_stop(self, uri: str, at_intent: bool) -> None:
        if self.phase == "live":
            self._oracles.check_stopped(self.node, uri, self.number, self.position + at_intent, self._ended)

    def check_goes_on(self) -> None:
        """After the faults, an owner that has stopped a table has read what others wrote some seconds ago."""
        log = self.broker.logs[TopicPartition(TOPICS.writers, self.number)]
        old = [each for each in log if each.at < self.node.timeline.now - NOTICE_SECONDS]
        if (
            self.tables.stopped.reasons
            and self.phase == "live"
            and not self.replaced
            and self.position < len(old)
        ):
            self._oracles.violated(
                "an error stops one table",
                f"{self.node.name} has read up to {self.position}, and {len(old)} is some seconds old",
            )

    async def compare(self) -> None:
        """Replay the log from the group's committed position, and compare the result with this owner's state.

        An owner of an incomplete log admits nothing in a table before it has the lock. A replay from a checkpoint of this owner
        may admit: the first checkpoint comes after a lock lease, which no grant outlives (decision record 16).
        """
        if self.phase == "live":
            self._compare()

    def publish_takeover(self) -> None:
        super().publish_takeover()
        if self.phase == "paused":
            self._world.before_resume(self.node)

    def resume(self) -> None:
        """Compare first: the state is what it was at the pause, so no chance must hit the moment before the next decision.

        Not after a loss of records: what was sent again may come in another order.
        """
        if self.number not in self._oracles.knowledge.lost_at:
            self._compare()
        super().resume()

    def _compare(self) -> None:
        if not self._is_settled():
            return
        lacks = self._oracles.knowledge.lacking(
            self.number
        ) is not None or self._oracles.knowledge.ledger_lacks(self.number)
        if self._overlooks or lacks or self._oracles.knowledge.unsure(self.number):
            return  # the log doesn't have what this owner knows, or has what it doesn't know
        with self._world.errors.none():
            rebuilt, decisions = _replayed(self)
        replayed_states, live_states = all_states(rebuilt), all_states(self)
        live, replayed = _comparable(live_states), _comparable(replayed_states)
        cautious = {
            uri
            for uri, state in live_states.items()
            if state.unseen_grant and uri in replayed_states and not replayed_states[uri].unseen_grant
        }
        if cautious and self.live_for() < self.settings.validity_seconds:
            self._oracles.violated(
                "replay matches",
                f"{sorted(cautious)}: a grant may run that the log lacks, and a replay forgets it",
            )
            return
        # A table that has lost its index has none until its grant ends, and admits nothing. A replay enters what the granted
        # transaction touches (handlers/table/memory.py).
        cautious |= {
            uri
            for uri, state in live_states.items()
            if any(each.without_index for each in state.transactions.values())
        }
        for uri in sorted({*live, *replayed} - cautious):
            if live.get(uri) != replayed.get(uri):
                self._oracles.violated(
                    "replay matches", f"{uri} {_difference(live.get(uri), replayed.get(uri))}"
                )
                return
        # An owner that has not read the first event of a transaction that it refuses answers a later one.
        decisions = [each for each in decisions if b"belongs to partition" not in each]
        # A repeated request of a transaction that has ended looks like one that no agent has answered. Its writer has ended, too.
        decisions = [each for each in decisions if b'"reason":"unknown-transaction"' not in each]
        decisions = [each for each in decisions if json.loads(each)["table"] not in cautious]
        if decisions:
            self._oracles.violated(
                "replay matches", f"a replay decides what the live owner did not: {decisions[0]!r}"
            )

    def on_others_entry(self, entry: LedgerRecord, offset: int) -> None:
        self._others_read = max(self._others_read, offset)
        super().on_others_entry(entry, offset)

    def _is_settled(self) -> bool:
        """Whether everything decided is in the log, all of the ledger is read, and this owner still owns the partition."""
        publisher = self._publisher
        if publisher._waiting or publisher._unacknowledged or self.tables.stopped.reasons:
            return False
        own, term = self.takeover_in_ledger, self.records.term.encode()
        entries = self.broker.logs[TopicPartition(TOPICS.ledger, self.number)]
        others = (each.offset for each in entries if each.offset > own and term not in each.value)
        if max(others, default=-1) > self._others_read:
            return False
        decisions = self.broker.logs[TopicPartition(TOPICS.decisions, self.number)]
        takeovers = [each.value for each in decisions if b'"partition-taken"' in each.value]
        return bool(takeovers) and term in takeovers[-1]


class _DecisionRecorder:
    """Replaces a publisher: keeps the decisions of a replay, except those about a stranger's transactions.

    Nor does it keep answers about a table that no agent serves: an owner gives one for each transaction, and a replay that
    doesn't read the first such record gives it for a later one. The answer concerns no transaction.
    """

    def __init__(self) -> None:
        self.decisions: list[bytes] = []

    def put(self, record: Outgoing) -> None:
        strangers = (f'"writer":"{STRANGER}"'.encode(), f'"table":"{FORBIDDEN}"'.encode())
        if record.topic == TOPICS.decisions and not any(each in record.value for each in strangers):
            self.decisions.append(record.value)


def _replayed(owner: ObservedOwner) -> tuple[PartitionOwner, list[bytes]]:
    recorder: Any = _DecisionRecorder()
    stores: Any = SimStores()
    tasks: Any = SimpleNamespace(start_soon=lambda *_, **__: None)  # a replay requests no locks
    # With the default budget: in a replay, a smaller one may be exceeded at other moments (handlers/table/memory.py).
    settings = owner.settings.model_copy(update={"memory_mb": SETTINGS.memory_mb})
    shared = Shared(settings, recorder, stores, tasks)
    ownership = Ownership(owner.number, shared, owner.ownership.partitions)
    rebuilt = PartitionOwner(ownership, Lasting(settings), MemoryBudget(settings.memory_bytes))
    logs, writers = owner.broker.logs, TopicPartition(TOPICS.writers, owner.number)
    known = owner.broker.group.committed.get(writers)
    checkpoint = Checkpoint.parse(known.offset, known.metadata) if known else Checkpoint.parse(0, "")
    start, decided = checkpoint.offset, checkpoint.decisions
    ledger = TopicPartition(TOPICS.ledger, owner.number)
    decisions = without_unknown(logs[TopicPartition(TOPICS.decisions, owner.number)][decided.offset :])
    rebuilt.consume(_without_ignored(owner, logs[writers][start : owner.position]), 0.0)
    entries: list[Any] = logs[ledger][owner.broker.beginnings[ledger] :]
    rebuilt.replay.read_decisions(decided, decisions)
    rebuilt.replay.read_ledger(entries)
    rebuilt.load(start, owner.position, decided, checkpoint=checkpoint)
    return rebuilt, recorder.decisions


def _without_ignored(owner: ObservedOwner, records: Iterable[Record]) -> list[Any]:
    """The records with rubbish in place of those that the owner ignored.

    A stranger used the id of a transaction that had ended. A replay from a later checkpoint doesn't know that transaction, so
    it opens one of the stranger (docs/recovery.md), which can conflict with others as any transaction of the stranger can. A
    report that a second watcher repeats opens the observed transaction again (decision 33).
    """
    return [each._replace(value=b"") if each.offset in owner._ignored else each for each in records]


def _is_repeated(state: TableState, event: WriterEventUnion) -> bool:
    """Whether it reports an observed transaction that has ended, and changes nothing. A commit counts late, too, but once."""
    known = state.transactions.get(event.transaction) or state.closed.get(event.transaction)
    if known is None or not known.observed or known.phase in OPEN:
        return False
    reports_end = isinstance(event, CommitCompleted | TransactionAbandoned)
    return known.phase is Phase.COMMITTED or not reports_end


def _comparable(tables: dict[str, TableState]) -> dict[str, dict[str, object]]:
    """What a replay must reproduce, for tables with any facts.

    How transactions ended is left out, because a replay sees fewer of them.
    """
    found = {uri: facts(state) for uri, state in tables.items()}
    for each in found.values():
        del each["closed"]
    return {uri: each for uri, each in found.items() if any(each.values())}


def _difference(live: dict[str, object] | None, replayed: dict[str, object] | None) -> str:
    if live is None or replayed is None:
        return f"is live as {live} and is replayed as {replayed}"
    return "; ".join(
        f"{name} is {live[name]} and is replayed as {replayed[name]}"
        for name in live
        if live[name] != replayed[name]
    )
