"""Which transactions of a stopped table are aborted: those that are open in the log, whatever the failed step had decided."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort, CommitGranted, CommitIntent
from lakewarden.handlers.table.ledger import losses_entry
from lakewarden.handlers.table.machine import EventRead
from lakewarden.handlers.table.stopping import (
    NO_STEP,
    FailedStep,
    aborts_of_stop,
    answered_before,
    failed_step,
)
from tests.unit.events.building import made
from tests.unit.handlers.table.world import TABLE, World, decided, m, world


def intent(transaction: str) -> CommitIntent:
    return made(CommitIntent, table=TABLE, transaction=transaction, writer=f"w-{transaction}")


def abort(transaction: str) -> Abort:
    return decided(Abort, transaction, reason="conflict", retriable=True)


def open_in_log(w: World, failed: FailedStep = NO_STEP) -> dict[str, tuple[str, bool]]:
    """By transaction that the stop aborts: reason, and whether it may be retried."""
    aborts = aborts_of_stop(w.state, failed, 9, "table is stopped")
    assert {(each.cause, each.cause_offset, each.writer) for each in aborts} == {
        (None, 9, f"w-{each.transaction}") for each in aborts
    }
    return {each.transaction: (each.reason, each.retriable) for each in aborts}


MAY_BE_PUBLISHING, COMPUTES = ("lease-lost", True), ("not-allowed", False)


def granted_and_open() -> World:
    """A is granted, B is open, and C has lost a conflict with B."""
    w = world().intent("A").intent("B").intent("C").touch("B", m("p/f")).touch("C", m("p/f"))
    return w.lock().request("A")


def test_a_granted_transaction_may_be_publishing_and_an_open_one_is_not() -> None:
    assert open_in_log(granted_and_open()) == {"A": MAY_BE_PUBLISHING, "B": COMPUTES}


GRANT = decided(CommitGranted, "A", grant="g", lease_seconds=20.0, seq=1)


@pytest.mark.parametrize(
    ("failed", "transaction", "expected"),
    [
        pytest.param(
            FailedStep([abort("C"), losses_entry(TABLE, "w-C", 1)]), "C", COMPUTES, id="a verdict in no log"
        ),
        pytest.param(FailedStep([GRANT]), "A", COMPUTES, id="a grant in no log"),
        pytest.param(FailedStep((), intent("D")), "D", COMPUTES, id="an intent that was being read"),
        pytest.param(FailedStep((), intent("C")), "C", None, id="an intent whose transaction has ended"),
    ],
)
def test_what_the_failed_step_decided_or_read_is_not_in_the_log(
    failed: FailedStep, transaction: str, expected: tuple[str, bool] | None
) -> None:
    assert open_in_log(granted_and_open(), failed).get(transaction) == expected


def test_an_answer_that_repeats_one_in_the_log_is_no_reason_for_another_abort() -> None:
    """C had ended before the step, and its writer asked again."""
    w = granted_and_open()
    asked = EventRead(intent("C"), 9, 0.0, 0.0)

    answered = answered_before(w.state, asked)

    assert answered == "C"
    assert failed_step(asked, [abort("C"), abort("B")], answered).undecided == [abort("B")]
    assert answered_before(w.state, EventRead(intent("D"), 9, 0.0, 0.0)) is None
