from __future__ import annotations

from datetime import UTC, datetime

import hypothesis.strategies as st
from hypothesis import given

from lakewarden.events import AuditEventUnion, LockAcquired, LockRefused, LockReleased
from lakewarden.handlers.lease.lock_queue import MAX_CONTENDERS, Contender, LockQueue

TABLE = "s3://lake/t"
A, B, C = (Contender(agent, TABLE) for agent in "abc")


def tell(kind: type[AuditEventUnion], who: Contender, **more: object) -> AuditEventUnion:
    common = {
        "event_id": "e",
        "table": who.table,
        "at": datetime(2026, 11, 21, tzinfo=UTC),
        "agent": who.agent,
        "lock": "s3://lake/locks/t.json",
        "owner": "",
        "valid_until": 0,
        "requests": 1,
        "duration_ms": 1.0,
    }
    return kind.model_validate(common | more)


def wait(who: Contender) -> AuditEventUnion:
    return tell(LockRefused, who, waiting=True)


def take(who: Contender) -> AuditEventUnion:
    return tell(LockAcquired, who)


def release(who: Contender) -> AuditEventUnion:
    return tell(LockReleased, who)


def line(*events: AuditEventUnion) -> LockQueue:
    found = LockQueue()
    for event in events:
        found = found.apply(event)
    return found


def test_who_is_refused_first_is_first_in_line() -> None:
    """The log's order."""
    waiting = line(wait(A), wait(B), wait(C))

    assert [waiting.ahead_of(who) for who in (A, B, C)] == [0, 1, 2]


def test_a_second_refusal_keeps_the_place() -> None:
    """Polls are refused again and again."""
    assert line(wait(A), wait(B), wait(A), wait(B)).waiting == (A, B)


def test_who_takes_it_leaves_the_line_and_so_does_whoever_stood_before_it() -> None:
    """They had their turn: dead, or not listening."""
    assert line(wait(A), wait(B), wait(C), take(B)).waiting == (C,)


def test_a_newcomer_that_takes_it_moves_nobody() -> None:
    """It did not know of the line."""
    assert line(wait(A), take(C)).waiting == (A,)


def test_who_wants_it_anew_comes_after_everybody_but_itself() -> None:
    """Its own entry may be left from before."""
    waiting = line(wait(A), wait(B))

    assert (waiting.others_waiting(A), waiting.others_waiting(C)) == (1, 2)


def test_a_refusal_that_a_person_must_mend_is_no_waiting() -> None:
    """Whoever stood there would hold up the others for nothing."""
    assert line(tell(LockRefused, A, waiting=False)).waiting == ()


def test_one_agent_waits_once_a_table() -> None:
    """Two tables may name one lock object."""
    other = Contender("a", "s3://lake/u")

    assert line(wait(A), wait(other)).waiting == (A, other)


def test_the_line_has_an_end() -> None:
    """Events come from the network."""
    crowd = line(*(wait(Contender(f"agent-{number}", TABLE)) for number in range(MAX_CONTENDERS + 10)))

    assert len(crowd.waiting) == MAX_CONTENDERS
    assert crowd.ahead_of(Contender("agent-9999", TABLE)) == MAX_CONTENDERS


@given(st.lists(st.tuples(st.sampled_from([wait, take, release]), st.sampled_from([A, B, C])), max_size=40))
def test_nobody_stands_twice_and_who_was_refused_and_took_nothing_since_still_waits_or_was_passed(
    history: list[tuple[object, Contender]],
) -> None:
    """Any history of three agents."""
    found = LockQueue()
    for tells, who in history:
        before = found
        found = found.apply(tells(who))  # type: ignore[operator]
        assert len(set(found.waiting)) == len(found.waiting)
        if tells is wait:
            assert who in found.waiting
            assert found.waiting[: len(before.waiting)] == before.waiting
        if tells is take:
            assert who not in found.waiting
