"""For whom a transaction waits, and how its wait ends."""

from __future__ import annotations

import pytest

from lakewarden.agent.operators.text import lines
from tests.unit.handlers.explain.explained import explain, explanation_of, json_of
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import m, world

STORIES = """

a queued transaction has its blockers and the last of them
    # B waits for A, which is computing on its scope; then for C, which overtook it by priority.
    intent A; touch A p/f; intent B p/f queued; beat A; intent C p/* queued priority=1; abandon A; abandon C; explain B
    → types="commit-intent commit-intent admitted", waits="A computing | A computing, C ahead in the queue"
    → effects.0.because.awaited=admission, effects.0.record.offset=2, effects.1.record.offset=4
    → effects.0.because.waits_for.0.shared.0.partition=p, effects.0.because.waits_for.0.shared.0.file_group=f
    → admitted.because.freed_by.transaction.id=C, admitted.because.freed_by.outcome.reason=abandoned
    → admitted.because.waited_ms=4500

a transaction that is answered in the same step has no wait
    # The older attempt of the same writer was superseded by this very intent.
    intent A1 p/f writer=w-A; intent A2 p/f writer=w-A queued; explain A2 → types="commit-intent admitted", waits=

a wait that ends with a timeout is a step
    # No event came in between: only the decision before the admission shows that it waited.
    intent A; touch A p/f; intent B p/f queued heartbeat_seconds=100; tick 16; explain B → types="commit-intent admitted"
    → admitted.because.freed_by.transaction.id=A, admitted.because.freed_by.outcome.reason=writer-lost

a transaction that waits for its grant has the holder and the earlier requests as blockers
    # One grant at a time for each table.
    intent A; intent B; intent C; lock; request A; request B; request C; explain C
    → waits="A granted, B ahead in the queue", open_waits="A granted, B ahead in the queue", outcome.phase=waiting
    world
    intent A; intent B; intent C; lock; request A; request B; request C; complete A; complete B; complete C; explain C
    → waits="A granted, B ahead in the queue", commit_granted.because.freed_by.transaction.id=B
    → commit_granted.because.waited_ms=2500, commit_granted.because.unblocked_ms=500

an ordered transaction has those with earlier turns as blockers
    # B requests its grant first, and waits for A, which touches the same place.
    intent A p/f ordered; intent B p/f ordered; lock; request B; request A; explain B → open_waits="A granted"
    world
    intent A p/f ordered; intent B p/f ordered; lock; request B; request A; complete A; complete B; explain B
    → waits="A earlier turn", text~", turn 1", text~"whose turn is earlier and which has not ended on p"
    world
    intent A ordered; intent B ordered; intent C ordered; lock; touch A p/b; touch B p/b; touch C p/b; request C; request B
    explain C → open_waits="B earlier turn, A earlier turn"
"""


@pytest.mark.parametrize("story", stories(STORIES, explain=explain), ids=str)
def test_for_whom_a_transaction_waits(story: Story) -> None:
    story.play()


def test_the_reason_of_the_admission_is_in_the_text_and_in_the_json() -> None:
    """With `auto`, the gate chooses: the operator must be able to see why a transaction was queued."""
    w = world().intent("A", m("p/f"), admission="queued", admission_reason="its scope\nis known").intent("B")
    chosen, unexplained = explanation_of(w, "A"), explanation_of(w, "B")

    assert "intent: queued (its scope is known), scope" in "\n".join(lines("explain", chosen))
    assert "intent: optimistic; open before it" in "\n".join(lines("explain", unexplained))
    reasons = [json_of(each)["steps"][0]["admission_reason"] for each in (chosen, unexplained)]
    assert reasons == ["its scope\nis known", None]
