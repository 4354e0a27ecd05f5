"""RFC-56 as a whole: which keys are the same, which markers count, who loses, and that nobody loses for ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from lakewarden.events import (
    TABLE_SERVICE_PRIORITY,
    WRITER_EVENT,
    Marker,
    MarkerCreated,
    Undecodable,
    decode,
    encode,
)
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, ReportConflict
from tests.unit.handlers.table.contest import Contest, Job
from tests.unit.handlers.table.world import TABLE, World, m, world

# -- keys --------------------------------------------------------------------------------------------------------------

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
NAMES = [
    "",
    "a_b",
    "dt=2026-01-01/hr=3",
    "a/b",
    "100%",
    "a%2Fb",
    "größe=ü/日本",
    "*",
    " ",
    "a\tb",
    '"',
    "\\",
    COMPOSED,
]


def _sent(w: World, transaction: str, marker: Marker) -> World:
    """Touch as over the wire: encoded, and decoded as the agent does."""
    event = decode(
        WRITER_EVENT, encode(w.event(MarkerCreated, transaction, markers=(marker,))), key=TABLE.encode()
    )
    assert not isinstance(event, Undecodable), event
    return w.read(event)


@pytest.mark.parametrize("partition", NAMES)
@pytest.mark.parametrize("file_group", [name for name in NAMES if name and name != "*"])
def test_a_name_is_itself_over_the_wire_whatever_it_is_made_of(partition: str, file_group: str) -> None:
    """Hudi cut its marker names at the first underscore; partition paths hold `=`, `/`, `%` and any letter."""
    w = world().intent("A").intent("B")
    marker = Marker(partition=partition, file_group=file_group, operation="merge")

    _sent(_sent(w, "A", marker), "B", marker)

    (entry,) = w.one(AbortTransaction).conflicts
    assert (entry.partition, entry.file_group) == (partition, file_group)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (("a_b", "c"), ("a", "b_c")),
        (("a", "b/c"), ("a/b", "c")),
        (("", "f"), ("/", "f")),
        (("", "a/f"), ("a", "f")),
        (("a", "f"), ("a/", "f")),
        (("a%2Fb", "f"), ("a/b", "f")),
        (("event_date=2026-01-01", "f"), ("event_date=2026-02-02", "f")),
        (("p", "file-1"), ("p", "file-10")),
        (("p", "00000003"), ("p", "00000003-abc")),
        (("p", "a1"), ("p", "ba12")),
        (("p", COMPOSED), ("p", DECOMPOSED)),
        (("p", "F"), ("p", "f")),
        (("*", "f"), ("p", "f")),
        (("p", "**"), ("p", "f")),
        (("p", "f*"), ("p", "f1")),
        (("p", "*"), ("p2", "f")),
        (("p", "*"), ("", "f")),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_other_names_are_others_however_alike(
    mine: tuple[str, str], other: tuple[str, str], turned: bool
) -> None:
    """Each is a false conflict of Hudi 1.2.0 (D2, D3 in `hudi-measured`), or one that a joined string would make."""
    first, second = (other, mine) if turned else (mine, other)
    w = world().intent("A").intent("B")

    _sent(w, "A", Marker(partition=first[0], file_group=first[1], operation="merge"))
    _sent(w, "B", Marker(partition=second[0], file_group=second[1], operation="merge"))

    assert w.aborted == {}


def test_partitions_that_are_alike_are_kept_apart_within_one_event() -> None:
    """A driver sends its markers sorted, so neighbours differ by a letter."""
    w = world().intent("A").intent("B").touch("A", m("dt=1/f"), m("dt=10/g"), m("dt=1/h"), m("dt=10/f"))

    assert w.touch("B", m("dt=1/g"), m("dt=10/h"), m("dt=100/f")).aborted == {}
    assert w.touch("B", m("dt=10/g")).aborted == {"B": "conflict"}


@pytest.mark.parametrize(("mine", "other"), [("*", "f"), ("f", "*"), ("*", "*"), ("*", "a%2F_ü")])
@pytest.mark.parametrize("partition", ["", "p", "a/b", "*"])
def test_a_star_is_all_of_its_own_partition(mine: str, other: str, partition: str) -> None:
    """Whichever of the two says it, and whichever comes first."""
    w = world().intent("A").intent("B")

    _sent(w, "B", Marker(partition=partition, file_group=other, operation="merge"))
    _sent(w, "A", Marker(partition=partition, file_group=mine, operation="merge"))

    assert w.aborted == {"B": "conflict"}


# -- which markers count -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["marker", "request", "both"])
def test_a_task_that_runs_twice_is_one_writer(last: str) -> None:
    """A retried or speculative task says the same again under another event id, perhaps after the driver asked."""
    w = (
        world()
        .intent("A")
        .touch("A", m("p/f"), event_id="task 1.0")
        .touch("A", m("p/f"), event_id="task 1.1")
    )
    if last != "marker":
        w.request("A", m("p/f"))
    if last != "request":
        w.touch("A", m("p/f"), event_id="task 1.2")

    assert w.aborted == {}
    assert w.state.transactions["A"].markers == 1


def test_a_marker_after_the_request_loses_like_any_other_while_the_grant_is_waited_for() -> None:
    """A straggling task: its driver asked too early, and would commit what it may not."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").request("B").touch("B", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    assert w.lock().granted == []


def test_a_marker_after_the_request_wins_like_any_other_while_the_grant_is_waited_for() -> None:
    """The elder's straggler."""
    w = world().intent("A").request("A").intent("B").touch("B", m("p/f")).touch("A", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    assert w.lock().granted == ["A"]


def test_a_marker_after_the_grant_stops_the_other_and_counts_when_it_lands() -> None:
    """It is part of what is being committed: a later one that touches it after the commit must lose too."""
    w = world().intent("A").lock().request("A").intent("B").intent("C").touch("B", m("p/f"))

    assert w.touch("A", m("p/f"), m("p/g")).aborted == {"B": "conflict"}
    w.complete("A")
    assert w.touch("C", m("p/g")).aborted == {"C": "conflict"}


def test_a_marker_after_the_commit_is_not_part_of_it() -> None:
    """A zombie task of a job that has committed: what it writes is in no commit."""
    w = world().intent("A").intent("B").lock().touch("A", m("p/f")).commits("A").touch("A", m("p/g"))

    assert w.touch("B", m("p/g")).aborted == {}
    assert w.touch("B", m("p/f")).aborted == {"B": "conflict"}


@pytest.mark.parametrize(
    "end",
    [
        lambda w: w.abandon("A"),
        lambda w: w.tick(16),
        lambda w: w.intent("A2", writer="w-A"),
        lambda w: w.intent("O", priority=9).touch("O", m("p/f")).abandon("O"),
    ],
    ids=["abandoned", "lost", "superseded", "aborted"],
)
def test_markers_of_the_dead_stop_nobody(end: Callable[[World], object]) -> None:
    """RFC-56 checks heartbeats for this: a dead writer's marker files stay until somebody cleans up."""
    w = world().intent("A").touch("A", m("p/f"))
    end(w)
    assert w.phase("A") is Phase.ABORTED

    w.intent("B").touch("B", m("p/f")).touch("A", m("p/f"), m("p/g")).touch("B", m("p/g"))

    assert w.aborted == {}
    assert w.phase("B") is Phase.ACTIVE


# -- who loses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", sorted(set(permutations("AABB"))), ids="".join)
def test_of_two_the_same_one_loses_in_whatever_order_they_touch(order: tuple[str, ...]) -> None:
    """Never both, never by chance: RFC-56 looks at smaller instants only, for the same reason."""
    w = world().intent("A").intent("B")
    aborted: list[str] = []
    places = {"A": ["p/f", "p/g"], "B": ["p/g", "p/f"]}

    for each in order:
        w.touch(each, m(places[each].pop()))
        aborted.extend(w.aborted)

    assert aborted == ["B"]


@pytest.mark.parametrize("order", list(permutations(["A ab", "B ab", "B bc", "C bc"])), ids=" ".join)
def test_in_a_chain_nobody_loses_to_the_dead(order: tuple[str, ...]) -> None:
    """A < B < C, B between the two: whoever was aborted before can't be what another one is aborted for."""
    w = world().intent("A").intent("B").intent("C")
    gone: list[str] = []

    for each in order:
        name, place = each.split()
        w.touch(name, m(f"p/{place}"))
        for report in w.of(ReportConflict):
            assert report.winner not in gone
        gone.extend(w.aborted)

    assert "B" in gone
    assert "A" not in gone
    assert len(gone) == len(set(gone))


@pytest.mark.parametrize(
    "fails",
    [lambda w: w.abandon("A"), lambda w: w.tick(8), lambda w: w.intent("A2", writer="w-A")],
    ids=["abandons", "goes silent", "restarts"],
)
def test_who_lost_to_one_that_failed_is_let_in_on_its_next_try(fails: Callable[[World], object]) -> None:
    """Its retry waits in line behind the winner, as the gate sends it; the winner never commits."""
    w = world().intent("A").lock().touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    assert w.aborted == {"B": "conflict"}
    w.tick(10).intent("B2", m("p/f"), writer="w-B", admission="queued")
    assert w.admitted == []

    fails(w)

    assert "B2" in w.admitted
    assert w.request("B2", writer="w-B").granted == ["B2"]


def test_without_early_detection_one_of_many_commits_and_the_others_pay_at_the_end() -> None:
    """Plain optimistic control: still no overlap of two that were committed, only later said."""
    names = "ABCD"
    w = world(early_detection=False, max_losses=100)
    for name in names:
        w.intent(name)
    w.lock(left=1000)
    for name in names:
        w.touch(name, m("p/f"))
        assert w.effects == []

    assert w.request("C").granted == ["C"]
    w.complete("C")
    assert {name: w.request(name).aborted.get(name) for name in "ABD"} == dict.fromkeys("ABD", "conflict")
    w.intent("A2", writer="w-A").lock().touch("A2", m("p/f"), writer="w-A")
    assert w.request("A2", writer="w-A").granted == ["A2"]


# -- nobody loses for ever ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("in_line", [True, False], ids=["names its scope", "names nothing"])
def test_a_slow_writer_among_fast_ones_commits_within_its_losses(
    policy: str, early: bool, in_line: bool
) -> None:
    """Computes 30 s against four that compute 1 to 2 s, all on one file group, for ten minutes."""
    w = world(policy=policy, max_losses=3, early_detection=early)
    w.heartbeat = 300
    slow = Job("slow", 30.0, retries_in_line=in_line)
    fast = [Job(f"fast-{n}", 1.0 + n / 4) for n in range(4)]

    Contest(w, [slow, *fast]).play(600)

    assert slow.commits > 2
    assert max(job.most_losses for job in (slow, *fast)) <= 3
    assert min(job.commits for job in fast) > slow.commits


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("early", [True, False])
def test_where_nobody_names_anything_each_waits_for_the_other_protected_ones_at_most(
    policy: str, early: bool
) -> None:
    """A loss more for each of them: one of two protected loses to the other, which then begins at nothing again."""
    w = world(policy=policy, max_losses=3, early_detection=early)
    w.heartbeat = 300
    slow = Job("slow", 30.0, retries_in_line=False)
    fast = [Job(f"fast-{n}", 1.0 + n / 4, retries_in_line=False) for n in range(4)]

    Contest(w, [slow, *fast]).play(1800)

    assert slow.commits > 2
    assert max(job.most_losses for job in (slow, *fast)) <= 3 + len(fast)


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("in_line", [True, False], ids=["names its scope", "names nothing"])
def test_a_compaction_yields_to_ingestion_and_gets_its_turn(policy: str, in_line: bool) -> None:
    """A table service runs at its own priority, below everybody; it may lose `max_losses` times, not for ever."""
    w = world(policy=policy, max_losses=3)
    w.heartbeat = 300
    compaction = Job(
        "compaction", 60.0, place="p/*", priority=TABLE_SERVICE_PRIORITY, retries_in_line=in_line
    )
    ingestion = Job("ingestion", 5.0, retries_in_line=in_line)

    Contest(w, [compaction, ingestion]).play(1800)

    assert compaction.commits > 2
    assert compaction.most_losses == 3
    assert ingestion.most_losses <= (1 if in_line else 3)
    assert ingestion.commits > compaction.commits


def test_ingestion_never_loses_to_a_compaction_that_is_not_protected() -> None:
    """Whichever of the two was first."""
    w = world().intent("C", priority=TABLE_SERVICE_PRIORITY).touch("C", m("p/*", "delete")).intent("I")

    assert w.touch("I", m("p/f")).aborted == {"C": "conflict"}
    w.intent("C2", writer="w-C", priority=TABLE_SERVICE_PRIORITY)
    assert w.touch("C2", m("p/*", "delete"), writer="w-C").aborted == {"C2": "conflict"}
