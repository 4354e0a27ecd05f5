"""The life of a transaction, as events and decisions have it: its steps, its end, and to whom it was lost.

- The two topics are read in any order, so each step has the time of the first record that says it, and the end follows from all
  steps. A commit is a fact, also after an abort.
- Of a life that was seen from its middle on, the time of a step may not be known.
- The page, `status`, `losses`, the metrics and the demo's picture read lives. The condition of a table (`condition.py`) follows
  from their ends, of which `Ends` keeps a bounded number.

Times are seconds of one clock.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any, Final, Literal, TypeAlias

from lakewarden import events
from lakewarden.handlers.maker import Maker
from lakewarden.handlers.writers_log import without_gate, without_query

MAX_COMMITS: Final = 20
MAX_MINUTES: Final = 60
"""Commits from which the usual interval is known. Three are enough."""
RUN_SECONDS: Final = 600.0
"""Commits with a longer pause between them are of two runs."""
MAX_RUNS: Final = 10
MAX_WRITERS: Final = 50
"""Writers of a table of which losses are kept, the last ones."""
UNKNOWN_WINNER: Final = "a writer without the gate"
UNNAMED_COMMIT: Final = "a commit that the table doesn't name"
"""Its writer may use the gate."""

LifeStep: TypeAlias = Literal[
    "intent",
    "admitted",
    "requested",
    "granted",
    "abort",
    "lapse",
    "jobs-stopped",
    "abandoned",
    "failed",
    "already-committed",
    "completed",
]


class End(StrEnum):
    """How a transaction ended, if it has."""

    COMMITTED = "committed"
    CONFLICT = "aborted by conflict"
    BYPASSED = "lost to a writer without the gate"
    EMPTY = "empty"
    ABORTED = "aborted"
    UNKNOWN = "outcome unknown"
    FAILED = "failed"
    SKIPPED = "already committed"
    RUNNING = "running"


LOST: Final = (End.CONFLICT, End.BYPASSED)


@dataclass(slots=True)
class Life:
    """One transaction."""

    transaction: str
    writer: str
    table: str = ""
    batch_id: int | None = None
    ends_itself: bool | None = None
    """Whether its job ends when it has written what there is, as its intent says."""
    times: dict[LifeStep, float | None] = field(default_factory=dict)
    """None: it took the step, and it isn't known when."""
    runs_at: str | None = None
    """Where its writer runs, as its intent says."""
    reason: str | None = None
    """The reason of its abort."""
    detail: str | None = None
    """What its abort says besides."""
    winners: tuple[str, ...] = ()
    """The writers that its abort names."""
    cause: str | None = None
    """The cause of its abandonment."""
    lost_commit: str | None = None
    """The commit to which its writer lost it, as the table says it."""
    version: str | None = None
    """That of its commit."""
    made_by: str | None = None
    """Who made it, as far as the table says it of an observed commit."""

    def note(self, record: events.WriterEventUnion | events.DecisionRecord, at: float) -> bool:
        """Note an event, or a decision that counts. Return whether it is a new step."""
        match record:
            case events.CommitIntent(batch_id=batch_id, ends_itself=ends):
                return self.take("intent", at, batch_id=batch_id, ends_itself=ends, runs_at=runs_at(record))
            case events.Admitted():
                return self.take("admitted", at)
            case events.CommitRequested():
                return self.take("requested", at)
            case events.CommitGranted():
                return self.take("granted", at)
            case events.AlreadyCommitted(version=version):
                return self.take("already-committed", at, version=version)
            case events.CommitCompleted(version=version):
                return self.take("completed", at, version=version, made_by=made_by(record))
            case events.TransactionAbandoned(cause=cause, lost_to=commit):
                return self.take("abandoned", at, cause=cause, lost_commit=commit)
            case events.Abort(reason="outcome-unknown", conflicts=()):
                # With conflicts, the lease of another one expired.
                return self.take("lapse", at)
            case events.Abort(reason=reason, detail=detail, conflicts=conflicts):
                winners = tuple(dict.fromkeys(each.other_writer for each in conflicts))
                return self.take("abort", at, reason=reason, detail=detail, winners=winners)
            case _:
                return False

    def take(self, step: LifeStep, at: float | None, **facts: Any) -> bool:
        """Take a step with what is known of it. Return False if it was taken before."""
        if step in self.times:
            return False
        self.times[step] = at
        for name, value in facts.items():
            setattr(self, name, value)
        return True

    @property
    def end(self) -> End:
        match self.times:
            case {"completed": _}:
                return End.COMMITTED
            case {"already-committed": _}:
                return End.SKIPPED
            case {"lapse": _} if "abandoned" not in self.times:
                return End.UNKNOWN
            case {"abort": _}:
                return End.CONFLICT if self.reason in (None, "conflict") else End.ABORTED
            case {"failed": _}:
                return End.FAILED
            case {"abandoned": _}:
                return self._abandoned
            case _:
                return End.RUNNING

    @property
    def _abandoned(self) -> End:
        if self.cause == "empty":
            return End.EMPTY
        bypassed = self.cause == "base-changed" and self.lost_commit is not None
        return End.BYPASSED if bypassed else End.ABORTED

    @property
    def started(self) -> float:
        """The time of its first step."""
        return min((each for each in self.times.values() if each is not None), default=0.0)

    @property
    def last(self) -> float:
        """The time of its last step."""
        return max((each for each in self.times.values() if each is not None), default=0.0)

    @property
    def ended(self) -> float | None:
        """None while it runs. Its last step may be that its Spark jobs have stopped."""
        return None if self.end is End.RUNNING else self.last

    @property
    def revoked(self) -> str | None:
        """Why its grant was withdrawn. Its lease still runs, unless it has ended."""
        if "granted" not in self.times or "abort" not in self.times:
            return None
        return ": ".join(filter(None, (self.reason, self.detail)))

    @property
    def aborted_at(self) -> float | None:
        """The time of the abort, if a conflict ended it."""
        return self.times.get("abort") if self.end is End.CONFLICT else None

    @property
    def lost_to(self) -> list[str]:
        """The writers to which it lost a conflict."""
        return list(self.winners) if self.end is End.CONFLICT else []

    @property
    def bypassed_by(self) -> str | None:
        """The commit without the gate to which its writer lost it."""
        return self.lost_commit if self.end is End.BYPASSED else None


# -- what has ended in a table -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Losing:
    """What a writer has lost since its last commit, to writers without the gate or to commits that aren't known."""

    times: int
    first: float
    last: float
    to: str
    transaction: str
    winner: str = ""
    """The winning transaction, if it is known."""


Standing: TypeAlias = Literal["on time", "late", "silent", "finished", "unknown"]
"""
| standing | the next commit is due, and |
| --- | --- |
| `late` | former runs began sooner |
| `silent` | its job doesn't end by itself. The log doesn't say whether it was stopped |
| `finished` | the job has ended in order |
| `unknown` | the log doesn't say whether the job has ended |
"""


@dataclass(slots=True)
class Run:
    """Commits with no pause longer than `RUN_SECONDS`."""

    first: float
    last: float
    ends_itself: bool | None
    """False: a job of it doesn't end by itself. None: not known of all."""


@dataclass(slots=True)
class Ends:
    """What has ended in a table lately. Times are in any order."""

    commits: list[float] = field(default_factory=list)
    """The last `MAX_COMMITS`."""
    by_minute: dict[int, int] = field(default_factory=dict)
    """How many commits each of the last `MAX_MINUTES` minutes with one has."""
    runs: list[Run] = field(default_factory=list)
    """The last `MAX_RUNS`, in order."""
    losing: OrderedDict[str, Losing] = field(default_factory=OrderedDict)
    """By writer."""

    def note(
        self, record: object, at: float, *, maker: str | None = None, ends_itself: bool | None = None
    ) -> None:
        """Note a record that is a new step of a life, if it ends it.

        `maker`: who made the commit to which it lost, if known. `ends_itself`: as in the life.
        """
        match record:
            case events.CommitCompleted():
                self._count(int(at // 60))
                self.note_commit(record, at, Run(at, at, ends_itself))
            case events.TransactionAbandoned(cause="base-changed", lost_to=commit):
                to = UNNAMED_COMMIT if commit is None else f"{UNKNOWN_WINNER} ({commit})"
                self._loss(record, at, to)
            case events.Abort(conflicts=conflicts):
                winner = next((each for each in conflicts if without_gate(each.other_writer)), None)
                if winner is not None:
                    self._loss(record, at, made_name(winner.other_writer, maker), winner.other_transaction)
            case _:
                pass

    def note_maker(self, winner: str, to: str) -> None:
        """Note who made the commit of a transaction, for those that lost to it."""
        for losing in self.losing.values():
            if losing.winner == winner:
                losing.to = to

    def note_commit(self, record: events.CommitCompleted, at: float, run: Run) -> None:
        self._run(run)
        self.commits = sorted([*self.commits, at])[-MAX_COMMITS:]
        if (losing := self.losing.get(record.writer)) is not None and losing.last <= at:
            del self.losing[record.writer]

    def _count(self, minute: int) -> None:
        self.by_minute[minute] = self.by_minute.get(minute, 0) + 1
        if len(self.by_minute) > MAX_MINUTES:
            del self.by_minute[min(self.by_minute)]

    def _run(self, new: Run) -> None:
        for run in self.runs:
            if run.first - RUN_SECONDS <= new.first <= run.last + RUN_SECONDS:
                run.first, run.last = min(run.first, new.first), max(run.last, new.last)
                if run.ends_itself is not new.ends_itself:
                    run.ends_itself = False if False in (run.ends_itself, new.ends_itself) else None
                return
        self.runs = sorted([*self.runs, new], key=lambda each: each.first)[-MAX_RUNS:]

    def _loss(
        self, record: events.Abort | events.TransactionAbandoned, at: float, to: str, winner: str = ""
    ) -> None:
        known = self.losing.setdefault(record.writer, Losing(0, at, at, to, record.transaction, winner))
        known.times += 1
        known.first, known.last = min(known.first, at), max(known.last, at)
        known.to, known.transaction, known.winner = to, record.transaction, winner
        self.losing.move_to_end(record.writer)
        if len(self.losing) > MAX_WRITERS:
            self.losing.popitem(last=False)

    @property
    def last_commit(self) -> float | None:
        return max(self.commits, default=None)

    def commits_of(self, first: int, minutes: int) -> int:
        """The commits of so many minutes, from this one (epoch minutes) on."""
        return sum(self.by_minute.get(minute, 0) for minute in range(first, first + minutes))

    @property
    def pace(self) -> float | None:
        """The usual seconds between two commits, from three commits on."""
        if len(self.commits) < 3:
            return None
        return median(later - earlier for earlier, later in pairwise(self.commits))

    def standing(self, now: float, paces: int, least: float) -> Standing:
        """Whether the next commit is late: by so many usual intervals, and at least so many seconds."""
        pace = self.pace
        if pace is None or now - self.commits[-1] < max(least, paces * pace):
            return "on time"
        run, between_runs = self.runs[-1], self.run_pace
        if run.ends_itself is False:
            return "silent"
        if between_runs is not None and now - run.first >= paces * between_runs:
            return "late"
        if run.ends_itself:
            return "finished"
        return "unknown" if between_runs is None else "on time"

    @property
    def run_pace(self) -> float | None:
        """The usual seconds between the beginnings of two runs, from three runs on."""
        if len(self.runs) < 3:
            return None
        return median(later.first - earlier.first for earlier, later in pairwise(self.runs))


def runs_at(intent: events.CommitIntent) -> str | None:
    """Where a writer runs, as text. None: its intent doesn't say it."""
    parts = {
        "host {}": intent.host,
        "process {}": intent.pid,
        "Spark application {}": intent.application_id,
        "{}": intent.application_ui,
    }
    return ", ".join(text.format(each) for text, each in parts.items() if each) or None


# -- names -------------------------------------------------------------------------------------------------------------


def writer_name(writer: str) -> str:
    """A writer as people name it: without the query id of `<name>:<query id>`, and what a watcher reports by its format."""
    return writer.partition(":")[0] if without_gate(writer) else without_query(writer)


def shown_name(writer: str) -> str:
    """A writer in a list: of what a watcher reports, its name says that it doesn't use the gate."""
    return f"{writer_name(writer)}{', without the gate' if without_gate(writer) else ''}"


def lane(writer: str) -> str:
    """The writer, or the one name of all commits that a watcher reports of a format. Each of those is a writer of its own."""
    return shown_name(writer) if without_gate(writer) else writer


def made_name(writer: str, maker: str | None) -> str:
    """A writer without the gate, and who it is as far as the table says it."""
    return lane(writer) if maker is None else f"{lane(writer)} ({maker})"


def made_by(event: events.CommitCompleted) -> str | None:
    """Who made an observed commit, as the table says. None: the event doesn't have it."""
    return Maker(event.engine, event.user, event.job, event.application_id).text
