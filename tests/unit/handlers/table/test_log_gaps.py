"""A take-over notices that the log lacks what the checkpoint relies on, and the table decides safely without it."""

from __future__ import annotations

import pytest

from lakewarden.events import CommitCompleted
from lakewarden.handlers.table.ledger import Correction
from lakewarden.handlers.table.log_gaps import (
    Extent,
    Gap,
    LastRecord,
    Problem,
    find_correction_gap,
    find_gap,
    replay_start,
)
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import world

LAST = LastRecord(79, "of-79")


@pytest.mark.parametrize(
    ("needed", "last", "extent", "expected"),
    [
        (50, LAST, Extent(0, 80, "of-79"), None),
        (80, LAST, Extent(80, 80), None),  # retention has removed what nothing needs
        (80, None, Extent(0, 200), None),  # the checkpoint of an earlier release
        (None, None, Extent(0, 80), None),  # the first agent
        (None, None, Extent(5, 80), ("no-checkpoint", 0, 5)),
        (50, LAST, Extent(60, 80, "of-79"), ("beginning-lost", 50, 60)),
        (50, LAST, Extent(50, 79), ("end-lost", 80, 79)),
        (100, LAST, Extent(0, 10), ("end-lost", 100, 10)),
        (50, LAST, Extent(0, 90, "another"), ("replaced", 79, 90)),
        (50, LAST, Extent(0, 90, None), ("replaced", 79, 90)),
    ],
)
def test_a_topic_is_compared_with_what_the_checkpoint_relies_on(
    needed: int | None, last: LastRecord | None, extent: Extent, expected: tuple[Problem, int, int] | None
) -> None:
    assert find_gap("t", needed, last, extent) == (None if expected is None else Gap("t", *expected))


@pytest.mark.parametrize(
    ("extent", "found", "expected"),
    [
        (Extent(0, 95), "c", None),
        (Extent(95, 200), None, None),  # retention has removed the correction
        (Extent(0, 94), None, ("end-lost", 95, 94)),
        (Extent(0, 0), None, ("end-lost", 95, 0)),
        (Extent(0, 200), "another", ("replaced", 94, 200)),
        (Extent(0, 200), None, ("replaced", 94, 200)),
    ],
)
def test_a_correction_in_the_ledger_shows_that_its_topic_is_another_one(
    extent: Extent, found: str | None, expected: tuple[Problem, int, int] | None
) -> None:
    """Kafka drops the group's checkpoints with a deleted topic, so only the ledger still names offsets of it."""
    gap = find_correction_gap("t", Correction(94, "c"), extent, found)

    assert gap == (None if expected is None else Gap("t", *expected))


WHOLE = Extent(0, 1_000)


@pytest.mark.parametrize(
    ("problems", "events", "decisions", "expected"),
    [
        ((None, None), WHOLE, WHOLE, (50, Position(700, "term"))),
        (("beginning-lost", None), Extent(60, 80), WHOLE, (60, Position(700, "term"))),
        (("end-lost", None), Extent(5, 40), WHOLE, (5, Position(0, None))),
        (("end-lost", None), Extent(5, 70), WHOLE, (50, Position(700, "term"))),
        (("replaced", None), Extent(0, 90), Extent(3, 800), (0, Position(3, None))),
        ((None, "beginning-lost"), WHOLE, Extent(800, 900), (50, Position(800, None))),
        ((None, "end-lost"), WHOLE, Extent(0, 300), (50, Position(0, None))),
        ((None, "replaced"), WHOLE, WHOLE, (50, Position(0, None))),
    ],
)
def test_a_replay_of_an_incomplete_log_starts_where_everything_is_read_that_is_left(
    problems: tuple[Problem | None, Problem | None],
    events: Extent,
    decisions: Extent,
    expected: tuple[int, Position],
) -> None:
    """The term is known only at the checkpoint's own position."""
    gaps = tuple(None if each is None else Gap("t", each, 0, 0) for each in problems)

    assert replay_start(50, Position(700, "term"), (gaps[0], gaps[1]), (events, decisions)) == expected


STORIES = """

what is open without a grant is aborted after an incomplete replay
    # Review A5: `decisions` has lost an admission, and with it the evidence of what landed since. T1 would overlap T2.
    intent T1; intent T2; touch T2 p/f; lock; commits T2; restart_without_decisions 'decisions begins at 700'
    → aborted T1 unknown-transaction and T2 unknown-transaction
    → some Abort transaction=T1 retriable=True detail~'decisions begins at 700', some Abort transaction=T2 retriable=True
    touch T1 p/f; request T1 → no grant

a grant that the log still has survives an incomplete replay
    # Its writer may be publishing: a second grant beside it would break promise G1.
    intent G; intent open; lock; request G; restart_incomplete
    → aborted open unknown-transaction, G is granted, AcquireLock adopt=agent-1

nothing is admitted before a grant that the log lost has ended
    # T was granted and is publishing. N must begin after that commit, because nothing shows their conflict.
    where HOLD is while-active | per-commit
    world hold=HOLD
    intent T; lock; request T; restart_without_decisions; intent N → no admission, AcquireLock adopt=None
    lock → admitted N
    intent M → admitted M

an adopted lock shows the end of former grants only after its quiet time
    # The former owner's lease may cover a grant of which the log has neither end nor beginning.
    intent granted; lock; request granted; restart_incomplete; intent N; lock owner=agent-2 quiet=10.0 → no admission
    wait 10; lock owner=agent-2 → admitted N

the answers after an incomplete replay are facts for the next owner
    intent T; lock; request T; restart_without_decisions; restart_incomplete → no abort, T is aborted
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_after_an_incomplete_replay(story: Story) -> None:
    story.play()


def test_of_two_grants_that_the_log_still_has_the_last_one_survives_an_incomplete_replay() -> None:
    """Seed 319 of the simulation: the completion before the second grant was lost, and the table stopped for good."""
    w = world().intent("first", batch_id=7).lock().commits("first")
    w = w.intent("second").lock().request("second").intent("open")
    lost = [each for each in w.log if isinstance(each, tuple) and each[0].event_id == "e-2-first"]
    assert isinstance(lost[0][0], CommitCompleted)
    w = w.rebuilt([each for each in w.log if each not in lost])
    w.state.unseen_grant = True

    w.replayed(missing="writers ends at 2")

    assert w.aborted == {"first": "outcome-unknown", "open": "unknown-transaction"}
    assert w.phase("second") is Phase.GRANTED
    assert w.tick().aborted == {}
    assert w.complete("first").state.ledger["w-first"].batch_id == 7
