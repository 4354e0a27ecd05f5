"""For whom a transaction waited, and whether they met, as the events of the table's writers show it."""

from __future__ import annotations

from typing import Any

from lakewarden.events import (
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.writers_log import (
    MAX_NAMESAKES,
    met,
    namesakes,
    overlap,
    precise,
    waited_for,
    writers_ahead,
    writers_before,
    writers_granted_before,
)
from tests.unit.events.building import E, made

TABLE = "file:///lake/t"


def marker(partition: str, group: str = "*") -> Marker:
    return Marker(partition=partition, file_group=group, operation="merge")


def of(kind: type[E], writer: str, table: str = TABLE, **fields: Any) -> E:
    """An event of the writer's only transaction."""
    return made(kind, transaction=f"t-{writer}", writer=writer, table=table, **fields)


def intent(writer: str, *scope: Marker, table: str = TABLE) -> CommitIntent:
    return of(CommitIntent, writer, table, admission="queued", scope=scope)


def ordered(writer: str, **more: Any) -> CommitIntent:
    return of(CommitIntent, writer, conflict_rule="ordered", **more)


def requested(writer: str, *markers: Marker) -> CommitRequested:
    return of(CommitRequested, writer, seq=1, markers=markers)


def touch(writer: str, *markers: Marker) -> MarkerCreated:
    return of(MarkerCreated, writer, markers=markers)


def completed(writer: str) -> CommitCompleted:
    return of(CommitCompleted, writer, grant="g", version="1")


def abandoned(writer: str) -> TransactionAbandoned:
    return of(TransactionAbandoned, writer, reason="r")


def heartbeat(writer: str) -> WriterHeartbeat:
    return of(WriterHeartbeat, writer, seq=1)


def log_of(*ahead: WriterEventUnion, ends: WriterEventUnion) -> list[WriterEventUnion]:
    """The events of `w`, which waits with the scope `day=1`, and those around it."""
    return [*ahead, intent("w", marker("day=1")), ends, completed("w")]


def ahead_of_w(*ahead: WriterEventUnion, ends: WriterEventUnion) -> set[str]:
    return waited_for(log_of(*ahead, ends=ends), "t-w")


def test_a_transaction_waits_for_those_ahead_that_overlap_its_scope() -> None:
    """Not for others: elsewhere in the table, ended before, begun later, of another table, of the same writer."""
    same = marker("day=1", "f-2")
    assert ahead_of_w(intent("a", same), ends=completed("a")) == {"t-a"}
    assert ahead_of_w(intent("a"), touch("a", same), ends=abandoned("a")) == {"t-a"}
    assert ahead_of_w(touch("a", same), ends=completed("a")) == {"t-a"}, "its intent isn't shown"
    assert ahead_of_w(intent("a", same), ends=heartbeat("w")) == set(), "nothing shows that it still ran"

    assert ahead_of_w(intent("a", marker("day=2")), ends=completed("a")) == set()
    assert ahead_of_w(intent("a", same), completed("a"), ends=heartbeat("a")) == set()
    assert ahead_of_w(ends=intent("a", same)) == set()
    assert ahead_of_w(intent("a", same, table="file:///lake/u"), ends=heartbeat("w")) == set()
    assert waited_for([completed("w")], "t-w") == set()


def test_only_a_transaction_that_is_still_open_is_ahead() -> None:
    """One that ended explains no further wait: without another reason, no agent answers."""
    same = marker("day=1", "f-2")
    still_open: list[WriterEventUnion] = [
        intent("b", same),
        intent("a", same),
        intent("w", marker("day=1")),
        heartbeat("b"),
    ]
    assert writers_ahead([*still_open, heartbeat("a")], "t-w") == ("a", "b")
    assert writers_ahead([*still_open, completed("a")], "t-w") == ("b",)


BUCKET = marker("day=1", "bucket-0")


def before_w(*ahead: WriterEventUnion, then: WriterEventUnion) -> tuple[str, ...]:
    """For whose turns `w` waits, which has requested its grant for one bucket. `then` comes after the request."""
    return writers_before([*ahead, ordered("w"), requested("w", BUCKET), then], "t-w")


def test_an_ordered_transaction_waits_for_those_that_began_before_and_touch_its_file_groups() -> None:
    alive = heartbeat("a")
    assert before_w(ordered("a"), touch("a", BUCKET), then=alive) == ("a",)
    assert before_w(ordered("a", scope=(marker("day=1"),)), then=alive) == ("a",)
    assert before_w(ordered("a"), requested("a", BUCKET), then=alive) == ("a",)
    assert before_w(ordered("b"), touch("b", BUCKET), heartbeat("a"), then=heartbeat("b")) == ("b",)

    assert before_w(ordered("a"), touch("a", marker("day=1", "bucket-1")), then=alive) == ()
    assert before_w(ordered("a"), touch("a", BUCKET), then=completed("a")) == ()
    assert before_w(ordered("a"), touch("a", BUCKET), then=heartbeat("w")) == (), "the agent has ended it"
    assert before_w(ordered("a", priority=-1), touch("a", BUCKET), then=alive) == (), "it is passed"
    assert before_w(intent("a", marker("day=1")), then=alive) == (), "that one has another rule"
    assert before_w(touch("a", BUCKET), then=alive) == (), "its rule isn't shown"
    assert before_w(ordered("a", observed=True), touch("a", BUCKET), then=alive) == ()


def test_nothing_is_before_a_transaction_that_began_first_or_has_not_requested_its_grant() -> None:
    late: list[WriterEventUnion] = [ordered("w"), ordered("a"), touch("a", BUCKET), requested("w", BUCKET)]
    assert writers_before([*late, heartbeat("a")], "t-w") == ()
    assert writers_before([ordered("a"), touch("a", BUCKET), ordered("w"), touch("w", BUCKET)], "t-w") == ()
    assert writers_before([], "t-w") == ()


def test_a_transaction_waits_for_the_grants_of_those_that_requested_before() -> None:
    ahead: list[WriterEventUnion] = [
        intent("a"),
        intent("b"),
        intent("w"),
        requested("a"),
        requested("w"),
        requested("b"),
    ]
    assert writers_granted_before([*ahead, heartbeat("a")], "t-w") == ("a",)
    assert writers_granted_before(ahead, "t-w") == (), "nothing shows that it still runs"
    assert writers_granted_before([*ahead, completed("a")], "t-w") == ()
    assert writers_granted_before(ahead[:4], "t-w") == ()


def test_two_file_groups_of_one_partition_never_meet() -> None:
    events = log_of(intent("a", marker("day=1")), touch("a", marker("day=1", "f-1")), ends=completed("a"))
    assert met(events, "t-w", [marker("day=1", "f-2")], ["t-a"]) is False
    assert met(events, "t-w", [marker("day=1", "f-1")], ["t-a"]) is True


def test_markers_of_executors_are_in_the_events() -> None:
    ends = touch("w", marker("day=1", "f-1"))
    events = log_of(intent("a"), touch("a", marker("day=1", "f-1")), completed("a"), ends=ends)
    assert met(events, "t-w", [], ["t-a"]) is True


def test_a_scope_without_finer_markers_is_what_was_touched() -> None:
    """PaimonSink rewrites whole partitions, and doesn't publish again what its scope declared."""
    events = log_of(intent("a", marker("day=1")), ends=completed("a"))
    assert met(events, "t-w", [marker("day=1", "f-2")], ["t-a"]) is True


def test_it_is_unknown_whether_they_met_if_the_events_do_not_show_all_of_them() -> None:
    events = log_of(touch("a", marker("day=1", "f-1")), intent("b", marker("day=2")), ends=completed("a"))
    assert met(events, "t-w", [marker("day=1", "f-2")], ["t-a", "t-b"]) is None
    assert met(events, "t-w", [marker("day=1", "f-2")], ["t-b", "t-c"]) is None
    assert met(events, "t-w", [marker("day=2")], ["t-a", "t-b"]) is True


def test_overlaps_are_found_by_file_group_whole_partition_or_whole_table() -> None:
    assert overlap([marker("p", "f")], [marker("p", "f")])
    assert overlap([marker("p")], [marker("p", "f")])
    assert overlap([marker("p", "f")], [marker("p")])
    assert not overlap([marker("p", "f")], [marker("p", "g"), marker("q", "f")])
    assert overlap([marker("*", "f")], [marker("p", "g")])
    assert overlap([marker("", "g")], [marker("*")])
    assert not overlap([], [marker("*")])
    assert not overlap([marker("*")], [])


def test_a_scope_counts_only_where_nothing_finer_was_touched() -> None:
    declared, fine = [marker("p"), marker("q")], marker("p", "f")
    assert precise(declared, [fine, marker("q")]) == (fine, marker("q"))
    assert precise([marker("*")], [fine]) == (fine,)


A, B = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "ab")


def test_namesakes_are_the_job_by_another_id_and_the_id_by_another_job() -> None:
    """Once each, without the editions that a table has in their names."""
    others = [f"w:{B}", f"w:{B}~e1", f"w:{A}~e1", f"v:{A}", f"w2:{B}", "w", f"x:w:{B}", f"w:{B}x", f"a~b:{A}"]

    assert namesakes(f"w:{A}", others) == (f"w:{B}", f"v:{A}", f"a~b:{A}")
    assert namesakes(f"w:{A}~e2", [f"w:{A}", f"w:{B}"]) == (f"w:{B}",)
    assert namesakes("w", others) == (), "no query runs"
    assert len(namesakes(f"w:{A}", [f"w:{number:08x}{A[8:]}" for number in range(99)])) == MAX_NAMESAKES
