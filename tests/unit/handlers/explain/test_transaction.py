"""A story is told from the events and decisions of a log, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import pytest

from lakewarden.agent import wire_events
from lakewarden.agent.cli.explain_text import story_lines
from lakewarden.agent.operators.explain import story_json
from lakewarden.events import (
    AuditEventUnion,
    ConflictDetected,
    DecisionRecord,
    LockLost,
    LockRefused,
    PartitionTaken,
    partition_name,
)
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.evidence import victim_rule
from lakewarden.handlers.explain.timeline import Story, Where, Who
from lakewarden.handlers.explain.transaction import Storyteller
from lakewarden.handlers.table.conflicts import loser_of
from lakewarden.handlers.table.transactions import OPEN, Phase
from lakewarden.handlers.table.verdicts import ReportConflict
from tests.unit.handlers.table.table_history import history
from tests.unit.handlers.table.test_conflicts import VICTIMS, a_transaction
from tests.unit.handlers.table.world import AT, TABLE, World, m, world

S = TypeVar("S")
SECOND = 1_000


def where(topic: Any, offset: int, recorded_ms: int) -> Where:
    return Where(topic, offset, AT.timestamp() * 1000, recorded_ms)


def published(w: World, agent: str = "agent-1", term: str = "term-1") -> list[tuple[Where, DecisionRecord]]:
    """What an agent of this world published, each a second after the event that it names."""
    verdicts = [each for each in w.log if not isinstance(each, tuple)]
    return [
        (
            where("decisions", number, verdict.cause.offset * SECOND + 500),
            wire_events.decision(agent, term, TABLE, verdict),
        )
        for number, verdict in enumerate(verdicts)
    ]


def story_of(
    w: World,
    transaction: str,
    decisions: list[tuple[Where, DecisionRecord]] | None = None,
    locks: list[tuple[Where, AuditEventUnion]] | None = None,
    reports: tuple[ConflictDetected, ...] = (),
) -> Story:
    """The story of a transaction of this world; an event each second."""
    teller = Storyteller(
        Who(transaction, f"w-{transaction}"), TABLE, published(w) if decisions is None else decisions
    )
    for each in w.log:
        if isinstance(each, tuple):
            event, offset = each
            teller.read(where("writers", offset, offset * SECOND), event)
    return teller.story(locks or (), reports)


def one(story: Story, kind: type[S]) -> S:
    (found,) = (each for each in story.steps if isinstance(each, kind))
    return found


def kinds(story: Story) -> list[str]:
    return [type(each).__name__ for each in story.steps]


def test_a_commit_is_told_from_its_intent_to_its_version() -> None:
    """The usual life: everything an operator asks first is there, with its offset."""
    w = (
        world()
        .intent("A", batch_id=4, writer="w-A")
        .lock()
        .touch("A", m("p/f"), m("p/g"))
        .touch("A", m("p/g"))
    )
    w.beat("A").request("A").beat("A").complete("A", version="17")

    story = story_of(w, "A")

    assert kinds(story) == ["Opened", "Admitted", "Touched", "Asked", "Granted", "Renewed", "Completed"]
    assert (story.fate.phase, story.fate.version) == (Phase.COMMITTED, "17")
    assert story.who == Who("A", "w-A", 4, 0)
    touched = one(story, timeline.Touched)
    assert (touched.first.offset, touched.where.offset) == (1, 2)
    assert (touched.events, touched.markers, touched.new, touched.partitions) == (2, 3, 2, ("p",))
    granted = one(story, timeline.Granted)
    assert (granted.where.offset, granted.seq, granted.lock_owner) == (1, 2, "agent-1")
    assert (granted.cause.event and granted.cause.event.where.offset, granted.cause.offset) == (4, 4)
    assert one(story, timeline.Completed).stood is Phase.GRANTED
    assert (story.beats.count, story.markers, story.waits_for) == (2, 2, ())


def test_a_loser_is_told_which_event_met_what_and_why_it_was_the_victim() -> None:
    """The question that the command is for."""
    w = world().intent("A").touch("A", m("p/e")).touch("A", m("p/f")).intent("B").touch("B", m("p/x"))
    w.touch("B", m("p/y"), m("p/f", "append"))

    aborted = one(story_of(w, "B"), timeline.Aborted)

    (against,) = aborted.against
    assert (against.winner.transaction, against.winner.writer) == ("A", "w-A")
    assert (against.by, against.offsets_older, against.rule) == ("sequence", 3, "file-group")
    assert [(e.partition, e.file_group, e.operation, e.other_operation) for e in against.entries] == [
        ("p", "f", "append", "merge")
    ]
    assert against.mine is not None
    assert against.theirs is not None
    assert (against.mine.where.offset, against.theirs.where.offset) == (5, 2)
    assert aborted.cause.event == against.mine
    assert (aborted.losses, aborted.stood, aborted.retriable) == (1, Phase.ACTIVE, True)


def test_the_winner_is_told_whom_it_stopped() -> None:
    """And by which event of its own it met it."""
    w = world().intent("A").intent("B").touch("B", m("p/f")).touch("A", m("p/*", "delete")).abandon("A")

    story = story_of(w, "A")

    won = one(story, timeline.Won)
    assert (won.victim.transaction, won.reason, won.against.by) == ("B", "conflict", "sequence")
    assert won.against.mine is not None
    assert won.against.theirs is not None
    assert (won.against.mine.where.offset, won.against.theirs.where.offset) == (2, 3)
    assert [(each.who.transaction, each.fate.phase) for each in story.others] == [("B", Phase.ABORTED)]
    assert one(story, timeline.Abandoned).reason == "gave up"


@pytest.mark.parametrize(
    "mine, theirs", [("p/f", "p/*"), ("p/*", "p/f"), ("/f", "/f"), ("a_b/c%2F", "a_b/c%2F")]
)
def test_both_events_of_the_evidence_are_found_whatever_the_names(mine: str, theirs: str) -> None:
    """A star covers what it does not name; what is said again later was said first before."""
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

    (against,) = one(story_of(w, "B"), timeline.Aborted).against

    assert against.mine is not None
    assert against.theirs is not None
    assert (against.mine.where.offset, against.theirs.where.offset) == (6, 2)


LOSSES = [each for each in VICTIMS if each[4] is not None]


@pytest.mark.parametrize(
    "a, b, losses, victim", [each[1:] for each in LOSSES], ids=[each[0] for each in LOSSES]
)
def test_the_rule_that_is_told_is_the_one_that_chose_the_victim(
    a: dict[str, Any], b: dict[str, Any], losses: dict[str, int], victim: str
) -> None:
    """Without what it names, and with all that comes after it turned round, the other one would have lost."""
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


def test_one_in_line_is_told_behind_whom_and_who_let_it_in() -> None:
    """B waits for A, which computes on its scope; then for C, which overtook it by priority."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued")
    w.beat("A").intent("C", m("p/*"), admission="queued", priority=1).abandon("A").abandon("C")

    story = story_of(w, "B")

    first, second = (each for each in story.steps if isinstance(each, timeline.Waiting))
    assert [(each.who.transaction, each.why) for each in first.behind] == [("A", "computing")]
    assert [(each.who.transaction, each.why) for each in second.behind] == [
        ("A", "computing"),
        ("C", "earlier in the line"),
    ]
    assert (first.what, first.where.offset, second.where.offset) == ("admission", 2, 4)
    assert [(each.partition, each.file_group) for each in first.behind[0].shared] == [("p", "f")]
    admitted = one(story, timeline.Admitted)
    assert admitted.freed_by is not None
    assert (admitted.freed_by.who.transaction, admitted.freed_by.fate.reason) == ("C", "abandoned")
    assert admitted.waited_ms == 4 * SECOND + 500


def test_who_is_answered_in_the_same_step_did_not_wait() -> None:
    """The older attempt of the same writer was superseded by this very intent."""
    w = world().intent("A1", m("p/f"), writer="w-A").intent("A2", m("p/f"), writer="w-A", admission="queued")

    assert kinds(story_of(w, "A2")) == ["Opened", "Admitted"]


def test_one_that_a_silent_writer_kept_waiting_is_told_so() -> None:
    """Nothing but the clock came between: no event says that it waited, only the decision before its own."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("B", m("p/f"), admission="queued", heartbeat_seconds=100).tick(16)

    story = story_of(w, "B")

    assert kinds(story) == ["Opened", "Waiting", "Admitted"]
    freed = one(story, timeline.Admitted).freed_by
    assert freed is not None
    assert (freed.who.transaction, freed.fate.reason) == ("A", "writer-lost")


def test_who_waits_for_a_grant_is_told_who_holds_it_and_who_asked_before() -> None:
    """One grant a table at a time."""
    w = world().intent("A").intent("B").intent("C").lock().request("A").request("B").request("C")

    open_end = story_of(w, "C")
    story = story_of(w.complete("A").complete("B").complete("C"), "C")

    behind = [("A", "granted"), ("B", "earlier in the line")]
    assert [(each.who.transaction, each.why) for each in open_end.waits_for] == behind
    assert open_end.fate.phase is Phase.WAITING
    assert [(each.who.transaction, each.why) for each in one(story, timeline.Waiting).behind] == behind
    granted = one(story, timeline.Granted)
    assert granted.freed_by is not None
    assert granted.freed_by.who.transaction == "B"
    assert (granted.waited_ms, granted.alone_ms) == (2 * SECOND + 500, 500)


def test_a_lapse_and_the_commit_that_is_heard_of_after_it() -> None:
    """Its writer was cut off, read the table, and says what it found."""
    w = world().intent("A").lock().request("A").tick(21).complete("A", version="9")

    story = story_of(w, "A")

    lapse = one(story, timeline.Aborted)
    assert (lapse.reason, lapse.stood, lapse.cause.event) == ("outcome-unknown", Phase.GRANTED, None)
    assert one(story, timeline.Completed).stood is Phase.UNKNOWN
    assert (story.fate.phase, story.fate.version) == (Phase.COMMITTED, "9")


def test_a_revoked_grant_stands_until_its_end() -> None:
    """The lock was lost while it published; the commit had landed."""
    w = world().intent("A").lock().request("A").lose_lock("renewal not confirmed")

    meanwhile = story_of(w, "A").fate
    story = story_of(w.complete("A", version="2"), "A")

    assert (meanwhile.phase, meanwhile.reason, meanwhile.where) == (Phase.GRANTED, "lease-lost", None)

    revoked = one(story, timeline.Aborted)
    assert (revoked.reason, revoked.stood) == ("lease-lost", Phase.GRANTED)
    assert story.fate.phase is Phase.COMMITTED


def test_what_comes_after_the_end_is_counted_and_changes_nothing() -> None:
    """Executors of an aborted job go on for a moment; its driver asks all the same."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    w.touch("B", m("p/g")).touch("B", m("p/h")).request("B")

    story = story_of(w, "B")

    assert kinds(story) == ["Opened", "Admitted", "Touched", "Aborted", "Ignored", "Ignored", "Aborted"]
    late = next(each for each in story.steps if isinstance(each, timeline.Ignored))
    assert (late.type, late.events, late.stood) == ("marker-created", 2, Phase.ABORTED)
    again = story.steps[-1]
    assert isinstance(again, timeline.Aborted)
    assert again.stood is Phase.ABORTED
    assert story.markers == 1


def test_a_repeated_delivery_is_counted_once() -> None:
    """A producer sent it twice."""
    w = world().intent("A").touch("A", m("p/f"))
    w.read(next(each[0] for each in w.log if isinstance(each, tuple) and each[1] == 1))

    story = story_of(w, "A")

    assert (story.repeated, one(story, timeline.Touched).events) == (1, 1)


def test_two_appends_under_deleted_file_meet_without_a_conflict() -> None:
    """It is told that they met, and that the rule lets them."""
    rule = {"conflict_rule": "deleted-file"}
    w = (
        world()
        .intent("A", **rule)
        .touch("A", m("p/f", "append"))
        .intent("B", **rule)
        .touch("B", m("p/f", "append"))
    )

    met = one(story_of(w, "B"), timeline.Met)

    assert (met.who.transaction, met.conflict, met.rule, met.came_second) == (
        "A",
        False,
        "deleted-file",
        "mine",
    )


def test_who_landed_before_it_began_was_not_met() -> None:
    """Its commit is in the base; it is kept as evidence only for an older one."""
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

    assert kinds(story_of(w, "B")) == ["Opened", "Admitted", "Touched"]
    (other,) = story_of(w.touch("old", m("p/f")), "old").others[:1]
    assert (other.who.transaction, other.fate.phase, other.places) == ("A", Phase.COMMITTED, 1)


def test_the_protection_is_told_first_though_more_speaks_for_the_winner() -> None:
    """As `conflicts.loser_of` asks for it first."""
    winner, victim = a_transaction("w", priority=5), a_transaction("v", sequence=2)

    assert victim_rule(victim, winner, {"w-w": 3}, 3) == "protected"


def test_a_decision_of_an_agent_that_had_lost_the_partition_is_told_as_void() -> None:
    """It slept, woke up, and granted; another agent had taken over before that was in the log."""
    w = world().intent("A").lock().request("A")
    (admitted, granted) = published(w)
    taken = PartitionTaken(event_id="t", table=partition_name(0), at=AT, agent="agent-2", term="term-2")
    decisions = [admitted, (where("decisions", 1, 200), taken), (replace(granted[0], offset=2), granted[1])]

    story = story_of(w, "A", decisions)

    assert kinds(story) == ["Opened", "Admitted", "Taken", "Asked", "Void"]
    void = one(story, timeline.Void)
    assert (void.type, void.agent, void.taken_by) == ("commit-granted", "agent-1", "agent-2")
    assert void.taken_at is not None
    assert void.taken_at.offset == 1
    assert story.fate.phase is Phase.WAITING


def test_an_agent_that_takes_over_in_the_middle_is_told_where_it_did() -> None:
    """A restart in between: the operator sees why it took so long."""
    w = world().intent("A").lock().touch("A", m("p/f")).request("A")
    admitted, granted = published(w)
    taken = PartitionTaken(event_id="t", table=partition_name(0), at=AT, agent="agent-2", term="term-2")
    later = granted[1].model_copy(update={"term": "term-2", "agent": "agent-2"})
    decisions = [admitted, (where("decisions", 1, 1_500), taken), (replace(granted[0], offset=2), later)]

    story = story_of(w, "A", decisions)

    assert kinds(story) == ["Opened", "Admitted", "Touched", "Taken", "Asked", "Granted"]


def test_steps_of_the_lock_stand_where_their_time_puts_them() -> None:
    """The lock was held by a foreign writer while it waited, and lost while it was granted."""
    w = world().intent("A").request("A").lock().lose_lock().beat("A").complete("A")
    common: dict[str, Any] = {
        "table": TABLE,
        "at": AT,
        "agent": "agent-1",
        "lock": "s3://lake/lock.json",
        "owner": "o",
        "valid_until": 5,
        "requests": 1,
        "duration_ms": 1.0,
    }

    def refused(number: int) -> LockRefused:
        return LockRefused(event_id=f"l{number}", holder="foreign", waiting=True, **common)

    locks: list[tuple[Where, AuditEventUnion]] = [
        (where("audit", 0, 1_100), refused(0)),
        (where("audit", 1, 1_200), refused(1)),
        (where("audit", 2, 1_600), LockLost(event_id="l2", detail="not confirmed", **common)),
        (where("audit", 3, 9_000), refused(3)),
    ]

    story = story_of(w, "A", locks=locks)

    assert kinds(story) == ["Opened", "Admitted", "Asked", "Lock", "Granted", "Aborted", "Lock", "Completed"]
    held = next(each for each in story.steps if isinstance(each, timeline.Lock))
    assert (held.type, held.holder, held.times) == ("lock-refused", "foreign", 2)


def test_what_the_agent_measured_is_told_with_the_abort() -> None:
    """How quickly it was found, which the log's times can't say."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    reports = tuple(wire_events.conflict(TABLE, each) for each in w.of(ReportConflict))

    aborted = one(story_of(w, "B", reports=reports), timeline.Aborted)

    assert aborted.detected_after_ms is not None
    assert aborted.age_seconds is not None


def test_the_tries_of_a_batch_are_told_with_their_ends() -> None:
    """Before it and after it."""
    w = world().lock().intent("A").touch("A", m("p/f"))
    for attempt in ("B1", "B2"):
        w.intent(attempt, writer="w-B", batch_id=3).touch(attempt, m("p/f"), writer="w-B")
    w.abandon("A").intent("B3", writer="w-B", batch_id=3).request("B3").complete(
        "B3", writer="w-B", version="8"
    )
    w.intent("B4", writer="w-B", batch_id=4)

    story = story_of(w, "B2")

    assert [(each.who.transaction, each.fate.phase) for each in story.attempts] == [
        ("B1", Phase.ABORTED),
        ("B2", Phase.ABORTED),
        ("B3", Phase.COMMITTED),
    ]


def test_a_batch_that_was_committed_already_says_by_whom() -> None:
    """Spark replays a micro-batch after a restart."""
    w = world().lock().intent("A", writer="w", batch_id=1).request("A").complete("A", writer="w", version="5")
    w.intent("B", writer="w", batch_id=1)

    story = story_of(w, "B")

    skipped = one(story, timeline.Skipped)
    assert (skipped.committed_transaction, skipped.version) == ("A", "5")
    assert (story.fate.phase, story.fate.reason) == (Phase.COMMITTED, "already-committed")


def test_a_transaction_whose_intent_is_older_than_the_log_has_a_story_too() -> None:
    """Retention removed its beginning while no agent ran."""
    w = world().touch("A", m("p/f"))

    story = story_of(w, "A")

    assert kinds(story) == ["Ignored", "Aborted"]
    assert (story.fate.phase, story.fate.reason) == (Phase.ABORTED, "unknown-transaction")
    assert story.who.sequence is None


def test_a_commit_of_a_transaction_older_than_the_log_is_a_commit() -> None:
    """It is told as one, and that nobody granted it as far as the log goes."""
    story = story_of(world().complete("A", version="3"), "A")

    assert (story.fate.phase, story.fate.version) == (Phase.COMMITTED, "3")
    assert one(story, timeline.Completed).stood is None


@pytest.mark.parametrize(
    "life, said",
    [
        (
            lambda w: w.intent("V").touch("V", m("p/f")).intent("W", priority=1).touch("W", m("p/f")),
            (
                "because marker-created of w-W (W) at writers:3 touched p f (merge/merge), "
                "which it had touched by marker-created at writers:1; w-W has the larger priority"
            ),
        ),
        (
            lambda w: w.intent("W").intent("V").lock().touch("W", m("p/f")).commits("W").touch("V", m("p/f")),
            (
                "because its marker-created at writers:5 touched p f (merge/merge), "
                "which w-W (W) had touched by marker-created at writers:2; w-W has committed since it began"
            ),
        ),
        (
            lambda w: (
                w.intent("W")
                .intent("V")
                .lock()
                .touch("W", m("/f"))
                .request("W")
                .touch("V", m("/*", "delete"))
            ),
            (
                "because its marker-created at writers:4 touched (unpartitioned) * (delete/merge), which w-W (W) had touched by "
                "marker-created at writers:2; w-W holds the grant, and a granted one is never the victim"
            ),
        ),
    ],
    ids=["priority", "landed", "granted"],
)
def test_an_abort_reads_as_what_happened(life: Callable[[World], World], said: str) -> None:
    """Which event met which, and why that meant this one."""
    assert said in "\n".join(story_lines(story_of(life(world()), "V")))


def test_an_abort_that_no_marker_set_off_says_what_did() -> None:
    """Early detection is off, so it was found with the request; under `first-committer`, with the other's."""
    off = (
        world(early_detection=False).intent("V").intent("W").lock().touch("V", m("p/f")).touch("W", m("p/f"))
    )
    off.commits("W").request("V")
    late = (
        world(policy="first-committer")
        .intent("V")
        .intent("W")
        .lock()
        .touch("V", m("p/f"))
        .touch("W", m("p/f"))
    )
    late.request("W")

    both = "because both touched p f (merge/merge), it by marker-created at writers:2, w-W (W) by marker-created at writers:3"
    assert f"{both}, found with w-V's commit-requested at writers:6" in "\n".join(
        story_lines(story_of(off, "V"))
    )
    assert f"{both}, found with w-W's commit-requested at writers:4" in "\n".join(
        story_lines(story_of(late, "V"))
    )


def test_the_longest_silence_is_told_with_where_it_began() -> None:
    """Why a writer was taken for lost."""
    w = world().intent("A").beat("A").intent("B").intent("C").beat("A")

    beats = story_of(w, "A").beats

    assert beats.gap_after is not None
    assert (beats.count, beats.longest_gap_ms, beats.gap_after.offset) == (2, 3 * SECOND, 1)


@pytest.mark.parametrize("seed", range(24))
def test_in_random_histories_every_story_ends_as_the_table_says(seed: int) -> None:
    """Writers that restart, fall silent or are cut off, agents that crash, locks that are lost: see `history`."""
    w = history(seed).w
    opened = {
        each[0].transaction for each in w.log if isinstance(each, tuple) and each[0].type == "commit-intent"
    }

    for transaction in sorted(opened):
        story = story_of(w, transaction)

        assert story.fate.phase is w.phase(transaction), transaction
        assert [json.loads(story_json(story))["steps"][0]["kind"], kinds(story)[0]] == ["opened", "Opened"]
        assert len(list(story_lines(story))) > len(story.steps)
        verdicts = [each for each in w.log if not isinstance(each, tuple) and each.transaction == transaction]
        assert _decisions(story) == len(verdicts)
        for step in story.steps:
            if isinstance(step, timeline.Aborted) and step.stood in OPEN:
                assert all(each.by and each.mine and each.theirs for each in step.against), step


def _decisions(story: Story) -> int:
    """How many decisions on the transaction itself its story tells."""
    one_each = timeline.Admitted | timeline.Granted | timeline.Skipped | timeline.Aborted
    return sum(
        each.times if isinstance(each, timeline.Renewed) else isinstance(each, one_each)
        for each in story.steps
    )


def test_the_documentation_names_every_kind_of_step_with_its_fields() -> None:
    """Programs read them."""
    text = (Path(__file__).parents[4] / "docs" / "explain.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}

    for kind in get_args(timeline.Step):
        row = rows[kind.__name__.lower()]
        if kind is timeline.Opened:
            continue  # the intent's own fields
        for each in fields(kind):
            assert each.name == "where" or f"`{each.name}`" in row, (kind, each.name)
