"""Bugs that prove the oracles. Each is planted at one seam, and its oracle must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import ANY

from lakewarden import events
from lakewarden.agent.locks.table_locks import TableLocks
from lakewarden.agent.serving import takeover
from lakewarden.agent.serving.checkpoint import Checkpoint, digest
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition import (
    log_seen,
    owner as owner_module,
    replay as replay_module,
    tables as tables_module,
)
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
from lakewarden.handlers.table import admission, detection, facts, grants, machine as table, memory
from lakewarden.handlers.table.conflicts import conflicting, touches_conflict
from lakewarden.handlers.table.footprints import Footprints, Overlap
from lakewarden.handlers.table.ledger import CommittedBatch
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.log_gaps import LastRecord
from lakewarden.handlers.table.machine import EventRead, Input, step
from lakewarden.handlers.table.replay import Position, Subject
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, Closed, Phase, Touch, Transaction
from lakewarden.spark_jobs.gate.grant import SendTimes
from lakewarden.spark_jobs.gate.progress import GateProgress
from tests.simulation.batch import Bugs, Patch, around
from tests.simulation.whole import writers
from tests.simulation.whole.processes import current_process
from tests.simulation.whole.table import LakeTable

BUGS = Bugs()


def _conflicting_if(conflict: Callable[[Touch, Touch], bool]) -> list[Patch]:
    def some(overlaps: Iterable[Overlap]) -> list[Overlap]:
        return [each for each in overlaps if conflict(each.mine, each.other)]

    return [(detection, "conflicting", some), (detection, "touches_conflict", conflict)]


def _of_the_gate(mine: Touch, other: Touch) -> bool:
    observed = mine.transaction.observed or other.transaction.observed
    return not observed and touches_conflict(mine, other)


def _any_decision(_: DecisionEvent, __: str | None) -> bool:
    return True


# Decisions of an agent that was replaced don't count.
BUGS.add(
    "terms ignored",
    "no commit without grant",
    (events, "counts", _any_decision),
    (writers, "counts", _any_decision),
    kind="suspended after grant",
)
# A transaction that conflicts with an observed one is aborted.
BUGS.add("observed ones ignored", "observed ones win", *_conflicting_if(_of_the_gate), addition="watched")
# A fenced publish lands only on the snapshot that its writer looked at.
BUGS.add(
    "unfenced publish",
    "no overlap",
    around(LakeTable, "publish", lambda land, self, commit, _, now: land(self, commit, None, now)),
    (LakeTable, "unchanged", lambda *_: True),
    kind="suspended before publish",
)
# A published decision is a fact for later owners.
BUGS.skip("published decisions ignored", "consistent decisions", replay_module, "decisions_in", ())
# An owner whose partition was taken over later restarts its session.
BUGS.add(
    "take-overs ignored",
    "last take-over owns",
    (PartitionOwner, "replaced", False),
    kind="take-overs reordered",
)
# An `ordered` transaction waits for those with earlier turns.
BUGS.skip("turns ignored", "granted in turn", grants, "earlier_turns", iter(()), addition="ordered")
# A batch that the table contains is not written again.
BUGS.skip("table not queried", "once", LakeTable, "look_up_batch")
# A decision counts only for its own table and writer.
BUGS.skip(
    "decisions of other tables believed",
    "no commit without grant",
    GateProgress,
    "_concerns",
    result=True,
    addition="strangers",
)
# A transaction that is open for longer than `max_transaction_seconds` is aborted.
BUGS.skip("open without limit", "every batch commits", table, "abort_overdue", addition="hung_bodies")
# A take-over compares the log with the checkpoint.
BUGS.add(
    "an incomplete log not noticed",
    "an incomplete log is noticed",
    (takeover, "find_gap", lambda *_: None),
    (log_seen, "missing_events", lambda *_: None),
    addition="losses",
)
# A take-over compares the ledger's corrections with the log.
BUGS.skip(
    "offsets of a deleted topic believed",
    "committed batch skipped",
    takeover,
    "find_correction_gap",
    addition="deletion",
)
# An event counts only in the partition of its table.
BUGS.skip(
    "misplaced events accepted",
    "one partition per table",
    tables_module,
    "partition_of",
    ANY,
    addition="misplaced",
)
# A stopped table's open transactions are aborted.
BUGS.skip(
    "writers of a stopped table not answered",
    "an error stops one table",
    StoppedTables,
    "abort_open",
    (),
    addition="errors",
)
# A request that was published while no agent ran gets its answer.
BUGS.skip(
    "requests in a replay not answered",
    "requests are answered",
    table,
    "_answer_unknown_requests",
    addition="losses",
)
# An operator's request ends a transaction, or the extension of its grant.
BUGS.skip("operators ignored", "operators are obeyed", table, "abort_as_requested", addition="operators")
# At the agent's memory budget, open transactions are aborted.
BUGS.skip("budget ignored", "the memory budget holds", MemoryBudget, "enforce", addition="memory_mb")
# An intent with a priority above `max_priority` is refused.
BUGS.skip(
    "any priority accepted",
    "priorities are limited",
    admission,
    "_refuse_priority",
    addition="refused_intents",
)
# The lock that an intent names is compared with the table's.
BUGS.skip(
    "another lock accepted",
    "locks stay in place",
    admission,
    "_names_another_lock",
    result=False,
    addition="refused_intents",
)
# An agent refuses a partition with a decision that it doesn't know.
BUGS.skip(
    "newer decisions skipped",
    "newer decisions are refused",
    Replay,
    "_on_newer_decision",
    addition="rolled_back",
)


@BUGS.plant("lease counted from the grant", "deadline within grant", SendTimes, "deadline")
def _lease_counted_from_grant(_: object, self: SendTimes, __: int, lease_seconds: float) -> float:
    """A writer counts the lease from when it sent the `seq`."""
    return current_process().node.now() + lease_seconds - self.margin_seconds


@BUGS.plant("asymmetric victim rule", "right victim", detection, "loser_of")
def _asymmetric_victim_rule(
    loser_of: Callable[..., Transaction | None], mine: Transaction, other: Transaction, *rest: Any
) -> Transaction | None:
    """The victim doesn't depend on which marker arrives last."""
    loser = loser_of(mine, other, *rest)
    alive = other.phase in COMPUTING - {Phase.GRANTED} and mine.phase is not Phase.GRANTED
    return mine if alive and loser is not None else loser


@BUGS.plant("both aborted", "one victim", table, "judge_markers")
def _both_aborted(
    judge: Callable[..., None], context: StepContext, transaction: Transaction, overlaps: Iterable[Overlap]
) -> None:
    """A batch of markers that loses aborts no other transaction."""
    met = list(overlaps)
    conflicts = conflicting(met)
    judge(context, transaction, met)
    for each in conflicts:
        other = each.other.transaction
        if transaction.phase is Phase.ABORTED and other.phase in (Phase.ACTIVE, Phase.WAITING):
            detection._abort_victim(context, other, [each.flipped()])


def _granted_loses(
    loser_of: Callable[..., Transaction | None], mine: Transaction, other: Transaction, *rest: Any
) -> Transaction | None:
    if other.phase is Phase.GRANTED and mine.sequence < other.sequence:
        return other
    return loser_of(mine, other, *rest)


def _abort_others(context: StepContext, conflicts: list[Overlap]) -> None:
    for against in detection._group_by_other(conflicts):
        victim = against[0].other.transaction
        if victim.phase in COMPUTING:
            detection._abort_victim(context, victim, [each.flipped() for each in against])


# A granted transaction is never a victim.
BUGS.add(
    "granted may be a victim",
    "granted never aborted",
    around(detection, "loser_of", _granted_loses),
    (detection, "_abort_losers", _abort_others),
)


@BUGS.plant("decisions during replay", "replay matches", replay_module, "replay_event")
def _decisions_during_replay(
    _: object, state: TableState, event: WriterEventUnion, offset: int, now: float
) -> None:
    """Nothing is decided during a replay."""
    step(state, EventRead(event, offset, now, now))


def _hasty(timeout: Callable[..., None], context: StepContext, caught_up: CaughtUp | None) -> None:
    timeout(context, caught_up or CaughtUp(0.0, context.now))


# Silence counts only while the agent has read the whole log.
BUGS.add(
    "expiry while lagging",
    "lag loses no writer",
    around(table, "abort_silent_writers", _hasty),
    around(table, "publish_lapse", _hasty),
)


@BUGS.plant("lapse too early", "one grant", table, "publish_lapse")
def _lapse_too_early(lapse: Callable[..., None], context: StepContext, caught_up: CaughtUp | None) -> None:
    """Nothing is granted before the running grant's end."""
    running = context.state.running()
    if running is not None and running.grant is not None:
        running.grant.deadline -= 4.0
    lapse(context, caught_up)
    if running is not None and running.grant is not None:
        running.grant.deadline += 4.0


@BUGS.plant("index leaks", "no crash", Footprints, "remove")
def _index_leaks(remove: Callable[..., None], self: Footprints, transaction: Transaction) -> None:
    """The index and the transactions agree."""
    if transaction.markers != 1:
        remove(self, transaction)


def _ignoring(trusting: Callable[[WriterEventUnion, Transaction | Closed], WriterEventUnion]) -> list[Patch]:
    def why_ignored(why: Callable[..., str | None], state: TableState, event: WriterEventUnion) -> str | None:
        known = state.transactions.get(event.transaction) or state.closed.get(event.transaction)
        return why(state, event if known is None else trusting(event, known))

    return [around(facts, "why_ignored", why_ignored), around(table, "why_ignored", why_ignored)]


def _as_its_writers(event: WriterEventUnion, known: Transaction | Closed) -> WriterEventUnion:
    return event.model_copy(update={"writer": known.writer})


def _as_a_heartbeat(event: WriterEventUnion, _: Transaction | Closed) -> WriterEventUnion:
    """Of a heartbeat, only the writer is checked."""
    if not isinstance(event, CommitCompleted):
        return event
    return WriterHeartbeat(**event.model_dump(include=set(EventBase.model_fields)), seq=0)


# An event counts only for its own writer's transaction.
BUGS.add(
    "strangers believed", "forged events change nothing", *_ignoring(_as_its_writers), addition="strangers"
)
# A completion counts only with a grant of its transaction.
BUGS.add("any grant completes", "committed batch skipped", *_ignoring(_as_a_heartbeat), addition="strangers")


@BUGS.plant("grants extended for ever", "a hung body owns no table", table, "extend_grant", addition="hangs")
def _grants_extended_for_ever(
    extend: Callable[..., None], context: StepContext, transaction: Transaction
) -> None:
    """No grant is extended beyond `max_grant_seconds`."""
    if transaction.grant is not None:
        transaction.grant.since = context.now
    extend(context, transaction)


@BUGS.plant("a refusal is final", "limits are waited out", lease, "_on_refused", addition="refusals")
def _a_refusal_is_final(_: object, work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
    """A refusal of the store is a doubt until it lasts."""
    return lease._retry(work, at, settings), (LockDenied(refused.why, "refused-too-long", work.cost),)


def _by_id(event: WriterEventUnion | DecisionEventUnion) -> Subject:
    return "", event.transaction, ""


# A replay matches decisions by table, transaction and writer.
BUGS.add(
    "aborts matched by id",
    "replay matches",
    (replay_module, "subject", _by_id),
    (memory, "subject", _by_id),
    addition="used_ids",
)


@BUGS.plant("gaps not shown", "an incomplete log is noticed", LogSeen, "checkpoint", addition="losses")
def _gaps_not_shown(checkpoint: Callable[..., Checkpoint], *arguments: Any) -> Checkpoint:
    """The checkpoints name the gaps that were found."""
    return replace(checkpoint(*arguments), gaps=())


def _nothing_lost(self: LogSeen, value: bytes, offset: int) -> None:
    self._entry, self.ledger_end = LastRecord(offset, digest(value)), 0


# An owner compares the ledger with what it has recorded.
BUGS.add(
    "a lost ledger not noticed",
    "an incomplete log is noticed",
    (takeover, "find_ledger_gap", lambda *_: None),
    (LogSeen, "on_ledger_entry", _nothing_lost),
    addition="checkpoints_restored",
)


@BUGS.plant(
    "a lost ledger not restored",
    "an incomplete log is noticed",
    KafkaSession,
    "_restore_ledgers",
    addition="checkpoints_restored",
)
async def _a_lost_ledger_not_restored(*_: object) -> float:
    """Entries that an owner knows are recorded again after their loss."""
    return 0.0


@BUGS.plant("a lost decision forgotten", "replay matches", LogSeen, "on_decision", addition="losses")
def _a_lost_decision_forgotten(_: object, self: LogSeen, value: bytes, offset: int) -> None:
    """The last checkpoint of a session names the decision that was lost meanwhile."""
    if offset < self.decisions_end:
        self.cut = "lost records"
    self.decisions_end = max(self.decisions_end, offset + 1)
    self._published = LastRecord(offset, digest(value))


@BUGS.plant(
    "a deleted topic not noticed", "every batch commits", PeriodicCheck, "_require_topic", addition="deletion"
)
async def _a_deleted_topic_not_noticed(*_: object) -> None:
    """A session ends when its topic doesn't exist any more."""


@BUGS.plant("an edition not recorded", "editions are kept", CommittedBatch, "to_entry", addition="editions")
def _an_edition_not_recorded(to_entry: Callable[..., BatchCommitted], *arguments: Any) -> BatchCommitted:
    """The ledger keeps a writer's edition for the next owner."""
    return to_entry(*arguments).model_copy(update={"edition": None})


@BUGS.plant(
    "a kept partition goes on",
    "replay matches",
    owner_module,
    "may_resume",
    addition="suspensions_before_resume",
)
def _a_kept_partition_goes_on(
    _: object, takeovers: TakeOvers, read_until: int
) -> Literal["yes", "unknown yet"]:
    """An owner whose partition another agent took meanwhile doesn't resume."""
    if takeovers.again < 0 or read_until <= takeovers.again:
        return "unknown yet"
    takeovers.others = -1
    return "yes"


@BUGS.plant("an error ends the session", "an error stops one table", Tables, "stop", addition="errors")
def _an_error_ends_the_session(_: object, __: Tables, ___: str, error: Exception, *_more: object) -> None:
    """An unexpected exception concerns one table."""
    raise error


@BUGS.plant(
    "small transactions aborted",
    "the memory budget holds",
    memory,
    "largest_transaction",
    addition="memory_mb",
)
def _small_transactions_aborted(_: object, state: TableState) -> memory.Excess | None:
    """The largest open transaction is aborted first."""
    open_ = [each for each in state.open() if each.phase is not Phase.GRANTED]
    found = min(open_, key=lambda each: each.bytes, default=None)
    return None if found is None else memory.Excess(memory._bytes(found), found.id)


@BUGS.plant("the named lock obeyed", "locks stay in place", Tables, "step", addition="refused_intents")
def _the_named_lock_obeyed(
    step_table: Callable[..., None], self: Tables, uri: str, step_input: Input
) -> None:
    """A table's lock doesn't move because an intent names another one."""
    event = step_input.event if isinstance(step_input, EventRead) else None
    if isinstance(event, CommitIntent) and event.lock is not None:
        self.locks._locations[uri] = LockLocation(event.lock, shared=False)
    step_table(self, uri, step_input)


@BUGS.plant("any owner fenced", "no foreign holder", TableLocks, "_lease")
def _any_owner_fenced(of_table: Callable[..., LeaseSettings], *arguments: Any) -> LeaseSettings:
    """Only a former owner's lock is taken over at once, and its owner id shows the term."""
    return replace(of_table(*arguments), fenced=("",))


@BUGS.plant("decisions read before the term", "consistent decisions", Replay, "read_decisions")
def _decisions_read_before_the_term(
    read: Callable[..., None], self: Replay, start: Position, records: Iterable[Any]
) -> None:
    """An owner reads `decisions` after its `partition-taken` is in the log.

    This one misses what was published in the second before its own.
    """
    records = list(records)
    own = next((each for each in records if self._records.term.encode() in each.value), None)
    if own is not None:
        records = [each for each in records if each.offset >= own.offset or each.at < own.at - 1.0]
    read(self, start, records)
