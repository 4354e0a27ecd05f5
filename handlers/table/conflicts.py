"""When two transactions conflict, and which of them is the victim.

Conflict rules. `file-group` (Hudi): both touch the file group, whatever the operations. `deleted-file` (Paimon):
both delete it, or one deletes what the other still builds on (`merge`); two adds never conflict. Each transaction
brings its rule; where the two differ the stricter, `file-group`, judges the pair.

What counts against a transaction: whoever computes at the same time (kind `marker`), and whoever has landed since
it began (kind `commit`; RFC-56's "check commit conflict"). A queued transaction computes nothing yet: it waits
instead of losing, and it beats only those who come after it in the line.

Victim. A landed transaction has won. A granted one is never a victim. Then, in this order: a writer that lost
`max_losses` times in a row is protected and wins; the lower priority loses; the later sequence loses (RFC-56: the
earlier never yields to the later, so that two never abort each other). Between two protected ones the sequence alone
decides: a higher priority would win each time, and the other would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakewarden.events import ConflictEntry, ConflictKind, ConflictRule, Operation
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, Phase, Touch, Transaction

MAX_EVIDENCE = 100
"""Entries in one abort: enough to see what happened, small enough for every record limit."""

_BUILDS_ON: frozenset[Operation] = frozenset({"merge", "delete"})


def rule_for(mine: Transaction, other: Transaction) -> ConflictRule:
    """The rule that judges a pair: the stricter of the two."""
    both_lenient = mine.conflict_rule == other.conflict_rule == "deleted-file"
    return "deleted-file" if both_lenient else "file-group"


def operations_conflict(rule: ConflictRule, mine: Operation, other: Operation) -> bool:
    """Whether two operations on one file group exclude each other."""
    if rule == "file-group":
        return True
    return "delete" in (mine, other) and mine in _BUILDS_ON and other in _BUILDS_ON


def conflict_kind(mine: Transaction, other: Transaction) -> ConflictKind | None:
    """How `other` counts against `mine`: alive, landed since mine began, or (None) not at all."""
    if other.phase in LANDED:
        return "commit" if other.ended > mine.began else None
    if other.phase in COMPUTING:
        return "marker"
    return "marker" if other.phase is Phase.QUEUED and other.sequence < mine.sequence else None


def loser_of(
    mine: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
) -> Transaction | None:
    """The victim of a conflict between the two; None where neither is: the one that would lose is still in line."""
    if other.phase in LANDED:
        loser = mine
    elif mine.phase is Phase.GRANTED or other.phase is Phase.GRANTED:
        loser = mine if other.phase is Phase.GRANTED else other
    else:
        rank_mine, rank_other = _rank(mine, losses, max_losses), _rank(other, losses, max_losses)
        loser = mine if rank_mine < rank_other else other
    return None if loser.phase in (Phase.QUEUED, Phase.GRANTED) else loser


def _rank(transaction: Transaction, losses: dict[str, int], max_losses: int) -> tuple[bool, int, int]:
    protected = losses.get(transaction.writer, 0) >= max_losses
    return (protected, 0 if protected else transaction.priority, -transaction.sequence)


def touches_conflict(mine: Touch, other: Touch) -> bool:
    """Whether `mine` is in conflict with `other`, which it met: by the pair's rule, with a side that counts."""
    one, another = mine.transaction, other.transaction
    return (
        one is not another
        and conflict_kind(one, another) is not None
        and operations_conflict(rule_for(one, another), mine.operation, other.operation)
    )


def conflicting(overlaps: Iterable[Overlap]) -> list[Overlap]:
    """Those overlaps that are conflicts for `mine`."""
    return [each for each in overlaps if touches_conflict(each.mine, each.other)]


def evidence(overlaps: Iterable[Overlap]) -> tuple[ConflictEntry, ...]:
    """The entries of an abort of `mine`: partition, file group and operation as its own markers had them."""
    entries: dict[tuple[str, str, str], ConflictEntry] = {}
    for overlap in overlaps:
        other = overlap.other.transaction
        key = (overlap.partition, overlap.file_group, other.id)
        if key in entries:
            continue
        if len(entries) == MAX_EVIDENCE:
            break
        entries[key] = ConflictEntry(
            partition=overlap.partition,
            file_group=overlap.file_group,
            operation=overlap.mine.operation,
            other_operation=overlap.other.operation,
            other_transaction=other.id,
            other_writer=other.writer,
            kind="commit" if other.phase in LANDED else "marker",
        )
    return tuple(entries.values())
