"""An explanation is built from the events and decisions of the log, and from nothing else."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent.operators.text import lines
from lakewarden.events import (
    AuditEventUnion,
    LockAcquired,
    LockLost,
    LockRefused,
    TransactionAbandoned,
)
from lakewarden.handlers.explain.timeline import Because, RecordRef
from lakewarden.handlers.table.transactions import OPEN, Phase
from tests.exhaustive.engine import walk
from tests.exhaustive.scopes import SCOPES
from tests.exhaustive.table_judge import in_order
from tests.unit.events.building import made, partition_taken
from tests.unit.handlers.explain.explained import (
    Explained,
    explain,
    explanation_of,
    json_of,
    one,
    published,
    types,
)
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import TABLE, World, m, world

STORIES = """

a commit is explained from its intent to its version
    # The usual case: every fact that an operator needs first is there, with its offset.
    intent A batch_id=4 writer=w-A; lock; touch A p/f p/g; touch A p/g; beat A; request A; beat A; complete A version=v17
    explain A
    → types=commit-intent admitted marker-created commit-requested commit-granted grant-renewed commit-completed
    → outcome.phase=committed, outcome.version=v17, transaction.writer=w-A, transaction.batch_id=4, transaction.sequence=0
    → marker_created.first.offset=1, marker_created.record.offset=2, marker_created.times=2
    → marker_created.because.markers=3, marker_created.because.new=2, marker_created.because.partitions.0=p
    → commit_granted.record.offset=1, commit_granted.event.seq=2, commit_granted.event.lock_owner=agent-1
    → commit_granted.because.cause.record.offset=4, commit_granted.event.cause_offset=4
    → commit_completed.because.phase_before=granted, markers=2, waits_for=()

a commit is explained that is reported after the grant lease expired
    # The writer was cut off, read the table, and reported what it found.
    intent A; lock; request A; tick 21; complete A version=v9; explain A
    → abort.event.reason=outcome-unknown, abort.because.phase_before=granted, abort.because.cause=None
    → commit_completed.because.phase_before=unknown, outcome.phase=committed, outcome.version=v9

a withdrawn grant stays granted until its outcome is known
    # The agent lost the lock while the writer published; the commit had landed.
    intent A; lock; request A; lose_lock; explain A → outcome.phase=granted, outcome.reason=lease-lost, outcome.record=None
    world
    intent A; lock; request A; lose_lock; complete A version=v2; explain A
    → abort.event.reason=lease-lost, abort.because.phase_before=granted, outcome.phase=committed

events after the end are counted and change nothing
    # Executors of an aborted job continue for a moment; the driver still requests its grant.
    intent A; touch A p/f; intent B; touch B p/f; touch B p/g; touch B p/h; request B; explain B
    → types=commit-intent admitted marker-created abort -marker-created -commit-requested abort, markers=1
    → effects.4.times=2, effects.4.because.phase_before=aborted, effects.-1.because.phase_before=aborted

a repeated delivery is counted as such
    # A producer sent the event twice.
    intent A; touch A p/f; deliver_again 1; explain A → repeated=1, marker_created.times=1

the attempts of a batch are listed with their outcomes
    # Those before it and those after it.
    lock; intent A; touch A p/f; intent B1 writer=w-B batch_id=3; touch B1 p/f; intent B2 writer=w-B batch_id=3; touch B2 p/f
    abandon A; intent B3 writer=w-B batch_id=3; lock; request B3; complete B3 version=v8; intent B4 writer=w-B batch_id=4
    explain B2 → attempts=B1:aborted B2:aborted B3:committed

a skipped batch names the transaction that committed it
    # Spark replays a micro-batch after a restart.
    intent A writer=w batch_id=1; lock; request A; complete A version=v5; intent B writer=w batch_id=1; explain B
    → text~"nothing to do: the batch is already committed, by A as version v5"
    → outcome.phase=committed, outcome.reason=already-committed

a transaction whose intent was removed has an explanation
    # Retention removed its intent while no agent ran.
    touch A p/f; explain A → types=-marker-created abort, transaction.sequence=None
    → outcome.phase=aborted, outcome.reason=unknown-transaction

a commit of a transaction whose intent was removed is a commit
    # The log contains no grant for it.
    complete A version=v3; explain A
    → outcome.phase=committed, outcome.version=v3, commit_completed.because.phase_before=None

the text of an abort names both events and that the other has the higher priority
    intent V; touch V p/f; intent W priority=1; touch W p/f; explain V
    → text~"marker-created of w-W (W) at writers:3 touched p f (merge/merge)"
    → text~", which it had touched with marker-created at writers:1; w-W has the higher priority"

the text of an abort names both events and that the other has committed
    intent W; intent V; lock; touch W p/f; commits W; touch V p/f; explain V
    → text~"its marker-created at writers:5 touched p f (merge/merge), which w-W (W) had touched with marker-created at writers:2"
    → text~"; w-W has committed since it began"

the text of an abort names both events and that the other is granted
    intent W; intent V; lock; touch W /f; request W; touch V /*:delete; explain V
    → text~"its marker-created at writers:4 touched (unpartitioned) * (delete/merge), which w-W (W) had touched with "
    → text~"marker-created at writers:2; w-W holds the grant, and a granted transaction is never the victim"

without early detection the text of an abort names the victim's own request
    world early_detection=False
    intent V; intent W; lock; touch V p/f; touch W p/f; commits W; request V; explain V
    → text~"both touched p f (merge/merge), it with marker-created at writers:2, w-W (W) with marker-created at writers:3"
    → text~", detected with w-V's commit-requested at writers:6"

under first-committer the text of an abort names the request of the other transaction
    world policy=first-committer
    intent V; intent W; lock; touch V p/f; touch W p/f; request W; explain V
    → text~"both touched p f (merge/merge), it with marker-created at writers:2, w-W (W) with marker-created at writers:3"
    → text~", detected with w-W's commit-requested at writers:4"
"""


@pytest.mark.parametrize("story", stories(STORIES, explain=explain), ids=str)
def test_an_explanation(story: Story) -> None:
    story.play()


TAKEN = partition_taken("term-2", agent="agent-2")


def test_a_decision_of_an_agent_that_had_lost_the_partition_is_void() -> None:
    """It was suspended, woke up, and granted; another agent had taken over before the grant was in the log."""
    w = world().intent("A").lock().request("A")
    (admitted, granted) = published(w)
    decisions = [
        admitted,
        (RecordRef("decisions", 1, 200), TAKEN),
        (replace(granted[0], offset=2), granted[1]),
    ]

    explanation = explanation_of(w, "A", decisions)

    assert " ".join(types(explanation)) == (
        "commit-intent admitted partition-taken commit-requested -commit-granted"
    )
    void = explanation.steps[-1].because
    assert void.taken_at is not None
    assert (void.taken_by, void.taken_at.offset) == ("agent-2", 1)
    text = "DOES NOT COUNT: commit-granted by agent agent-1, after agent agent-2 had taken over the partition"
    assert text in "\n".join(lines("explain", explanation, verbose=True))
    assert explanation.outcome.phase is Phase.WAITING


def test_a_take_over_is_a_step_at_its_place() -> None:
    """A restart in between shows the operator why the commit took so long."""
    w = world().intent("A").lock().touch("A", m("p/f")).request("A")
    admitted, granted = published(w)
    later = granted[1].model_copy(update={"term": "term-2", "agent": "agent-2"})
    decisions = [admitted, (RecordRef("decisions", 1, 1_500), TAKEN), (replace(granted[0], offset=2), later)]

    explanation = explanation_of(w, "A", decisions)

    assert " ".join(types(explanation)) == (
        "commit-intent admitted marker-created partition-taken commit-requested commit-granted"
    )


def test_lock_steps_are_placed_by_their_time() -> None:
    """A foreign writer held the lock while the transaction waited, and the agent lost the lock after the grant."""
    w = world().intent("A").request("A").lock().lose_lock().beat("A").complete("A")
    common: dict[str, Any] = {"table": TABLE, "lock": "s3://lake/lock.json", "valid_until": 5}
    refused = made(LockRefused, holder="foreign", waiting=True, **common)
    locks: list[tuple[RecordRef, AuditEventUnion]] = [
        (RecordRef("audit", 0, 1_100), refused),
        (RecordRef("audit", 1, 1_200), refused),
        (RecordRef("audit", 2, 1_500), made(LockAcquired, **common)),  # the time of the grant
        (RecordRef("audit", 3, 1_600), made(LockLost, detail="not confirmed", **common)),
        (RecordRef("audit", 4, 9_000), refused),
    ]

    explanation = explanation_of(w, "A", locks=locks)

    assert " ".join(types(explanation)) == (
        "commit-intent admitted commit-requested lock-refused lock-acquired commit-granted abort lock-lost commit-completed"
    )
    assert one(explanation, "lock-refused").times == 2
    assert "which owner foreign holds until" in "\n".join(lines("explain", explanation, verbose=True))


def test_what_is_not_needed_at_night_is_behind_verbose() -> None:
    """The short text has the names of the writers, and ids that every command accepts."""
    query, older, younger = ":c2554438-2e6b-4a36-baf4-fd00ec888d87", "5018ac75" * 4, "77aa0001" * 4
    w = world().intent(older, writer=f"shop{query}").touch(older, m("p/f")).beat(older)
    w.intent(younger, writer=f"crm{query}").touch(younger, m("p/f"))
    explanation = explanation_of(w, younger)
    short, whole = ("\n".join(lines("explain", explanation, verbose=each)) for each in (False, True))

    for each in ("writers:", "decisions:", query, older, "priority", "heartbeat"):
        assert each in whole
        assert each not in short
    assert "which shop (5018ac75) had touched" in short
    assert short.splitlines()[0].split() == ["transaction", younger]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"reason": "BaseChanged: a file is gone"}, "aborted (abandoned)"),
        (
            {"reason": "a file is gone", "cause": "base-changed"},
            "lost to a commit that the table doesn't name",
        ),
        (
            {"reason": "x", "cause": "base-changed", "lost_to": "version 49: UPDATE, DBR/17"},
            "lost to version 49: UPDATE, DBR/17",
        ),
        ({"reason": "empty: nothing to write"}, "aborted (abandoned)"),
    ],
)
def test_the_outcome_names_the_commit_without_the_gate_to_which_a_batch_was_lost(
    fields: dict[str, str], outcome: str
) -> None:
    w = world().intent("A")
    w.read(w.event(TransactionAbandoned, "A", **fields))

    assert f"outcome      {outcome}" in lines("explain", explanation_of(w, "A"))


def test_decisions_of_an_earlier_release_are_explained_with_less() -> None:
    """They don't say why the winner won, and what freed the one that waited. Nothing is guessed."""
    w = world().intent("A", m("p/f")).intent("B").touch("B", m("p/f"))
    w.intent("C", m("p/f"), admission="queued").abandon("A")
    told, old = published(w), []
    for record, decision in told:
        fields = decision.model_dump() | {"freed_by": None}
        if entries := fields.get("conflicts"):
            fields["conflicts"] = [each | {"rule": None} for each in entries]
        known = {name: each for name, each in fields.items() if name in type(decision).model_fields}
        old.append((record, type(decision).model_validate(known)))

    assert "w-A is older by" in Explained(explanation_of(w, "B", told)).text
    lost = Explained(explanation_of(w, "B", old))
    assert lost.lost.victim_rule is None
    assert "the agent's release doesn't say why w-A won" in lost.text
    assert one(explanation_of(w, "C", told), "admitted").because.freed_by is not None
    assert one(explanation_of(w, "C", old), "admitted").because.freed_by is None


def test_of_many_steps_the_first_and_the_last_are_printed() -> None:
    """A backfill, behind which batches of many writers queue."""
    w = world().intent("A").touch("A", m("p/*"))
    for number in range(100):
        w.intent(f"B{number}").touch(f"B{number}", m("p/*"))
    w.abandon("A")
    explanation = explanation_of(w, "A")
    short, whole = (list(lines("explain", explanation, verbose=each)) for each in (False, True))

    assert len(explanation.steps) > 100
    assert len(short) < 90 < len(whole)
    assert any("more steps: --verbose prints them" in each for each in short)
    assert any("the writer abandons it" in each for each in short)


def test_of_many_attempts_the_first_and_the_last_are_printed_and_all_are_in_the_json() -> None:
    w = world()
    for number in range(150):
        w.intent(f"B{number}", writer="crm", batch_id=3).abandon(f"B{number}")
    explanation = explanation_of(w, "B70")
    short, whole = (
        [line.split()[0] for line in lines("explain", explanation, verbose=each) if line.startswith("  B")]
        for each in (False, True)
    )

    everything = [f"B{number}:" for number in range(150)]
    assert [each.rstrip(":") for each in whole] == [each.rstrip(":") for each in everything]
    assert short == [*everything[:2], *everything[-8:]]
    assert "  … 140 more attempts: --verbose prints them" in lines("explain", explanation)
    assert len(json_of(explanation)["attempts"]) == 150


def walked(scope: str, seed: int) -> World:
    """A table after random steps of a small world, in which writers die, agents are killed, and locks are lost."""
    model: Any = SCOPES[scope].model
    at_end = walk(model, random.Random(seed), 60)
    w = World(model.settings)
    for each in in_order(at_end.events, at_end.decisions):
        w.replay(each)
    return w


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "scope",
    [
        "table: a writer dies, killed anywhere",
        "table: operators, duplicates, failures, a lost lock",
        "table: with time and a kill",
    ],
)
def test_in_random_histories_every_explanation_ends_in_the_phase_of_the_table(scope: str, seed: int) -> None:
    w = walked(scope, seed)
    opened = {
        each[0].transaction for each in w.log if isinstance(each, tuple) and each[0].type == "commit-intent"
    }

    admissions = (each for each in w.log if not isinstance(each, tuple) and each.type == "admitted")
    reserved = {
        each.transaction for each in admissions if each.reserved
    }  # touched by a decision, not by an event

    for transaction in sorted(opened):
        explanation = explanation_of(w, transaction)

        # A writer that abandons its transaction after the lapse knows the outcome better than the table.
        assert explanation.outcome.phase is w.phase(transaction) or explanation.outcome.reason == "abandoned"
        assert types(explanation)[0] == "commit-intent"
        assert len(list(lines("explain", explanation, verbose=True))) > len(explanation.steps)
        decided = [each for each in explanation.steps if each.record.topic == "decisions"]
        own = [each for each in decided if each.event.transaction == transaction]
        verdicts = [each for each in w.log if not isinstance(each, tuple) and each.transaction == transaction]
        assert sum(each.times for each in own) == len(verdicts)
        for step in own:
            if step.event.type == "abort" and step.because.phase_before in OPEN:
                assert all(
                    each.victim_rule
                    and (each.victim_event or transaction in reserved)
                    and (each.winner_event or each.winner.id in reserved)
                    for each in step.because.lost_conflicts
                ), step


def test_the_json_of_a_step_is_that_of_its_event_and_because() -> None:
    """Programs that read the log read an explanation, too; what a step doesn't say is not in its JSON."""
    w = world().intent("A").lock().request("A")

    [intent, *_, granted] = json_of(explanation := explanation_of(w, "A"))["steps"]

    assert intent["because"] == {"open_before": 0}, "zero is an answer"
    assert granted == {
        **explanation.steps[-1].event.model_dump(mode="json"),
        "record": {"topic": "decisions", "offset": 1, "recorded_ms": 1_500},
        "first": {"topic": "decisions", "offset": 1, "recorded_ms": 1_500},
        "times": 1,
        "because": {
            "cause": {
                "type": "commit-requested",
                "transaction": "A",
                "writer": "w-A",
                "record": {"topic": "writers", "offset": 1, "recorded_ms": 1_000},
            },
            "waited_ms": 500,
            "unblocked_ms": 500,
        },
    }


def test_the_documentation_names_every_field_of_because() -> None:
    """Programs read them."""
    text = (Path(__file__).parents[4] / "docs" / "explain.md").read_text(encoding="utf-8")

    assert [each.name for each in fields(Because) if f"| `{each.name}`" not in text] == []
