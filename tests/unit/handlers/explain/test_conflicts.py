"""Which conflicts an explanation has, with the events of both sides and the rule that chose the victim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.handlers.table.conflicts import loser_of, winning_rule
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.explain.explained import explain
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.test_conflicts import VICTIMS, a_transaction
from tests.unit.handlers.table.test_observed import land, observe

STORIES = """
an abort names both events the place and the victim rule
    # The question that the command answers most often.
    intent A; touch A p/e; touch A p/f; intent B; touch B p/x; touch B p/y p/f:append; explain B
    → lost.winner.id=A, lost.winner.writer=w-A, lost.victim_rule=sequence, lost.offsets_older=3, lost.conflict_rule=file-group
    → lost.victim_event.record.offset=5, lost.winner_event.record.offset=2, abort.because.cause.record.offset=5
    → abort.because.phase_before=active
    → text~"retriable, 1 conflict lost in a row: its marker-created at writers:5 touched p f (append/merge), which w-A (A)"

a lost conflict says who made the commit without the gate
    intent A; touch A p/f; observe hudi:a; touch hudi:a p/f; land hudi:a engine='Hudi Streamer' job=trips; explain A
    → others.0.transaction.id=hudi:a, others.0.outcome.made_by="Hudi Streamer, job trips", text~"made by Hudi Streamer, job trips"

the winner of a lost conflict says it too
    intent A; touch A p/f; observe hudi:a; touch hudi:a p/f; land hudi:a engine='Hudi Streamer' job=trips; explain hudi:a
    → text~"made by Hudi Streamer, job trips"

a winner has a step for each victim
    # With the events of both sides.
    intent A; intent B; touch B p/f; touch A p/*:delete; abandon A; explain A
    → abort.event.transaction=B, lost.winner.id=A, lost.victim_rule=sequence
    → lost.victim_event.record.offset=2, lost.winner_event.record.offset=3
    → others.0.transaction.id=B, others.0.outcome.phase=aborted, text~"the writer abandons it: the writer failed"

the first events of both sides are found for any names
    # A `*` covers file groups that it does not name; only the first event that touched a place counts.
    where PLACES is touch A p/*; touch A p/*; touch A p/*; intent B; touch B p/f
    | touch A p/f; touch A p/f; touch A p/*; intent B; touch B p/*
    | touch A /f; touch A /f; touch A /*; intent B; touch B /f
    | touch A a_b/c%2F; touch A a_b/c%2F; touch A a_b/*; intent B; touch B a_b/c%2F
    intent A; touch A q/z; PLACES; explain B → lost.victim_event.record.offset=6, lost.winner_event.record.offset=2

a transaction that landed before is no overlap
    # Its commit is part of the base version. It is evidence only for an older transaction.
    intent old; intent A; lock; touch A p/f; commits A; intent B; touch B p/f; explain B
    → types=commit-intent admitted marker-created

a transaction that lapsed before is no overlap
    # The other one's base has whatever it published. The third transaction keeps its evidence.
    intent A; touch A p/f; lock; request A; intent old; beat old; tick 14; beat old; tick 6.1; intent B; touch B p/f; explain A
    → types="commit-intent admitted marker-created commit-requested commit-granted abort"

a transaction that landed before is evidence for an older one
    intent old; intent A; lock; touch A p/f; commits A; intent B; touch B p/f; touch old p/f; explain old
    → others.0.transaction.id=A, others.0.outcome.phase=committed
"""


@pytest.mark.parametrize("story", stories(STORIES, explain=explain, observe=observe, land=land), ids=str)
def test_conflicts_of_an_explanation(story: Story) -> None:
    story.play()


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

    rule = winning_rule(won, lost, losses, 3)

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


def test_protection_comes_before_priority() -> None:
    """In the order of `conflicts.loser_of`."""
    winner, victim = a_transaction("w", priority=5), a_transaction("v", sequence=2)

    assert winning_rule(winner, victim, {"w-w": 3}, 3) == "protected"
