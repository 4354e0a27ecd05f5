"""When conflicts are looked for, and which transaction is aborted.

`conflicts.py` defines what a conflict is and which transaction loses. With `early_detection` on, the agent checks at these
moments:

| moment | policy `first-intent` aborts | policy `first-committer` aborts |
| --- | --- | --- |
| it reads markers | the losers | the marking transaction, if it overlaps a landed or granted one |
| it admits a transaction with a scope | the losers | the same as for markers |
| before it grants | the transaction, if a commit landed since it began | the same, or if a stronger protected writer is there |
| after it grants | – | the others that compute there |
| a transaction lands | the others that compute there and began before | the same |
| after a replay | as for markers | as for markers |

With `early_detection` off, only the check before a grant remains, as under `first-committer`. This is optimistic concurrency
control, except that a protected writer takes precedence over the writer about to be granted.

Rules for all checks:

1. One owner reads a table's events in one order, so a marker is checked and added in one step. This is RFC-56's transactional
   strategy without its locks.
2. If a batch of markers loses to any transaction, only its own transaction is aborted. One abort carries all conflicts.
   Otherwise every transaction that loses to the batch is aborted, oldest first.
3. The scope of a queued transaction is checked when it is admitted. Until then it never loses, and wins only against markers
   of transactions with later intents.
4. A granted transaction is never aborted for a conflict, whatever it touches later.
5. After a replay, each combination of touches that share a place is checked once. Only the footprints of transactions that
   are in a conflict are visited place by place: the strongest transaction first, in the order in which conflicts are won. So
   no transaction is aborted for one that is itself aborted in the same check.
6. Two observed transactions: neither is aborted, and the conflict is reported once to operators. With `first-committer`, an
   observed one conflicts once it has landed, like all others.
"""

from collections.abc import Iterable, Set as AbstractSet

from lakewarden.events import UNSTAMPED, ConflictDetected
from lakewarden.handlers.table.conflicts import (
    MAX_EVIDENCE,
    conflicting,
    evidence,
    loser_of,
    may_conflict,
    may_conflict_at_admission,
    operations_conflict,
    outranks,
    rank,
    rule_for,
    touches_conflict,
)
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import (
    COMPUTING,
    LANDED,
    OPEN,
    STOPPABLE,
    Phase,
    Touch,
    TouchKind,
    Transaction,
)


def judge_markers(context: StepContext, transaction: Transaction, overlaps: Iterable[Overlap]) -> None:
    """Decide the conflicts of a transaction whose markers overlap those of others."""
    state = context.state
    if not state.settings.early_detection or transaction.phase not in COMPUTING:
        return
    conflicts = conflicting(overlaps)
    report_observed(context, conflicts)
    _abort_by_markers(context, transaction, conflicts)


def _abort_by_markers(context: StepContext, transaction: Transaction, conflicts: list[Overlap]) -> None:
    if context.state.settings.policy == "first-committer":
        # Before a grant, only landed and granted transactions conflict.
        conflicts = [each for each in conflicts if each.other.transaction.phase in LANDED | {Phase.GRANTED}]
    losing, winning = _split_by_loser(context, transaction, conflicts)
    if losing:
        _abort_victim(context, transaction, losing)
        return
    _abort_losers(context, winning)


def judge_landing(context: StepContext, landed: Transaction) -> None:
    """Abort the transactions that conflict with one that has just landed."""
    if context.state.settings.early_detection and landed.id in context.state.transactions:
        conflicts = list(context.state.footprints.overlaps(landed, _loses_to_landed))
        _abort_losers(context, conflicts)
        report_observed(context, [each.flipped() for each in conflicts])


def _loses_to_landed(mine: Touch, other: Touch) -> bool:
    return other.transaction.phase in COMPUTING and touches_conflict(other, mine)


def conflicts_with(
    state: TableState, transaction: Transaction, phases: AbstractSet[Phase] = OPEN | LANDED
) -> list[Overlap]:
    """The conflicts of a transaction with those in these phases."""
    if not any(state.in_phase[each] for each in phases):
        return []

    def conflict(mine: Touch, other: Touch) -> bool:
        return other.transaction.phase in phases and touches_conflict(mine, other)

    return list(state.footprints.overlaps(transaction, conflict))


def conflicts_at_admission(state: TableState, transaction: Transaction) -> list[Overlap]:
    """The conflicts of a transaction that has just been admitted. Only touches of kinds that may conflict are visited."""
    footprints = state.footprints
    return [
        each
        for (mine,) in transaction.touches.values()
        for alike in footprints.kinds.values()
        if may_conflict_at_admission(mine, next(iter(alike)))
        for each in footprints.overlaps_with(mine, alike, touches_conflict)
    ]


def validate_for_grant(context: StepContext, transaction: Transaction) -> bool:
    """Check a transaction once more before its grant.

    Return False if the check aborted it: for a commit that landed since it began, or for a protected writer that outranks it.
    """
    state = context.state
    landed = conflicts_with(state, transaction, LANDED)
    if landed:
        _abort_victim(context, transaction, landed)
        return False
    if state.settings.policy == "first-intent" and state.settings.early_detection:
        return True  # conflicts with transactions that compute were decided when their markers were read
    losses, most = state.losses, state.settings.max_losses
    protected = [
        each
        for each in conflicts_with(state, transaction, COMPUTING | {Phase.QUEUED})
        if state.is_protected(other := each.other.transaction) and outranks(other, transaction, losses, most)
    ]
    if protected:
        _abort_victim(context, transaction, protected)
        return False
    return True


def judge_grant(context: StepContext, granted: Transaction) -> None:
    """Under `first-committer`, abort the transactions that conflict with the one just granted."""
    state = context.state
    if state.settings.policy != "first-committer" or not state.settings.early_detection:
        return
    _abort_losers(context, conflicts_with(state, granted, COMPUTING))


def sweep(context: StepContext) -> None:
    """Check the whole index, to decide the conflicts that a replay left undecided."""
    state = context.state
    for transaction in _transactions_in_conflict(context):
        if transaction.phase in COMPUTING and state.settings.early_detection:
            _abort_by_markers(context, transaction, conflicts_with(state, transaction))


def _transactions_in_conflict(context: StepContext) -> list[Transaction]:
    """The computing transactions that are in a conflict, the strongest first.

    Of each touch, only the pairs are visited whose operations conflict: a thousand appends have a million others. The order of
    these visits decides nothing.
    """
    state = context.state
    kinds: dict[TouchKind, list[Touch]] = {}
    for kind, touches in state.footprints.kinds.items():
        kinds.setdefault(kind._replace(priority=0), []).extend(touches)
    rivals = {
        kind: {touch for others in kinds.values() for touch in _rivals(alike, others)}
        for kind, alike in kinds.items()
    }
    found = [
        each
        for each in state.transactions.values()
        if each.phase in COMPUTING
        and any(
            touches_conflict(mine, other)
            for (mine,) in each.touches.values()
            if mine in state.footprints.first
            for other in state.footprints.partners(mine, rivals[mine.kind._replace(priority=0)])
        )
    ]
    return sorted(found, key=lambda each: rank(each, protected=state.is_protected(each)), reverse=True)


def _rivals(alike: list[Touch], others: list[Touch]) -> Iterable[Touch]:
    """Those of the touches of a kind that may conflict with some of another kind.

    `ordered` ones of one priority are in order until one of them is granted.
    """
    mine, other = alike[0], others[0]
    if not may_conflict(mine, other):
        return ()
    rule = rule_for(mine.transaction, other.transaction)
    priorities = {each.transaction.priority for each in (*alike, *others)}
    if len(priorities) > 1 or operations_conflict(rule, mine.operation, other.operation):
        return others
    return [each for each in others if each.transaction.phase in LANDED | {Phase.GRANTED}]


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
        other = against[0].other.transaction
        if other.phase in STOPPABLE:
            _abort_victim(context, against[0].other.transaction, [each.flipped() for each in against])


def report_observed(context: StepContext, conflicts: list[Overlap]) -> None:
    """Report the conflicts among these that are between two observed transactions. The later of the two is called the victim.

    It is not aborted, so no work is lost: its age is reported as 0.
    """
    pairs: dict[tuple[str, str], list[Overlap]] = {}
    for each in conflicts:
        mine, other = each.mine.transaction, each.other.transaction
        if mine.observed and other.observed and other.id not in mine.reported:
            pairs.setdefault((mine.id, other.id), []).append(each)
    for against in pairs.values():
        mine, other = against[0].mine.transaction, against[0].other.transaction
        mine.reported.add(other.id)
        other.reported.add(mine.id)
        mine_lost = mine.phase not in LANDED and (other.phase in LANDED or other.sequence < mine.sequence)
        losing = against if mine_lost else [each.flipped() for each in against]
        report = _conflict_report(context, losing[0].mine.transaction, losing, MAX_EVIDENCE)
        context.effects.append(report.model_copy(update={"victim_age_seconds": 0.0}))


def _group_by_other(conflicts: list[Overlap]) -> list[list[Overlap]]:
    groups: dict[int, list[Overlap]] = {}
    for each in conflicts:
        groups.setdefault(each.other.transaction.sequence, []).append(each)
    return [groups[sequence] for sequence in sorted(groups)]


def _abort_victim(context: StepContext, victim: Transaction, losing: list[Overlap]) -> None:
    winners = _group_by_other(losing)
    share = max(1, MAX_EVIDENCE // len(winners))
    reports = [_conflict_report(context, victim, against, share) for against in winners]
    unknown = all(each.other.transaction.phase is Phase.UNKNOWN for each in losing)
    entries = evidence(losing, context.state.losses, context.state.settings.max_losses)
    context.abort(victim, "outcome-unknown" if unknown else "conflict", conflicts=entries)
    context.effects.extend(reports)


def _conflict_report(
    context: StepContext, victim: Transaction, losing: list[Overlap], most: int
) -> ConflictDetected:
    winner = losing[0].other.transaction
    losses, max_losses = context.state.losses, context.state.settings.max_losses
    return ConflictDetected.model_construct(
        **UNSTAMPED,
        table=context.state.uri,
        transaction=victim.id,
        writer=victim.writer,
        victim=victim.id,
        victim_writer=victim.writer,
        winner=winner.id,
        winner_writer=winner.writer,
        rule=rule_for(victim, winner),
        kind="commit" if winner.phase in LANDED else "marker",
        conflicts=evidence(losing, losses, max_losses, most),
        detected_after_ms=round(max(0.0, (context.now - context.read_at) * 1000), 3),
        victim_age_seconds=round(max(0.0, context.now - victim.opened_at), 3),
    )
