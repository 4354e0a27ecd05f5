from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.events import ConflictRule, Operation
from lakewarden.handlers.table.conflicts import conflict_kind, loser_of, operations_conflict, rule_for
from lakewarden.handlers.table.transactions import Phase, Transaction

CONFLICT = True
FINE = False
C, A, M, D = "create", "append", "merge", "delete"


def a_transaction(identifier: str = "t", **fields: Any) -> Transaction:
    usual: dict[str, Any] = {
        "writer": f"w-{identifier}",
        "sequence": 1,
        "intent_id": "e",
        "batch_id": None,
        "priority": 0,
        "admission": "optimistic",
        "conflict_rule": "file-group",
        "heartbeat_seconds": 5.0,
        "began": 1,
        "opened_at": 0.0,
        "last_event_at": 0.0,
        "phase": Phase.ACTIVE,
    }
    return Transaction(id=identifier, **{**usual, **fields})


@pytest.mark.parametrize("mine", [C, A, M, D])
@pytest.mark.parametrize("other", [C, A, M, D])
def test_under_file_group_any_two_operations_on_one_file_group_conflict(
    mine: Operation, other: Operation
) -> None:
    """Two Hudi writers with one fileId: whatever they do, one of the two file slices would be lost."""
    assert operations_conflict("file-group", mine, other)


@pytest.mark.parametrize(
    "mine, other, expected",
    [
        (C, C, FINE),
        (C, A, FINE),
        (C, M, FINE),
        (C, D, FINE),
        (A, C, FINE),
        (A, A, FINE),
        (A, M, FINE),
        (A, D, FINE),
        (M, C, FINE),
        (M, A, FINE),
        (M, M, FINE),
        (M, D, CONFLICT),
        (D, C, FINE),
        (D, A, FINE),
        (D, M, CONFLICT),
        (D, D, CONFLICT),
    ],
)
def test_under_deleted_file_only_a_delete_conflicts_and_only_with_who_needs_the_file(
    mine: Operation, other: Operation, expected: bool
) -> None:
    """Paimon: a compaction removes a file that a second writer removes too, or builds on."""
    assert operations_conflict("deleted-file", mine, other) is expected


@pytest.mark.parametrize(
    "mine, other, rule",
    [
        ("file-group", "file-group", "file-group"),
        ("file-group", "deleted-file", "file-group"),
        ("deleted-file", "file-group", "file-group"),
        ("deleted-file", "deleted-file", "deleted-file"),
    ],
)
def test_the_stricter_of_two_rules_judges_the_pair(
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
def test_who_computes_counts_and_who_landed_counts_only_since_one_began(
    phase: Phase, ended: int, began: int, kind: str | None
) -> None:
    """RFC-56's two checks: early, against markers; and against commits since the writer's instant."""
    other = a_transaction("o", phase=phase, ended=ended)

    assert conflict_kind(a_transaction(began=began), other) == kind


@pytest.mark.parametrize("other_sequence, kind", [(1, "marker"), (9, None)])
def test_one_in_the_line_counts_only_against_who_came_after_it(other_sequence: int, kind: str | None) -> None:
    """A retry waits with its scope named; a newcomer must not overtake it, a predecessor is none of its business."""
    other = a_transaction("o", phase=Phase.QUEUED, sequence=other_sequence)

    assert conflict_kind(a_transaction(sequence=5), other) == kind


VICTIMS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, int], str | None]] = [
    ("the later loses", {"sequence": 1}, {"sequence": 2}, {}, "b"),
    ("lower priority loses, though earlier", {"priority": -1}, {"sequence": 2}, {}, "a"),
    ("higher priority wins, though later", {"sequence": 2, "priority": 1}, {"sequence": 1}, {}, "b"),
    (
        "a granted one is never the victim, though later",
        {"sequence": 1},
        {"sequence": 2, "phase": Phase.GRANTED},
        {},
        "a",
    ),
    ("nor though of lower priority", {"priority": 9}, {"priority": 0, "phase": Phase.GRANTED}, {}, "a"),
    ("nor against a protected one", {}, {"sequence": 2, "phase": Phase.GRANTED}, {"w-a": 9}, "a"),
    ("a landed one has won", {"phase": Phase.ACTIVE}, {"sequence": 2, "phase": Phase.COMMITTED}, {}, "a"),
    ("and so has one that may have landed", {}, {"sequence": 2, "phase": Phase.UNKNOWN}, {}, "a"),
    ("a protected one wins, though later", {"sequence": 1}, {"sequence": 2}, {"w-b": 3}, "a"),
    (
        "a protected one wins, though of lower priority",
        {"priority": 5},
        {"priority": -5, "sequence": 2},
        {"w-b": 3},
        "a",
    ),
    ("one loss short of protection is none", {"sequence": 1}, {"sequence": 2}, {"w-b": 2}, "b"),
    ("of two protected the later loses", {"sequence": 1}, {"sequence": 2}, {"w-a": 3, "w-b": 7}, "b"),
    (
        "of two protected the later loses, whatever its priority",
        {"sequence": 1},
        {"sequence": 2, "priority": 1},
        {"w-a": 3, "w-b": 3},
        "b",
    ),
    (
        "waiting for the grant protects nobody",
        {"sequence": 1},
        {"sequence": 2, "phase": Phase.WAITING},
        {},
        "b",
    ),
    (
        "one in the line computes nothing that it could lose",
        {"sequence": 2},
        {"sequence": 1, "phase": Phase.QUEUED, "priority": -1},
        {},
        None,
    ),
    ("but whoever comes after it loses", {"sequence": 2}, {"sequence": 1, "phase": Phase.QUEUED}, {}, "a"),
]


@pytest.mark.parametrize(
    "a, b, losses, victim", [each[1:] for each in VICTIMS], ids=[each[0] for each in VICTIMS]
)
def test_the_victim_is_one_and_the_same_from_either_side(
    a: dict[str, Any], b: dict[str, Any], losses: dict[str, int], victim: str | None
) -> None:
    """Whoever's marker arrives second, the verdict on the pair is the same: never both, never none by turns."""
    first, second = a_transaction("a", **a), a_transaction("b", **{"sequence": 2, **b})

    seen_from_first = loser_of(first, second, losses, 3)

    assert (seen_from_first.id if seen_from_first else None) == victim
    if second.phase not in (Phase.COMMITTED, Phase.UNKNOWN):
        assert loser_of(second, first, losses, 3) is seen_from_first


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.UNKNOWN, Phase.GRANTED])
def test_a_granted_transaction_loses_to_nobody_whatever_it_touches_late(phase: Phase) -> None:
    """Its writer may be in the middle of the publish: an abort could come too late to be obeyed."""
    granted = a_transaction("g", phase=Phase.GRANTED)

    assert loser_of(granted, replace(a_transaction("o"), phase=phase), {}, 3) is None
