from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from lakewarden.events import AuditEventUnion, LockAcquired, LockRefused, LockReleased
from lakewarden.handlers.lease.lock_queue import MAX_CONTENDERS, Contender, LockQueue
from tests.unit.events.building import TABLE, made

OTHER_TABLE = "s3://lake/u"


def event(text: str) -> AuditEventUnion:
    """What happened to the lock for one contender: `a waits`, `a refused`, `a acquired`; `a/u`: for another table."""
    name, what = text.split(" ", 1)
    agent, _, other = name.partition("/")
    common = {"table": OTHER_TABLE if other else TABLE, "agent": agent, "lock": "l", "valid_until": 0}
    match what:
        case "acquired":
            return made(LockAcquired, **common)
        case "released":
            return made(LockReleased, **common)
        case _:
            return made(LockRefused, **common, waiting=what == "waits")


def queue_after(history: str) -> LockQueue:
    queue = LockQueue()
    for each in filter(None, history.split("; ")):
        queue = queue.apply(event(each))
    return queue


def named(queue: LockQueue) -> str:
    return " ".join(each.agent + "/u" * (each.table == OTHER_TABLE) for each in queue.waiting)


@pytest.mark.parametrize(
    ("history", "waiting"),
    [
        ("a waits; b waits; c waits", "a b c"),
        ("a waits; b waits; a waits; b waits", "a b"),  # a contender that polls is refused again and again
        # Those before it had their turn: their agents are dead, or don't consume the audit topic.
        ("a waits; b waits; c waits; b acquired", "c"),
        ("a waits; c acquired", "a"),  # that agent did not know the queue
        ("a refused", ""),  # such a contender would delay the others for nothing
        ("a waits; a/u waits", "a a/u"),  # two tables may name one lock object
    ],
)
def test_who_waits_and_in_which_order(history: str, waiting: str) -> None:
    assert named(queue_after(history)) == waiting


def test_all_other_contenders_are_ahead_of_a_new_one() -> None:
    """Its own entry may be left from before."""
    queue = queue_after("a waits; b waits")

    assert [queue.ahead_of(Contender(each, TABLE)) for each in "abc"] == [0, 1, 2]
    assert [queue.others_waiting(Contender(each, TABLE)) for each in "ac"] == [1, 2]


def test_the_length_of_the_queue_is_limited() -> None:
    """Events come from the network."""
    queue = queue_after("; ".join(f"agent-{number} waits" for number in range(MAX_CONTENDERS + 10)))

    assert len(queue.waiting) == MAX_CONTENDERS
    assert queue.ahead_of(Contender("agent-9999", TABLE)) == MAX_CONTENDERS


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["waits", "acquired", "released"])), max_size=40
    )
)
def test_no_contender_is_queued_twice_and_only_acquisitions_remove_contenders(
    history: list[tuple[str, str]],
) -> None:
    """Any history of three agents."""
    queue = LockQueue()
    for agent, what in history:
        before, contender = queue, Contender(agent, TABLE)
        queue = queue.apply(event(f"{agent} {what}"))
        assert len(set(queue.waiting)) == len(queue.waiting)
        match what:
            case "waits":
                assert contender in queue.waiting
                assert queue.waiting[: len(before.waiting)] == before.waiting
            case "acquired":
                assert contender not in queue.waiting
            case _:
                assert queue.waiting == before.waiting
