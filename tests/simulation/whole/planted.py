"""Bugs that prove the oracles. Each is planted at one seam, and its oracle must find it.

| bug | found by | the rule that it breaks |
| --- | --- | --- |
| terms ignored | no commit without grant | decisions of an agent that was replaced don't count |
| unfenced publish | no overlap | a fenced publish lands only on the snapshot that its writer looked at |
| deadline not checked | no commit without grant | a writer checks its lease right before it publishes |
| lease counted from the grant | deadline within grant | a writer counts the lease from when it sent the `seq` |
| asymmetric victim rule | right victim | the victim doesn't depend on which marker arrives last |
| both aborted | one victim | a batch of markers that loses aborts no other transaction |
| granted may be a victim | granted never aborted | a granted transaction is never a victim |
| turns ignored | granted in turn | an `ordered` transaction waits for those with earlier turns |
| landed commits ignored | no overlap | a commit that landed since a transaction began conflicts with it |
| decisions during replay | replay matches | nothing is decided during a replay |
| published decisions ignored | consistent decisions | a published decision is a fact for later owners |
| take-overs ignored | last take-over owns | an owner whose partition was taken over later restarts its session |
| a kept partition goes on | consistent decisions | an owner whose partition another agent took meanwhile doesn't resume |
| expiry while lagging | lag loses no writer | silence counts only while the agent has read the whole log |
| lapse too early | one grant | nothing is granted before the running grant's end |
| grant without lock | no foreign holder | a grant needs the lock |
| ledger ignored | committed batch skipped | a batch in the ledger is skipped |
| table not queried | once | a batch that the table contains is not written again |
| queue never moves | every batch commits | a queued transaction is admitted when nothing ahead overlaps it |
| index leaks | no crash | the index and the transactions agree |
| strangers believed | forged events change nothing | an event counts only for its own writer's transaction |
| any grant completes | committed batch skipped | a completion counts only with a grant of its transaction |
| decisions of other tables believed | no commit without grant | a decision counts only for its own table and writer |
| grants extended for ever | a hung body owns no table | no grant is extended beyond `max_grant_seconds` |
| a refusal is final | limits are waited out | a refusal of the store is a doubt until it lasts |
| open without limit | every batch commits | a transaction that is open for longer than `max_transaction_seconds` is aborted |
| aborts matched by id | replay matches | a replay matches decisions by table, transaction and writer |
| an incomplete log not noticed | an incomplete log is noticed | a take-over compares the log with the checkpoint |
| gaps not shown | an incomplete log is noticed | the checkpoints name the gaps that were found |
| a lost decision forgotten | replay matches | the last checkpoint of a session names the decision that was lost meanwhile |
| a lost ledger not noticed | an incomplete log is noticed | an owner compares the ledger with what it has recorded |
| a lost ledger not restored | an incomplete log is noticed | entries that an owner knows are recorded again after their loss |
| misplaced events accepted | one partition per table | an event counts only in the partition of its table |
| an incomplete copy accepted | committed batch skipped | a partition whose ledger is an incomplete copy is refused |
| an error ends the session | an error stops one table | an unexpected exception concerns one table |
| writers of a stopped table not answered | an error stops one table | a stopped table's open transactions are aborted |
| requests in a replay not answered | requests are answered | a request that was published while no agent ran gets its answer |
| observed ones ignored | observed ones win | a transaction that conflicts with an observed one is aborted |
| operators ignored | operators are obeyed | an operator's request ends a transaction, or the extension of its grant |
| budget ignored | the memory budget holds | at the agent's memory budget, open transactions are aborted |
| small transactions aborted | the memory budget holds | the largest open transaction is aborted first |
| any priority accepted | priorities are limited | an intent with a priority above `max_priority` is refused |
| another lock accepted | locks stay in place | the lock that an intent names is compared with the table's |
| the named lock obeyed | locks stay in place | a table's lock doesn't move because an intent names another one |
| newer decisions skipped | newer decisions are refused | an agent refuses a partition with a decision that it doesn't know |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal
from unittest.mock import ANY

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
from lakewarden.agent.serving.session import KafkaSession
from lakewarden.events import (
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
from lakewarden.handlers.lease.placement import LockPlace
from lakewarden.handlers.lease.types import Step
from lakewarden.handlers.table import admission, detection, facts, grants, liveness, memory
from lakewarden.handlers.table import machine as table
from lakewarden.handlers.table import replay as replay_rules
from lakewarden.handlers.table.conflicts import conflicting, loser_of
from lakewarden.handlers.table.footprints import Footprints, Overlap
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.log_gaps import LastRecord
from lakewarden.handlers.table.machine import EventRead, Input, step
from lakewarden.handlers.table.replay import Position, Subject
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, Closed, Phase, Transaction
from lakewarden.spark_jobs.gate.grant_deadline import SendTimes
from lakewarden.spark_jobs.gate.progress import Progress
from tests.simulation.batch import Bugs, Patch
from tests.simulation.whole import writers
from tests.simulation.whole.processes import current_process
from tests.simulation.whole.scenario import Kind
from tests.simulation.whole.table import Commit, LakeTable


def _terms_ignored() -> list[Patch]:
    def any_decision(_: DecisionEvent, __: str | None) -> bool:
        return True

    return [(replay_rules, "counts", any_decision), (writers, "counts", any_decision)]


def _observed_ones_ignored() -> list[Patch]:
    def among_the_gates(overlaps: Iterable[Overlap]) -> list[Overlap]:
        return [
            each
            for each in conflicting(overlaps)
            if not (each.mine.transaction.observed or each.other.transaction.observed)
        ]

    return [(detection, "conflicting", among_the_gates)]


def _unfenced_publish() -> list[Patch]:
    land = LakeTable.publish

    def unfenced(self: LakeTable, commit: Commit, _: int | None, now: float) -> int | None:
        return land(self, commit, None, now)

    return [(LakeTable, "publish", unfenced), (LakeTable, "unchanged", lambda *_: True)]


def _deadline_not_checked() -> list[Patch]:
    return [(Progress, "_expired", staticmethod(lambda *_: None))]


def _lease_counted_from_grant() -> list[Patch]:
    def from_grant(self: SendTimes, _: int, lease_seconds: float) -> float:
        return current_process().node.now() + lease_seconds - self.margin_seconds

    return [(SendTimes, "deadline", from_grant)]


def _asymmetric_victim_rule() -> list[Patch]:
    def arriving_loses(
        mine: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
    ) -> Transaction | None:
        loser = loser_of(mine, other, losses, max_losses)
        alive = other.phase in COMPUTING - {Phase.GRANTED} and mine.phase is not Phase.GRANTED
        return mine if alive and loser is not None else loser

    return [(detection, "loser_of", arriving_loses)]


def _both_aborted() -> list[Patch]:
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


def _granted_may_be_victim() -> list[Patch]:
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


def _landed_commits_ignored() -> list[Patch]:
    def alive(overlaps: Iterable[Overlap]) -> list[Overlap]:
        return [each for each in conflicting(overlaps) if each.other.transaction.phase not in LANDED]

    return [(detection, "conflicting", alive), (detection, "judge_landing", lambda *_: None)]


def _decisions_during_replay() -> list[Patch]:
    def deciding_replay(state: TableState, event: WriterEventUnion, offset: int, now: float) -> None:
        step(state, EventRead(event, offset, now, now))

    return [(replay_module, "replay_event", deciding_replay)]


def _published_decisions_ignored() -> list[Patch]:
    return [(replay_module, "decisions_in", lambda *_: ())]


def _takeovers_ignored() -> list[Patch]:
    return [(PartitionOwner, "replaced", False)]


def _expiry_while_lagging() -> list[Patch]:
    silent, lapse = liveness.abort_silent_writers, grants.publish_lapse

    def hasty(context: StepContext, caught_up: CaughtUp | None) -> None:
        silent(context, caught_up or CaughtUp(0.0, context.now))

    def early_lapse(context: StepContext, caught_up: CaughtUp | None) -> None:
        lapse(context, caught_up or CaughtUp(0.0, context.now))

    return [(table, "abort_silent_writers", hasty), (table, "publish_lapse", early_lapse)]


def _lapse_too_early() -> list[Patch]:
    lapse = grants.publish_lapse

    def early(context: StepContext, caught_up: CaughtUp | None) -> None:
        running = context.state.running()
        if running is not None and running.grant is not None:
            running.grant.deadline -= 4.0
        lapse(context, caught_up)
        if running is not None and running.grant is not None:
            running.grant.deadline += 4.0

    return [(table, "publish_lapse", early)]


def _grant_without_lock() -> list[Patch]:
    grant = grants.grant_next

    def hasty(context: StepContext) -> None:
        state = context.state
        state.lock = state.lock or LockView("no-owner", context.now + 60.0, 0.0)
        grant(context)

    return [(table, "grant_next", hasty)]


def _ledger_ignored() -> list[Patch]:
    return [(admission, "_already_committed", lambda *_: False)]


def _turns_ignored() -> list[Patch]:
    return [(grants, "earlier_turns", lambda *_: iter(()))]


def _table_not_queried() -> list[Patch]:
    return [(LakeTable, "look_up_batch", lambda *_: None)]


def _queue_never_moves() -> list[Patch]:
    def waits_for_itself(_: TableState, transaction: Transaction, **_more: bool) -> Iterator[Transaction]:
        return iter([transaction] if transaction.admission == "queued" else [])

    return [(admission, "blockers", waits_for_itself)]


def _index_leaks() -> list[Patch]:
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


def _strangers_believed() -> list[Patch]:
    return _ignoring(lambda event, known: event.model_copy(update={"writer": known.writer}))


def _any_grant_completes() -> list[Patch]:
    def as_a_heartbeat(event: WriterEventUnion, known: Transaction | Closed) -> WriterEventUnion:
        """Of a heartbeat, only the writer is checked."""
        if not isinstance(event, CommitCompleted):
            return event
        common = event.model_dump(include=set(EventBase.model_fields))
        return WriterHeartbeat(**common, seq=0)

    return _ignoring(as_a_heartbeat)


def _decisions_of_other_tables_believed() -> list[Patch]:
    return [(Progress, "_concerns", lambda *_: True)]


def _grants_extended_for_ever() -> list[Patch]:
    extend = grants.extend_grant

    def young(context: StepContext, transaction: Transaction) -> None:
        if transaction.grant is not None:
            transaction.grant.since = context.now
        extend(context, transaction)

    return [(table, "extend_grant", young)]


def _a_refusal_is_final() -> list[Patch]:
    def final(work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
        return lease._retry(work, at, settings), (LockDenied(refused.why, "lasting", work.cost),)

    return [(lease, "_on_refused", final)]


def _open_without_limit() -> list[Patch]:
    return [(table, "abort_overdue", lambda _: None)]


def _aborts_matched_by_id() -> list[Patch]:
    def by_id(event: WriterEventUnion | DecisionEventUnion) -> Subject:
        return "", event.transaction, ""

    return [(replay_module, "subject", by_id), (memory, "subject", by_id)]


def _an_incomplete_log_not_noticed() -> list[Patch]:
    return [(takeover, "find_gap", lambda *_: None), (log_seen, "missing_events", lambda *_: None)]


def _gaps_not_shown() -> list[Patch]:
    checkpoint = LogSeen.checkpoint

    def without_gaps(self: LogSeen, offset: int, decisions: Position) -> Checkpoint:
        return replace(checkpoint(self, offset, decisions), gaps=())

    return [(LogSeen, "checkpoint", without_gaps)]


def _a_lost_ledger_not_noticed() -> list[Patch]:
    def nothing(self: LogSeen, value: bytes, offset: int) -> None:
        self._entry, self.ledger_end = LastRecord(offset, digest(value)), 0

    return [(takeover, "find_ledger_gap", lambda *_: None), (LogSeen, "on_ledger_entry", nothing)]


def _a_lost_ledger_not_restored() -> list[Patch]:
    async def forget(_: KafkaSession, __: float) -> float:
        return 0.0

    return [(KafkaSession, "_restore_ledgers", forget)]


def _a_lost_decision_forgotten() -> list[Patch]:
    def forget(self: LogSeen, value: bytes, offset: int) -> None:
        if offset < self.decisions_end:
            self.cut = "lost records"
        self.decisions_end = max(self.decisions_end, offset + 1)
        self._published = LastRecord(offset, digest(value))

    return [(LogSeen, "on_decision", forget)]


def _misplaced_events_accepted() -> list[Patch]:
    return [(tables_module, "partition_of", lambda *_: ANY)]


def _an_incomplete_copy_accepted() -> list[Patch]:
    return [(Replay, "incomplete_copy_of", None)]


def _a_kept_partition_goes_on() -> list[Patch]:
    def unless_unread(takeovers: TakeOvers, read_until: int) -> Literal["yes", "unknown yet"]:
        if takeovers.again < 0 or read_until <= takeovers.again:
            return "unknown yet"
        takeovers.others = -1
        return "yes"

    return [(owner_module, "may_resume", unless_unread)]


def _an_error_ends_the_session() -> list[Patch]:
    def failing(_: Tables, __: str, error: Exception, *___: object) -> None:
        raise error

    return [(Tables, "stop", failing)]


def _writers_of_a_stopped_table_not_told() -> list[Patch]:
    return [(StoppedTables, "abort_open", lambda *_, **__: [])]


def _requests_in_a_replay_not_answered() -> list[Patch]:
    return [(table, "_answer_unknown_requests", lambda _: None)]


def _operators_ignored() -> list[Patch]:
    return [(table, "abort_as_requested", lambda _: None)]


def _budget_ignored() -> list[Patch]:
    return [(MemoryBudget, "enforce", lambda _: None)]


def _small_transactions_aborted() -> list[Patch]:
    def smallest(state: TableState) -> memory.Excess | None:
        open_ = [each for each in state.open() if each.phase is not Phase.GRANTED]
        found = min(open_, key=lambda each: each.bytes, default=None)
        return None if found is None else memory.Excess(memory._bytes(found), found.id)

    return [(memory, "largest_transaction", smallest)]


def _any_priority_accepted() -> list[Patch]:
    return [(admission, "_refuse_priority", lambda *_: None)]


def _another_lock_accepted() -> list[Patch]:
    return [(admission, "_names_another_lock", lambda *_: False)]


def _the_named_lock_obeyed() -> list[Patch]:
    step_table = Tables.step

    def obeying(self: Tables, uri: str, step_input: Input) -> None:
        event = step_input.event if isinstance(step_input, EventRead) else None
        if isinstance(event, CommitIntent) and event.lock is not None:
            self.locks._places[uri] = LockPlace(event.lock, shared=False)
        step_table(self, uri, step_input)

    return [(Tables, "step", obeying)]


def _newer_decisions_skipped() -> list[Patch]:
    return [(Replay, "_on_newer_decision", lambda *_: None)]


BUGS: Bugs = {
    "terms ignored": ("no commit without grant", _terms_ignored),
    "unfenced publish": ("no overlap", _unfenced_publish),
    "deadline not checked": ("no commit without grant", _deadline_not_checked),
    "lease counted from the grant": ("deadline within grant", _lease_counted_from_grant),
    "asymmetric victim rule": ("right victim", _asymmetric_victim_rule),
    "both aborted": ("one victim", _both_aborted),
    "granted may be a victim": ("granted never aborted", _granted_may_be_victim),
    "turns ignored": ("granted in turn", _turns_ignored),
    "landed commits ignored": ("no overlap", _landed_commits_ignored),
    "decisions during replay": ("replay matches", _decisions_during_replay),
    "published decisions ignored": ("consistent decisions", _published_decisions_ignored),
    "take-overs ignored": ("last take-over owns", _takeovers_ignored),
    "a kept partition goes on": ("consistent decisions", _a_kept_partition_goes_on),
    "expiry while lagging": ("lag loses no writer", _expiry_while_lagging),
    "lapse too early": ("one grant", _lapse_too_early),
    "grant without lock": ("no foreign holder", _grant_without_lock),
    "ledger ignored": ("committed batch skipped", _ledger_ignored),
    "table not queried": ("once", _table_not_queried),
    "queue never moves": ("every batch commits", _queue_never_moves),
    "index leaks": ("no crash", _index_leaks),
    "strangers believed": ("forged events change nothing", _strangers_believed),
    "any grant completes": ("committed batch skipped", _any_grant_completes),
    "decisions of other tables believed": ("no commit without grant", _decisions_of_other_tables_believed),
    "grants extended for ever": ("a hung body owns no table", _grants_extended_for_ever),
    "a refusal is final": ("limits are waited out", _a_refusal_is_final),
    "open without limit": ("every batch commits", _open_without_limit),
    "aborts matched by id": ("replay matches", _aborts_matched_by_id),
    "an incomplete log not noticed": ("an incomplete log is noticed", _an_incomplete_log_not_noticed),
    "gaps not shown": ("an incomplete log is noticed", _gaps_not_shown),
    "a lost decision forgotten": ("replay matches", _a_lost_decision_forgotten),
    "a lost ledger not noticed": ("an incomplete log is noticed", _a_lost_ledger_not_noticed),
    "a lost ledger not restored": ("an incomplete log is noticed", _a_lost_ledger_not_restored),
    "misplaced events accepted": ("one partition per table", _misplaced_events_accepted),
    "an incomplete copy accepted": ("committed batch skipped", _an_incomplete_copy_accepted),
    "an error ends the session": ("an error stops one table", _an_error_ends_the_session),
    "writers of a stopped table not answered": (
        "an error stops one table",
        _writers_of_a_stopped_table_not_told,
    ),
    "requests in a replay not answered": ("requests are answered", _requests_in_a_replay_not_answered),
    "observed ones ignored": ("observed ones win", _observed_ones_ignored),
    "operators ignored": ("operators are obeyed", _operators_ignored),
    "budget ignored": ("the memory budget holds", _budget_ignored),
    "small transactions aborted": ("the memory budget holds", _small_transactions_aborted),
    "any priority accepted": ("priorities are limited", _any_priority_accepted),
    "another lock accepted": ("locks stay in place", _another_lock_accepted),
    "the named lock obeyed": ("locks stay in place", _the_named_lock_obeyed),
    "newer decisions skipped": ("newer decisions are refused", _newer_decisions_skipped),
}


REVEALED_BY: dict[str, Kind] = {
    "unfenced publish": "suspended before publish",
    "terms ignored": "suspended after grant",
    "take-overs ignored": "take-overs reordered",
}
"""The kind of run that reveals a bug. All other bugs show soon in hard runs, or by an addition."""
REVEALED_BY_ADDITION: dict[str, str] = {
    "turns ignored": "ordered",
    "strangers believed": "strangers",
    "any grant completes": "strangers",
    "decisions of other tables believed": "strangers",
    "grants extended for ever": "hangs",
    "a refusal is final": "refusals",
    "open without limit": "hung_bodies",
    "aborts matched by id": "used_ids",
    "an incomplete log not noticed": "losses",
    "gaps not shown": "losses",
    "a lost decision forgotten": "losses",
    "a lost ledger not noticed": "checkpoints_restored",
    "a lost ledger not restored": "checkpoints_restored",
    "misplaced events accepted": "misplaced",
    "an incomplete copy accepted": "copied_again",
    "an error ends the session": "errors",
    "writers of a stopped table not answered": "errors",
    "requests in a replay not answered": "losses",
    "observed ones ignored": "watched",
    "operators ignored": "operators",
    "budget ignored": "memory_mb",
    "small transactions aborted": "memory_mb",
    "any priority accepted": "refused_intents",
    "another lock accepted": "refused_intents",
    "the named lock obeyed": "refused_intents",
    "newer decisions skipped": "rolled_back",
}
"""The addition, a field of `Additions`, that reveals a bug."""
