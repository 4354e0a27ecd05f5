"""Bugs that prove the oracles: each is planted at one seam, and must be found by its oracle.

| bug | found by | the rule without which it is there |
| --- | --- | --- |
| terms ignored | no commit without grant | what an agent says after another has taken over does not count |
| unfenced publish | no overlap | a fenced publish lands only on the snapshot that its writer looked at |
| deadline not checked | no commit without grant | a writer looks at its lease right before it publishes |
| lease counted from the grant | deadline within grant | a writer counts from when it sent the `seq`, not from the answer |
| asymmetric victim rule | right victim | who loses does not depend on who arrives last |
| both aborted | one victim | a batch of markers that loses aborts nobody else |
| granted may be a victim | granted never aborted | a granted transaction is never a victim |
| landed commits ignored | no overlap | what landed since a transaction began counts against it |
| decisions during replay | replay matches | during a replay nothing is decided |
| published decisions ignored | consistent decisions | a published decision is a fact for whoever comes after |
| take-overs ignored | last take-over owns | an owner whose partition was taken after it did begins anew |
| expiry while lagging | lag loses no writer | silence counts only while everything in the log has been read |
| lapse too early | one grant | nobody is granted before the running grant's end |
| grant without lock | no foreign holder | a grant is given under the lock alone |
| ledger ignored | committed batch skipped | a batch that is known as committed is skipped |
| table not queried | once | a batch that is in the table is not written again |
| queue never moves | every batch commits | whoever waits in line is admitted when nobody is ahead |
| index leaks | no crash | the index and the transactions agree |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakewarden.agent.serving import partition
from lakewarden.agent.serving.partition import PartitionOwner
from lakewarden.events import DecisionEvent, WriterEventUnion
from lakewarden.handlers.table import admission, detection, grants, liveness, replay
from lakewarden.handlers.table import machine as table
from lakewarden.handlers.table.conflicts import conflicting, loser_of
from lakewarden.handlers.table.footprints import Footprints, Overlap
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import EventRead, step
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, Phase, Transaction
from lakewarden.spark_jobs.gate.grant_deadline import SendTimes
from lakewarden.spark_jobs.gate.progress import Progress
from tests.simulation.batch import Bugs, Patch
from tests.simulation.whole import writers
from tests.simulation.whole.processes import current_process
from tests.simulation.whole.scenario import Kind
from tests.simulation.whole.table import Commit, LakeTable


def _terms() -> list[Patch]:
    def anybody(_: DecisionEvent, __: str | None) -> bool:
        return True

    return [(replay, "counts", anybody), (writers, "counts", anybody)]


def _publish() -> list[Patch]:
    land = LakeTable.publish

    def unfenced(self: LakeTable, commit: Commit, _: int | None, now: float) -> int | None:
        return land(self, commit, None, now)

    return [(LakeTable, "publish", unfenced), (LakeTable, "unchanged", lambda *_: True)]


def _deadline_not_looked_at() -> list[Patch]:
    return [(Progress, "_expired", staticmethod(lambda *_: None))]


def _wrong_clock() -> list[Patch]:
    def from_the_answer(self: SendTimes, _: int, lease_seconds: float) -> float:
        return current_process().node.now() + lease_seconds - self.margin_seconds

    return [(SendTimes, "deadline", from_the_answer)]


def _asymmetric() -> list[Patch]:
    def arriver(
        mine: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
    ) -> Transaction | None:
        loser = loser_of(mine, other, losses, max_losses)
        alive = other.phase in COMPUTING - {Phase.GRANTED} and mine.phase is not Phase.GRANTED
        return mine if alive and loser is not None else loser

    return [(detection, "loser_of", arriver)]


def _both_lose() -> list[Patch]:
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


def _granted_may_lose() -> list[Patch]:
    def anybody(
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

    return [(detection, "loser_of", anybody), (detection, "_abort_losers", abort_others)]


def _landed_is_forgotten() -> list[Patch]:
    def alive(overlaps: Iterable[Overlap]) -> list[Overlap]:
        return [each for each in conflicting(overlaps) if each.other.transaction.phase not in LANDED]

    return [(detection, "conflicting", alive), (detection, "judge_landing", lambda *_: None)]


def _replay_that_decides() -> list[Patch]:
    def deciding_replay(state: TableState, event: WriterEventUnion, offset: int, now: float) -> None:
        step(state, EventRead(event, offset, now, now))

    return [(partition, "replay_event", deciding_replay)]


def _published_is_forgotten() -> list[Patch]:
    return [
        (
            partition,
            "decoded_decisions",
            lambda start, *_: PublishedDecisions(Position(start.offset, start.term), ()),
        )
    ]


def _takes_not_heard() -> list[Patch]:
    return [(PartitionOwner, "replaced", False)]


def _expiry_while_lagging() -> list[Patch]:
    silent, lapse = liveness.abort_silent_writers, grants.publish_lapse

    def hasty(context: StepContext, caught_up: CaughtUp | None) -> None:
        silent(context, caught_up or CaughtUp(0.0, context.now))

    def hasty_lapse(context: StepContext, caught_up: CaughtUp | None) -> None:
        lapse(context, caught_up or CaughtUp(0.0, context.now))

    return [(table, "abort_silent_writers", hasty), (table, "publish_lapse", hasty_lapse)]


def _lapse_too_soon() -> list[Patch]:
    lapse = grants.publish_lapse

    def early(context: StepContext, caught_up: CaughtUp | None) -> None:
        running = context.state.running()
        if running is not None and running.grant is not None:
            running.grant.deadline -= 4.0
        lapse(context, caught_up)
        if running is not None and running.grant is not None:
            running.grant.deadline += 4.0

    return [(table, "publish_lapse", early)]


def _lock_not_waited_for() -> list[Patch]:
    grant = grants.grant_next

    def hasty(context: StepContext) -> None:
        state = context.state
        state.lock = state.lock or LockView("nobody", context.now + 60.0, 0.0)
        grant(context)

    return [(table, "grant_next", hasty)]


def _ledger_not_asked() -> list[Patch]:
    return [(admission, "_already_committed", lambda *_: False)]


def _table_not_asked() -> list[Patch]:
    return [(LakeTable, "look_up_batch", lambda *_: None)]


def _line_never_moves() -> list[Patch]:
    def whoever_waits_in_line(_: TableState, transaction: Transaction) -> Iterator[Transaction]:
        return iter([transaction] if transaction.admission == "queued" else [])

    return [(admission, "blockers", whoever_waits_in_line)]


def _index_leaks() -> list[Patch]:
    remove = Footprints.remove

    def leaking(self: Footprints, transaction: Transaction) -> None:
        if transaction.markers != 1:
            remove(self, transaction)

    return [(Footprints, "remove", leaking)]


BUGS: Bugs = {
    "terms ignored": ("no commit without grant", _terms),
    "unfenced publish": ("no overlap", _publish),
    "deadline not checked": ("no commit without grant", _deadline_not_looked_at),
    "lease counted from the grant": ("deadline within grant", _wrong_clock),
    "asymmetric victim rule": ("right victim", _asymmetric),
    "both aborted": ("one victim", _both_lose),
    "granted may be a victim": ("granted never aborted", _granted_may_lose),
    "landed commits ignored": ("no overlap", _landed_is_forgotten),
    "decisions during replay": ("replay matches", _replay_that_decides),
    "published decisions ignored": ("consistent decisions", _published_is_forgotten),
    "take-overs ignored": ("last take-over owns", _takes_not_heard),
    "expiry while lagging": ("lag loses no writer", _expiry_while_lagging),
    "lapse too early": ("one grant", _lapse_too_soon),
    "grant without lock": ("no foreign holder", _lock_not_waited_for),
    "ledger ignored": ("committed batch skipped", _ledger_not_asked),
    "table not queried": ("once", _table_not_asked),
    "queue never moves": ("every batch commits", _line_never_moves),
    "index leaks": ("no crash", _index_leaks),
}


REVEALED_BY: dict[str, Kind] = {
    "unfenced publish": "suspended before publish",
    "terms ignored": "suspended after grant",
    "take-overs ignored": "take-overs reordered",
}
"""The kind of run that aims at what the rule is for; all others show themselves soon in hard ones."""
