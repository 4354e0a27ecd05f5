"""Bugs that prove the oracles. Each is planted at one seam, and its oracle must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import ANY

from lakewarden.agent.locks.table_locks import TableLocks
from lakewarden.agent.serving import takeover
from lakewarden.agent.serving.checkpoint import Checkpoint, digest
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition import log_seen
from lakewarden.agent.serving.partition import owner as owner_module
from lakewarden.agent.serving.partition import replay as replay_module
from lakewarden.agent.serving.partition import tables as tables_module
from lakewarden.agent.serving.partition.log_seen import LogSeen
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.partition.replay import Replay
from lakewarden.agent.serving.partition.stopped_tables import StoppedTables
from lakewarden.agent.serving.partition.tables import Tables
from lakewarden.agent.serving.periodic_check import PeriodicCheck
from lakewarden.agent.serving.session import KafkaSession
from lakewarden.events import (
    BatchCommitted,
    CommitCompleted,
    CommitIntent,
    DecisionEvent,
    DecisionEventUnion,
    EventBase,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.group.ownership import TakeOvers
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import Refused
from lakewarden.handlers.lease.machine import LeaseSettings, LockDenied, Moment, Work
from lakewarden.handlers.lease.placement import LockLocation
from lakewarden.handlers.lease.types import Step
from lakewarden.handlers.table import admission, detection, facts, grants, liveness, memory
from lakewarden.handlers.table import machine as table
from lakewarden.handlers.table import replay as replay_rules
from lakewarden.handlers.table.conflicts import conflicting, loser_of, touches_conflict
from lakewarden.handlers.table.footprints import Footprints, Overlap
from lakewarden.handlers.table.ledger import CommittedBatch
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.log_gaps import LastRecord
from lakewarden.handlers.table.machine import EventRead, Input, step
from lakewarden.handlers.table.replay import Position, Subject
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, Closed, Phase, Touch, Transaction
from lakewarden.spark_jobs.gate.grant_deadline import SendTimes
from lakewarden.spark_jobs.gate.progress import GateProgress
from tests.simulation.batch import Bugs, Patch
from tests.simulation.whole import writers
from tests.simulation.whole.processes import current_process
from tests.simulation.whole.table import Commit, LakeTable

BUGS = Bugs()


@BUGS.plant("terms ignored", "no commit without grant", kind="suspended after grant")
def _terms_ignored() -> list[Patch]:
    """Decisions of an agent that was replaced don't count."""

    def any_decision(_: DecisionEvent, __: str | None) -> bool:
        return True

    return [(replay_rules, "counts", any_decision), (writers, "counts", any_decision)]


@BUGS.plant("observed ones ignored", "observed ones win", addition="watched")
def _observed_ones_ignored() -> list[Patch]:
    """A transaction that conflicts with an observed one is aborted."""

    def of_the_gate(mine: Touch, other: Touch) -> bool:
        observed = mine.transaction.observed or other.transaction.observed
        return not observed and touches_conflict(mine, other)

    return _conflicting_if(of_the_gate)


def _conflicting_if(conflict: Callable[[Touch, Touch], bool]) -> list[Patch]:
    def some(overlaps: Iterable[Overlap]) -> list[Overlap]:
        return [each for each in overlaps if conflict(each.mine, each.other)]

    return [(detection, "conflicting", some), (detection, "touches_conflict", conflict)]


@BUGS.plant("unfenced publish", "no overlap", kind="suspended before publish")
def _unfenced_publish() -> list[Patch]:
    """A fenced publish lands only on the snapshot that its writer looked at."""
    land = LakeTable.publish

    def unfenced(self: LakeTable, commit: Commit, _: int | None, now: float) -> int | None:
        return land(self, commit, None, now)

    return [(LakeTable, "publish", unfenced), (LakeTable, "unchanged", lambda *_: True)]


@BUGS.plant("deadline not checked", "no commit without grant")
def _deadline_not_checked() -> list[Patch]:
    """A writer checks its lease right before it publishes."""
    return [(GateProgress, "_expired", staticmethod(lambda *_: None))]


@BUGS.plant("lease counted from the grant", "deadline within grant")
def _lease_counted_from_grant() -> list[Patch]:
    """A writer counts the lease from when it sent the `seq`."""

    def from_grant(self: SendTimes, _: int, lease_seconds: float) -> float:
        return current_process().node.now() + lease_seconds - self.margin_seconds

    return [(SendTimes, "deadline", from_grant)]


@BUGS.plant("asymmetric victim rule", "right victim")
def _asymmetric_victim_rule() -> list[Patch]:
    """The victim doesn't depend on which marker arrives last."""

    def arriving_loses(
        mine: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
    ) -> Transaction | None:
        loser = loser_of(mine, other, losses, max_losses)
        alive = other.phase in COMPUTING - {Phase.GRANTED} and mine.phase is not Phase.GRANTED
        return mine if alive and loser is not None else loser

    return [(detection, "loser_of", arriving_loses)]


@BUGS.plant("both aborted", "one victim")
def _both_aborted() -> list[Patch]:
    """A batch of markers that loses aborts no other transaction."""
    judge = detection.judge_markers

    def judging(context: StepContext, transaction: Transaction, overlaps: Iterable[Overlap]) -> None:
        met = list(overlaps)
        conflicts = conflicting(met)
        judge(context, transaction, met)
        for each in conflicts:
            other = each.other.transaction
            if transaction.phase is Phase.ABORTED and other.phase in (Phase.ACTIVE, Phase.WAITING):
                detection._abort_victim(context, other, [each.flipped()])

    return [(table, "judge_markers", judging)]


@BUGS.plant("granted may be a victim", "granted never aborted")
def _granted_may_be_victim() -> list[Patch]:
    """A granted transaction is never a victim."""

    def granted_loses(
        mine: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
    ) -> Transaction | None:
        if other.phase is Phase.GRANTED and mine.sequence < other.sequence:
            return other
        return loser_of(mine, other, losses, max_losses)

    def abort_others(context: StepContext, conflicts: list[Overlap]) -> None:
        for against in detection._group_by_other(conflicts):
            if against[0].other.transaction.phase in COMPUTING:
                detection._abort_victim(
                    context, against[0].other.transaction, [each.flipped() for each in against]
                )

    return [(detection, "loser_of", granted_loses), (detection, "_abort_losers", abort_others)]


@BUGS.plant("landed commits ignored", "no overlap")
def _landed_commits_ignored() -> list[Patch]:
    """A commit that landed since a transaction began conflicts with it."""

    def alive(mine: Touch, other: Touch) -> bool:
        return other.transaction.phase not in LANDED and touches_conflict(mine, other)

    return [*_conflicting_if(alive), (detection, "judge_landing", lambda *_: None)]


@BUGS.plant("decisions during replay", "replay matches")
def _decisions_during_replay() -> list[Patch]:
    """Nothing is decided during a replay."""

    def deciding_replay(state: TableState, event: WriterEventUnion, offset: int, now: float) -> None:
        step(state, EventRead(event, offset, now, now))

    return [(replay_module, "replay_event", deciding_replay)]


@BUGS.plant("published decisions ignored", "consistent decisions")
def _published_decisions_ignored() -> list[Patch]:
    """A published decision is a fact for later owners."""
    return [(replay_module, "decisions_in", lambda *_: ())]


@BUGS.plant("take-overs ignored", "last take-over owns", kind="take-overs reordered")
def _takeovers_ignored() -> list[Patch]:
    """An owner whose partition was taken over later restarts its session."""
    return [(PartitionOwner, "replaced", False)]


@BUGS.plant("expiry while lagging", "lag loses no writer")
def _expiry_while_lagging() -> list[Patch]:
    """Silence counts only while the agent has read the whole log."""
    silent, lapse = liveness.abort_silent_writers, grants.publish_lapse

    def hasty(context: StepContext, caught_up: CaughtUp | None) -> None:
        silent(context, caught_up or CaughtUp(0.0, context.now))

    def early_lapse(context: StepContext, caught_up: CaughtUp | None) -> None:
        lapse(context, caught_up or CaughtUp(0.0, context.now))

    return [(table, "abort_silent_writers", hasty), (table, "publish_lapse", early_lapse)]


@BUGS.plant("lapse too early", "one grant")
def _lapse_too_early() -> list[Patch]:
    """Nothing is granted before the running grant's end."""
    lapse = grants.publish_lapse

    def early(context: StepContext, caught_up: CaughtUp | None) -> None:
        running = context.state.running()
        if running is not None and running.grant is not None:
            running.grant.deadline -= 4.0
        lapse(context, caught_up)
        if running is not None and running.grant is not None:
            running.grant.deadline += 4.0

    return [(table, "publish_lapse", early)]


@BUGS.plant("grant without lock", "no foreign holder")
def _grant_without_lock() -> list[Patch]:
    """A grant needs the lock."""
    grant = grants.grant_next

    def hasty(context: StepContext) -> None:
        state = context.state
        state.lock = state.lock or LockView("no-owner", context.now + 60.0, 0.0)
        grant(context)

    return [(table, "grant_next", hasty)]


@BUGS.plant("ledger ignored", "committed batch skipped")
def _ledger_ignored() -> list[Patch]:
    """A batch in the ledger is skipped."""
    return [(admission, "_already_committed", lambda *_: False)]


@BUGS.plant("turns ignored", "granted in turn", addition="ordered")
def _turns_ignored() -> list[Patch]:
    """An `ordered` transaction waits for those with earlier turns."""
    return [(grants, "earlier_turns", lambda *_: iter(()))]


@BUGS.plant("table not queried", "once")
def _table_not_queried() -> list[Patch]:
    """A batch that the table contains is not written again."""
    return [(LakeTable, "look_up_batch", lambda *_: None)]


@BUGS.plant("queue never moves", "every batch commits")
def _queue_never_moves() -> list[Patch]:
    """A queued transaction is admitted when nothing ahead overlaps it."""

    def waits_for_itself(_: TableState, transaction: Transaction, **_more: bool) -> Iterator[Transaction]:
        return iter([transaction] if transaction.admission == "queued" else [])

    return [(admission, "blockers", waits_for_itself)]


@BUGS.plant("index leaks", "no crash")
def _index_leaks() -> list[Patch]:
    """The index and the transactions agree."""
    remove = Footprints.remove

    def leaking(self: Footprints, transaction: Transaction) -> None:
        if transaction.markers != 1:
            remove(self, transaction)

    return [(Footprints, "remove", leaking)]


def _ignoring(trusting: Callable[[WriterEventUnion, Transaction | Closed], WriterEventUnion]) -> list[Patch]:
    why = facts.why_ignored

    def why_ignored(state: TableState, event: WriterEventUnion) -> str | None:
        known = state.transactions.get(event.transaction) or state.closed.get(event.transaction)
        return why(state, event if known is None else trusting(event, known))

    return [(facts, "why_ignored", why_ignored), (table, "why_ignored", why_ignored)]


@BUGS.plant("strangers believed", "forged events change nothing", addition="strangers")
def _strangers_believed() -> list[Patch]:
    """An event counts only for its own writer's transaction."""
    return _ignoring(lambda event, known: event.model_copy(update={"writer": known.writer}))


@BUGS.plant("any grant completes", "committed batch skipped", addition="strangers")
def _any_grant_completes() -> list[Patch]:
    """A completion counts only with a grant of its transaction."""

    def as_a_heartbeat(event: WriterEventUnion, known: Transaction | Closed) -> WriterEventUnion:
        """Of a heartbeat, only the writer is checked."""
        if not isinstance(event, CommitCompleted):
            return event
        common = event.model_dump(include=set(EventBase.model_fields))
        return WriterHeartbeat(**common, seq=0)

    return _ignoring(as_a_heartbeat)


@BUGS.plant("decisions of other tables believed", "no commit without grant", addition="strangers")
def _decisions_of_other_tables_believed() -> list[Patch]:
    """A decision counts only for its own table and writer."""
    return [(GateProgress, "_concerns", lambda *_: True)]


@BUGS.plant("grants extended for ever", "a hung body owns no table", addition="hangs")
def _grants_extended_for_ever() -> list[Patch]:
    """No grant is extended beyond `max_grant_seconds`."""
    extend = grants.extend_grant

    def young(context: StepContext, transaction: Transaction) -> None:
        if transaction.grant is not None:
            transaction.grant.since = context.now
        extend(context, transaction)

    return [(table, "extend_grant", young)]


@BUGS.plant("a refusal is final", "limits are waited out", addition="refusals")
def _a_refusal_is_final() -> list[Patch]:
    """A refusal of the store is a doubt until it lasts."""

    def final(work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
        return lease._retry(work, at, settings), (LockDenied(refused.why, "refused-too-long", work.cost),)

    return [(lease, "_on_refused", final)]


@BUGS.plant("open without limit", "every batch commits", addition="hung_bodies")
def _open_without_limit() -> list[Patch]:
    """A transaction that is open for longer than `max_transaction_seconds` is aborted."""
    return [(table, "abort_overdue", lambda _: None)]


@BUGS.plant("aborts matched by id", "replay matches", addition="used_ids")
def _aborts_matched_by_id() -> list[Patch]:
    """A replay matches decisions by table, transaction and writer."""

    def by_id(event: WriterEventUnion | DecisionEventUnion) -> Subject:
        return "", event.transaction, ""

    return [(replay_module, "subject", by_id), (memory, "subject", by_id)]


@BUGS.plant("an incomplete log not noticed", "an incomplete log is noticed", addition="losses")
def _an_incomplete_log_not_noticed() -> list[Patch]:
    """A take-over compares the log with the checkpoint."""
    return [(takeover, "find_gap", lambda *_: None), (log_seen, "missing_events", lambda *_: None)]


@BUGS.plant("gaps not shown", "an incomplete log is noticed", addition="losses")
def _gaps_not_shown() -> list[Patch]:
    """The checkpoints name the gaps that were found."""
    checkpoint = LogSeen.checkpoint

    def without_gaps(self: LogSeen, offset: int, decisions: Position) -> Checkpoint:
        return replace(checkpoint(self, offset, decisions), gaps=())

    return [(LogSeen, "checkpoint", without_gaps)]


@BUGS.plant("a lost ledger not noticed", "an incomplete log is noticed", addition="checkpoints_restored")
def _a_lost_ledger_not_noticed() -> list[Patch]:
    """An owner compares the ledger with what it has recorded."""

    def nothing(self: LogSeen, value: bytes, offset: int) -> None:
        self._entry, self.ledger_end = LastRecord(offset, digest(value)), 0

    return [(takeover, "find_ledger_gap", lambda *_: None), (LogSeen, "on_ledger_entry", nothing)]


@BUGS.plant("a lost ledger not restored", "an incomplete log is noticed", addition="checkpoints_restored")
def _a_lost_ledger_not_restored() -> list[Patch]:
    """Entries that an owner knows are recorded again after their loss."""

    async def forget(_: KafkaSession, __: float) -> float:
        return 0.0

    return [(KafkaSession, "_restore_ledgers", forget)]


@BUGS.plant("a lost decision forgotten", "replay matches", addition="losses")
def _a_lost_decision_forgotten() -> list[Patch]:
    """The last checkpoint of a session names the decision that was lost meanwhile."""

    def forget(self: LogSeen, value: bytes, offset: int) -> None:
        if offset < self.decisions_end:
            self.cut = "lost records"
        self.decisions_end = max(self.decisions_end, offset + 1)
        self._published = LastRecord(offset, digest(value))

    return [(LogSeen, "on_decision", forget)]


@BUGS.plant("a deleted topic not noticed", "every batch commits", addition="deletion")
def _a_deleted_topic_not_noticed() -> list[Patch]:
    """A session ends when its topic doesn't exist any more."""

    async def nothing(_: PeriodicCheck) -> None:
        return

    return [(PeriodicCheck, "_require_topic", nothing)]


@BUGS.plant("offsets of a deleted topic believed", "committed batch skipped", addition="deletion")
def _offsets_of_a_deleted_topic_believed() -> list[Patch]:
    """A take-over compares the ledger's corrections with the log."""
    return [(takeover, "find_correction_gap", lambda *_: None)]


@BUGS.plant("an edition not recorded", "editions are kept", addition="editions")
def _an_edition_not_recorded() -> list[Patch]:
    """The ledger keeps a writer's edition for the next owner."""
    to_entry = CommittedBatch.to_entry

    def without(self: CommittedBatch, table: str, writer: str) -> BatchCommitted:
        return to_entry(self, table, writer).model_copy(update={"edition": None})

    return [(CommittedBatch, "to_entry", without)]


@BUGS.plant("misplaced events accepted", "one partition per table", addition="misplaced")
def _misplaced_events_accepted() -> list[Patch]:
    """An event counts only in the partition of its table."""
    return [(tables_module, "partition_of", lambda *_: ANY)]


@BUGS.plant("a kept partition goes on", "replay matches", addition="suspensions_before_resume")
def _a_kept_partition_goes_on() -> list[Patch]:
    """An owner whose partition another agent took meanwhile doesn't resume."""

    def unless_unread(takeovers: TakeOvers, read_until: int) -> Literal["yes", "unknown yet"]:
        if takeovers.again < 0 or read_until <= takeovers.again:
            return "unknown yet"
        takeovers.others = -1
        return "yes"

    return [(owner_module, "may_resume", unless_unread)]


@BUGS.plant("an error ends the session", "an error stops one table", addition="errors")
def _an_error_ends_the_session() -> list[Patch]:
    """An unexpected exception concerns one table."""

    def failing(_: Tables, __: str, error: Exception, *___: object) -> None:
        raise error

    return [(Tables, "stop", failing)]


@BUGS.plant("writers of a stopped table not answered", "an error stops one table", addition="errors")
def _writers_of_a_stopped_table_not_told() -> list[Patch]:
    """A stopped table's open transactions are aborted."""
    return [(StoppedTables, "abort_open", lambda *_, **__: [])]


@BUGS.plant("requests in a replay not answered", "requests are answered", addition="losses")
def _requests_in_a_replay_not_answered() -> list[Patch]:
    """A request that was published while no agent ran gets its answer."""
    return [(table, "_answer_unknown_requests", lambda _: None)]


@BUGS.plant("operators ignored", "operators are obeyed", addition="operators")
def _operators_ignored() -> list[Patch]:
    """An operator's request ends a transaction, or the extension of its grant."""
    return [(table, "abort_as_requested", lambda _: None)]


@BUGS.plant("budget ignored", "the memory budget holds", addition="memory_mb")
def _budget_ignored() -> list[Patch]:
    """At the agent's memory budget, open transactions are aborted."""
    return [(MemoryBudget, "enforce", lambda _: None)]


@BUGS.plant("small transactions aborted", "the memory budget holds", addition="memory_mb")
def _small_transactions_aborted() -> list[Patch]:
    """The largest open transaction is aborted first."""

    def smallest(state: TableState) -> memory.Excess | None:
        open_ = [each for each in state.open() if each.phase is not Phase.GRANTED]
        found = min(open_, key=lambda each: each.bytes, default=None)
        return None if found is None else memory.Excess(memory._bytes(found), found.id)

    return [(memory, "largest_transaction", smallest)]


@BUGS.plant("any priority accepted", "priorities are limited", addition="refused_intents")
def _any_priority_accepted() -> list[Patch]:
    """An intent with a priority above `max_priority` is refused."""
    return [(admission, "_refuse_priority", lambda *_: None)]


@BUGS.plant("another lock accepted", "locks stay in place", addition="refused_intents")
def _another_lock_accepted() -> list[Patch]:
    """The lock that an intent names is compared with the table's."""
    return [(admission, "_names_another_lock", lambda *_: False)]


@BUGS.plant("the named lock obeyed", "locks stay in place", addition="refused_intents")
def _the_named_lock_obeyed() -> list[Patch]:
    """A table's lock doesn't move because an intent names another one."""
    step_table = Tables.step

    def obeying(self: Tables, uri: str, step_input: Input) -> None:
        event = step_input.event if isinstance(step_input, EventRead) else None
        if isinstance(event, CommitIntent) and event.lock is not None:
            self.locks._locations[uri] = LockLocation(event.lock, shared=False)
        step_table(self, uri, step_input)

    return [(Tables, "step", obeying)]


@BUGS.plant("newer decisions skipped", "newer decisions are refused", addition="rolled_back")
def _newer_decisions_skipped() -> list[Patch]:
    """An agent refuses a partition with a decision that it doesn't know."""
    return [(Replay, "_on_newer_decision", lambda *_: None)]


@BUGS.plant("any owner fenced", "no foreign holder")
def _any_owner_fenced() -> list[Patch]:
    """Only a former owner's lock is taken over at once, and its owner id shows the term."""
    of_table = TableLocks._lease

    def greedy(self: TableLocks, uri: str, place: LockLocation) -> LeaseSettings:
        return replace(of_table(self, uri, place), fenced=("",))

    return [(TableLocks, "_lease", greedy)]


@BUGS.plant("decisions read before the term", "consistent decisions")
def _decisions_read_before_the_term() -> list[Patch]:
    """An owner reads `decisions` after its `partition-taken` is in the log."""
    read = Replay.read_decisions

    def early(self: Replay, start: Position, records: Iterable[Any]) -> None:
        """Without what was published in the second before the owner's own `partition-taken`."""
        records = list(records)
        own = next((each for each in records if self._records.term.encode() in each.value), None)
        if own is not None:
            records = [each for each in records if each.offset >= own.offset or each.at < own.at - 1.0]
        read(self, start, records)

    return [(Replay, "read_decisions", early)]
