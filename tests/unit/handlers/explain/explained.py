"""Explanations of the transactions of a small world, and what tests look for in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lakewarden.agent import wire_events
from lakewarden.agent.operators.as_json import as_json
from lakewarden.agent.operators.text import lines
from lakewarden.events import AuditEventUnion, DecisionRecord
from lakewarden.handlers.explain.timeline import Blocker, Explanation, RecordRef, Step, TransactionRef
from lakewarden.handlers.explain.transaction import Explainer
from tests.unit.handlers.table.world import TABLE, World

SECOND = 1_000


def published(w: World) -> list[tuple[RecordRef, DecisionRecord]]:
    """What an agent of this world published, each a second after the event that it names."""
    decisions = [each for each in w.log if not isinstance(each, tuple)]
    return [
        (
            RecordRef("decisions", number, decision.cause_offset * SECOND + 500),
            wire_events.stamped(decision, "agent-1", "term-1"),
        )
        for number, decision in enumerate(decisions)
    ]


def explanation_of(
    w: World,
    transaction: str,
    decisions: list[tuple[RecordRef, DecisionRecord]] | None = None,
    locks: list[tuple[RecordRef, AuditEventUnion]] | None = None,
) -> Explanation:
    """The explanation of a transaction of this world; an event each second."""
    explainer = Explainer(
        TransactionRef(transaction, f"w-{transaction}"),
        TABLE,
        published(w) if decisions is None else decisions,
    )
    for each in w.log:
        if isinstance(each, tuple):
            event, offset = each
            explainer.add(RecordRef("writers", offset, offset * SECOND), event)
    return explainer.explanation(locks or ())


def one(explanation: Explanation, kind: str) -> Step:
    """The only step of a record of this type."""
    (found,) = (each for each in explanation.steps if each.event.type == kind)
    return found


def json_of(value: object) -> Any:
    """A view as a program reads it."""
    return json.loads(as_json(value))


def types(explanation: Explanation) -> list[str]:
    """The types of the records, of which those without effect have a sign."""
    return [("-" if each.because.without_effect else "") + each.event.type for each in explanation.steps]


class Explained:
    """An explanation as the world of a story: each step is an attribute by its type (`commit_granted`), if there is one."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation
        self.effects = explanation.steps
        self.types = " ".join(types(explanation))
        self.text = "\n".join(lines("explain", explanation, verbose=True))
        self.attempts = " ".join(
            f"{each.transaction.id}:{each.outcome.phase and each.outcome.phase.value}"
            for each in explanation.attempts
        )

        waits = (_blockers(each.because.waits_for) for each in explanation.steps if each.because.waits_for)
        self.waits = " | ".join(waits)
        self.open_waits = _blockers(explanation.waits_for)

    @property
    def lost(self) -> Any:
        """The only conflict of the only abort."""
        (found,) = one(self.explanation, "abort").because.lost_conflicts
        return found

    def __getattr__(self, name: str) -> Any:
        found = [each for each in self.effects if each.event.type == name.replace("_", "-")]
        if len(found) == 1:
            return found[0]
        return getattr(self.explanation, name)


def _blockers(found: Iterable[Blocker]) -> str:
    return ", ".join(f"{each.transaction.id} {each.reason}" for each in found)


def explain(w: World, transaction: str) -> Explained:
    """A step of a story: the next expectations are about the explanation of this transaction."""
    return Explained(explanation_of(w, transaction))
