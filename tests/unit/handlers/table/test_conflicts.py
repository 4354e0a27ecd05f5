"""The rules of `conflicts.py`: which operations conflict, which transactions count, and which one loses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.events import ConflictRule, Operation
from lakewarden.handlers.table.conflicts import conflict_kind, loser_of, operations_conflict, rule_for
from lakewarden.handlers.table.transactions import Phase, Transaction

C, A, M, D = "create", "append", "merge", "delete"


def a_transaction(identifier: str = "t", **fields: Any) -> Transaction:
    usual: dict[str, Any] = {
        "writer": f"w-{identifier}",
        "sequence": 1,
        "intent_id": "e",
        "began": 1,
        "opened_at": 0.0,
        "last_event_at": 0.0,
        "phase": Phase.ACTIVE,
    }
    return Transaction(identifier, **{**usual, **fields})


@pytest.mark.parametrize("mine", [C, A, M, D])
@pytest.mark.parametrize("other", [C, A, M, D])
def test_under_file_group_all_operations_on_one_file_group_conflict(
    mine: Operation, other: Operation
) -> None:
    """Two Hudi writers on one fileId: whatever they do, one of the two file slices would be lost."""
    assert operations_conflict("file-group", mine, other)


@pytest.mark.parametrize("mine", [C, A, M, D])
@pytest.mark.parametrize("other", [C, A, M, D])
def test_under_deleted_file_a_delete_conflicts_only_with_operations_that_need_the_file(
    mine: Operation, other: Operation
) -> None:
    """Paimon: a compaction deletes a file that another writer deletes too, or builds on."""
    expected = (mine, other) in {(M, D), (D, M), (D, D)}

    assert operations_conflict("deleted-file", mine, other) is expected


@pytest.mark.parametrize(
    "mine, other, rule",
    [
        ("file-group", "file-group", "file-group"),
        ("file-group", "deleted-file", "file-group"),
        ("deleted-file", "file-group", "file-group"),
        ("deleted-file", "deleted-file", "deleted-file"),
        ("ordered", "ordered", "ordered"),
        ("ordered", "file-group", "file-group"),
        ("deleted-file", "ordered", "file-group"),
    ],
)
def test_the_stricter_of_two_rules_applies_to_a_pair(
    mine: ConflictRule, other: ConflictRule, rule: ConflictRule
) -> None:
    """Two jobs on one table with different settings."""
    assert rule_for(a_transaction(conflict_rule=mine), a_transaction(conflict_rule=other)) == rule


@pytest.mark.parametrize(
    "phase, ended, began, kind",
    [
        (Phase.ACTIVE, -1, 5, "marker"),
        (Phase.WAITING, -1, 5, "marker"),
        (Phase.GRANTED, -1, 5, "marker"),
        (Phase.COMMITTED, 6, 5, "commit"),
        (Phase.UNKNOWN, 6, 5, "commit"),
        (Phase.COMMITTED, 4, 5, None),
        (Phase.UNKNOWN, 4, 5, None),
    ],
)
def test_computing_transactions_conflict_and_landed_ones_only_if_they_landed_since_the_begin(
    phase: Phase, ended: int, began: int, kind: str | None
) -> None:
    """RFC-56's two checks: against markers, and against commits since the writer's instant."""
    other = a_transaction("o", phase=phase, ended=ended)

    assert conflict_kind(a_transaction(began=began), other) == kind


@pytest.mark.parametrize("other_sequence, kind", [(1, "marker"), (9, None)])
def test_a_queued_transaction_conflicts_only_with_later_intents(
    other_sequence: int, kind: str | None
) -> None:
    """A retry waits with its scope declared. A newcomer must not overtake it; an earlier transaction is not affected."""
    other = a_transaction("o", phase=Phase.QUEUED, sequence=other_sequence)

    assert conflict_kind(a_transaction(sequence=5), other) == kind


VICTIM_RULES = """
b | | | | the later intent loses
a | priority=-1 | | | the lower priority loses, even with the earlier intent
b | sequence=2 priority=1 | sequence=1 | | the higher priority wins, even with the later intent
a | | phase=granted | | a granted transaction wins, even with the later intent
a | priority=9 | priority=0 phase=granted | | a granted transaction wins, even with the lower priority
a | | phase=granted | a=9 | a granted transaction wins against a protected writer
a | phase=active | phase=committed | | a committed transaction wins
a | | phase=unknown | | a transaction with an unknown outcome wins
a | | | b=3 | a protected writer wins, even with the later intent
a | priority=5 | priority=-5 | b=3 | a protected writer wins, even with the lower priority
b | | | b=2 | one loss less than max_losses does not protect
b | | | a=3 b=7 | of two protected writers the later intent loses
b | | priority=1 | a=3 b=3 | of two protected writers the later intent loses, whatever its priority
b | | phase=waiting | | waiting for a grant does not protect
none | sequence=2 | sequence=1 phase=queued priority=-1 | | a queued transaction is not a victim
a | sequence=2 | sequence=1 phase=queued | | a queued transaction wins against a later intent
"""
"""The victim, both transactions (the second has the later intent), the losses in a row of their writers, and the rule."""


def fields_of(text: str) -> dict[str, Any]:
    pairs = dict(each.split("=") for each in text.split())
    return {name: Phase(text) if name == "phase" else int(text) for name, text in pairs.items()}


def victim_rule_of(line: str) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, int], str | None]:
    victim, a, b, losses, rule = map(str.strip, line.split("|"))
    lost = {f"w-{writer}": count for writer, count in fields_of(losses).items()}
    return (
        rule,
        {"sequence": 1, **fields_of(a)},
        {"sequence": 2, **fields_of(b)},
        lost,
        None if victim == "none" else victim,
    )


VICTIMS = [victim_rule_of(line) for line in VICTIM_RULES.strip().splitlines()]


@pytest.mark.parametrize(
    "a, b, losses, victim", [each[1:] for each in VICTIMS], ids=[each[0] for each in VICTIMS]
)
def test_the_victim_is_the_same_from_either_side(
    a: dict[str, Any], b: dict[str, Any], losses: dict[str, int], victim: str | None
) -> None:
    """Whichever marker is read second, the decision on the pair is the same: exactly one of the two loses."""
    first, second = a_transaction("a", **a), a_transaction("b", **{"sequence": 2, **b})

    seen_from_first = loser_of(first, second, losses, 3)

    assert (seen_from_first.id if seen_from_first else None) == victim
    if second.phase not in (Phase.COMMITTED, Phase.UNKNOWN):
        assert loser_of(second, first, losses, 3) is seen_from_first


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.UNKNOWN, Phase.GRANTED])
def test_a_granted_transaction_is_never_a_victim(phase: Phase) -> None:
    """Its writer may be publishing: an abort could arrive too late."""
    granted = a_transaction("g", phase=Phase.GRANTED)

    assert loser_of(granted, replace(a_transaction("o"), phase=phase), {}, 3) is None
