from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import hypothesis.strategies as st
from hypothesis import given

from lakewarden.events import AuditEventUnion, LockAcquired, LockRefused, LockReleased
from lakewarden.handlers.lease.lock_queue import MAX_CONTENDERS, Contender, LockQueue

TABLE = "s3://lake/t"
A, B, C = (Contender(agent, TABLE) for agent in "abc")


def event(kind: type[AuditEventUnion], contender: Contender, **more: object) -> AuditEventUnion:
    common = {
        "event_id": "e",
        "table": contender.table,
        "at": datetime(2026, 11, 21, tzinfo=UTC),
        "agent": contender.agent,
        "lock": "s3://lake/locks/t.json",
        "owner": "",
        "valid_until": 0,
        "requests": 1,
        "duration_ms": 1.0,
    }
    return kind.model_validate(common | more)


def refused(contender: Contender) -> AuditEventUnion:
    return event(LockRefused, contender, waiting=True)


def acquired(contender: Contender) -> AuditEventUnion:
    return event(LockAcquired, contender)


def released(contender: Contender) -> AuditEventUnion:
    return event(LockReleased, contender)


def queue_after(*events: AuditEventUnion) -> LockQueue:
    queue = LockQueue()
    for each in events:
        queue = queue.apply(each)
    return queue


def test_contenders_queue_in_the_order_of_their_first_refusals() -> None:
    queue = queue_after(refused(A), refused(B), refused(C))

    assert [queue.ahead_of(each) for each in (A, B, C)] == [0, 1, 2]


def test_a_second_refusal_keeps_the_position() -> None:
    """A contender that polls is refused again and again."""
    assert queue_after(refused(A), refused(B), refused(A), refused(B)).waiting == (A, B)


def test_an_acquisition_removes_the_contender_and_all_before_it() -> None:
    """They had their turn: their agents are dead, or don't consume the audit topic."""
    assert queue_after(refused(A), refused(B), refused(C), acquired(B)).waiting == (C,)


def test_an_acquisition_by_an_agent_outside_the_queue_moves_no_contender() -> None:
    """That agent did not know the queue."""
    assert queue_after(refused(A), acquired(C)).waiting == (A,)


def test_all_other_contenders_are_ahead_of_a_new_one() -> None:
    """Its own entry may be left from before."""
    queue = queue_after(refused(A), refused(B))

    assert (queue.others_waiting(A), queue.others_waiting(C)) == (1, 2)


def test_a_permanent_refusal_does_not_queue() -> None:
    """Such a contender would delay the others for nothing."""
    assert queue_after(event(LockRefused, A, waiting=False)).waiting == ()


def test_an_agent_queues_once_for_each_table() -> None:
    """Two tables may name one lock object."""
    other = Contender("a", "s3://lake/u")

    assert queue_after(refused(A), refused(other)).waiting == (A, other)


def test_the_length_of_the_queue_is_limited() -> None:
    """Events come from the network."""
    many = (refused(Contender(f"agent-{number}", TABLE)) for number in range(MAX_CONTENDERS + 10))
    queue = queue_after(*many)

    assert len(queue.waiting) == MAX_CONTENDERS
    assert queue.ahead_of(Contender("agent-9999", TABLE)) == MAX_CONTENDERS


@given(
    st.lists(
        st.tuples(st.sampled_from([refused, acquired, released]), st.sampled_from([A, B, C])), max_size=40
    )
)
def test_no_contender_is_queued_twice_and_only_acquisitions_remove_contenders(
    history: list[tuple[Callable[[Contender], AuditEventUnion], Contender]],
) -> None:
    """Any history of three agents."""
    queue = LockQueue()
    for make_event, contender in history:
        before = queue
        queue = queue.apply(make_event(contender))
        assert len(set(queue.waiting)) == len(queue.waiting)
        if make_event is refused:
            assert contender in queue.waiting
            assert queue.waiting[: len(before.waiting)] == before.waiting
        if make_event is acquired:
            assert contender not in queue.waiting
        if make_event is released:
            assert queue.waiting == before.waiting
