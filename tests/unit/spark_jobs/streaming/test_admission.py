"""What `admission="auto"` becomes, and what it learns from."""

from __future__ import annotations

import pytest

from lakewarden.events import Marker
from lakewarden.spark_jobs.streaming.admission import MAX_REQUIRED, Choice, Prediction, TableHistory

SCOPE = (Marker(partition="day=1", file_group="*", operation="merge"),)
TOUCHED = (Marker(partition="day=1", file_group="f-1", operation="merge"),)
ELSEWHERE = (Marker(partition="day=9", file_group="f-1", operation="merge"),)


def batch(
    history: TableHistory,
    scope: tuple[Marker, ...] | None,
    *,
    lost: bool = False,
    needlessly: bool | None = False,
    touched: tuple[Marker, ...] = TOUCHED,
) -> Choice:
    """A batch of the writer `w` that is disturbed, and then commits. Returns how it was admitted."""
    choice = history.choose("w", scope)
    history.disturbed("w", choice, lost=lost, needlessly=needlessly, touched=touched)
    return choice


def predicting(*touched: Marker) -> TableHistory:
    """A history in which the writer `w` is disturbed."""
    return TableHistory(predictions={"w": Prediction(touched)})


def test_a_known_scope_is_queued() -> None:
    """An unpartitioned table's scope is one marker. A batch that touches nothing waits for nothing."""
    for scope in (SCOPE, ()):
        choice = TableHistory().choose("w", scope)
        assert (choice.admission, choice.scope) == ("queued", scope)


def test_an_unknown_scope_is_optimistic_until_a_conflict_is_lost() -> None:
    history = TableHistory()
    assert batch(history, None, lost=True).admission == "optimistic"

    choice = history.choose("w", None)
    assert (choice.admission, choice.scope) == ("queued", TOUCHED)
    assert "disturbed" in choice.reason
    assert history.choose("another", None).admission == "optimistic"


@pytest.mark.parametrize("lost", [True, False])
def test_a_writer_declares_what_its_last_batch_touched_while_it_is_disturbed(*, lost: bool) -> None:
    history = predicting(*SCOPE)
    assert batch(history, None, lost=lost).scope == SCOPE
    assert history.choose("w", None).scope == TOUCHED


def test_a_writer_is_optimistic_again_after_an_undisturbed_batch() -> None:
    history = predicting(*TOUCHED)
    history.undisturbed("w", history.choose("w", None), TOUCHED)
    assert history.choose("w", None).admission == "optimistic"
    history.undisturbed("w", history.choose("w", None), ())
    assert history.predictions["w"].required == 1


def test_a_writer_whose_declared_scope_was_of_no_use_is_optimistic_again() -> None:
    """It waited for others that its batch didn't meet."""
    history = predicting(*SCOPE)
    batch(history, None, needlessly=True)
    assert history.choose("w", None).admission == "optimistic"


def test_a_wait_of_an_undisturbed_writer_does_not_make_it_disturbed() -> None:
    """It waited for its own older transaction to end, for example."""
    history = TableHistory()
    batch(history, None, lost=False)
    assert history.choose("w", None).admission == "optimistic"


@pytest.mark.parametrize("disturbed", [True, False])
def test_a_wrong_prediction_is_dropped_and_the_next_one_needs_more_lost_conflicts(*, disturbed: bool) -> None:
    """Batches that touch other partitions each time can't be predicted, and a scope makes other writers wait."""
    history = predicting(*SCOPE)
    if disturbed:
        batch(history, None, lost=True, touched=ELSEWHERE)
    else:
        history.undisturbed("w", history.choose("w", None), ELSEWHERE)

    assert batch(history, None, lost=True).admission == "optimistic"
    assert batch(history, None, lost=True).admission == "optimistic"
    assert batch(history, None, lost=True).scope == TOUCHED, "and it was right"
    assert history.predictions["w"].required == 1


@pytest.mark.parametrize("lost", [True, False])
def test_a_needless_disturbance_ends_the_waiting_of_all_writers_of_the_table(*, lost: bool) -> None:
    """An optimistic batch that loses to another one's coarse scope lost nothing that it should have waited for."""
    history = TableHistory()
    batch(history, SCOPE, lost=lost, needlessly=True)

    choice = history.choose("another", SCOPE)

    assert (choice.admission, choice.scope) == ("optimistic", ())
    assert choice.reason == "its scope is known, but waiting was needless"
    batch(history, SCOPE, lost=True, needlessly=True)
    assert not history.waiting_pays


def test_waits_that_were_needed_or_are_unknown_keep_the_queue() -> None:
    history = TableHistory()
    batch(history, SCOPE, needlessly=False)
    batch(history, SCOPE, needlessly=None)
    assert history.choose("w", SCOPE).admission == "queued"


@pytest.mark.parametrize("needlessly", [False, None])
def test_a_conflict_that_optimism_lost_makes_writers_wait_again_for_longer(
    *, needlessly: bool | None
) -> None:
    """Each return to optimism needs twice as many needless disturbances in a row."""
    history = TableHistory()
    for disturbances in (1, 2, 4):
        for _ in range(disturbances):
            assert batch(history, SCOPE, needlessly=True).admission == "queued"
        assert batch(history, SCOPE, lost=True, needlessly=needlessly).admission == "optimistic"

    for _ in range(7):
        batch(history, SCOPE, needlessly=True)
    batch(history, SCOPE, needlessly=False)
    assert history.waiting_pays, "they must be in a row"


def test_the_number_of_needless_disturbances_is_bounded() -> None:
    history = TableHistory()
    for _ in range(20):
        history.needless = history.required
        batch(history, SCOPE, lost=True)
    assert history.required == MAX_REQUIRED


def test_a_conflict_that_a_queued_batch_lost_says_nothing_about_optimism() -> None:
    """Its scope was too small, or a protected writer took precedence."""
    history = TableHistory()
    batch(history, SCOPE, lost=True)
    assert (history.required, history.waiting_pays) == (1, True)
