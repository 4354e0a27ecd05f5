"""Writers that compute, touch what they computed, commit and start again, against one table, in simulated time."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from lakewarden.events import (
    TABLE_SERVICE_PRIORITY,
    WRITER_EVENT,
    Abort,
    Admitted,
    CommitGranted,
    Marker,
    MarkerCreated,
    Undecodable,
    decode,
    encode,
)
from lakewarden.handlers.table.effects import AcquireLock
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.explain.explained import explanation_of, one
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import TABLE, World, m, place_of, world


@dataclass(eq=False)
class Job:
    """One writer. It publishes its marker at the end of its computing, as a merge does when it writes."""

    name: str
    compute_seconds: float
    place: str = "p/f"
    priority: int = 0
    queued: bool = False
    """Each attempt requests `queued` admission."""
    touches_first: bool = False
    """It publishes its marker before it computes."""
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
    """When an attempt has computed, or the next one begins. The number keeps the order of those that are due at one time."""
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
            elif not transaction:
                self.restarting.append(job)
            self._settle()

    def _settle(self) -> None:
        while self.restarting:
            self._begin(self.restarting.pop(0))

    def _begin(self, job: Job) -> None:
        job.attempts += 1
        queued = job.queued or (job.losses > 0 and job.retries_queued)
        self.world.intent(
            job.transaction,
            *((m(job.place),) if queued or job.touches_first else ()),
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
            if job.touches_first:
                self._push(0.2, job, "")  # it may lose at once, at the same moment
            else:
                self.restarting.append(job)
        else:
            self._push(job.compute_seconds, job, job.transaction)

    def _push(self, seconds: float, job: Job, transaction: str) -> None:
        self.pushed += 1
        heapq.heappush(self.due, (self.world.now + seconds, self.pushed, job, transaction))

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


# -- which markers conflict, and which transaction loses ---------------------------------------------------------------

STORIES = """

markers of a task that runs twice do not conflict
    # A retried or speculative task repeats its markers under another event id, possibly after the commit request.
    where LAST is touch A p/f event_id=task-1.2 | request A p/f | request A p/f; touch A p/f event_id=task-1.2
    intent A; touch A p/f event_id=task-1.0; touch A p/f event_id=task-1.1; LAST → no abort, A markers=1

markers of ended transactions abort no other
    # RFC-56 checks heartbeats for this, because the marker files of a dead writer stay until they are cleaned up.
    where END is abandon A | tick 16 | intent A2 writer=w-A | intent O priority=9; touch O p/f; abandon O
    intent A; touch A p/f; END → A is aborted
    intent B; touch B p/f; touch A p/f p/g; touch B p/g → no abort, B is active

a retry is admitted when the winner fails or restarts
    # The gate's retry waits in the queue behind the winner, which never commits.
    where FAILS is abandon A | tick 8 | intent A2 writer=w-A
    intent A; lock; touch A p/f; intent B; touch B p/f → aborted B conflict
    tick 10; intent B2 p/f writer=w-B queued → no admission
    FAILS → some Admitted transaction=B2
    request B2 → granted B2

without early detection the losers are aborted at their commit requests
    # Optimistic concurrency control: no two commits overlap, but the losers learn of it only at the end.
    world early_detection=False max_losses=100
    intent A; intent B; intent C; intent D; lock 1000; touch A p/f; touch B p/f; touch C p/f; touch D p/f → nothing
    request C → granted C
    complete C; request A → aborted A conflict, no grant
    request B → aborted B conflict, no grant
    request D → aborted D conflict, no grant
    intent A2 writer=w-A; lock; touch A2 p/f; request A2 → granted A2
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_early_detection(story: Story) -> None:
    story.play()


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

    Contest(w, [slow, *fast]).run(600)

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


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_a_queued_writer_of_a_low_priority_commits_beside_any_others(
    policy: str, early: bool, seed: int
) -> None:
    """Optimistic ones, queued ones and both, whose batches leave no gap. One round of it takes 20 s, of the others up to 5."""
    rng = random.Random(seed)
    w = world(policy=policy, max_losses=3, early_detection=early)
    w.heartbeat = 300
    backfill = Job("backfill", 20.0, place="p/*", priority=-10, queued=True)
    others = [
        Job(
            f"other-{n}",
            rng.uniform(1.0, 5.0),
            place=f"p/{rng.choice([n, 'same'])}",
            priority=rng.choice([0, 0, 5, -10]),
            queued=rng.random() < seed % 3 / 2,
            touches_first=rng.random() < 0.7,
            retries_queued=rng.random() < 0.5,
        )
        for n in range(5)
    ]

    Contest(w, [*others, backfill]).run(1200)

    assert backfill.commits >= 1200 / (20 + 4 * 5 + 5 * 5)
    assert min(each.commits for each in others) > 2
    assert max(each.most_losses for each in others) <= 3 + len(others)
