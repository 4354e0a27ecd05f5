"""Writers that compute, touch what they computed, commit and start again, against one table, in simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations

import pytest

from lakewarden.events import (
    TABLE_SERVICE_PRIORITY,
    WRITER_EVENT,
    Abort,
    Admitted,
    CommitGranted,
    ConflictDetected,
    Marker,
    MarkerCreated,
    Undecodable,
    decode,
    encode,
)
from lakewarden.handlers.table.effects import AcquireLock
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.explain.explained import explanation_of, one
from tests.unit.handlers.table.world import TABLE, World, m, place_of, world


@dataclass(eq=False)
class Job:
    """One writer. It publishes its marker at the end of its computing, as a merge does when it writes."""

    name: str
    compute_seconds: float
    place: str = "p/f"
    priority: int = 0
    retries_queued: bool = True
    """A retry requests `queued` admission. Its scope is what the last attempt touched, as in the gate."""
    attempts: int = 0
    commits: int = 0
    losses: int = 0
    """Conflicts lost in a row."""
    most_losses: int = 0

    @property
    def transaction(self) -> str:
        """Id of the current attempt."""
        return f"{self.name}-{self.attempts}"


@dataclass
class Contest:
    """Runs the jobs. The lock is always available, and a commit takes no time."""

    world: World
    jobs: list[Job]
    due: list[tuple[float, int, Job, str]] = field(default_factory=list)
    """When an attempt has computed. The number keeps the order of attempts that are due at the same time."""
    restarting: list[Job] = field(default_factory=list)
    pushed: int = 0

    def run(self, seconds: float) -> None:
        """Run for a simulated duration."""
        end = self.world.now + seconds
        self.restarting.extend(self.jobs)
        self._settle()
        while self.due and self.due[0][0] < end:
            at, _, job, transaction = heapq.heappop(self.due)
            self.world.now = max(self.world.now, at)
            if transaction == job.transaction:
                self._computed(job)
                self._settle()

    def _settle(self) -> None:
        while self.restarting:
            self._begin(self.restarting.pop(0))

    def _begin(self, job: Job) -> None:
        job.attempts += 1
        queued = job.losses > 0 and job.retries_queued
        self.world.intent(
            job.transaction,
            *((m(job.place),) if queued else ()),
            writer=job.name,
            priority=job.priority,
            admission="queued" if queued else "optimistic",
        )
        self._follow()

    def _computed(self, job: Job) -> None:
        self.world.touch(job.transaction, m(job.place), writer=job.name)
        self._follow()
        if self.world.phase(job.transaction) is Phase.ACTIVE:
            self.world.request(job.transaction, writer=job.name)
            self._follow()

    def _follow(self) -> None:
        """React to the verdicts of the last input. A granted job commits at once, which leads to further verdicts."""
        effects = self.world.effects
        for effect in effects:
            if isinstance(effect, Admitted | Abort):
                self._apply(effect)
        for effect in effects:
            if isinstance(effect, AcquireLock):
                self.world.lock(left=1e9)
                self._follow()
            elif isinstance(effect, CommitGranted):
                job = self._of(effect.writer)
                job.commits, job.losses = job.commits + 1, 0
                self.world.complete(effect.transaction, writer=job.name)
                self._follow()
                self.restarting.append(job)

    def _apply(self, effect: Admitted | Abort) -> None:
        job = self._of(effect.writer)
        assert effect.transaction == job.transaction
        if isinstance(effect, Abort):
            assert effect.reason == "conflict"
            job.losses += 1
            job.most_losses = max(job.most_losses, job.losses)
            self.restarting.append(job)
        else:
            self.pushed += 1
            heapq.heappush(
                self.due, (self.world.now + job.compute_seconds, self.pushed, job, job.transaction)
            )

    def _of(self, writer: str) -> Job:
        return next(each for each in self.jobs if each.name == writer)


# RFC-56's early detection: which names are the same, which markers conflict, which transaction loses, and how often.

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


def _touch_over_the_wire(w: World, transaction: str, marker: Marker) -> World:
    """Publish a marker as over the wire: encoded, and decoded as by the agent."""
    event = decode(
        WRITER_EVENT, encode(w.event(MarkerCreated, transaction, markers=(marker,))), key=TABLE.encode()
    )
    assert not isinstance(event, Undecodable), event
    return w.read(event)


@pytest.mark.parametrize("partition", [name for name in NAMES if name != "*"])
@pytest.mark.parametrize("file_group", [name for name in NAMES if name and name != "*"])
def test_names_survive_the_wire_whatever_characters_they_contain(partition: str, file_group: str) -> None:
    """Hudi cuts its marker names at the first underscore. Partition paths contain `=`, `/`, `%` and any letter."""
    w = world().intent("A").intent("B")
    marker = Marker(partition=partition, file_group=file_group, operation="merge")

    _touch_over_the_wire(_touch_over_the_wire(w, "A", marker), "B", marker)

    (entry,) = w.one(Abort).conflicts
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
        (("**", "f"), ("p", "f")),
        (("p", "**"), ("p", "f")),
        (("p", "f*"), ("p", "f1")),
        (("p", "*"), ("p2", "f")),
        (("p", "*"), ("", "f")),
        (("p", "1"), ("p", "10")),
        (("a/b", "c"), ("a", "b_c")),
        (("p", "f"), ("P", "f")),
        (("", "f"), ("f", "f")),
        (("dt=1", "f"), ("dt=10", "f")),
        (("p", "*x"), ("p", "y")),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_similar_names_do_not_conflict(mine: tuple[str, str], other: tuple[str, str], turned: bool) -> None:
    """Each pair is a false conflict of Hudi 1.2.0 (D2, D3 in `hudi-measured`), or one that joined strings would produce."""
    first, second = (other, mine) if turned else (mine, other)
    w = world().intent("A").intent("B")

    _touch_over_the_wire(w, "A", Marker(partition=first[0], file_group=first[1], operation="merge"))
    _touch_over_the_wire(w, "B", Marker(partition=second[0], file_group=second[1], operation="merge"))

    assert w.aborted == {}


def test_similar_partitions_in_one_event_stay_apart() -> None:
    """A driver sends its markers sorted, so neighbours differ by one letter."""
    w = world().intent("A").intent("B").touch("A", m("dt=1/f"), m("dt=10/g"), m("dt=1/h"), m("dt=10/f"))

    assert w.touch("B", m("dt=1/g"), m("dt=10/h"), m("dt=100/f")).aborted == {}
    assert w.touch("B", m("dt=10/g")).aborted == {"B": "conflict"}


@pytest.mark.parametrize(("mine", "other"), [("*", "f"), ("f", "*"), ("*", "*"), ("*", "a%2F_ü")])
@pytest.mark.parametrize("partition", ["", "p", "a/b", "*"])
def test_a_star_covers_its_whole_partition(mine: str, other: str, partition: str) -> None:
    """Whichever of the two transactions publishes it, and in either order."""
    w = world().intent("A").intent("B")

    _touch_over_the_wire(w, "B", Marker(partition=partition, file_group=other, operation="merge"))
    _touch_over_the_wire(w, "A", Marker(partition=partition, file_group=mine, operation="delete"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(Abort).conflicts
    assert (entry.partition, entry.operation, entry.other_operation) == (partition, "merge", "delete")
    assert entry.file_group == other or partition == "*"


@pytest.mark.parametrize("mine", ["*/*", "*/f"])
@pytest.mark.parametrize("other", ["p/f", "/f", "a=1/b=2/*", "*/*", "*/g"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_star_as_partition_covers_the_whole_table(mine: str, other: str, turned: bool) -> None:
    """As a marker, as a scope, after a loss and for an explanation, whichever of the two transactions publishes it."""
    first, second = (other, mine) if turned else (mine, other)
    w = world().intent("A").touch("A", m(first)).intent("B").touch("B", m(second))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(Abort).conflicts
    partition = m(other).partition
    assert (entry.partition, entry.file_group) == (partition, place_of(m(second))[1])
    (lost,) = one(explanation_of(w, "B"), "abort").because.lost_conflicts
    assert lost.victim_event is not None
    assert lost.winner_event is not None
    assert (lost.victim_event.record.offset, lost.winner_event.record.offset) == (3, 1)
    assert w.state.lost_on["w-B"] == (m(f"{m(second).partition}/*"),)

    w = world().intent("A").touch("A", m(first)).intent("C", m(second), admission="queued")
    assert w.phase("C") is Phase.QUEUED
    w.abandon("A")
    assert w.phase("C") is Phase.ACTIVE


# -- which markers conflict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["marker", "request", "both"])
def test_markers_of_a_task_that_runs_twice_do_not_conflict(last: str) -> None:
    """A retried or speculative task repeats its markers under another event id, possibly after the commit request."""
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


def test_a_marker_between_request_and_grant_can_lose() -> None:
    """A late task: its driver requested the commit too early, and would commit a conflict."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").request("B").touch("B", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    assert w.lock().granted == []


def test_a_marker_between_request_and_grant_can_win() -> None:
    """A late task of the earlier transaction."""
    w = world().intent("A").request("A").intent("B").touch("B", m("p/f")).touch("A", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    assert w.lock().granted == ["A"]


def test_a_marker_after_the_grant_aborts_others_before_and_after_the_commit() -> None:
    """It is part of the commit, so a transaction that touches it after the commit must lose too."""
    w = world().intent("A").lock().request("A").intent("B").intent("C").touch("B", m("p/f"))

    assert w.touch("A", m("p/f"), m("p/g")).aborted == {"B": "conflict"}
    w.complete("A")
    assert w.touch("C", m("p/g")).aborted == {"C": "conflict"}


def test_a_marker_after_the_commit_is_ignored() -> None:
    """A leftover task of a job that has committed: no commit contains what it writes."""
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
    ids=["abandoned", "writer-lost", "superseded", "conflict"],
)
def test_markers_of_ended_transactions_abort_no_other(end: Callable[[World], object]) -> None:
    """RFC-56 checks heartbeats for this, because the marker files of a dead writer stay until they are cleaned up."""
    w = world().intent("A").touch("A", m("p/f"))
    end(w)
    assert w.phase("A") is Phase.ABORTED

    w.intent("B").touch("B", m("p/f")).touch("A", m("p/f"), m("p/g")).touch("B", m("p/g"))

    assert w.aborted == {}
    assert w.phase("B") is Phase.ACTIVE


# -- which transaction loses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", sorted(set(permutations("AABB"))), ids="".join)
def test_the_same_transaction_loses_in_every_order_of_markers(order: tuple[str, ...]) -> None:
    """Never both, and never by chance. RFC-56 compares only with smaller instants for the same reason."""
    w = world().intent("A").intent("B")
    aborted: list[str] = []
    places = {"A": ["p/f", "p/g"], "B": ["p/g", "p/f"]}

    for each in order:
        w.touch(each, m(places[each].pop()))
        aborted.extend(w.aborted)

    assert aborted == ["B"]


@pytest.mark.parametrize("order", list(permutations(["A ab", "B ab", "B bc", "C bc"])), ids=" ".join)
def test_in_a_chain_no_transaction_loses_to_an_aborted_one(order: tuple[str, ...]) -> None:
    """A < B < C, and B overlaps both: an aborted transaction must not be the winner of a later conflict."""
    w = world().intent("A").intent("B").intent("C")
    gone: list[str] = []

    for each in order:
        name, place = each.split()
        w.touch(name, m(f"p/{place}"))
        for report in w.of(ConflictDetected):
            assert report.winner not in gone
        gone.extend(w.aborted)

    assert "B" in gone
    assert "A" not in gone
    assert len(gone) == len(set(gone))


@pytest.mark.parametrize(
    "fails",
    [lambda w: w.abandon("A"), lambda w: w.tick(8), lambda w: w.intent("A2", writer="w-A")],
    ids=["abandons", "is silent", "restarts"],
)
def test_a_retry_is_admitted_when_the_winner_fails(fails: Callable[[World], object]) -> None:
    """The gate's retry waits in the queue behind the winner, which never commits."""
    w = world().intent("A").lock().touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    assert w.aborted == {"B": "conflict"}
    w.tick(10).intent("B2", m("p/f"), writer="w-B", admission="queued")
    assert w.admitted == []

    fails(w)

    assert "B2" in w.admitted
    assert w.request("B2", writer="w-B").granted == ["B2"]


def test_without_early_detection_the_losers_are_aborted_at_their_commit_requests() -> None:
    """Optimistic concurrency control: no two commits overlap, but the losers learn of it only at the end."""
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
    assert w.granted == []
    w.intent("A2", writer="w-A").lock().touch("A2", m("p/f"), writer="w-A")
    assert w.request("A2", writer="w-A").granted == ["A2"]


# -- no writer loses forever -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("queued", [True, False], ids=["declares its scope", "declares no scope"])
def test_a_slow_writer_among_fast_ones_loses_at_most_max_losses_times(
    policy: str, early: bool, queued: bool
) -> None:
    """It computes for 30 s, four others for 1 to 2 s, all on one file group, for ten minutes."""
    w = world(policy=policy, max_losses=3, early_detection=early)
    w.heartbeat = 300
    slow = Job("slow", 30.0, retries_queued=queued)
    fast = [Job(f"fast-{n}", 1.0 + n / 4) for n in range(4)]

    Contest(w, [slow, *fast]).run(600)

    assert slow.commits > 2
    assert max(job.most_losses for job in (slow, *fast)) <= 3
    assert min(job.commits for job in fast) > slow.commits


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("early", [True, False])
def test_without_scopes_a_writer_loses_at_most_once_more_for_each_protected_writer(
    policy: str, early: bool
) -> None:
    """One of two protected writers loses to the other, which then starts at zero losses."""
    w = world(policy=policy, max_losses=3, early_detection=early)
    w.heartbeat = 300
    slow = Job("slow", 30.0, retries_queued=False)
    fast = [Job(f"fast-{n}", 1.0 + n / 4, retries_queued=False) for n in range(4)]

    Contest(w, [slow, *fast]).run(1800)

    assert slow.commits > 2
    assert max(job.most_losses for job in (slow, *fast)) <= 3 + len(fast)


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("queued", [True, False], ids=["declares its scope", "declares no scope"])
def test_a_compaction_loses_to_ingestion_at_most_max_losses_times(policy: str, queued: bool) -> None:
    """A table service runs at its own low priority. It may lose `max_losses` times, not forever."""
    w = world(policy=policy, max_losses=3)
    w.heartbeat = 300
    compaction = Job("compaction", 60.0, place="p/*", priority=TABLE_SERVICE_PRIORITY, retries_queued=queued)
    ingestion = Job("ingestion", 5.0, retries_queued=queued)

    Contest(w, [compaction, ingestion]).run(1800)

    assert compaction.commits > 2
    assert compaction.most_losses == 3
    assert ingestion.most_losses <= (1 if queued else 3)
    assert ingestion.commits > compaction.commits


def test_ingestion_never_loses_to_an_unprotected_compaction() -> None:
    """Whichever of the two was first."""
    w = world().intent("C", priority=TABLE_SERVICE_PRIORITY).touch("C", m("p/*", "delete")).intent("I")

    assert w.touch("I", m("p/f")).aborted == {"C": "conflict"}
    w.intent("C2", writer="w-C", priority=TABLE_SERVICE_PRIORITY)
    assert w.touch("C2", m("p/*", "delete"), writer="w-C").aborted == {"C2": "conflict"}
