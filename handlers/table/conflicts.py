"""When two transactions conflict, and which of them loses.

Rule. Each transaction names its rule. If the two rules of a pair differ, the stricter one, `file-group`, applies. In a pair of
an observed transaction and one that isn't, the observed one's rule applies: a compaction of Hudi permits appends beside it.

| rule | two operations on one file group conflict |
| --- | --- |
| `file-group` (Hudi) | always |
| `deleted-file` (Paimon) | if both are `delete`, or one is `delete` and the other `merge`: it builds on what is deleted |
| `ordered` (Paimon's primary keys) | as with `deleted-file`; any others only out of order |

Order. `ordered` transactions come in the order of their admissions, because a writer numbers its rows by what it reads then
(docs/decisions/0045). Two that share a file group:

| the first | the second | then |
| --- | --- | --- |
| computes | computes | the second waits for its grant until the first has ended (`grants.py`) |
| computes | computes, with a larger priority | they conflict, and the first loses: its rows would count as older ones |
| computes | is granted, or has landed | they conflict, and the first loses: it touched the file group too late |
| is granted, or has landed | any | no conflict |

Counterpart. A transaction is in conflict only with these others:

| the other is | kind | why |
| --- | --- | --- |
| active, waiting or granted | `marker` | it computes at the same time |
| landed after this one began | `commit` | its commit is missing in this one's base (RFC-56's "check commit conflict") |
| queued with an earlier intent | `marker` | its scope is a reservation against later intents |

Victim. The first rule that applies decides:

1. A landed transaction wins.
2. An observed transaction wins, and then a granted one.
3. A protected writer wins: one that lost `max_losses` conflicts in a row, or whose transaction was overtaken as often in the
   admission queue (`Transaction.aged`). While it still waits there, the latter counts only against transactions that were
   admitted since: those that computed already end first, and it aborts none of them.
   Between two protected writers rule 5 applies, not rule 4: the one with the larger priority would win every time and starve
   the other.
4. The larger priority wins.
5. The earlier intent wins (RFC-56). No pair of transactions can abort each other.

A queued, granted or observed loser is not aborted, so there is no victim: the queued one waits, the granted one may be
publishing, and the writer of an observed one reads no decision.
"""

from collections.abc import Iterable

from lakewarden.events import IN_TURN, ConflictEntry, ConflictKind, ConflictRule, Operation, VictimRule
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, STOPPABLE, Phase, Touch, Transaction

MAX_EVIDENCE = 100
"""Entries per abort: enough to understand the conflict, small enough for any limit on the size of a record."""

RANKED_BY: tuple[VictimRule, ...] = ("observed", "granted", "protected", "priority", "sequence")
"""The rules for the victim by which `rank` orders two transactions that have not landed."""
_BUILDS_ON: frozenset[Operation] = frozenset({"merge", "delete"})


def rule_for(mine: Transaction, other: Transaction) -> ConflictRule:
    """The rule for a pair of transactions: the stricter of the two."""
    if mine.observed != other.observed:
        return mine.conflict_rule if mine.observed else other.conflict_rule
    return mine.conflict_rule if mine.conflict_rule == other.conflict_rule else "file-group"


def operations_conflict(rule: ConflictRule, mine: Operation, other: Operation) -> bool:
    """Whether two operations on one file group conflict, in whatever order their transactions come."""
    if rule == "file-group":
        return True
    return "delete" in (mine, other) and mine in _BUILDS_ON and other in _BUILDS_ON


def in_order(one: Transaction, another: Transaction) -> tuple[Transaction, Transaction]:
    """Return the two in the order of their admissions. Queued ones come last, in the order of their intents."""
    queued, also = one.phase is Phase.QUEUED, another.phase is Phase.QUEUED
    first = queued < also or (queued == also and one.began <= another.began)
    return (one, another) if first else (another, one)


def waits_for_turn(second: Transaction, first: Transaction) -> bool:
    """Whether, of two transactions that share a file group, the second has to wait for the end of the first."""
    return rule_for(second, first) in IN_TURN and first.began < second.began and _goes_first(first, second)


def _goes_first(first: Transaction, second: Transaction) -> bool:
    return first.phase in STOPPABLE and second.priority <= first.priority


def out_of_order(one: Transaction, another: Transaction) -> bool:
    """Whether, of two `ordered` transactions that share a file group, the second doesn't come after the first."""
    first, second = in_order(one, another)
    if first.phase not in STOPPABLE:
        return False
    return second.phase is Phase.GRANTED or second.phase in LANDED or not _goes_first(first, second)


def touches_meet(one: Touch, another: Touch) -> bool:
    """Whether two touches that share a place rule each other out, by the rule of the pair."""
    rule = rule_for(one.transaction, another.transaction)
    if operations_conflict(rule, one.operation, another.operation):
        return True
    return rule in IN_TURN and out_of_order(one.transaction, another.transaction)


def conflict_kind(mine: Transaction, other: Transaction) -> ConflictKind | None:
    """The kind of a conflict of `mine` with `other`; None if there can't be one."""
    if other.phase in LANDED:
        return "commit" if other.ended > mine.began else None
    if other.phase in COMPUTING:
        return "marker"
    return "marker" if other.phase is Phase.QUEUED and other.sequence < mine.sequence else None


def loser_of(
    mine: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
) -> Transaction | None:
    """The victim of a conflict between the two. None if the loser can't be aborted: it is queued, granted or observed."""
    loses = other.phase in LANDED or outranks(other, mine, losses, max_losses)
    loser = mine if loses else other
    return None if loser.observed or loser.phase in (Phase.QUEUED, Phase.GRANTED) else loser


def outranks(one: Transaction, another: Transaction, losses: dict[str, int], max_losses: int) -> bool:
    """Whether, by rules 2 to 5, the first of two transactions that have not landed wins."""
    mine = rank(one, protected=is_protected(one, another, losses, max_losses))
    return mine > rank(another, protected=is_protected(another, one, losses, max_losses))


def winning_rule(
    winner: Transaction, loser: Transaction, losses: dict[str, int], max_losses: int
) -> VictimRule:
    """The first rule for the victim by which one transaction wins against the other."""
    if winner.phase in LANDED:
        return "landed"
    ranks = zip(
        RANKED_BY,
        rank(winner, protected=is_protected(winner, loser, losses, max_losses)),
        rank(loser, protected=is_protected(loser, winner, losses, max_losses)),
        strict=True,
    )
    return next(rule for rule, winners, losers in ranks if winners != losers)


def is_protected(
    transaction: Transaction, other: Transaction, losses: dict[str, int], max_losses: int
) -> bool:
    """Whether a transaction is protected in a conflict with the other (rule 3)."""
    waits_since = transaction.aged if transaction.phase is Phase.QUEUED else -1
    aged = transaction.aged >= 0 and other.began > waits_since
    return aged or losses.get(transaction.writer, 0) >= max_losses


def rank(transaction: Transaction, *, protected: bool) -> tuple[bool, bool, bool, int, int]:
    """Sort key by rules 2 to 5: of two transactions that have not landed, the larger one wins."""
    granted = transaction.phase is Phase.GRANTED
    return (
        transaction.observed,
        granted,
        protected,
        0 if protected else transaction.priority,
        -transaction.sequence,
    )


def may_conflict(mine: Touch, other: Touch) -> bool:
    """Whether two touches can conflict, in some order of their transactions. It depends on the kinds of both alone."""
    rule = rule_for(mine.transaction, other.transaction)
    return rule in IN_TURN or operations_conflict(rule, mine.operation, other.operation)


def may_conflict_at_admission(mine: Touch, other: Touch) -> bool:
    """The same when the transaction of `mine` has just been admitted: then `ordered` ones of one priority are in order."""
    one, another = mine.transaction, other.transaction
    if one.priority == another.priority:
        return operations_conflict(rule_for(one, another), mine.operation, other.operation)
    return may_conflict(mine, other)


def touches_conflict(mine: Touch, other: Touch) -> bool:
    """Whether two touches that share a place are a conflict for `mine`."""
    one, another = mine.transaction, other.transaction
    return one is not another and conflict_kind(one, another) is not None and touches_meet(mine, other)


def conflicting(overlaps: Iterable[Overlap]) -> list[Overlap]:
    """The overlaps that are conflicts for `mine`."""
    known: dict[tuple[Touch, Touch], bool] = {}
    found = []
    for each in overlaps:
        pair = (each.mine, each.other)
        conflict = known.get(pair)
        if conflict is None:
            conflict = known[pair] = touches_conflict(*pair)
        if conflict:
            found.append(each)
    return found


def evidence(
    overlaps: Iterable[Overlap], losses: dict[str, int], max_losses: int, most: int = MAX_EVIDENCE
) -> tuple[ConflictEntry, ...]:
    """The first conflict entries of an abort of `mine`, with the partition, file group and operation of its own markers."""
    entries: dict[tuple[str, str, str], ConflictEntry] = {}
    for overlap in overlaps:
        mine, other = overlap.mine.transaction, overlap.other.transaction
        key = (overlap.partition, overlap.file_group, other.id)
        if key in entries:
            continue
        if len(entries) == most:
            break
        entries[key] = ConflictEntry(
            partition=overlap.partition,
            file_group=overlap.file_group,
            operation=overlap.mine.operation,
            other_operation=overlap.other.operation,
            other_transaction=other.id,
            other_writer=other.writer,
            kind="commit" if other.phase in LANDED else "marker",
            rule=winning_rule(other, mine, losses, max_losses),
            touched_at=mine.touched_at(overlap.partition, overlap.file_group),
            other_touched_at=other.touched_at(overlap.partition, overlap.other_file_group),
        )
    return tuple(entries.values())
