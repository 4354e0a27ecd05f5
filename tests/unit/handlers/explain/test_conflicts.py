"""Which conflicts and overlaps an explanation has, with the events of both sides and the rule that chose the victim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.agent.operators.explain_text import explanation_lines
from lakewarden.events import CommitCompleted
from lakewarden.handlers.explain.evidence import victim_rule
from lakewarden.handlers.table.conflicts import loser_of
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.explain.explained import explanation_of, one, types
from tests.unit.handlers.table.test_conflicts import VICTIMS, a_transaction
from tests.unit.handlers.table.test_observed import HUDI, observe
from tests.unit.handlers.table.world import m, world


def test_an_abort_names_both_events_the_place_and_the_victim_rule() -> None:
    """The question that the command answers most often."""
    w = world().intent("A").touch("A", m("p/e")).touch("A", m("p/f")).intent("B").touch("B", m("p/x"))
    w.touch("B", m("p/y"), m("p/f", "append"))

    explanation = explanation_of(w, "B")

    aborted = one(explanation, "abort")
    (lost,) = aborted.because.lost_conflicts
    assert (lost.winner.id, lost.winner.writer) == ("A", "w-A")
    assert (lost.victim_rule, lost.offsets_older, lost.conflict_rule) == ("sequence", 3, "file-group")
    assert lost.victim_event is not None
    assert lost.winner_event is not None
    assert (lost.victim_event.record.offset, lost.winner_event.record.offset) == (5, 2)
    assert aborted.because.cause == lost.victim_event
    assert aborted.because.phase_before is Phase.ACTIVE
    text = "retriable, 1 conflict lost in a row: its marker-created at writers:5 touched p f (append/merge), which w-A (A)"
    assert text in "\n".join(explanation_lines(explanation))


def test_a_lost_conflict_says_who_made_the_commit_without_the_gate() -> None:
    w = observe(world().intent("A").touch("A", m("p/f"))).touch(HUDI, m("p/f"))
    w.read(w.event(CommitCompleted, HUDI, version=HUDI[5:], engine="Hudi Streamer", job="trips"))

    victim, winner = (explanation_of(w, each) for each in ("A", HUDI))

    (other,) = victim.others
    assert (other.transaction.id, other.outcome.made_by) == (HUDI, "Hudi Streamer, job trips")
    for each in (victim, winner):
        assert "made by Hudi Streamer, job trips" in "\n".join(explanation_lines(each))


def test_a_winner_has_a_step_for_each_victim() -> None:
    """With the events of both sides."""
    w = world().intent("A").intent("B").touch("B", m("p/f")).touch("A", m("p/*", "delete")).abandon("A")

    explanation = explanation_of(w, "A")

    won = one(explanation, "abort")
    (lost,) = won.because.lost_conflicts
    assert (won.event.transaction, lost.winner.id, lost.victim_rule) == ("B", "A", "sequence")
    assert lost.victim_event is not None
    assert lost.winner_event is not None
    assert (lost.victim_event.record.offset, lost.winner_event.record.offset) == (2, 3)
    assert [(each.transaction.id, each.outcome.phase) for each in explanation.others] == [
        ("B", Phase.ABORTED)
    ]
    assert "the writer abandons it: the writer failed" in "\n".join(explanation_lines(explanation))


@pytest.mark.parametrize(
    "mine, theirs", [("p/f", "p/*"), ("p/*", "p/f"), ("/f", "/f"), ("a_b/c%2F", "a_b/c%2F")]
)
def test_the_first_events_of_both_sides_are_found_for_any_names(mine: str, theirs: str) -> None:
    """A `*` covers file groups that it does not name; only the first event that touched a place counts."""
    star = theirs.rsplit("/", 1)[0] + "/*"
    w = (
        world()
        .intent("A")
        .touch("A", m("q/z"))
        .touch("A", m(theirs))
        .touch("A", m(theirs))
        .touch("A", m(star))
    )
    w.intent("B").touch("B", m(mine))

    (lost,) = one(explanation_of(w, "B"), "abort").because.lost_conflicts

    assert lost.victim_event is not None
    assert lost.winner_event is not None
    assert (lost.victim_event.record.offset, lost.winner_event.record.offset) == (6, 2)


LOSSES = [each for each in VICTIMS if each[4] is not None]


@pytest.mark.parametrize(
    "a, b, losses, victim", [each[1:] for each in LOSSES], ids=[each[0] for each in LOSSES]
)
def test_the_victim_rule_is_the_one_that_decided(
    a: dict[str, Any], b: dict[str, Any], losses: dict[str, int], victim: str
) -> None:
    """If the fact that the rule names, and all later rules, are reversed, the other transaction loses."""
    first, second = a_transaction("a", **a), a_transaction("b", **{"sequence": 2, **b})
    lost, won = (first, second) if victim == "a" else (second, first)

    rule = victim_rule(lost, won, losses, 3)

    younger = replace(won, sequence=lost.sequence + 1)
    lower = replace(younger, priority=lost.priority - 1)
    turned, fewer = {
        "landed": (replace(lower, phase=Phase.ACTIVE), {}),
        "granted": (replace(lower, phase=Phase.ACTIVE), {}),
        "protected": (lower, {}),
        "priority": (lower, losses),
        "sequence": (younger, losses),
    }[rule]
    assert loser_of(lost, won, losses, 3) is lost
    assert loser_of(lost, turned, fewer, 3) is not lost


def test_two_appends_under_deleted_file_overlap_without_a_conflict() -> None:
    """The explanation contains the overlap, and that the rule allows it."""
    rule = {"conflict_rule": "deleted-file"}
    w = (
        world()
        .intent("A", **rule)
        .touch("A", m("p/f", "append"))
        .intent("B", **rule)
        .touch("B", m("p/f", "append"))
    )

    for this, event in (("B", 3), ("A", 3)):
        [step] = [each for each in explanation_of(w, this).steps if each.because.overlaps]
        [met] = step.because.overlaps
        assert (step.record.offset, step.event.transaction) == (event, "B")
        assert (met.other.id, met.conflict, met.rule) == ("AB".replace(this, ""), False, "deleted-file")


def test_a_transaction_that_landed_before_is_no_overlap() -> None:
    """Its commit is part of the base version. It is evidence only for an older transaction."""
    w = (
        world()
        .intent("old")
        .intent("A")
        .lock()
        .touch("A", m("p/f"))
        .commits("A")
        .intent("B")
        .touch("B", m("p/f"))
    )

    assert types(explanation_of(w, "B")) == ["commit-intent", "admitted", "marker-created"]
    (other,) = explanation_of(w.touch("old", m("p/f")), "old").others[:1]
    assert (other.transaction.id, other.outcome.phase, other.places) == ("A", Phase.COMMITTED, 1)


def test_protection_comes_before_priority() -> None:
    """In the order of `conflicts.loser_of`."""
    winner, victim = a_transaction("w", priority=5), a_transaction("v", sequence=2)

    assert victim_rule(victim, winner, {"w-w": 3}, 3) == "protected"
