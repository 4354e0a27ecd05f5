"""Which transactions of a stopped table are aborted: those that are open in the log, whatever the failed step had decided."""

from __future__ import annotations

from datetime import UTC, datetime

from lakewarden.events import CommitIntent
from lakewarden.handlers.table.machine import EventRead
from lakewarden.handlers.table.stopping import (
    NO_STEP,
    FailedStep,
    OpenInLog,
    answered_before,
    failed_step,
    open_in_log,
)
from lakewarden.handlers.table.verdicts import AbortTransaction, Cause, GrantCommit, RecordLosses
from tests.unit.handlers.table.world import TABLE, World, m, world

CAUSE = Cause(None, 5)


def intent(transaction: str) -> CommitIntent:
    return CommitIntent(
        event_id="e", table=TABLE, transaction=transaction, writer=f"w-{transaction}", at=datetime.now(UTC)
    )


def abort(transaction: str) -> AbortTransaction:
    return AbortTransaction(transaction, f"w-{transaction}", CAUSE, "conflict", retriable=True)


def granted_and_open() -> World:
    """A is granted, B is open, and C has lost a conflict with B."""
    w = world().intent("A").intent("B").intent("C").touch("B", m("p/f")).touch("C", m("p/f"))
    return w.lock().request("A")


def test_a_granted_transaction_may_be_publishing_and_an_open_one_is_not() -> None:
    found = open_in_log(granted_and_open().state, NO_STEP)

    assert {(each.transaction, each.granted) for each in found} == {("A", True), ("B", False)}


def test_a_transaction_that_the_failed_step_has_closed_is_open_in_the_log() -> None:
    """The state has its verdict already, and the log doesn't."""
    w = granted_and_open()

    found = open_in_log(w.state, FailedStep([abort("C"), RecordLosses("w-C", 1)]))

    assert OpenInLog("C", "w-C", granted=False) in found


def test_a_grant_of_the_failed_step_is_in_no_log() -> None:
    w = granted_and_open()
    grant = GrantCommit("A", "w-A", CAUSE, "g", 20.0, 1, "owner")

    found = open_in_log(w.state, FailedStep([grant]))

    assert OpenInLog("A", "w-A", granted=False) in found


def test_the_intent_that_the_failed_step_was_reading_is_open_in_the_log() -> None:
    w = granted_and_open()

    assert OpenInLog("D", "w-D", granted=False) in open_in_log(w.state, FailedStep((), intent("D")))
    assert "C" not in {each.transaction for each in open_in_log(w.state, FailedStep((), intent("C")))}


def test_an_answer_that_repeats_one_in_the_log_is_no_reason_for_another_abort() -> None:
    """C had ended before the step, and its writer asked again."""
    w = granted_and_open()
    asked = EventRead(intent("C"), 9, 0.0, 0.0)

    answered = answered_before(w.state, asked)

    assert answered == "C"
    assert failed_step(asked, [abort("C"), abort("B")], answered).undecided == [abort("B")]
    assert answered_before(w.state, EventRead(intent("D"), 9, 0.0, 0.0)) is None
