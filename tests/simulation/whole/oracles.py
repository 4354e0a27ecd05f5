"""What must never happen to the system, judged from outside: by true time, by the logs, and by the contents of the tables.

The oracles derive independently which decisions *count*, from `partition-taken` and the terms, and which transaction must lose
a conflict. They never ask the code under test. G7 is the exception: it compares the code with itself.

| oracle | a run violates it when |
| --- | --- |
| one grant | by their writers' clocks, two transactions hold unexpired grants of one table (G1) |
| no foreign holder | a grant is unexpired while a writer without an agent believes in the lock object (G1) |
| deadline within grant | in true time, a writer's deadline is later than that of the agent that granted (G1) |
| no overlap | two commits conflict, and each began before the other had landed, except in the window (G2) |
| one victim | two transactions lose the same conflict, each against the other (G3) |
| right victim | the loser is not the one by the rules: protected writer, then priority, then order of the intents (G3) |
| granted never aborted | a granted transaction is aborted for a conflict (G3) |
| granted in turn | an `ordered` transaction is granted while one that was admitted before it and touches its place is open |
| no commit without grant | a commit lands whose transaction has no grant that counts, or never requested it (G4) |
| once | a table has a batch twice, although it records batches or the outcome was reported, except in the window (G6) |
| committed batch skipped | a batch that the log has as committed is granted again, or a skipped one is in no table (G6) |
| consistent decisions | decisions that count contradict each other (G7) |
| replay matches | the log, replayed from the committed position, gives another state than the live owner has (G7) |
| last take-over owns | the owner of a partition at the end is not the one whose take-over is last in the log |
| lag loses no writer | a writer or a grant is lost although its event has been in the log, unread (design.md §4) |
| forged events change nothing | a decision relies on a forged event, or blames a transaction for one |
| a hung body owns no table | a grant is extended beyond `max_grant_seconds` and one lease, while its writer publishes |
| limits are waited out | an abort is `lock-refused` or `timed-out` before `refusal_seconds` or `max_transaction_seconds` |
| an incomplete log is noticed | after a loss, an owner grants what was open, aborts nothing, hides it, or restores nothing |
| one partition per table | an owner decides about a table of another partition, except that an event is not allowed there |
| requests are answered | an agent goes live and has not answered a request of an open transaction whose intent the log has lost |
| operators are obeyed | a transaction is granted, extended or ended otherwise after its owner has read an operator's request |
| the memory budget holds | what an agent can abort exceeds it, or it aborts one transaction while another touches far more |
| priorities are limited | a transaction with a priority above `max_priority` is admitted |
| locks stay in place | a transaction that names another lock is admitted, or that object is read or written |
| newer decisions are refused | an agent decides in a partition with a decision of a newer version, which it doesn't know |
| an error stops one table | an exception ends a session, its table goes on, another doesn't, or a writer gets no abort |
| no crash | a program fails, or a table is stopped because its state contradicts itself |
| every batch commits | after the faults, a batch is not in its table within the run's bound (G5) |

Two `ordered` commits conflict only if the rows of the later one are the older ones, by their numbers.

*After a loss of records* (`losses.py`), the oracles use only what the log still has (docs/decisions/0016):

- An open transaction may be aborted as unknown by an owner whose log was incomplete at its take-over, and by each owner if its
  intent is lost. It must not be granted later.
- A batch counts as reported if the ledger has it. Another completion counts only while the log has it, its intent and its grant,
  and its owner has read it: otherwise no agent can know of it.
- An owner can't read an event that is written at an offset that it has already read another one from. A transaction with such
  an event, *overlooked*, may overlap with others, because its markers are unknown (the limit that docs/recovery.md names).
- An owner of an incomplete log may not know which terms were in force, and so believe a grant of a replaced agent. It then lets
  it lapse.
- The offset of a lost event proves nothing any more.
- An agent that had no answer to a decision before its topic was created again sends the same record again.
- If the ledger has lost records, an owner must know only the batches of `ledger_knowledge.py`. Until a writer loses again, it is
  unclear whether it is protected.

Everything else holds as ever: no commit without a grant, one grant, no overlap, and every batch commits.

The *window*: without a fenced publish, a commit that lands after its grant's end is no violation, because no lock can prevent
it. `windows` counts these commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime

from lakewarden.agent.serving.partition.stopped_tables import STOPPED
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    LEDGER_EVENT,
    WRITER_EVENT,
    Abort,
    AbortRequested,
    Admitted,
    AlreadyCommitted,
    BatchCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    GrantRenewed,
    LocksHandedOver,
    MarkerCreated,
    PartitionTaken,
    TransactionAbandoned,
    Undecodable,
    WriterHeartbeat,
    decode,
)
from lakewarden.handlers.table.footprints import MARKER_BYTES
from lakewarden.handlers.table.memory import TRANSACTION_BYTES
from tests.simulation.faults import FaultPeriod
from tests.simulation.node import Node
from tests.simulation.oracles import CLOCK_RATE
from tests.simulation.timeline import Timeline
from tests.simulation.violations import ViolationRecorder
from tests.simulation.whole.broker import Record
from tests.simulation.whole.histories import Held, History, Reading, TakeOver, forget_events
from tests.simulation.whole.ledger_knowledge import Completion, LedgerKnowledge
from tests.simulation.whole.scenario import FORGED, TOPICS
from tests.simulation.whole.table import LakeTable, Landed, conflict
from tests.simulation.whole.upgrade import is_unknown

TAKEOVER_NOTICE_SECONDS = 3.0
"""Without faults, an owner has noticed a later take-over of its partition after this time."""
SAME_INSTANT = 1e-6
CLEARLY_MORE = 150
"""So many markers more need more memory than all pairs of a transaction with others, in a run."""
CLOCK_ERROR_SECONDS = 1.0
"""By how much a grant may be longer in true time than by its agent's clock."""


class Oracles(ViolationRecorder):
    """The oracles of the whole system."""

    def __init__(
        self,
        timeline: Timeline,
        settings: Settings,
        tables: Mapping[str, LakeTable],
        refusals: FaultPeriod | None,
        partition_of: Callable[[str], int],
    ) -> None:
        """`refusals`: when the store refuses locks. `partition_of`: the one of a table."""
        super().__init__(timeline)
        self._settings = settings
        self._refusals = refusals
        self._partition_of = partition_of
        self.windows = 0
        self.unknown_twice = 0
        self._max_losses = settings.max_losses
        self._longest_grant = settings.max_grant_seconds + settings.grant_seconds
        self._extended_since: dict[tuple[str, str | None], float] = {}
        """By grant and term: when an owner decided on the grant first. An owner counts its age from its own replay."""
        self._tables = tables
        self.lacking: Callable[[int], str | None] = lambda _: None
        """The topic of which a partition lacks something that its checkpoint relies on."""
        self.ledger_lacks: Callable[[int], bool] = lambda _: False
        """Whether a partition's ledger lacks something that its checkpoint relies on."""
        self._takeovers: dict[str, TakeOver] = {}
        """By term."""
        self._lost_at: dict[int, float] = {}
        """By partition: when records were lost last."""
        self._decided: set[str] = set()
        """Event ids of all decisions."""
        self._overlooked: set[str] = set()
        """Transactions with an event that its owner can't read."""
        self.ledger = LedgerKnowledge(partition_of, self._completions)
        self._unclear_losses: set[tuple[str, str]] = set()
        """By table and writer: those whose losses in a row the ledger may have lost."""
        self.upgraded: set[str] = set()
        """Agents of the newer version."""
        self._unknown: set[int] = set()
        """Partitions with a decision that only these know."""
        self._terms: dict[int, str] = {}
        self._taken_over_at: dict[int, float] = {}
        self._histories: dict[str, History] = {}
        self._losses: dict[tuple[str, str], tuple[int, int]] = {}
        """By table and writer: losses in a row as last published, and that decision's `cause_offset`."""
        self._committed: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """By table and writer: the offset of each completion in the log, and its batch."""
        self._held: dict[str, dict[str, Held]] = defaultdict(dict)
        """By table: the grants that writers hold."""
        self._done: set[str] = set()
        """Transactions whose writers no longer use a grant."""
        self._foreign: dict[str, tuple[Node, float]] = {}
        self._deadlines: dict[tuple[str, int], float] = {}
        """By grant and `seq`: the agent's deadline, in true time."""

    def wall(self, node: Node) -> datetime:
        """Return the node's wall-clock time."""
        return datetime.fromtimestamp(node.wall_ms() / 1000, UTC)

    # -- the logs ----------------------------------------------------------------------------------------------------

    def on_record(self, record: Record) -> None:
        """A record was written to a log."""
        if record.topic == TOPICS.writers:
            self._on_writer_record(record)
        elif record.topic == TOPICS.decisions:
            self._on_decision_record(record)
        elif record.topic == TOPICS.ledger:
            self._on_ledger_record(record)

    def _on_writer_record(self, record: Record) -> None:
        event = decode(WRITER_EVENT, record.value)
        if FORGED.encode() in record.value or isinstance(event, Undecodable):
            self._timeline.log("log", f"writers-{record.partition} {record.offset}: forged")
            return
        self._timeline.log(
            "log", f"writers-{record.partition} {record.offset}: {event.type} {event.transaction}"
        )
        if isinstance(event, CommitIntent):
            self._histories.setdefault(
                event.transaction,
                History(
                    event.table,
                    event.writer,
                    event.batch_id,
                    record.offset,
                    event.priority,
                    len(self._histories),
                    record.at,
                    ordered=event.conflict_rule == "ordered",
                    other_lock=event.lock not in (None, self._tables[event.table].lock),
                ),
            ).touch(event.scope, record.offset)
        history = self._histories.get(event.transaction)
        if history is None:
            return
        if isinstance(event, AbortRequested):
            if history.is_open() and history.abort_requested is None:
                history.abort_requested = record.offset
            return
        history.events.append((record.offset, record.at))
        if isinstance(event, CommitRequested | WriterHeartbeat):
            history.seqs.append((record.offset, event.seq))
        if isinstance(event, CommitRequested | MarkerCreated):
            history.touch(event.markers, record.offset)
        if isinstance(event, CommitRequested) and history.requested is None:
            history.requested = record.offset
        history.abandoned = history.abandoned or isinstance(event, TransactionAbandoned)
        if isinstance(event, CommitCompleted):
            history.completed = history.completed or record.offset
            overlooked = event.transaction in self._overlooked or history.granted_at == -1
            history.unreported = history.unreported or overlooked or history.intent_lost
            if event.batch_id is not None and not history.unreported:
                self._committed[history.table, history.writer].append((record.offset, event.batch_id))

    def _on_decision_record(self, record: Record) -> None:
        event = decode(DECISION_RECORD, record.value)
        if isinstance(event, Undecodable):
            assert is_unknown(record.value)
            self._unknown.add(record.partition)
            self._timeline.log("log", f"decisions-{record.partition} {record.offset}: of a newer version")
            return
        if isinstance(event, PartitionTaken):
            if event.term not in self._takeovers:
                lacking = self.lacking(record.partition)
                self._takeovers[event.term] = TakeOver(record.partition, record.at, lacking)
            self._terms[record.partition] = event.term
            self._taken_over_at[record.partition] = record.at
            self._timeline.log("log", f"decisions-{record.partition} {record.offset}: taken by {event.agent}")
            return
        if isinstance(event, LocksHandedOver):
            locks = ", ".join(f"{each.table} as {each.owner}" for each in event.locks)
            self._timeline.log(
                "log", f"decisions-{record.partition} {record.offset}: {event.agent} hands over {locks}"
            )
            return
        counted = event.term == self._terms.get(record.partition)
        reason = f" {event.reason}" if isinstance(event, Abort) else ""
        self._timeline.log(
            "log",
            f"decisions-{record.partition} {record.offset}: {event.type}{reason} {event.transaction}"
            f" by {event.agent} at {event.cause_offset}{'' if counted else ', which does not count'}",
        )
        if counted and record.partition in self._unknown and event.agent not in self.upgraded:
            self.violated(
                "newer decisions are refused",
                f"{event.agent} decides {event.type} of {event.transaction} in partition {record.partition}",
            )
        history = self._histories.get(event.transaction)
        if self._partition_of(event.table) != record.partition and event.table in self._tables:
            if not (isinstance(event, Abort) and event.reason == "not-allowed"):
                self.violated(
                    "one partition per table",
                    f"{event.agent} decides {event.type} of {event.transaction} in partition {record.partition}",
                )
            return
        resent = event.event_id in self._decided and record.partition in self._lost_at
        self._decided.add(event.event_id)
        if resent and isinstance(event, Admitted | CommitGranted):
            return
        if counted and history is not None and (event.table, event.writer) == (history.table, history.writer):
            if isinstance(event, CommitGranted) and history.granted_at is None:
                history.granted_at = record.offset
            if isinstance(event, Admitted) and not history.admitted:
                history.admitted_at = record.offset
            ended = history.ended
            self._check_decision(event, history)
            if history.ended is not ended:
                history.ended_at, history.answered = record.offset, True

    def _on_ledger_record(self, record: Record) -> None:
        event = decode(LEDGER_EVENT, record.value)
        if isinstance(event, BatchCommitted) and event.batch_id is not None:
            self.ledger.on_entry((event.table, event.writer), event.batch_id)
            self._on_reported(event.table, event.writer, event.batch_id)

    def _on_reported(self, table: str, writer: str, batch: int) -> None:
        for history in self._histories.values():
            known = (history.table, history.writer, history.batch) == (table, writer, batch)
            if known and history.unreported and history.completed is not None:
                history.unreported = False
                self._committed[table, writer].append((history.completed, batch))

    # -- lost records ------------------------------------------------------------------------------------------------

    def _completions(self) -> Iterable[Completion]:
        for history in self._histories.values():
            if history.completed is not None and history.batch is not None and not history.unreported:
                key = history.table, history.writer
                yield Completion(key, history.batch, history.sequence, history.completed)

    def on_ledger_loss(self, partition: int, left: Iterable[Record]) -> None:
        """The ledger has lost all records but these."""
        entries: list[tuple[tuple[str, str], int]] = []
        for record in left:
            entry = decode(LEDGER_EVENT, record.value)
            if isinstance(entry, BatchCommitted) and entry.batch_id is not None:
                entries.append(((entry.table, entry.writer), entry.batch_id))
        self.ledger.on_loss(partition, self._timeline.now, entries)
        self._unclear_losses |= {each for each in self._losses if self._partition_of(each[0]) == partition}

    def on_loss(self, topic: str, partition: int, beginning: int, end: int) -> None:
        """`writers` or `decisions` has lost its records before `beginning` and from `end` on."""
        self._lost_at[partition] = self._timeline.now
        for history in self._histories.values():
            if self._partition_of(history.table) != partition:
                continue
            if topic == TOPICS.writers:
                forget_events(history, beginning, end)
            else:
                if history.granted_at is not None and not beginning <= history.granted_at < end:
                    history.granted_at = -1
                if history.ended_at is not None and not beginning <= history.ended_at < end:
                    history.ended = history.ended_at = None
            key = history.table, history.writer
            if history.completed is not None and -1 in (history.completed, history.granted_at):
                history.unreported = (history.batch or 0) > self.ledger.in_ledger.get(key, -1)
        for key, committed in self._committed.items():
            if self._partition_of(key[0]) == partition:
                known = self.ledger.in_ledger.get(key, -1)
                reported = {
                    each.batch
                    for each in self._histories.values()
                    if (each.table, each.writer) == key and each.completed is not None and not each.unreported
                }
                committed[:] = [each for each in committed if each[1] <= known or each[1] in reported]

    def on_copied(self, transaction: str, table: str, writer: str, batch: int) -> None:
        """A batch was committed before the run, and the ledger has it or will have it by a copy."""
        history = History(table, writer, batch, -1, 0, len(self._histories), 0.0, intent_lost=True)
        history.completed = -1
        self._histories[transaction] = history
        self._committed[table, writer].append((-1, batch))
        self.ledger.on_entry((table, writer), batch)

    def on_overlooked(self, transaction: str) -> None:
        """The owner of the partition has already read another record at the offset of an event of this transaction."""
        self._overlooked.add(transaction)

    def on_loaded(self, term: str, end: int) -> None:
        """An owner has read decisions and ledger, and replays `writers` up to its end."""
        taken = self._takeovers.get(term or "")
        if taken is not None:
            taken.end = end
            lost_since = self._lost_at.get(taken.partition, -1.0) >= taken.at
            taken.sure = not lost_since and self.lacking(taken.partition) == taken.lacking

    def _may_lack(self, term: str | None) -> bool:
        taken = self._takeovers.get(term or "")
        return taken is not None and (taken.lacking is not None or not taken.sure)

    def check_incomplete(self, partition: int, shown: Collection[str]) -> None:
        """Check at the end what followed from a loss. `shown`: the topics of which the checkpoint names a gap."""
        taken = [each for each in self._takeovers.values() if each.partition == partition]
        noticed = [each for each in taken if each.sure and each.lacking is not None]
        if not noticed or self.lacking(partition) is not None:
            return
        for each in noticed:
            if each.lacking not in shown:
                self.violated(
                    "an incomplete log is noticed",
                    f"the checkpoint of partition {partition} doesn't name what {each.lacking} had lost",
                )
        for name, history in self._histories.items():
            over = history.answered or history.granted or history.skipped or history.abandoned
            if (
                self._partition_of(history.table) == partition
                and history.opened_at < noticed[-1].at
                and not (over or history.intent_lost or history.completed is not None)
                and name not in self._overlooked
            ):
                self.violated(
                    "an incomplete log is noticed", f"{name} was open, and no decision about it was published"
                )

    def check_owner(self, partition: int, term: str, agent: str) -> None:
        """Check that the take-over of a live owner is the last in the log at the end of the run."""
        last_term, at = self._terms[partition], self._taken_over_at[partition]
        if last_term != term and self._timeline.now - at > TAKEOVER_NOTICE_SECONDS:
            self.violated(
                "last take-over owns",
                f"{agent} owns partition {partition}, which another agent took over later",
            )

    def check_unknown_requests(
        self, node: Node, partition: int, requested: Iterable[str], ended: Collection[str]
    ) -> None:
        """An owner goes live. `requested`: what it has read requests of and no intent. `ended`: what it has ended."""
        for name in requested:
            history = self._histories.get(name)
            if history is None or history.answered or history.granted or name in ended:
                continue
            if self._partition_of(history.table) == partition and history.is_open():
                self.violated("requests are answered", f"{name} waits, and {node.name} does not answer it")

    def check_memory(self, node: Node, read: Iterable[Reading], limit: int) -> None:
        """Check what an agent has read against its budget: the transactions alone that it can abort don't exceed that."""
        used = 0
        for each in read:
            for name, history in self._histories.items():
                mine = (
                    self._partition_of(history.table) == each.partition and history.sequence < each.position
                )
                if mine and history.is_open() and not history.granted and name not in each.decided:
                    used += TRANSACTION_BYTES + MARKER_BYTES * history.touched_at(each.position - 1)
        if used > limit:
            self.violated(
                "the memory budget holds",
                f"what {node.name} can abort needs {used} bytes, and the budget is {limit}",
            )

    def _check_budget_abort(self, event: Abort, history: History) -> None:
        """Check that the largest transaction is aborted. The oldest one of a table counts with what has landed since."""
        others = [
            each
            for each in self._histories.values()
            if each.table == history.table and each.is_open() and each is not history and not each.granted
        ]
        oldest = all(each.admitted_at > history.admitted_at for each in others if each.admitted)
        taken = self._takeovers.get(event.term or "")
        if oldest or taken is None or event.cause_offset < taken.end:
            return  # at the end of a replay, a table may lose its whole index
        mine = history.touched_at(event.cause_offset)
        for other in others:
            theirs = other.touched_at(event.cause_offset)
            if theirs > mine + CLEARLY_MORE:
                self.violated(
                    "the memory budget holds",
                    f"{event.transaction} with {mine} markers is aborted, and another has {theirs}",
                )

    def _check_operator(self, event: DecisionEventUnion, history: History) -> None:
        """Check that the first decision after the request obeys it. If it was read in a replay, another abort may precede."""
        asked, over = history.abort_requested, history.ended is not None or history.revoked
        if asked is None or event.cause_offset < asked or over:
            return
        taken = self._takeovers.get(event.term or "")
        replayed = taken is not None and asked < taken.end
        if not isinstance(event, Abort) or (event.reason not in ("operator", "lease-lost") and not replayed):
            what = event.reason if isinstance(event, Abort) else event.type
            self.violated(
                "operators are obeyed", f"{event.transaction} gets {what} after the request to end it"
            )

    def _check_decision(self, event: DecisionEventUnion, history: History) -> None:
        name = event.transaction
        self._check_operator(event, history)
        match event:
            case Admitted():
                if history.priority > self._settings.max_priority:
                    self.violated(
                        "priorities are limited", f"{name} has priority {history.priority}, and is admitted"
                    )
                if history.other_lock:
                    self.violated("locks stay in place", f"{name} names another lock, and is admitted")
                if history.admitted or history.ended:
                    self.violated(
                        "consistent decisions", f"{name} is admitted, and was {history.ended or 'admitted'}"
                    )
                history.admitted = True
                history.touch(event.reserved, event.cause_offset)
            case CommitGranted():
                self._check_seq(event, history)
                self._check_grant(event, history)
                self._check_turn(event, history)
                history.granted = history.granted or event
            case Abort():
                self._check_abort(event, history)
            case AlreadyCommitted():
                history.skipped = True
                table = self._tables[history.table]
                if history.batch is None or table.find(history.writer, history.batch) is None:
                    self.violated(
                        "committed batch skipped", f"{name} skips batch {history.batch}, which is in no table"
                    )
            case GrantRenewed():
                self._check_seq(event, history)

    def _check_seq(self, event: CommitGranted | GrantRenewed, history: History) -> None:
        """A writer counts its lease from when it sent the `seq`, so a grant must name one that it sent."""
        if all(seq != event.seq for offset, seq in history.seqs if offset <= event.cause_offset):
            self.violated(
                "forged events change nothing",
                f"{event.transaction} gets {event.type} with seq {event.seq}, which its writer never sent",
            )

    def check_stopped(self, node: Node, table: str, partition: int, position: int, ended: set[str]) -> None:
        """An owner has just stopped a table: each transaction that it has read and that is open in the log must have an abort."""
        for name, history in self._histories.items():
            left = history.table == table and history.sequence < position and name not in ended
            if left and history.is_open():
                self.violated(
                    "an error stops one table",
                    f"{name} is open, {node.name} has stopped {table} on partition {partition} and publishes nothing about it",
                )

    def _check_forged_abort(self, event: Abort, history: History) -> None:
        """An honest writer sends no event that is refused, and only its own next intent or commit supersedes a transaction."""
        name = event.transaction
        if "memory_mb" in (event.detail or ""):
            self._check_budget_abort(event, history)
        elif event.reason == "not-allowed" and not (
            (event.detail or "").startswith(STOPPED)
            or history.priority > self._settings.max_priority
            or history.other_lock
        ):
            self.violated("forged events change nothing", f"{name} is refused: {event.detail}")
        where = (history.table, history.writer)
        later = any(
            (other.table, other.writer) == where and other.order > history.order
            for other in self._histories.values()
        )
        committed = any(batch >= (history.batch or 0) for _, batch in self._committed[where])
        if event.reason == "superseded" and not later and not committed:
            self.violated("forged events change nothing", f"{name} is superseded by nothing of its writer")
        for entry in event.conflicts:
            other = self._histories.get(entry.other_transaction)
            if other is not None and other.writer != entry.other_writer:
                continue  # a stranger's own transaction, with a used id
            mine = (entry.partition, entry.file_group) in history.touched
            theirs = other is None or any(
                partition == entry.partition and (entry.file_group in (group, "*") or group == "*")
                for partition, group in other.touched
            )
            if not (mine and theirs):
                self.violated(
                    "forged events change nothing",
                    f"{name} conflicts with {entry.other_transaction} on {entry.partition}/{entry.file_group},"
                    " which they don't share",
                )

    def _check_grant(self, event: CommitGranted, history: History) -> None:
        name = event.transaction
        taken = self._takeovers.get(event.term or "")
        if taken is not None and taken.lacking and taken.sure and history.opened_at < taken.at:
            self.violated(
                "an incomplete log is noticed",
                f"{name} is granted; it was open at the take-over by {event.agent}, which lacked records of {taken.lacking}",
            )
        if history.granted is not None:
            self.violated(
                "consistent decisions", f"{name} is granted twice: {history.granted.grant} and {event.grant}"
            )
        if history.ended is not None:
            self.violated("consistent decisions", f"{name} is granted after abort {history.ended.reason}")
        if history.requested is None or history.requested > event.cause_offset:
            self.violated("no commit without grant", f"{name} is granted without a request")
        for offset, batch in self._committed[history.table, history.writer]:
            known = offset <= event.cause_offset and self._must_know(event, history, batch, offset)
            if known and history.batch is not None and history.batch <= batch:
                self.violated(
                    "committed batch skipped",
                    f"{name} is granted batch {history.batch}; {batch} is committed",
                )

    def _check_turn(self, event: CommitGranted, history: History) -> None:
        """Each open transaction with an earlier turn must end first, unless this one's priority is larger."""
        for name, other in self._histories.items():
            earlier = other.admitted and other.admitted_at < history.admitted_at and other.is_open()
            if (
                earlier
                and history.ordered
                and other.ordered
                and other.table == history.table
                and other.priority >= history.priority
                and history.meets(other, event.cause_offset)
            ):
                self.violated(
                    "granted in turn", f"{event.transaction} is granted; {name}, admitted before it, is open"
                )

    def _must_know(self, grant: CommitGranted, history: History, batch: int, offset: int) -> bool:
        return self.ledger.must_know(grant.term, (history.table, history.writer), batch, offset)

    def _check_abort(self, event: Abort, history: History) -> None:
        name = event.transaction
        self._check_forged_abort(event, history)
        if event.reason == "unknown-transaction":
            if history.is_open():
                if not (history.intent_lost or self._may_lack(event.term)):
                    self.violated("consistent decisions", f"{name} is open, and aborted as unknown")
                elif history.granted is None:
                    history.ended = event
            return
        history.revoked = history.revoked or event.reason == "lease-lost"
        if (event.detail or "").startswith(STOPPED) and history.ended is not None:
            return  # a late event of a transaction that its owner has forgotten since
        if event.reason == "conflict" or (event.reason == "outcome-unknown" and event.conflicts):
            if history.granted is not None:
                self.violated("granted never aborted", f"{name} is granted, and aborted for a conflict")
            if history.ended is None:  # otherwise the abort is published again
                self._check_victim(event, history)
        if event.losses is not None:
            self._losses[history.table, history.writer] = (event.losses, event.cause_offset)
            self._unclear_losses.discard((history.table, history.writer))
        if history.granted is None and history.ended is None:
            history.ended = event
        elif history.ended is not None and event.reason == "outcome-unknown" and self._may_lack(event.term):
            pass  # the lapse of a grant that doesn't count
        elif history.ended is not None and history.ended.reason != event.reason:
            self.violated(
                "consistent decisions", f"{name} is aborted for {event.reason} after {history.ended.reason}"
            )
        elif event.reason == "outcome-unknown" and not event.conflicts:
            history.ended = event

    def _check_victim(self, event: Abort, history: History) -> None:
        for entry in event.conflicts:
            other = self._histories.get(entry.other_transaction)
            if other is None or other.writer != entry.other_writer:
                continue
            history.lost_to.add(entry.other_transaction)
            if event.transaction in other.lost_to:
                self.violated("one victim", f"{event.transaction} and {entry.other_transaction} both lose")
            if entry.kind == "marker" and other.granted is None:
                self._check_order(event, history, entry.other_transaction, other)

    def _check_order(self, event: Abort, history: History, name: str, other: History) -> None:
        """Check the victim by design.md §4. While it is unclear whether a writer is protected, either may lose."""
        writers = {(history.table, history.writer), (other.table, other.writer)}
        if self._lost(other) >= self._max_losses or writers & self._unclear_losses:
            return
        mine, theirs = (history.priority, -history.order), (other.priority, -other.order)
        if self._lost(history) >= self._max_losses and not self._has_committed_since(history):
            self.violated("right victim", f"{event.transaction} is protected, and loses to {name}")
        elif mine > theirs:
            self.violated("right victim", f"{event.transaction} {mine} loses to {name} {theirs}")

    def _lost(self, history: History) -> int:
        return self._losses.get((history.table, history.writer), (0, 0))[0]

    def _has_committed_since(self, history: History) -> bool:
        _, since = self._losses[history.table, history.writer]
        return any(offset >= since for offset, _ in self._committed[history.table, history.writer])

    # -- decisions ---------------------------------------------------------------------------------------------------

    def on_decision(self, node: Node, value: bytes, read_until: float | None) -> None:
        """An agent decides. Whether the decision counts is known once it is in the log.

        `read_until`: the agent claims to have read every event that was in the log at this true time (None: no claim).
        """
        event = decode(DECISION_RECORD, value)
        if isinstance(event, CommitGranted | GrantRenewed):
            until = node.clock.when(node.now() + event.lease_seconds)
            since = self._extended_since.setdefault((event.grant, event.term), self._timeline.now)
            if until - since > self._longest_grant + CLOCK_ERROR_SECONDS:
                self.violated(
                    "a hung body owns no table",
                    f"{event.transaction} has its grant for {until - since:.1f} s, at most {self._longest_grant:g} s",
                )
            key = (event.grant, event.seq)
            self._deadlines[key] = max(until, self._deadlines.get(key, 0.0))
        if isinstance(event, Abort):
            self._check_limits(node, event)
            self._check_lag(event, self._timeline.now if read_until is None else read_until)

    def _check_limits(self, node: Node, event: Abort) -> None:
        """A refusal of the store is a doubt until it lasts, and a transaction is overdue no sooner than its limit."""
        now, history = self._timeline.now, self._histories.get(event.transaction)
        if event.reason == "lock-refused":
            refusals = self._refusals
            refused = refusals is not None and refusals.node in (None, node.name.partition(".")[0])
            lasted = now - refusals.since if refusals is not None and refused else 0.0
            limit = self._settings.refusal_seconds
        elif event.reason == "timed-out" and history is not None:
            lasted, limit = now - history.opened_at, self._settings.max_transaction_seconds
        else:
            return
        if lasted < CLOCK_RATE * limit:
            self.violated(
                "limits are waited out",
                f"{event.transaction} gets {event.reason} after {lasted:.1f} s, the limit is {limit:g} s",
            )

    def _check_lag(self, event: Abort, read_until: float) -> None:
        """An abort for silence must know every event that was in the log then. A repeated abort is not judged again."""
        history = self._histories.get(event.transaction)
        lapse = event.reason == "outcome-unknown" and not event.conflicts
        if history is None or history.ended is not None or not (lapse or event.reason == "writer-lost"):
            return
        for offset, at in history.events:
            if lapse and offset != history.completed:
                continue
            if offset > event.cause_offset and at < read_until:
                old = self._timeline.now - at
                self.violated(
                    "lag loses no writer",
                    f"{event.transaction} gets {event.reason}; its event at {offset} has been in the log for {old:.3f} s",
                )
                return

    # -- grants at the writers ---------------------------------------------------------------------------------------

    def on_grant(self, transaction: str, node: Node, grant: str, until: float) -> None:
        """A writer received a grant or its extension. `until` is true time."""
        now = self._timeline.now
        history = self._histories[transaction]
        if until <= now or transaction in self._done:
            return
        latest = max((each for (name, _), each in self._deadlines.items() if name == grant), default=0.0)
        if until > latest + SAME_INSTANT:
            self.violated(
                "deadline within grant",
                f"{transaction} counts its lease {until - latest:.3f} s longer than the agent that granted",
            )
        held = self._held[history.table]
        for name, other in held.items():
            if name != transaction and other.until > now:
                self.violated(
                    "one grant",
                    f"{transaction} and {name} hold grants, the latter for {other.until - now:.3f} s",
                )
        held[transaction] = Held(node, until)
        self._check_foreign(history.table)

    def on_publish(self, transaction: str, deadline: float) -> None:
        """A writer has checked its lease and publishes now."""
        late = self._timeline.now - deadline
        if late > SAME_INSTANT:
            self.violated(
                "no commit without grant", f"{transaction} publishes {late:.3f} s after its grant's end"
            )

    def on_grant_finished(self, transaction: str) -> None:
        """The writer no longer uses the grant: it committed, or will never publish."""
        self._done.add(transaction)
        history = self._histories.get(transaction)
        if history is not None:
            self._held[history.table].pop(transaction, None)

    def on_foreign_acquired(self, table: str, node: Node, until: float) -> None:
        """A writer without an agent relies on the lock object until then."""
        self._foreign[table] = (node, until)
        self._check_foreign(table)

    def on_foreign_released(self, table: str) -> None:
        """A writer without an agent no longer relies on the lock object."""
        self._foreign.pop(table, None)

    def _check_foreign(self, table: str) -> None:
        now = self._timeline.now
        node, until = self._foreign.get(table, (None, 0.0))
        if node is None or until <= now:
            return
        for name, held in self._held[table].items():
            if held.until > now:
                self.violated(
                    "no foreign holder",
                    f"{name} has {held.until - now:.3f} s left, {node.name} holds the lock for {until - now:.3f} s",
                )

    # -- the tables --------------------------------------------------------------------------------------------------

    def on_landed(self, table: LakeTable, landed: Landed) -> None:
        """A commit landed in its table."""
        commit, now = landed.commit, self._timeline.now
        late = landed.late
        self._timeline.log(
            "table", f"{table.uri} {landed.version}: {commit.transaction}{', late' if late else ''}"
        )
        history = self._histories[commit.transaction]
        if history.granted is None:
            self.violated("no commit without grant", f"{commit.transaction} lands without a grant")
        if late and not table.fenced:
            self.windows += 1
            return
        for other in table.landed[:-1]:
            if other.late and not table.fenced:
                continue
            if other.commit.writer == commit.writer and other.commit.batch == commit.batch:
                self._twice(table, landed, other)
            elif not {commit.transaction, other.commit.transaction}.isdisjoint(self._overlooked):
                continue
            elif other.at > commit.began and conflict(
                commit.touched, commit.rule, other.commit, commit.number
            ):
                self.violated(
                    "no overlap",
                    f"{commit.transaction} began {now - commit.began:.3f} s ago, and {other.commit.transaction}"
                    f" landed {now - other.at:.3f} s ago",
                )

    def _twice(self, table: LakeTable, landed: Landed, other: Landed) -> None:
        """Judge a repeated batch. It is allowed if the table records no batches and the first commit was not reported."""
        first, again = self._histories[other.commit.transaction], self._histories[landed.commit.transaction]
        known = first.completed is not None and again.granted is not None and not first.unreported
        reported = (
            known
            and again.granted is not None
            and first.completed is not None
            and first.completed <= again.granted.cause_offset
            and self._must_know(again.granted, again, landed.commit.batch, first.completed)
        )
        if table.records_batches or reported:
            batch = landed.commit.batch
            self.violated(
                "once",
                f"batch {batch} is there by {other.commit.transaction} and {landed.commit.transaction}",
            )
        else:
            self.unknown_twice += 1
