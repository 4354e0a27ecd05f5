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
| once | a table has a batch twice in one edition, and records batches or its outcome was reported, except in the window (G6) |
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
| observed ones win | one is granted that conflicts with an observed one, open or committed since it began, or that is ended |
| editions are kept | a transaction is admitted without the edition that an operator's correction gave its writer |
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
- If a `partition-taken` is lost, decisions of the term before it count too: that is the last one that the log shows.
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

from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    WRITER_EVENT,
    Abort,
    Admitted,
    CommitGranted,
    GrantRenewed,
    LocksHandedOver,
    PartitionTaken,
    Undecodable,
    decode,
)
from lakewarden.handlers.table.footprints import MARKER_BYTES
from lakewarden.handlers.table.memory import TRANSACTION_BYTES
from tests.simulation.faults import FaultPeriod
from tests.simulation.node import Node
from tests.simulation.oracles import CLOCK_RATE, ViolationRecorder
from tests.simulation.timeline import Timeline
from tests.simulation.whole.broker import Record
from tests.simulation.whole.decision_oracles import DecisionOracles
from tests.simulation.whole.histories import Held, Reading
from tests.simulation.whole.log_knowledge import LogKnowledge
from tests.simulation.whole.scenario import FORGED, TOPICS
from tests.simulation.whole.table import LakeTable, Landed, conflict
from tests.simulation.whole.upgrade import is_unknown

TAKEOVER_NOTICE_SECONDS = 3.0
"""Without faults, an owner has noticed a later take-over of its partition after this time."""
SAME_INSTANT = 1e-6
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
        self._tables = tables
        self._writers_end: dict[int, int] = defaultdict(int)
        """By partition: the end of `writers`."""
        self.knowledge = LogKnowledge(timeline, tables, partition_of)
        self._decisions = DecisionOracles(settings, tables, self.knowledge, self.violated)
        self.windows = 0
        self._longest_grant = settings.max_grant_seconds + settings.grant_seconds
        self._extended_since: dict[tuple[str, str | None], float] = {}
        """By grant and term: when an owner decided on the grant first. An owner counts its age from its own replay."""
        self._decided: set[str] = set()
        """Event ids of all decisions."""
        self.upgraded: set[str] = set()
        """Agents of the newer version."""
        self._unknown: set[int] = set()
        """Partitions with a decision that only these know."""
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
            self.knowledge.on_ledger_record(record)

    def _on_writer_record(self, record: Record) -> None:
        event = decode(WRITER_EVENT, record.value)
        self._writers_end[record.partition] = record.offset + 1
        if FORGED.encode() in record.value or isinstance(event, Undecodable):
            self._timeline.log("log", f"writers-{record.partition} {record.offset}: forged")
            return
        self._timeline.log(
            "log", f"writers-{record.partition} {record.offset}: {event.type} {event.transaction}"
        )
        self.knowledge.on_writer_event(event, record)

    def _on_decision_record(self, record: Record) -> None:
        event = decode(DECISION_RECORD, record.value)
        if isinstance(event, Undecodable):
            assert is_unknown(record.value)
            self._unknown.add(record.partition)
            self._timeline.log("log", f"decisions-{record.partition} {record.offset}: of a newer version")
            return
        if isinstance(event, PartitionTaken):
            self.knowledge.on_taken(event.term, record)
            self._timeline.log("log", f"decisions-{record.partition} {record.offset}: taken by {event.agent}")
            return
        if isinstance(event, LocksHandedOver):
            locks = ", ".join(f"{each.table} as {each.owner}" for each in event.locks)
            self._timeline.log(
                "log", f"decisions-{record.partition} {record.offset}: {event.agent} hands over {locks}"
            )
            return
        counted = self.knowledge.counts(record.partition, event.term)
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
        history = self.knowledge.histories.get(event.transaction)
        if self.knowledge.partition_of(event.table) != record.partition and event.table in self._tables:
            if not (isinstance(event, Abort) and event.reason == "not-allowed"):
                self.violated(
                    "one partition per table",
                    f"{event.agent} decides {event.type} of {event.transaction} in partition {record.partition}",
                )
            return
        resent = event.event_id in self._decided and record.partition in self.knowledge.lost_at
        self._decided.add(event.event_id)
        if resent and isinstance(event, Admitted | CommitGranted):
            return
        if counted and history is not None and (event.table, event.writer) == (history.table, history.writer):
            if isinstance(event, CommitGranted) and history.granted_at is None:
                history.granted_at = record.offset
            if isinstance(event, Admitted) and not history.admitted:
                history.admitted_at = record.offset
                history.begins_at = self._writers_end[record.partition]
            ended = history.ended
            self._decisions.check(event, history)
            if history.observed and history.ended is not ended and history.gone_at is None:
                history.gone_at = self._writers_end[record.partition]
            if history.ended is not ended:
                history.ended_at, history.answered = record.offset, True

    # -- lost records ------------------------------------------------------------------------------------------------

    def check_incomplete(self, partition: int, shown: Collection[str]) -> None:
        """Check at the end what followed from a loss. `shown`: the topics of which the checkpoint names a gap."""
        taken = [each for each in self.knowledge.takeovers.values() if each.partition == partition]
        noticed = [each for each in taken if each.sure and each.lacking is not None]
        if not noticed or self.knowledge.lacking(partition) is not None:
            return
        for each in noticed:
            if each.lacking not in shown:
                self.violated(
                    "an incomplete log is noticed",
                    f"the checkpoint of partition {partition} doesn't name what {each.lacking} had lost",
                )
        for name, history in self.knowledge.histories.items():
            over = history.answered or history.granted or history.skipped or history.abandoned
            if (
                self.knowledge.partition_of(history.table) == partition
                and history.opened_at < noticed[-1].at
                and not (over or history.intent_lost or history.completed is not None)
                and name not in self.knowledge.overlooked
            ):
                self.violated(
                    "an incomplete log is noticed", f"{name} was open, and no decision about it was published"
                )

    def check_owner(self, partition: int, term: str, node: Node) -> None:
        """Check at the end that the take-over of a live owner is the last in the log, if it has had time to read it."""
        last_term = self.knowledge.terms[partition]
        readable_at = max(self.knowledge.taken_over_at[partition], node.running_since)
        if last_term != term and self._timeline.now - readable_at > TAKEOVER_NOTICE_SECONDS:
            self.violated(
                "last take-over owns",
                f"{node.name} owns partition {partition}, which another agent took over later",
            )

    def check_unknown_requests(
        self, node: Node, partition: int, requested: Iterable[str], ended: Collection[str]
    ) -> None:
        """An owner goes live. `requested`: what it has read requests of and no intent. `ended`: what it has ended."""
        for name in requested:
            history = self.knowledge.histories.get(name)
            if history is None or history.answered or history.granted or name in ended:
                continue
            if self.knowledge.partition_of(history.table) == partition and history.is_open():
                self.violated("requests are answered", f"{name} waits, and {node.name} does not answer it")

    def check_memory(self, node: Node, read: Iterable[Reading], limit: int) -> None:
        """Check what an agent has read against its budget: the transactions alone that it can abort don't exceed that."""
        used = 0
        for each in read:
            for name, history in self.knowledge.histories.items():
                mine = (
                    self.knowledge.partition_of(history.table) == each.partition
                    and history.sequence < each.position
                )
                if mine and history.is_open() and not history.granted and name not in each.decided:
                    used += TRANSACTION_BYTES + MARKER_BYTES * history.touched_at(each.position - 1)
        if used > limit:
            self.violated(
                "the memory budget holds",
                f"what {node.name} can abort needs {used} bytes, and the budget is {limit}",
            )

    def check_stopped(self, node: Node, table: str, partition: int, position: int, ended: set[str]) -> None:
        """An owner has just stopped a table: each transaction that it has read and that is open in the log must have an abort."""
        for name, history in self.knowledge.histories.items():
            left = history.table == table and history.sequence < position and name not in ended
            if left and history.is_open():
                self.violated(
                    "an error stops one table",
                    f"{name} is open, {node.name} has stopped {table} on partition {partition} and publishes nothing about it",
                )

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
        now, history = self._timeline.now, self.knowledge.histories.get(event.transaction)
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
        history = self.knowledge.histories.get(event.transaction)
        lapse = event.reason == "outcome-unknown" and not event.conflicts
        if history is None or history.ended is not None or not (lapse or event.reason == "writer-lost"):
            return
        for offset, at in history.events:
            if lapse and offset != history.completed and not history.observed:
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
        history = self.knowledge.histories[transaction]
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
        history = self.knowledge.histories.get(transaction)
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
        if not commit.watched and self.knowledge.histories[commit.transaction].granted is None:
            self.violated("no commit without grant", f"{commit.transaction} lands without a grant")
        if late and not table.fenced:
            self.windows += 1
            return
        for other in table.landed[:-1]:
            if other.late and not table.fenced:
                continue
            if all(
                getattr(other.commit, each) == getattr(commit, each)
                for each in ("writer", "batch", "edition")
            ):
                self._twice(table, landed, other)
            elif not {commit.transaction, other.commit.transaction}.isdisjoint(self.knowledge.overlooked):
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
        first, again = (
            self.knowledge.histories[other.commit.transaction],
            self.knowledge.histories[landed.commit.transaction],
        )
        reported = (
            not first.unreported
            and again.granted is not None
            and first.completed is not None
            and first.completed <= again.granted.cause_offset
            and self.knowledge.must_know(again.granted, again, landed.commit.batch, first.completed)
        )
        if table.records_batches or reported:
            batch = landed.commit.batch
            self.violated(
                "once",
                f"batch {batch} is there by {other.commit.transaction} and {landed.commit.transaction}",
            )
