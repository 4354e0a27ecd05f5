"""For whom a transaction waits, and how its wait ends."""

from __future__ import annotations

from lakewarden.agent.operators.explain import explanation_fields
from lakewarden.agent.operators.explain_text import explanation_lines
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.explain.explained import SECOND, explanation_of, one, types
from tests.unit.handlers.table.world import m, world


def test_a_queued_transaction_has_its_blockers_and_the_last_of_them() -> None:
    """B waits for A, which is computing on its scope; then for C, which overtook it by priority."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued")
    w.beat("A").intent("C", m("p/*"), admission="queued", priority=1).abandon("A").abandon("C")

    explanation = explanation_of(w, "B")

    first, second = (each for each in explanation.steps if each.because.waits_for)
    assert [(each.transaction.id, each.reason) for each in first.because.waits_for] == [("A", "computing")]
    assert [(each.transaction.id, each.reason) for each in second.because.waits_for] == [
        ("A", "computing"),
        ("C", "ahead in the queue"),
    ]
    assert (first.because.awaited, first.record.offset, second.record.offset) == ("admission", 2, 4)
    assert [(each.partition, each.file_group) for each in first.because.waits_for[0].shared] == [("p", "f")]
    admitted = one(explanation, "admitted").because
    assert admitted.freed_by is not None
    assert (admitted.freed_by.transaction.id, admitted.freed_by.outcome.reason) == ("C", "abandoned")
    assert admitted.waited_ms == 4 * SECOND + 500


def test_a_transaction_that_is_answered_in_the_same_step_has_no_wait() -> None:
    """The older attempt of the same writer was superseded by this very intent."""
    w = world().intent("A1", m("p/f"), writer="w-A").intent("A2", m("p/f"), writer="w-A", admission="queued")

    assert types(explanation_of(w, "A2")) == ["commit-intent", "admitted"]


def test_the_reason_of_the_admission_is_in_the_text_and_in_the_json() -> None:
    """With `auto`, the gate chooses: the operator must be able to see why a transaction was queued."""
    w = world().intent("A", m("p/f"), admission="queued", admission_reason="its scope\nis known").intent("B")

    chosen, unexplained = explanation_of(w, "A"), explanation_of(w, "B")

    assert "intent: queued (its scope is known), scope" in "\n".join(explanation_lines(chosen))
    assert "intent: optimistic; open before it" in "\n".join(explanation_lines(unexplained))
    reasons = [explanation_fields(each)["steps"][0]["admission_reason"] for each in (chosen, unexplained)]
    assert reasons == ["its scope\nis known", None]


def test_a_wait_that_ends_with_a_timeout_is_a_step() -> None:
    """No event came in between: only the decision before the admission shows that it waited."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("B", m("p/f"), admission="queued", heartbeat_seconds=100).tick(16)

    explanation = explanation_of(w, "B")

    assert types(explanation) == ["commit-intent", "admitted"]
    freed = one(explanation, "admitted").because.freed_by
    assert freed is not None
    assert (freed.transaction.id, freed.outcome.reason) == ("A", "writer-lost")


def test_a_transaction_that_waits_for_its_grant_has_the_holder_and_the_earlier_requests_as_blockers() -> None:
    """One grant at a time for each table."""
    w = world().intent("A").intent("B").intent("C").lock().request("A").request("B").request("C")

    open_end = explanation_of(w, "C")
    explanation = explanation_of(w.complete("A").complete("B").complete("C"), "C")

    behind = [("A", "granted"), ("B", "ahead in the queue")]
    assert [(each.transaction.id, each.reason) for each in open_end.waits_for] == behind
    assert open_end.outcome.phase is Phase.WAITING
    waits_for = one(explanation, "commit-requested").because.waits_for
    assert [(each.transaction.id, each.reason) for each in waits_for] == behind
    granted = one(explanation, "commit-granted").because
    assert granted.freed_by is not None
    assert granted.freed_by.transaction.id == "B"
    assert (granted.waited_ms, granted.unblocked_ms) == (2 * SECOND + 500, 500)


def test_an_ordered_transaction_has_those_with_earlier_turns_as_blockers() -> None:
    """B requests its grant first, and waits for A, which touches the same place."""
    w = world().intent("A", m("p/f"), conflict_rule="ordered").intent("B", m("p/f"), conflict_rule="ordered")
    w.lock().request("B").request("A")

    waiting = explanation_of(w, "B")
    explanation = explanation_of(w.complete("A").complete("B"), "B")

    assert [(each.transaction.id, each.reason) for each in waiting.waits_for] == [("A", "granted")]
    (first,) = one(explanation, "commit-requested").because.waits_for
    assert (first.transaction.id, first.reason) == ("A", "earlier turn")
    text = "\n".join(explanation_lines(explanation))
    assert ", turn 1" in text
    assert "whose turn is earlier and which has not ended on p" in text
