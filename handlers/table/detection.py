"""Who is aborted for a conflict, and when it is looked for.

- On arrival: the markers of an event are checked against everybody who touched the same, as `conflicts.py` judges
  it. Check and create are one step, because a table's events are read in one order by one owner: RFC-56's
  transactional strategy without its locks.
- What a transaction names before it is admitted is judged when it is admitted: until then it computes nothing, so
  it neither loses nor makes others lose.
- A batch of markers that loses to anyone aborts its own transaction and nobody else, with every reason in one
  abort. Otherwise each one that loses to it is aborted, oldest first.
- When a transaction lands (committed, or its outcome is unknown) whoever began before it and still computes on
  the same is aborted.
- At grant time a transaction is checked once more against all that landed since it began.
- `early_detection` off: only the last of these, which is plain optimistic control, except that it too yields to a
  protected writer that computes on the same. Policy `first-committer`:
  markers alone abort nobody; who computes on the same as the one that is granted is aborted at that moment,
  unless it is protected by its losses: then the one about to be granted yields.
- A granted transaction is never a victim, whatever it touches late.
- After a replay everything is judged once more. Whether two are in conflict follows from their touches, not from the place:
  each combination that meets is judged once, and only who is in a conflict is looked at place by place.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakewarden.handlers.table.conflicts import conflicting, evidence, loser_of, rule_for, touches_conflict
from lakewarden.handlers.table.footprints import Footprints, Overlap
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, Phase, Transaction
from lakewarden.handlers.table.verdicts import ReportConflict


def judge_markers(context: StepContext, transaction: Transaction, overlaps: Iterable[Overlap]) -> None:
    """What follows from markers of `transaction` that met others."""
    state = context.state
    if not state.settings.early_detection or transaction.phase not in COMPUTING:
        return
    conflicts = conflicting(overlaps)
    if state.settings.policy == "first-committer":
        # Only what has landed, or is granted, counts before somebody is granted.
        conflicts = [each for each in conflicts if each.other.transaction.phase in LANDED | {Phase.GRANTED}]
    losing, winning = _split_by_loser(context, transaction, conflicts)
    if losing:
        _abort_victim(context, transaction, losing)
        return
    _abort_losers(context, winning)


def judge_landing(context: StepContext, landed: Transaction) -> None:
    """What follows for the others from a transaction that has just landed."""
    if context.state.settings.early_detection and landed.id in context.state.transactions:
        seen_from_others = [
            each.flipped()
            for each in context.state.footprints.overlaps(landed)
            if each.other.transaction.phase in COMPUTING
        ]
        _abort_losers(context, [each.flipped() for each in conflicting(seen_from_others)])


def validate_for_grant(context: StepContext, transaction: Transaction) -> bool:
    """The last check before a grant.

    False: it has been aborted, for what landed since it began, or for a protected one.
    """
    state = context.state
    conflicts = conflicting(state.footprints.overlaps(transaction))
    landed = [each for each in conflicts if each.other.transaction.phase in LANDED]
    if landed:
        _abort_victim(context, transaction, landed)
        return False
    if state.settings.policy == "first-intent" and state.settings.early_detection:
        return True  # markers alone have judged those who compute
    alive = [each for each in conflicts if each.other.transaction.phase in COMPUTING]
    protected = [each for each in alive if _is_protected(context, each.other.transaction)]
    if protected and not _is_protected(context, transaction):
        _abort_victim(context, transaction, protected)
        return False
    return True


def judge_grant(context: StepContext, granted: Transaction) -> None:
    """Under `first-committer`: whoever computes on the same as the one that was just granted is aborted now."""
    state = context.state
    if state.settings.policy != "first-committer" or not state.settings.early_detection:
        return
    conflicts = conflicting(state.footprints.overlaps(granted))
    _abort_losers(context, [each for each in conflicts if each.other.transaction.phase in COMPUTING])


def sweep(context: StepContext) -> None:
    """Everything once more, from the index alone: what a replay may have left undecided."""
    footprints = context.state.footprints
    for transaction in _transactions_in_conflict(footprints):
        if transaction.phase in COMPUTING:
            judge_markers(context, transaction, footprints.overlaps(transaction))


def _transactions_in_conflict(footprints: Footprints) -> list[Transaction]:
    """Who computes and has a conflict, oldest first."""
    found: set[Transaction] = set()
    for touches in footprints.touch_combinations():
        for mine in touches:
            done = mine.transaction in found or mine.transaction.phase not in COMPUTING
            if not done and any(touches_conflict(mine, other) for other in touches):
                found.add(mine.transaction)
    return sorted(found, key=lambda each: each.sequence)


def _split_by_loser(
    context: StepContext, transaction: Transaction, conflicts: list[Overlap]
) -> tuple[list[Overlap], list[Overlap]]:
    state = context.state
    losing, winning = [], []
    for each in conflicts:
        loser = loser_of(transaction, each.other.transaction, state.losses, state.settings.max_losses)
        if loser is transaction:
            losing.append(each)
        elif loser is not None:
            winning.append(each)
    return losing, winning


def _abort_losers(context: StepContext, conflicts: list[Overlap]) -> None:
    for against in _group_by_other(conflicts):
        if against[0].other.transaction.phase in COMPUTING - {Phase.GRANTED}:
            _abort_victim(context, against[0].other.transaction, [each.flipped() for each in against])


def _group_by_other(conflicts: list[Overlap]) -> list[list[Overlap]]:
    """One list for each other transaction, oldest first."""
    groups: dict[int, list[Overlap]] = {}
    for each in conflicts:
        groups.setdefault(each.other.transaction.sequence, []).append(each)
    return [groups[sequence] for sequence in sorted(groups)]


def _abort_victim(context: StepContext, victim: Transaction, losing: list[Overlap]) -> None:
    reports = [_conflict_report(context, victim, against) for against in _group_by_other(losing)]
    unknown = all(each.other.transaction.phase is Phase.UNKNOWN for each in losing)
    context.abort(victim, "outcome-unknown" if unknown else "conflict", conflicts=evidence(losing))
    context.emit(reports)


def _conflict_report(context: StepContext, victim: Transaction, losing: list[Overlap]) -> ReportConflict:
    winner = losing[0].other.transaction
    return ReportConflict(
        victim=victim.id,
        victim_writer=victim.writer,
        winner=winner.id,
        winner_writer=winner.writer,
        rule=rule_for(victim, winner),
        kind="commit" if winner.phase in LANDED else "marker",
        conflicts=evidence(losing),
        detected_after_ms=max(0.0, (context.now - context.read_at) * 1000),
        victim_age_seconds=max(0.0, context.now - victim.opened_at),
    )


def _is_protected(context: StepContext, transaction: Transaction) -> bool:
    return context.state.is_protected(transaction.writer)
