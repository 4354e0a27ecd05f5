"""Writers that compute, touch what they computed, commit and start again, against one table, in simulated time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, AcquireLock, Admit, GrantCommit
from tests.unit.handlers.table.world import World, m


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
            if isinstance(effect, Admit | AbortTransaction):
                self._apply(effect)
        for effect in effects:
            if isinstance(effect, AcquireLock):
                self.world.lock(left=1e9)
                self._follow()
            elif isinstance(effect, GrantCommit):
                job = self._of(effect.writer)
                job.commits, job.losses = job.commits + 1, 0
                self.world.complete(effect.transaction, writer=job.name)
                self._follow()
                self.restarting.append(job)

    def _apply(self, effect: Admit | AbortTransaction) -> None:
        job = self._of(effect.writer)
        assert effect.transaction == job.transaction
        if isinstance(effect, AbortTransaction):
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
