"""Writers that compute, touch what they computed, commit and begin again, against one table, on simulated time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, AcquireLock, Admit, GrantCommit
from tests.unit.handlers.table.world import World, m


@dataclass(eq=False)
class Job:
    """One writer. It touches its place at the end of its computing, as a merge does when it writes."""

    name: str
    compute_seconds: float
    place: str = "p/f"
    priority: int = 0
    retries_in_line: bool = True
    """A retry asks for `queued` admission with what the last try touched as its scope, as the gate does."""
    tries: int = 0
    commits: int = 0
    losses: int = 0
    """In a row."""
    most_losses: int = 0

    @property
    def transaction(self) -> str:
        """The present try."""
        return f"{self.name}-{self.tries}"


@dataclass
class Contest:
    """Plays the jobs; the lock is always there, and a commit takes no time."""

    world: World
    jobs: list[Job]
    due: list[tuple[float, int, Job, str]] = field(default_factory=list)
    """When a try has computed; the number keeps those of one moment in order."""
    again: list[Job] = field(default_factory=list)
    pushed: int = 0

    def play(self, seconds: float) -> None:
        """So much simulated time."""
        end = self.world.now + seconds
        self.again.extend(self.jobs)
        self._settle()
        while self.due and self.due[0][0] < end:
            at, _, job, transaction = heapq.heappop(self.due)
            self.world.now = max(self.world.now, at)
            if transaction == job.transaction:
                self._computed(job)
                self._settle()

    def _settle(self) -> None:
        while self.again:
            self._begin(self.again.pop(0))

    def _begin(self, job: Job) -> None:
        job.tries += 1
        in_line = job.losses > 0 and job.retries_in_line
        self.world.intent(
            job.transaction,
            *((m(job.place),) if in_line else ()),
            writer=job.name,
            priority=job.priority,
            admission="queued" if in_line else "optimistic",
        )
        self._follow()

    def _computed(self, job: Job) -> None:
        self.world.touch(job.transaction, m(job.place), writer=job.name)
        self._follow()
        if self.world.phase(job.transaction) is Phase.ACTIVE:
            self.world.request(job.transaction, writer=job.name)
            self._follow()

    def _follow(self) -> None:
        """What the last input decided; a granted one commits at once, which decides more."""
        effects = self.world.effects
        for effect in effects:
            if isinstance(effect, Admit | AbortTransaction):
                self._told(effect)
        for effect in effects:
            if isinstance(effect, AcquireLock):
                self.world.lock(left=1e9)
                self._follow()
            elif isinstance(effect, GrantCommit):
                job = self._of(effect.writer)
                job.commits, job.losses = job.commits + 1, 0
                self.world.complete(effect.transaction, writer=job.name)
                self._follow()
                self.again.append(job)

    def _told(self, effect: Admit | AbortTransaction) -> None:
        job = self._of(effect.writer)
        assert effect.transaction == job.transaction
        if isinstance(effect, AbortTransaction):
            assert effect.reason == "conflict"
            job.losses += 1
            job.most_losses = max(job.most_losses, job.losses)
            self.again.append(job)
        else:
            self.pushed += 1
            heapq.heappush(
                self.due, (self.world.now + job.compute_seconds, self.pushed, job, job.transaction)
            )

    def _of(self, writer: str) -> Job:
        return next(each for each in self.jobs if each.name == writer)
