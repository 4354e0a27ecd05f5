"""The rules of `lakewarden assess`: overlaps, waste, and what the gate would change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.handlers.assessment import (
    GRACE_SECONDS,
    MAX_BACK,
    WEAKER,
    Assessment,
    Figure,
    Lack,
    Leftover,
    LostTry,
    PastCommit,
    Rests,
    TableHistory,
    Unread,
    assess,
    joined,
    overlaps_of,
)

LATER = 1_000_000.0


def commit(number: int, ended: float, places: str = "p", **more: Any) -> PastCommit:
    """A commit that rewrites its partitions, one letter each, unless `rewritten` says otherwise. No letter: the whole table."""
    partitions = frozenset(places or [""])
    fields: dict[str, Any] = {
        "writer": f"w{number}",
        "operation": "MERGE",
        "rewritten": partitions,
        "size": 100,
        "stored": ended,
    }
    return PastCommit(
        version=str(number), ended=ended, partitions=partitions, number=number, **(fields | more)
    )


def history(*commits: PastCommit, form: str = "delta", **more: Any) -> TableHistory:
    fields: dict[str, Any] = {"now": LATER} | ({"leftovers": ()} if form != "hudi" else {})
    return TableHistory("file:///t", form, commits, **(fields | more))


NOTHING = frozenset[str]()
BASE, TIMED = commit(1, 10), commit(1, 10, began=0)


OVERLAPS: dict[str, Any] = {
    "did not see it": (commit(2, 30, base=0), 1, 2),
    "has read it": (commit(2, 30, base=1), 0, 0),
    "a base version counts more than a time": (commit(2, 30, base=0, began=20), 1, 2),
    "began before it ended": (commit(2, 30, began=5), 1, 2),
    "began when it ended": (commit(2, 30, began=10), 0, 0),
    "nothing is known of its begin": (commit(2, 30), 0, 0),
    "another partition": (commit(2, 30, "q", base=0), 1, 0),
    "one of the two rewrites": (commit(2, 30, base=0, rewritten=NOTHING), 1, 2),
}  # fmt: skip


@pytest.mark.parametrize(("later", "overlaps", "in_the_way"), OVERLAPS.values(), ids=OVERLAPS)
def test_what_overlaps_and_what_is_in_the_way(later: PastCommit, overlaps: int, in_the_way: int) -> None:
    found = overlaps_of([BASE, later])

    assert sum(each.overlaps for each in found.pairs.values()) == overlaps
    assert len(found.in_the_way) == in_the_way


def test_two_appends_are_never_in_each_others_way() -> None:
    found = assess(history(commit(1, 10, rewritten=NOTHING), commit(2, 30, base=0, rewritten=NOTHING)))

    assert [found[each].value for each in ("overlapping", "in_the_way", "overlap_seconds")] == [2, 0, 0.0]
    assert found.changes[0].startswith("nothing: 2 commits overlapped")


def test_the_comparisons_of_one_commit_are_bounded() -> None:
    commits = [commit(number, number, base=0) for number in range(1, MAX_BACK + 10)]

    assert sum(each.overlaps for each in overlaps_of(commits).pairs.values()) < MAX_BACK * len(commits)


LOST_SECONDS: dict[str, Any] = {
    "no duration, nothing lost": (history(BASE), 0.0),
    "nothing lost": (history(TIMED), 0.0),
    "half of a commit's bytes": (history(TIMED, leftovers=[Leftover("p", 50, 12)]), 5.0),
    "by the commits of its partition": (history(TIMED, commit(2, 40, "q", began=0), leftovers=[Leftover("q", 50, 12)]), 20.0),
    "older than the history": (history(TIMED, leftovers=[Leftover("p", 50, 9)]), 0.0),
    "may still be committed": (history(TIMED, leftovers=[Leftover("p", 50, LATER - GRACE_SECONDS + 1)]), 0.0),
    "no duration to go by": (history(BASE, leftovers=[Leftover("p", 50, 12)]), None),
    "no bytes to go by": (history(commit(1, 10, began=0, size=0), leftovers=[Leftover("p", 50, 12)]), None),
    "other files look the same": (history(TIMED, leftovers=None), None),
    "Iceberg deletes what was aborted": (history(TIMED, form="iceberg"), None),
    "what Iceberg left": (history(TIMED, form="iceberg", leftovers=[Leftover("p", 50, 12)]), 5.0),
    "rolled back: as long as usual": (history(TIMED, form="hudi", lost=[LostTry("2", 12, frozenset("p"))]), 10.0),
    "rolled back before that": (history(TIMED, form="hudi", lost=[LostTry("2", 12, frozenset("p"), 15)]), 3.0),
    "another partition: as long as any": (history(TIMED, form="hudi", lost=[LostTry("2", 12, frozenset("z"))]), 10.0),
    "rolled back, no duration to go by": (history(BASE, form="hudi", lost=[LostTry("2", 12, frozenset("p"))]), None),
    "rolled back: as long as those that replaced files": (
        history(
            commit(1, 10, began=9, rewritten=NOTHING),
            commit(2, 20, began=10),
            commit(3, 40, began=10),
            form="hudi",
            lost=[LostTry("2", 12, frozenset("p")), LostTry("3", 12, NOTHING)],
        ),
        40.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "seconds"), LOST_SECONDS.values(), ids=LOST_SECONDS)
def test_what_was_computed_in_vain(given: TableHistory, seconds: float | None) -> None:
    found = assess(given)

    assert found["lost_seconds"].value == seconds
    assert ("lost_tries" in found.figures) == (given.form == "hudi")


def test_known_and_estimated_seconds_are_apart() -> None:
    found = assess(
        history(
            commit(1, 10, began=0, is_known=True, writer="a"),
            commit(2, 30, began=25, writer="a", is_service=True),
            commit(3, 50, writer="b"),
        )
    )

    assert (found["known_seconds"].value, found["estimated_seconds"].value) == (10.0, 5.0)
    assert [(each.writer, each.commits, each.services) for each in found.writers] == [
        ("a", 2, 1),
        ("b", 1, 0),
    ]
    assert found.unknown[0] == "when 1 of the commits began: the table doesn't say it"


PIECES: dict[str, Any] = {lack.value: Unread("a piece", "it is damaged", frozenset({lack})) for lack in Lack}
HELD = {"commits": 2, "overlapping": 2, "in_the_way": 2, "lost_files": 1, "known_seconds": 30.0}


@pytest.mark.parametrize("lack", Lack)
def test_a_piece_that_was_not_read_weakens_the_figures_that_rest_on_it_and_says_why(lack: Lack) -> None:
    """`WEAKER` is the rule; none of them stays known, and a zero becomes none at all."""
    made = history(
        commit(1, 10, began=0, is_known=True),
        commit(2, 30, base=0, began=10, is_known=True),
        leftovers=[Leftover("p", 50, 12)],
        unread=[PIECES[lack.value]],
    )
    weaker = {name: rests for rests, names in WEAKER[lack].items() for name in names.split()}

    found = assess(made)

    for name, held in HELD.items():
        rests = weaker.get(name, Rests.KNOWN)
        because = ("a piece: it is damaged",) if name in weaker else ()
        assert found[name] == Figure(None if rests is Rests.NOT_KNOWN else held, rests, because)
    nothing = assess(replace(made, commits=(), leftovers=()))
    assert all(
        nothing[name].value is None for name in weaker.keys() & nothing.figures.keys() - {"known_seconds"}
    )


def test_what_an_append_had_read_is_not_known_so_its_overlaps_are_not() -> None:
    found = assess(
        history(BASE, commit(2, 30, unread=(Unread("what commit 2 had read", "", frozenset({Lack.BASE})),)))
    )

    assert [found[each].value for each in ("overlapping", "in_the_way")] == [None, None]


def test_overlaps_by_times_are_estimated_and_none_is_not_known() -> None:
    some = assess(history(TIMED, commit(2, 30, began=5)))
    none = assess(history(TIMED, commit(2, 30, began=15)))

    assert [each["in_the_way"].rests_on for each in (some, none)] == [Rests.ESTIMATED, Rests.NOT_KNOWN]
    assert none.changes[0].startswith("not known: ")


def test_a_writer_is_never_in_its_own_way() -> None:
    ours = [commit(number, 10.0 * number, base=0, session="s") for number in (1, 2, 3)]

    assert assess(history(*ours))["overlapping"] == Figure(0)
    assert assess(history(*ours, commit(4, 50, base=0, session="other")))["overlapping"] == Figure(4)


def test_two_snapshots_of_one_commit_are_one() -> None:
    """Another commit's snapshot may be between them. Two appends are two commits: a batch job's identifier is always the same."""
    name = ("user", 1)
    append, other = (
        commit(1, 10, "p", rewritten=NOTHING, commit=name, began=4),
        commit(2, 11, commit=("x", 1)),
    )
    compaction = commit(3, 12, "pq", commit=name, is_service=True, began=2)

    assert joined([append, other, compaction]) == [
        replace(append, ended=12, began=2, partitions=frozenset("pq"), rewritten=frozenset("pq"), size=200),
        other,
    ]
    assert joined([append, append]) == [append, append]


def contended(places: str, *, service: bool = False) -> Assessment:
    return assess(
        history(commit(1, 10, places, began=0), commit(2, 30, places, base=0, began=4, is_service=service))
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (contended("p"), ["admission auto: 2 of 2 commits were in another one's way, 0 writes", "partitioning: batches that"]),
        (contended("pq", service=True), ["admission auto", "partitioning: ", "compaction: 1 of these overlaps"]),
        (assess(history(commit(1, 10, began=0))), ["nothing: no two commits overlapped"]),
        (
            assess(history(commit(1, 10, began=0), leftovers=[Leftover("p", 50, 12)])),
            ["admission auto: 0 of 1 commits were in another one's way, 1 writes", "partitioning: batches that"],
        ),
        (assess(history(commit(1, 10, began=0), form="iceberg")), ["not known: "]),
        (assess(history(BASE, form="hudi", lost=[LostTry("2", 12, NOTHING)])), ["admission auto: 0 of 1"]),
        (contended(""), ["admission auto", "partitioning: the table has none"]),
    ],
)  # fmt: skip
def test_what_the_gate_would_change(found: Assessment, expected: list[str]) -> None:
    assert [each[: len(start)] for each, start in zip(found.changes, expected, strict=True)] == expected


def test_the_wait_is_as_long_as_the_longest_overlap_of_each_commit() -> None:
    found = assess(
        history(commit(1, 10, began=0), commit(2, 12, base=0, began=8), commit(3, 30, base=0, began=4))
    )

    assert found["overlap_seconds"].value == 2 + 8
    assert "would wait for at least 10.0 s instead" in found.changes[0]
