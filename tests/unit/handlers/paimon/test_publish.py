"""Every state of the fenced publish, with every answer."""

from __future__ import annotations

import pytest

from lakewarden.handlers.paimon.publish import (
    MAX_TRIES,
    Active,
    Answer,
    Contains,
    Excludes,
    Failed,
    Foreign,
    HintWritten,
    IllegalAnswerError,
    LookAtBase,
    Missing,
    NotWritten,
    Own,
    Present,
    Published,
    PutRefused,
    PutSnapshot,
    ReadBack,
    Recheck,
    Removed,
    State,
    Taken,
    Trace,
    Undecided,
    Unreadable,
    Unresolved,
    Withdraw,
    Withdrawn,
    WriteHint,
    Written,
    step,
    traced,
)

ACTIVE: list[Active] = [
    PutSnapshot(),
    PutSnapshot(2, in_doubt=True),
    ReadBack(1, "no answer"),
    LookAtBase("v"),
    Trace("v"),
    Withdraw(),
    WriteHint("v"),
    Recheck("v"),
]

ANSWERS: list[Answer] = [
    Written("v"),
    NotWritten("no answer"),
    PutRefused("forbidden"),
    PutRefused("slow down", throttled=True),
    Own("v"),
    Foreign("java"),
    Present(),
    Missing(),
    Contains(),
    Excludes(),
    Undecided(),
    Removed(),
    HintWritten(),
    Unreadable("timeout"),
]

LEGAL: dict[tuple[Active, Answer], State] = {
    (PutSnapshot(), Written("v")): LookAtBase("v"),
    (PutSnapshot(), NotWritten("no answer")): ReadBack(1, "no answer"),
    (PutSnapshot(), PutRefused("forbidden")): Failed("forbidden"),
    (PutSnapshot(), PutRefused("slow down", throttled=True)): PutSnapshot(2),
    (PutSnapshot(2, in_doubt=True), PutRefused("slow down", throttled=True)): PutSnapshot(3, in_doubt=True),
    (PutSnapshot(2, in_doubt=True), Written("v")): LookAtBase("v"),
    (PutSnapshot(2, in_doubt=True), NotWritten("no answer")): ReadBack(2, "no answer"),
    (PutSnapshot(2, in_doubt=True), PutRefused("forbidden")): Unresolved("forbidden"),
    (ReadBack(1, "no answer"), Own("v")): LookAtBase("v"),
    (ReadBack(1, "no answer"), Foreign("java")): Taken("java"),
    (ReadBack(1, "no answer"), Missing()): PutSnapshot(2, in_doubt=True),
    (ReadBack(1, "no answer"), Unreadable("timeout")): ReadBack(1, "no answer", 2),
    (LookAtBase("v"), Present()): WriteHint("v"),
    (LookAtBase("v"), Missing()): Trace("v"),
    (LookAtBase("v"), Unreadable("timeout")): LookAtBase("v", 2),
    (Trace("v"), Contains()): WriteHint("v"),
    (Trace("v"), Excludes()): Withdraw(),
    (Trace("v"), Undecided()): Unresolved("the base snapshot expired during the publish, and this one too"),
    (Trace("v"), Unreadable("timeout")): Trace("v", 2),
    (Withdraw(), Removed()): Withdrawn(),
    (Withdraw(), Unreadable("timeout")): Withdraw(2),
    (WriteHint("v"), HintWritten()): Recheck("v"),
    (Recheck("v"), Own("v")): Published("v"),
    (Recheck("v"), Foreign("java")): Taken("java", replaced=True),
    (Recheck("v"), Missing()): Published("v"),
    (Recheck("v"), Unreadable("timeout")): Recheck("v", 2),
}


@pytest.mark.parametrize("state", ACTIVE, ids=str)
@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_exactly_the_answers_of_an_action_are_accepted(state: Active, answer: Answer) -> None:
    if (state, answer) in LEGAL:
        assert step(state, answer) == LEGAL[state, answer]
    else:
        with pytest.raises(IllegalAnswerError):
            step(state, answer)


def after(state: State, *answers: Answer) -> State:
    for answer in answers:
        assert isinstance(state, Active)
        state = step(state, answer)
    return state


def test_a_put_is_repeated_only_while_the_snapshot_is_absent_and_then_stays_unknown() -> None:
    """No answer ever comes, and a late one may still arrive."""
    lost = (NotWritten("timeout"), Missing())

    assert after(PutSnapshot(), *lost) == PutSnapshot(2, in_doubt=True)
    assert after(PutSnapshot(), *lost * MAX_TRIES) == Unresolved("timeout")


def test_a_refusal_after_a_put_without_answer_proves_nothing() -> None:
    """The credentials expired between two puts, and the first one may still take effect."""
    assert after(PutSnapshot(), NotWritten("timeout"), Missing(), PutRefused("403")) == Unresolved("403")


def test_a_put_that_the_store_throttles_is_never_in_doubt_by_that() -> None:
    throttled = PutRefused("slow down", throttled=True)

    assert after(PutSnapshot(), *[throttled] * MAX_TRIES) == Failed("slow down")
    assert after(PutSnapshot(), throttled, Written("v")) == LookAtBase("v")
    assert after(PutSnapshot(1, in_doubt=True), *[throttled] * MAX_TRIES) == Unresolved("slow down")


@pytest.mark.parametrize("state", [ReadBack(1, "lost"), LookAtBase("v"), Trace("v"), Withdraw()], ids=str)
def test_a_question_without_an_answer_leaves_the_outcome_unknown(state: Active) -> None:
    assert after(state, *[Unreadable("timeout")] * MAX_TRIES) == Unresolved("timeout")


def test_a_missing_answer_to_the_last_look_leaves_the_commit_published() -> None:
    """The look only detects a replacement. It can't make a published commit doubtful."""
    assert after(Recheck("v"), *[Unreadable("timeout")] * MAX_TRIES) == Published("v")


@pytest.mark.parametrize(
    ("retained", "added", "answer"),
    [
        pytest.param({7}, True, Contains(), id="the newest"),
        pytest.param({7, 8, 9}, True, Contains(), id="the next one is built on it"),
        pytest.param({7, 8, 9}, False, Excludes(), id="the next one is built on an expired one"),
        pytest.param({7, 11, 12}, False, Excludes(), id="the next one has expired, which is newer"),
        pytest.param({9, 10}, False, Undecided(), id="expired itself"),
        pytest.param({7, 8}, None, Undecided(), id="without files"),
    ],
)
def test_a_snapshot_is_withdrawn_only_if_its_id_had_been_used_before(
    retained: set[int], *, added: bool | None, answer: Answer
) -> None:
    assert traced(7, retained, added=added) == answer
