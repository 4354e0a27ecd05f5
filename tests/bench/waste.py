"""Wasted compute: a fixed scenario of contention on virtual time, in which the production core decides.

Each of `WRITERS` writers commits one batch after another for some hours. Batch n of a writer is the same in every mode.

- A batch touches `TOUCHED` of the table's `PARTITIONS`, drawn at random, one file group in each. Two batches overlap with a
  probability of 1 − C(71, 4) / C(75, 4) = 20 %.
- Its compute time is drawn from a log-normal distribution around 30 s. A retry takes the same time again. Its markers appear
  evenly from 45 % of that time on: Hudi was measured to spend 35–43 s of a batch before the first marker and 46–48 s after it.
- Its commit takes 1 s. With coordination, one commit runs at a time.
- An event or a decision is in transit for 5 ms. A computation stops 0.3 s after its abort arrived.

    mode                        coordination
    no coordination             a commit over another one that overlaps, and that it has not read, loses that update
    optimistic, at the commit   checked at the commit only (`early_detection` off), retried immediately, as without our client
    the same, queued retries    a retry waits in the admission queue with all that the batch touched, as in
                                `spark_jobs/streaming/batches.py`; so it does in the modes below
    first committer             this policy, with early detection
    first intent                this policy, with early detection
    queued                      a batch declares its partitions before it begins
    auto                        as `admission="auto"` chooses (`spark_jobs/streaming/admission.py`), the partitions known
    auto, scope unknown         the same, the partitions unknown before the batch has touched them

The admissions are also compared on three tables at the extremes: all writers change the same file group, each its own
file group of one partition, or each its own partition. A scope is of whole partitions.

Not simulated: faults, heartbeats, and the requests of the lock. The machines of waiting writers count as used.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from lakewarden.events import (
    ALL_FILE_GROUPS,
    Abort,
    Admitted,
    CommitGranted,
    DecisionEventUnion,
    Marker,
    WriterEventUnion,
)
from lakewarden.handlers.table.effects import AcquireLock, Effect
from lakewarden.handlers.table.state import TableSettings
from lakewarden.handlers.writers_log import met, waited_for
from lakewarden.spark_jobs.streaming.admission import Choice, TableHistory
from tests.bench import writer_events
from tests.bench.core import FOREVER, TABLE, Core
from tests.bench.figures import over_runs, spread
from tests.bench.run import Figures, Run
from tests.simulation.timeline import Timeline

WRITERS = 4
PARTITIONS = 75
TOUCHED = 4
COMPUTE_SECONDS = 30.0
COMPUTE_SIGMA = 0.4
BEFORE_MARKERS = 0.45
COMMIT_SECONDS = 1.0
UNDER_WAY_SECONDS = 0.005
STOPPED_AFTER_SECONDS = 0.3

INK, PALE = "#1f2933", "#7b8794"
PARTS = {
    "committed_seconds": ("committed", "#3fa66b"),
    "lost_seconds": ("committed, then overwritten", "#6d28d9"),
    "wasted_seconds": ("wasted", "#e0524d"),
    "waited_seconds": ("waited", "#9aa5b1"),
}
LEAST_LABELLED = 4.0
"""Percent. Narrower parts have no room for a number."""

OPTIMISTIC, QUEUED, AUTO, LEARNING = "first intent", "queued", "auto", "auto, scope unknown"


@dataclass(frozen=True, slots=True)
class Mode:
    """How the writers are coordinated."""

    name: str
    settings: TableSettings | None
    """None: no coordination."""
    scope_known: bool = False
    queued_retries: bool = True
    auto: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """What the batches of the writers touch."""

    name: str
    partitions: int
    touched: int
    own_partition: bool = False
    """Each writer has one partition of its own; `partitions` doesn't count."""
    own_file_group: bool = False
    """Each writer has its own file group in every partition."""


SPREAD = Workload("one pair of batches in five overlaps", PARTITIONS, TOUCHED)
EXTREMES = (
    Workload("one partition, the same file group", 1, 1),
    Workload("one partition, a file group each", 1, 1, own_file_group=True),
    Workload("a partition each", 1, 1, own_partition=True),
)

MODES = (
    Mode("no coordination", None),
    Mode("optimistic, at the commit", TableSettings(early_detection=False), queued_retries=False),
    Mode("the same, queued retries", TableSettings(early_detection=False)),
    Mode("first committer", TableSettings(policy="first-committer")),
    Mode(OPTIMISTIC, TableSettings()),
    Mode(QUEUED, TableSettings(), scope_known=True),
    Mode(AUTO, TableSettings(), scope_known=True, auto=True),
    Mode(LEARNING, TableSettings(), auto=True),
)


@dataclass(slots=True)
class Tally:
    """The results of one run."""

    wasted: float = 0.0
    """Seconds computed by aborted attempts, until they stopped."""
    waited: float = 0.0
    """Seconds in the admission queue and for the grant."""
    latencies: list[float] = field(default_factory=list)
    """For each committed batch, the seconds from the arrival of its data to its commit."""
    committed: float = 0.0
    """Seconds computed for commits that are still in the table."""
    lost: float = 0.0
    """Seconds computed for commits that another commit overwrote."""
    lost_updates: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The work of a writer, the same in every mode."""

    partitions: tuple[int, ...]
    compute: float
    file_group: str = "f-0"

    @property
    def seconds(self) -> float:
        return self.compute + COMMIT_SECONDS

    def marker(self, number: int) -> Marker:
        return Marker(
            partition=f"day={self.partitions[number]}", file_group=self.file_group, operation="merge"
        )

    def scope(self) -> tuple[Marker, ...]:
        days = (f"day={each}" for each in self.partitions)
        return tuple(Marker(partition=day, file_group=ALL_FILE_GROUPS, operation="merge") for day in days)

    def overlaps(self, other: Batch) -> bool:
        return self.file_group == other.file_group and not set(self.partitions).isdisjoint(other.partitions)


@dataclass(slots=True)
class _Landed:
    at: float
    batch: Batch
    overwritten: bool = False


class Table:
    """The commits of the table, by which lost updates are counted."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._landed: list[_Landed] = []

    def land(self, batch: Batch, *, read_at: float, now: float) -> None:
        """Commit a batch that was computed from the table as of `read_at`."""
        for each in itertools.takewhile(lambda each: each.at > read_at, reversed(self._landed)):
            if not each.overwritten and each.batch.overlaps(batch):
                each.overwritten = True
                self._tally.lost_updates += 1
                self._tally.lost += each.batch.seconds
                self._tally.committed -= each.batch.seconds
        self._landed.append(_Landed(now, batch))
        self._tally.committed += batch.seconds


class Agent:
    """The production core, with a log, and a lock that is always free."""

    def __init__(self, timeline: Timeline, settings: TableSettings) -> None:
        self._timeline = timeline
        self._core = Core(settings)
        self.listeners: dict[str, Callable[[DecisionEventUnion], None]] = {}
        """By writer."""
        self.log: list[WriterEventUnion] = []

    def send(self, event: WriterEventUnion) -> None:
        self._timeline.after(UNDER_WAY_SECONDS, lambda: self._read(event))

    def _read(self, event: WriterEventUnion) -> None:
        self._core.now = self._timeline.now
        self.log.append(event)
        self._core.read(event)
        self._run(self._core.effects)

    def _run(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, AcquireLock):
                self._core.lock()
                self._run(self._core.effects)
            elif isinstance(effect, Admitted | Abort | CommitGranted):
                self._publish(effect)

    def _publish(self, verdict: DecisionEventUnion) -> None:
        self._timeline.after(UNDER_WAY_SECONDS, lambda: self.listeners[verdict.writer](verdict))


Steps = Generator[float, DecisionEventUnion | None, bool]
"""Yields the longest time to wait for a verdict, in seconds. Receives the verdict, or None after that time."""


class Writer:
    """Starts its next batch when the last one is committed."""

    def __init__(
        self, number: int, seed: int, timeline: Timeline, tally: Tally, *, mode: Mode, workload: Workload
    ) -> None:
        self._number, self._mode, self._timeline, self._tally = number, mode, timeline, tally
        self._name, self._workload = f"writer-{number}", workload
        self._history = TableHistory()
        """Each writer is a driver of its own."""
        self._since = 0
        self._others: set[str] = set()
        """Transactions that the current batch lost to."""
        self._random = random.Random(f"{seed} {self._name}")
        self._attempts = itertools.count()
        self._transaction = ""
        self._waits = 0

    def start(self, table: Table, agent: Agent | None) -> None:
        self._table = table
        if agent is not None:
            self._agent = agent
            agent.listeners[self._name] = self._receive
        self._steps = self._work()
        self._resume(None)

    def _send(self, event: WriterEventUnion) -> None:
        self._agent.send(event.model_copy(update={"writer": self._name}))

    def _receive(self, verdict: DecisionEventUnion) -> None:
        if verdict.transaction == self._transaction:
            if isinstance(verdict, Abort):
                self._others.update(entry.other_transaction for entry in verdict.conflicts)
            self._resume(verdict)

    def _resume(self, verdict: DecisionEventUnion | None) -> None:
        self._waits += 1
        mine, seconds = self._waits, self._steps.send(verdict)
        self._timeline.after(seconds, lambda: self._resume(None) if mine == self._waits else None)

    def _work(self) -> Steps:
        while True:
            batch, arrived = self._next_batch(), self._timeline.now
            if self._mode.settings is None:
                yield from self._without_coordination(batch)
            else:
                yield from self._until_committed(batch)
            self._tally.latencies.append(self._timeline.now - arrived)

    def _next_batch(self) -> Batch:
        workload = self._workload
        partitions = tuple(self._random.sample(range(workload.partitions), workload.touched))
        compute = COMPUTE_SECONDS * self._random.lognormvariate(0.0, COMPUTE_SIGMA)
        return Batch(
            (self._number,) if workload.own_partition else partitions,
            compute,
            f"f-{self._number}" if workload.own_file_group else "f-0",
        )

    def _without_coordination(self, batch: Batch) -> Steps:
        read_at = self._timeline.now
        yield batch.seconds
        self._table.land(batch, read_at=read_at, now=self._timeline.now)
        return True

    def _until_committed(self, batch: Batch) -> Steps:
        scope = batch.scope() if self._mode.scope_known else None
        choice = Choice("optimistic" if scope is None else "queued", scope or (), "", scope_known=True)
        if self._mode.auto:
            choice = self._history.choose(self._name, scope)
        touched = dict.fromkeys(choice.scope)
        queued, aborts = choice.admission == "queued", 0
        self._others.clear()
        since, self._since = self._since, len(self._agent.log)
        while not (yield from self._attempt(batch, touched, queued=queued)):
            aborts += 1
            queued = self._mode.queued_retries
        if self._mode.auto:
            self._learn(batch, choice, since, lost=aborts > 0)
        return True

    def _learn(self, batch: Batch, choice: Choice, since: int, *, lost: bool) -> None:
        """As `spark_jobs/streaming/batches.py` does."""
        markers = tuple(batch.marker(number) for number in range(len(batch.partitions)))
        if not lost and not self._was_queued:
            self._history.undisturbed(self._name, choice, markers)
            return
        events = self._agent.log[since:]
        others = self._others | waited_for(events, self._transaction)
        outcome = met(events, self._transaction, markers, others)
        needlessly = None if outcome is None or not others else not outcome
        self._history.disturbed(self._name, choice, lost=lost, needlessly=needlessly, touched=markers)

    def _attempt(self, batch: Batch, touched: dict[Marker, None], *, queued: bool) -> Steps:
        """Whether it was committed. Its markers are added to `touched`."""
        name = self._transaction = f"{self._name}-{next(self._attempts)}"
        declared = {"admission": "queued", "scope": tuple(touched)} if queued else {}
        self._send(writer_events.intent(TABLE, name, **declared))
        sent_at = self._timeline.now
        yield from self._wait_for(Admitted)

        read_at = self._timeline.now
        self._was_queued = read_at - sent_at > 3 * UNDER_WAY_SECONDS
        for number in range(len(batch.partitions)):
            share = BEFORE_MARKERS + (1 - BEFORE_MARKERS) * number / len(batch.partitions)
            if (yield read_at + share * batch.compute - self._timeline.now) is not None:
                return (yield from self._stop(read_at))
            marker = batch.marker(number)
            touched[marker] = None
            self._send(writer_events.touched(TABLE, name, [marker]))
        if (yield read_at + batch.compute - self._timeline.now) is not None:
            return (yield from self._stop(read_at))

        self._send(writer_events.requested(TABLE, name))
        verdict = yield from self._wait_for(CommitGranted, Abort)
        if not isinstance(verdict, CommitGranted):
            self._tally.wasted += batch.compute
            return False
        yield COMMIT_SECONDS
        self._table.land(batch, read_at=read_at, now=self._timeline.now)
        self._send(writer_events.completed(TABLE, name, verdict.grant))
        return True

    def _wait_for(
        self, *kinds: type[DecisionEventUnion]
    ) -> Generator[float, DecisionEventUnion | None, DecisionEventUnion]:
        began = self._timeline.now
        verdict = yield FOREVER
        assert isinstance(verdict, kinds), verdict
        self._tally.waited += self._timeline.now - began
        return verdict

    def _stop(self, read_at: float) -> Steps:
        self._transaction = ""  # its request may have crossed the abort, which is then repeated
        yield STOPPED_AFTER_SECONDS
        self._tally.wasted += self._timeline.now - read_at
        return False


def simulate(mode: Mode, seed: int, hours: float, workload: Workload = SPREAD) -> Tally:
    """One run. Raises if an update is lost in spite of coordination: that is a bug."""
    timeline, tally = Timeline(), Tally()
    table = Table(tally)
    agent = None if mode.settings is None else Agent(timeline, mode.settings)
    for number in range(WRITERS):
        Writer(number, seed, timeline, tally, mode=mode, workload=workload).start(table, agent)
    timeline.run(hours * 3600, lambda: False)
    assert mode.settings is None or not tally.lost_updates, f"{mode.name}, seed {seed}: an update was lost"
    return tally


def measure(run: Run) -> Figures:
    """Of each mode the medians over the seeds, per hour; latencies over all batches of all seeds."""
    seeds, hours = run.size.waste_seeds, run.size.waste_hours
    report: Figures = {"writers": WRITERS, "seeds": seeds, "hours": hours}
    report["modes"] = {mode.name: _figures(mode, SPREAD, seeds=seeds, hours=hours) for mode in MODES}
    compared = [mode for mode in MODES if mode.name in (OPTIMISTIC, QUEUED, AUTO, LEARNING)]
    report["extremes"] = {
        workload.name: {mode.name: _figures(mode, workload, seeds=seeds, hours=hours) for mode in compared}
        for workload in EXTREMES
    }
    return report


def _figures(mode: Mode, workload: Workload, *, seeds: int, hours: float) -> Figures:
    runs = [simulate(mode, seed, hours, workload) for seed in range(seeds)]
    latencies = sorted(each for run in runs for each in run.latencies)
    hourly = [
        {
            "wasted_seconds": run.wasted / hours,
            "waited_seconds": run.waited / hours,
            "committed_seconds": run.committed / hours,
            "lost_seconds": run.lost / hours,
            "batches": len(run.latencies) / hours,
            "lost_updates": run.lost_updates / hours,
        }
        for run in runs
    ]
    p95 = latencies[int(0.95 * len(latencies))]
    return {
        "per_hour": over_runs(hourly),
        "latency_seconds": {"p50": round(median(latencies), 1), "p95": round(p95, 1)},
    }


def rows(report: Figures) -> Iterator[tuple[str, ...]]:
    """A heading, and a row for each table and mode. The better is the better one of optimistic and queued, in batches."""
    yield (
        f"{report['writers']} writers, per hour",
        "mode",
        "wasted compute",
        "of their time",
        "waited",
        "batches",
        "of these lost",
        "against the better",
        "latency p50",
        "p95",
    )
    for workload, modes in {SPREAD.name: report["modes"], **report["extremes"]}.items():
        batches = {name: figures["per_hour"]["batches"]["median"] for name, figures in modes.items()}
        better = max(batches[OPTIMISTIC], batches[QUEUED])
        for name, figures in modes.items():
            hourly, latency = figures["per_hour"], figures["latency_seconds"]
            wasted = hourly["wasted_seconds"]
            yield (
                workload,
                name,
                f"{spread(wasted, ',.0f')} s",
                f"{100 * wasted['median'] / (3600 * report['writers']):.1f} %",
                f"{hourly['waited_seconds']['median']:,.0f} s",
                f"{batches[name]:.0f}",
                f"{hourly['lost_updates']['median']:.0f}",
                f"{100 * (batches[name] / better - 1):+.1f} %",
                f"{latency['p50']:.0f} s",
                f"{latency['p95']:.0f} s",
            )


def draw(report: Figures, path: Path) -> None:
    """Draw how the writers spend their time, a bar for each mode, as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(10.5, 4.3), dpi=100, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.205, right=0.775, top=0.81, bottom=0.19)
    modes = report["modes"]
    left = [0.0] * len(modes)
    for name, (title, colour) in PARTS.items():
        shares = [
            each["per_hour"][name]["median"] / (3600 * report["writers"]) * 100 for each in modes.values()
        ]
        axes.barh(list(modes), shares, left=left, height=0.62, color=colour, linewidth=0, label=title)
        for row, (begin, share) in enumerate(zip(left, shares, strict=True)):
            if share >= LEAST_LABELLED:
                text = f"{share:.0f} %"
                axes.text(begin + share / 2, row, text, ha="center", va="center", color="white", fontsize=10)
        left = [begin + share for begin, share in zip(left, shares, strict=True)]
    for row, each in enumerate(modes.values()):
        kept = each["per_hour"]["batches"]["median"] - each["per_hour"]["lost_updates"]["median"]
        text = f"{kept:.0f} batches per hour, p95 {each['latency_seconds']['p95']:.0f} s"
        axes.text(101.5, row, text, va="center", fontsize=9, color=INK)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=11, labelcolor=INK)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.legend(
        loc="lower left", bbox_to_anchor=(0.195, 0.05), ncols=len(PARTS), frameon=False, fontsize=10
    )
    title = f"How {report['writers']} writers spend their time if one pair of batches in five overlaps"
    figure.text(0.015, 0.93, title, fontsize=14, fontweight="bold", color=INK, va="center")
    what = (
        f"simulated: {report['hours']:g} hours, {report['seeds']} seeds, batches of about "
        f"{COMPUTE_SECONDS:.0f} s; the production core decides (tests/bench/waste.py)"
    )
    figure.text(0.015, 0.865, what, fontsize=10, color=PALE, va="center")
    figure.savefig(path, format="png", metadata={"Software": None})
