"""What writers compute in vain: a fixed scenario of contention on virtual time, the production core deciding.

Each of `WRITERS` writers commits batch after batch for some hours. Batch n of a writer is the same in every mode.

- It touches `TOUCHED` of the table's `PARTITIONS`, drawn at random, one file group in each. Two batches overlap with a
  probability of 1 − C(71, 4) / C(75, 4) = 20 %.
- It computes for a time drawn from a log-normal distribution around 30 s, as long again when it is tried again. Its markers
  appear from 45 % of it on, evenly: Hudi was measured to spend 35–43 s of a batch before the first, and 46–48 s after.
- Its commit takes 1 s. Where somebody coordinates, one commits at a time.
- An event or a verdict is under way for 5 ms; a computation is stopped 0.3 s after its abort has arrived.

Modes:

- nobody coordinates: a commit over one that overlaps it, and that it has not read, makes that one vanish: a lost update.
- optimistic: judged at the commit alone (`early_detection` off), and begun again at once, as without our client.
- optimistic, retries wait: as `spark_jobs/streaming/batches.py` does it, here and in the modes below: a batch that was aborted
  waits in line with all that it touched before it begins again.
- first intent, first committer: the policies, with early detection.
- queued: a batch names its partitions before it begins.

Not in it: faults, heartbeats, the lock's own requests; and that the machines of those who wait could be used by others.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from lakewarden.events import ALL_FILE_GROUPS, Marker, WriterEventUnion
from lakewarden.handlers.table.machine import EventRead, LockConfirmed, step
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    AcquireLock,
    Admit,
    Effect,
    GrantCommit,
    Verdict,
)
from tests.bench import words
from tests.bench.figures import over_runs

WRITERS = 4
PARTITIONS = 75
TOUCHED = 4
COMPUTE_SECONDS = 30.0
COMPUTE_SIGMA = 0.4
BEFORE_MARKERS = 0.45
COMMIT_SECONDS = 1.0
UNDER_WAY_SECONDS = 0.005
STOPPED_AFTER_SECONDS = 0.3
TABLE = f"{words.TABLES}/waste"
FOREVER = 1e9

INK, PALE = "#1f2933", "#7b8794"
PARTS = {
    "committed_seconds": ("committed", "#3fa66b"),
    "lost_seconds": ("committed, then overwritten", "#6d28d9"),
    "wasted_seconds": ("computed in vain", "#e0524d"),
    "waited_seconds": ("waited", "#9aa5b1"),
}
LEAST_LABELLED = 4.0
"""Percent: a narrower part has no room for its number."""

QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class Mode:
    """How writers are coordinated."""

    name: str
    settings: TableSettings | None
    """None: nobody decides."""
    scope_known: bool = False
    retries_wait: bool = True


MODES = (
    Mode("nobody coordinates", None),
    Mode("optimistic, at the commit", TableSettings(early_detection=False), retries_wait=False),
    Mode("the same, retries wait", TableSettings(early_detection=False)),
    Mode("first committer", TableSettings(policy="first-committer")),
    Mode("first intent", TableSettings()),
    Mode(QUEUED, TableSettings(), scope_known=True),
)


@dataclass(slots=True)
class Tally:
    """What came of one run."""

    wasted: float = 0.0
    """Seconds computed by attempts that were aborted, until they had stopped."""
    waited: float = 0.0
    """Seconds in line before computing, or for the grant."""
    latencies: list[float] = field(default_factory=list)
    """Of each committed batch, from its data's arrival to its commit."""
    committed: float = 0.0
    """Seconds computed and committed, in what is in the table still."""
    lost: float = 0.0
    """Seconds computed and committed, in what another commit made vanish."""
    lost_updates: int = 0
    longest_streak: int = 0
    """Most aborts of one batch."""


class Simulation:
    """A clock, and what is to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = itertools.count()

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._turn), then))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, then = heapq.heappop(self._due)
            then()


@dataclass(frozen=True, slots=True)
class Batch:
    """What a writer has to do, the same in every mode."""

    partitions: tuple[int, ...]
    compute: float

    @property
    def seconds(self) -> float:
        return self.compute + COMMIT_SECONDS

    def marker(self, number: int) -> Marker:
        return Marker(partition=f"day={self.partitions[number]}", file_group="f-0", operation="merge")

    def scope(self) -> dict[Marker, None]:
        days = (f"day={each}" for each in self.partitions)
        return {Marker(partition=day, file_group=ALL_FILE_GROUPS, operation="merge"): None for day in days}


@dataclass(slots=True)
class _Landed:
    at: float
    batch: Batch
    vanished: bool = False


class Table:
    """The commits that the table has: what is true, whatever anybody was told."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._landed: list[_Landed] = []

    def land(self, batch: Batch, *, read_at: float, now: float) -> None:
        """Commit what was computed from the table as it was at `read_at`."""
        for each in itertools.takewhile(lambda each: each.at > read_at, reversed(self._landed)):
            if not each.vanished and set(each.batch.partitions) & set(batch.partitions):
                each.vanished = True
                self._tally.lost_updates += 1
                self._tally.lost += each.batch.seconds
                self._tally.committed -= each.batch.seconds
        self._landed.append(_Landed(now, batch))
        self._tally.committed += batch.seconds


class Agent:
    """The core with the log before it and the lock always at hand."""

    def __init__(self, simulation: Simulation, settings: TableSettings) -> None:
        self._simulation = simulation
        self._state = TableState(TABLE, settings)
        self._offset = itertools.count()
        self.listeners: dict[str, Callable[[Verdict], None]] = {}
        """By writer."""

    def send(self, event: WriterEventUnion) -> None:
        self._simulation.after(UNDER_WAY_SECONDS, lambda: self._read(event))

    def _read(self, event: WriterEventUnion) -> None:
        now = self._simulation.now
        self._run(step(self._state, EventRead(event, next(self._offset), now, now)))

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AcquireLock():
                    lock = LockView("agent", FOREVER, 0.0)
                    self._run(step(self._state, LockConfirmed(self._simulation.now, 0, lock)))
                case Admit() | AbortTransaction() | GrantCommit():
                    self._tell(effect)
                case _:
                    pass  # for operators, or for the log alone

    def _tell(self, verdict: Verdict) -> None:
        self._simulation.after(UNDER_WAY_SECONDS, lambda: self.listeners[verdict.writer](verdict))


Steps = Generator[float, Verdict | None, bool]
"""Yields for how many seconds at most it waits for a verdict; is sent the verdict, or None when the time is over."""


class Writer:
    """Takes its next batch as soon as the last one is committed."""

    def __init__(self, name: str, seed: int, mode: Mode, simulation: Simulation, tally: Tally) -> None:
        self._name, self._mode, self._simulation, self._tally = name, mode, simulation, tally
        self._random = random.Random(f"{seed} {name}")
        self._attempts = itertools.count()
        self._transaction = ""
        self._waits = 0

    def start(self, table: Table, agent: Agent | None) -> None:
        self._table = table
        if agent is not None:
            self._agent = agent
            agent.listeners[self._name] = self._hear
        self._steps = self._work()
        self._wake(None)

    def _send(self, event: WriterEventUnion) -> None:
        self._agent.send(event.model_copy(update={"writer": self._name}))

    def _hear(self, verdict: Verdict) -> None:
        if verdict.transaction == self._transaction:
            self._wake(verdict)

    def _wake(self, verdict: Verdict | None) -> None:
        self._waits += 1
        mine, seconds = self._waits, self._steps.send(verdict)
        self._simulation.after(seconds, lambda: self._wake(None) if mine == self._waits else None)

    def _work(self) -> Steps:
        while True:
            partitions = tuple(self._random.sample(range(PARTITIONS), TOUCHED))
            compute = COMPUTE_SECONDS * self._random.lognormvariate(0.0, COMPUTE_SIGMA)
            batch, arrived = Batch(partitions, compute), self._simulation.now
            if self._mode.settings is None:
                yield from self._blindly(batch)
            else:
                yield from self._until_committed(batch)
            self._tally.latencies.append(self._simulation.now - arrived)

    def _blindly(self, batch: Batch) -> Steps:
        read_at = self._simulation.now
        yield batch.seconds
        self._table.land(batch, read_at=read_at, now=self._simulation.now)
        return True

    def _until_committed(self, batch: Batch) -> Steps:
        touched = batch.scope() if self._mode.scope_known else {}
        aborts = 0
        queued = self._mode.scope_known
        while not (yield from self._attempt(batch, touched, queued=queued)):
            aborts += 1
            self._tally.longest_streak = max(self._tally.longest_streak, aborts)
            queued = self._mode.retries_wait
        return True

    def _attempt(self, batch: Batch, touched: dict[Marker, None], *, queued: bool) -> Steps:
        """Whether it was committed; what it marked is added to `touched`."""
        name = self._transaction = f"{self._name}-{next(self._attempts)}"
        intent = words.make_intent(TABLE, name)
        if queued:
            intent = intent.model_copy(update={"admission": "queued", "scope": tuple(touched)})
        self._send(intent)
        yield from self._wait_for(Admit)

        read_at = self._simulation.now
        for number in range(TOUCHED):
            share = BEFORE_MARKERS + (1 - BEFORE_MARKERS) * number / TOUCHED
            if (yield read_at + share * batch.compute - self._simulation.now) is not None:
                return (yield from self._stop(read_at))
            marker = batch.marker(number)
            touched[marker] = None
            self._send(words.make_touched(TABLE, name, [marker]))
        if (yield read_at + batch.compute - self._simulation.now) is not None:
            return (yield from self._stop(read_at))

        self._send(words.make_requested(TABLE, name))
        verdict = yield from self._wait_for(GrantCommit, AbortTransaction)
        if not isinstance(verdict, GrantCommit):
            self._tally.wasted += batch.compute
            return False
        yield COMMIT_SECONDS
        self._table.land(batch, read_at=read_at, now=self._simulation.now)
        self._send(words.make_completed(TABLE, name, verdict.grant))
        return True

    def _wait_for(self, *kinds: type[Verdict]) -> Generator[float, Verdict | None, Verdict]:
        asked = self._simulation.now
        verdict = yield FOREVER
        assert isinstance(verdict, kinds), verdict
        self._tally.waited += self._simulation.now - asked
        return verdict

    def _stop(self, read_at: float) -> Steps:
        self._transaction = ""  # it is told once more if its request crossed the abort
        yield STOPPED_AFTER_SECONDS
        self._tally.wasted += self._simulation.now - read_at
        return False


def simulate(mode: Mode, seed: int, hours: float) -> Tally:
    """One run. Where somebody coordinates, no update is lost: anything else is a bug, and raises."""
    simulation, tally = Simulation(), Tally()
    table = Table(tally)
    agent = None if mode.settings is None else Agent(simulation, mode.settings)
    for number in range(WRITERS):
        Writer(f"writer-{number}", seed, mode, simulation, tally).start(table, agent)
    simulation.run(hours * 3600)
    assert mode.settings is None or not tally.lost_updates, f"{mode.name}, seed {seed}: an update was lost"
    return tally


def measure(*, seeds: int, hours: float) -> dict[str, Any]:
    """Of each mode the medians over the seeds, per hour; latencies over all batches of all seeds."""
    report: dict[str, Any] = {"writers": WRITERS, "seeds": seeds, "hours": hours, "modes": {}}
    for mode in MODES:
        runs = [simulate(mode, seed, hours) for seed in range(seeds)]
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
        report["modes"][mode.name] = {
            "an_hour": over_runs(hourly),
            "latency_seconds": {"p50": round(median(latencies), 1), "p95": round(p95, 1)},
            "longest_streak": max(run.longest_streak for run in runs),
        }
    return report


def rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """A heading, and a row a mode."""
    yield (
        f"{report['writers']} writers, 20 % overlap, an hour",
        "computed in vain",
        "aim",
        "waited",
        "batches committed",
        "of them lost",
        "latency p50",
        "p95",
        "most aborts of one",
    )
    for name, figures in report["modes"].items():
        hourly, latency = figures["an_hour"], figures["latency_seconds"]
        wasted = hourly["wasted_seconds"]
        yield (
            name,
            f"{wasted['median']:,.0f} s ({min(wasted['each']):,.0f}–{max(wasted['each']):,.0f})",
            "0 s" if name == QUEUED else "",
            f"{hourly['waited_seconds']['median']:,.0f} s",
            f"{hourly['batches']['median']:.0f}",
            f"{hourly['lost_updates']['median']:.0f}",
            f"{latency['p50']:.0f} s",
            f"{latency['p95']:.0f} s",
            f"{figures['longest_streak']}",
        )


def draw(report: dict[str, Any], path: Path) -> None:
    """Where the writers' time goes, a bar a mode, as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(10.5, 4.3), dpi=100, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.205, right=0.775, top=0.81, bottom=0.19)
    modes = report["modes"]
    left = [0.0] * len(modes)
    for name, (title, colour) in PARTS.items():
        shares = [
            each["an_hour"][name]["median"] / (3600 * report["writers"]) * 100 for each in modes.values()
        ]
        axes.barh(list(modes), shares, left=left, height=0.62, color=colour, linewidth=0, label=title)
        for row, (begin, share) in enumerate(zip(left, shares, strict=True)):
            if share >= LEAST_LABELLED:
                text = f"{share:.0f} %"
                axes.text(begin + share / 2, row, text, ha="center", va="center", color="white", fontsize=10)
        left = [begin + share for begin, share in zip(left, shares, strict=True)]
    for row, each in enumerate(modes.values()):
        kept = each["an_hour"]["batches"]["median"] - each["an_hour"]["lost_updates"]["median"]
        text = f"{kept:.0f} batches an hour, p95 {each['latency_seconds']['p95']:.0f} s"
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
    title = f"Where {report['writers']} writers' time goes when one pair of batches in five overlaps"
    figure.text(0.015, 0.93, title, fontsize=14, fontweight="bold", color=INK, va="center")
    what = (
        f"simulated: {report['hours']:g} hours, {report['seeds']} seeds, batches around "
        f"{COMPUTE_SECONDS:.0f} s; the production core decides (tests/bench/waste.py)"
    )
    figure.text(0.015, 0.865, what, fontsize=10, color=PALE, va="center")
    figure.savefig(path, format="png", metadata={"Software": None})
