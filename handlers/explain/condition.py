"""The condition of a table in one word, who causes it, and what to do. The page, `status`, the metrics and the alerts ask here.

The first rule that holds names the condition. Seconds are how long it has held, as far as they are known.

1. *refused by the agent*: the last transaction of the table was refused for good (`not-allowed`), and none was admitted since.
2. *no agent*: no agent is in the group, or a transaction waits behind nothing for its admission for `NO_ANSWER_SECONDS`.
3. *lock held by another owner*: the agent waits for the table's lock, and a transaction has waited for it for `LOCK_SECONDS`,
   which is longer than a dead agent's lease. *lock refused*: the store refuses the lock, or its object is none. *waits for the
   table's lock*: the same for `QUEUE_SECONDS`, and the agent has reported nothing about the lock.
4. *publish hangs*: a transaction has been granted for `HANG_SECONDS` while another one waits for it, or for
   `LONE_HANG_SECONDS` while none does.
5. *loses to a writer without the gate*: since its last commit, a writer has lost `LOSSES` times or more to writers that don't
   use the gate, the last time at most `LOSS_SECONDS` ago. *loses to unknown commits*: the last time, the table didn't name the
   commit, or it has changed itself.
6. *queued*: a transaction has waited for longer than both `QUEUE_SECONDS` and `PACES` usual intervals between two commits. It
   names the writer at the head: the one that waits for no other.
7. *no commits*: nothing is open, the last commit is older than both `QUIET_SECONDS` and `PACES` usual intervals, and that is
   late: a job of the last run doesn't end by itself, or the last run began before `PACES` usual intervals between two runs. The
   gate doesn't say that a query was stopped, so the cause says that it may have been.
8. *quiet*: the same, and it is not known whether the job has ended, and no former runs say when the next one is due.
9. *ok* otherwise. A short wait is everyday queueing. Of jobs that ended in order, the word is *finished*.

A remedy acts on who causes the condition, never on a transaction that waits for it. What a watcher reports waits for nothing, is
never granted, and its writer can't be stopped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, get_args

from lakewarden.handlers.explain.life import UNNAMED_COMMIT, Ends, Losing, writer_name

NO_ANSWER_SECONDS: Final = 30.0
LOCK_SECONDS: Final = 35.0
HANG_SECONDS: Final = 60.0
LONE_HANG_SECONDS: Final = 300.0
QUEUE_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 600.0
PACES: Final = 5
LOSSES: Final = 2
LOSS_SECONDS: Final = 900.0
Name: TypeAlias = Literal[
    "refused",
    "no-agent",
    "lock-held",
    "lock-refused",
    "lock-missing",
    "publish-hangs",
    "bypassed",
    "queued",
    "no-commits",
    "quiet",
    "ok",
]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
"""The worst first."""
FINE: Final[tuple[Name, ...]] = ("quiet", "ok")
"""No problem is known."""


# -- what is known -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """An open transaction."""

    transaction: str
    writer: str
    phase: Literal["queued", "active", "waiting", "granted", "observed"]
    seconds: float | None = None
    """How long it has been in this phase, and of an active one, open. None: not known."""
    behind: tuple[str, ...] = ()
    """The transactions for which it waits."""
    withdrawn: bool = False
    """Its grant is withdrawn already."""
    runs_at: str | None = None
    """Where its writer runs, as text."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The last step of the table's lock: the agent didn't get it."""

    lock: str
    waiting: bool
    """False: the store refuses it, or the object is none."""
    holder: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one table."""

    table: str
    now: float
    """In the clock of `ends`."""
    agents: bool | None = None
    """Whether an agent is in the group. None: not known."""
    refused: str | None = None
    denied: Denied | None = None
    open: tuple[Open, ...] = ()
    waits_known: bool = True
    """False: it is not known for whom a transaction waits, for want of memory."""
    ends: Ends = field(default_factory=Ends)


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition. The field names are JSON."""

    name: Name
    word: str
    """Human-readable: `queued behind backfill`."""
    seconds: float | None = None
    writer: str | None = None
    """Who causes it."""
    transaction: str | None = None
    cause: str | None = None
    remedy: str | None = None
    command: tuple[str, ...] = ()
    """The words of the command after `lakewarden`. Empty: there is none."""
    waiting: int = 0
    """Transactions that wait for an admission or a grant."""

    @property
    def text(self) -> str:
        """The word with its age: `queued behind backfill for 12 min`."""
        return self.word if self.seconds is None else f"{self.word} for {age(self.seconds)}"

    @property
    def rank(self) -> tuple[int, float]:
        """The order of tables: the worst first, and of these the one that lasts longest."""
        return NAMES.index(self.name), -(self.seconds or 0.0)


# -- the rules ---------------------------------------------------------------------------------------------------------


def condition(facts: Facts) -> Condition:
    """The table's condition: the first rule that holds."""
    waiting = [each for each in facts.open if each.phase in ("queued", "waiting")]
    for rule in (_refused, _no_agent, _lock, _publish_hangs, _bypassed, _queued, _no_commits):
        if (found := rule(facts, waiting)) is not None:
            return replace(found, waiting=len(waiting))
    return Condition("ok", "ok", waiting=len(waiting))


def _refused(facts: Facts, _: list[Open]) -> Condition | None:
    if facts.refused is None:
        return None
    return Condition(
        "refused",
        "refused by the agent",
        cause=facts.refused,
        remedy="do what the reason says, then start the writer's job again",
    )


def _no_agent(facts: Facts, waiting: list[Open]) -> Condition | None:
    none = facts.agents is False
    unanswered = [
        each
        for each in waiting
        if none or (each.phase == "queued" and not each.behind and facts.waits_known and not _running(facts))
    ]
    seconds = _longest(unanswered)
    if not none and (seconds or 0.0) < NO_ANSWER_SECONDS:
        return None
    found = Condition(
        "no-agent",
        "no agent",
        seconds,
        cause="no agent answers the intents",
        remedy="see which agent owns the table, and whether it is ready",
        command=("agents",),
    )
    if not none:
        return found
    return replace(
        found,
        cause="no agent is in the group, so nothing is admitted or granted",
        remedy="start an agent; nothing is lost until then",
        command=("doctor", facts.table),
    )


def _lock(facts: Facts, waiting: list[Open]) -> Condition | None:
    denied = facts.denied
    first = [each for each in waiting if each.phase == "waiting" and not _blocked(facts, each)]
    seconds = None if _running(facts) else _longest(first)
    if seconds is None:
        return None
    if denied is None:
        return None if seconds < QUEUE_SECONDS else _lock_missing(facts, seconds)
    if not denied.waiting:
        return Condition(
            "lock-refused",
            "lock refused",
            seconds,
            cause=f"the lock {denied.lock} can't be acquired: {denied.detail or 'the store refuses it'}",
            remedy="renew the agent's credentials, set its clock, or look what the object is",
            command=("lock", "probe", denied.lock.rpartition("/")[0]),
        )
    if seconds < LOCK_SECONDS:
        return None
    known = denied.holder is not None
    return Condition(
        "lock-held",
        "lock held by another owner",
        seconds,
        cause=f"{denied.holder or 'an unknown owner'} holds the lock {denied.lock}, and has renewed it",
        remedy="end the process that holds it, and its lease ends; release the lock only if that process is known to be dead",
        command=("lock", "release", facts.table, "--if-owner", denied.holder or "", "--lock", denied.lock)
        if known
        else ("lock", "show", facts.table, "--lock", denied.lock),
    )


def _lock_missing(facts: Facts, seconds: float) -> Condition:
    return Condition(
        "lock-missing",
        "waits for the table's lock",
        seconds,
        cause="no transaction is granted: the agent doesn't have the table's lock",
        remedy="see who holds the lock, and whether its store answers",
        command=("lock", "show", facts.table),
    )


def _publish_hangs(facts: Facts, waiting: list[Open]) -> Condition | None:
    granted = _running(facts)
    if granted is None or granted.seconds is None:
        return None
    held_up = sum(granted is _head(facts, each) for each in waiting)
    if granted.seconds < (HANG_SECONDS if held_up else LONE_HANG_SECONDS):
        return None
    name = writer_name(granted.writer)
    cause = f"{name} has held the grant for {age(granted.seconds)}"
    remedy = f"look at {name}'s job{_where(granted)}; or end its grant"
    command = _abort(facts, granted, "its publish hangs")
    if granted.withdrawn:
        cause += ", and it is withdrawn already"
        remedy, command = "wait for the end of its lease", ()
    if held_up:
        cause += f"; {_count(held_up)} for it"
    return Condition(
        "publish-hangs",
        "publish hangs",
        granted.seconds,
        granted.writer,
        granted.transaction,
        cause,
        remedy,
        command,
    )


def _bypassed(facts: Facts, _: list[Open]) -> Condition | None:
    found = [
        (writer, each)
        for writer, each in facts.ends.losing.items()
        if each.times >= LOSSES and facts.now - each.last <= LOSS_SECONDS
    ]
    if not found:
        return None
    writer, worst = max(found, key=lambda each: each[1].last)
    return Condition(
        "bypassed",
        "loses to unknown commits" if worst.to == UNNAMED_COMMIT else "loses to a writer without the gate",
        max(0.0, facts.now - worst.first),
        writer,
        worst.transaction,
        f"{writer_name(writer)} has lost {worst.times} times in {age(worst.last - worst.first)} to {worst.to}",
        *_bypassed_remedy(facts, worst),
    )


def _bypassed_remedy(facts: Facts, worst: Losing) -> tuple[str, tuple[str, ...]]:
    remedy = "let that writer use the gate, or pause it"
    explain = ("explain", worst.transaction, "--table", facts.table)
    if worst.winner:
        return remedy, explain
    if worst.to == UNNAMED_COMMIT:
        return (
            "see what its last error says; of a writer without the gate, a watcher reports the commits",
            explain,
        )
    return f"{remedy}; a watcher reports its commits, and stops batches early", (
        "watch",
        "--table",
        facts.table,
    )


def _queued(facts: Facts, waiting: list[Open]) -> Condition | None:
    late = max(QUEUE_SECONDS, PACES * (facts.ends.pace or 0.0))
    oldest = max(waiting, key=lambda each: each.seconds or 0.0, default=None)
    if oldest is None or oldest.seconds is None or oldest.seconds < late:
        return None
    head = _head(facts, oldest)
    who = writer_name(head.writer)
    if head is oldest:
        return Condition(
            "queued",
            "queued",
            oldest.seconds,
            cause="it is not known for whom it waits",
            remedy="see what it waits for",
            command=("explain", head.transaction, "--table", facts.table),
        )
    held_up = sum(head is _head(facts, each) for each in waiting)
    runs = "" if head.seconds is None else f" for {age(head.seconds)}"
    doing = {"granted": "holds the grant", "active": "computes", "observed": "runs without the gate"}.get(
        head.phase, "is open"
    )
    return Condition(
        "queued",
        f"queued behind {who}",
        oldest.seconds,
        head.writer,
        head.transaction,
        f"{who} {doing}{runs}; {_count(held_up)} for it",
        *_queue_remedy(facts, head, who),
    )


def _queue_remedy(facts: Facts, head: Open, who: str) -> tuple[str, tuple[str, ...]]:
    match head.phase:
        case "observed":
            return "wait until it ends: it doesn't use the gate, so it can't be stopped from here", ()
        case "active" | "granted":
            what = f"wait; or abort it{_where(head)}: its work is lost, and {who} computes the batch again, behind the others"
            return what, _abort(facts, head, "others wait for it")
        case _:
            return "see what it waits for", ("explain", head.transaction, "--table", facts.table)


def _no_commits(facts: Facts, _: list[Open]) -> Condition | None:
    ends = facts.ends
    if facts.open or ends.last_commit is None or ends.pace is None:
        return None
    name: tuple[Name, str] = ("no-commits", "no commits")
    match ends.standing(facts.now, PACES, QUIET_SECONDS):
        case "on time":
            return None
        case "finished":
            return Condition("ok", "finished")
        case "unknown":
            name = ("quiet", "quiet")
            usual = f"the usual interval was {age(ends.pace)}; it isn't known whether the job has ended"
        case "silent":
            usual = f"the usual interval is {age(ends.pace)}; its job doesn't end by itself, but may have been stopped"
        case _:
            usual = f"usually a run begins every {age(ends.run_pace or 0.0)}"
    seconds = facts.now - ends.last_commit
    return Condition(
        *name,
        seconds,
        cause=f"the last commit was {age(seconds)} ago; {usual}",
        remedy="see whether its jobs run",
        command=("ledger", "show", facts.table),
    )


# -- parts of them -----------------------------------------------------------------------------------------------------


def _running(facts: Facts) -> Open | None:
    return next((each for each in facts.open if each.phase == "granted"), None)


def _blocked(facts: Facts, this: Open) -> bool:
    """Whether another open transaction is named for which it waits, other than those that wait, too."""
    return any(
        each.transaction in this.behind and each.phase not in ("queued", "waiting") for each in facts.open
    )


def head_of(this: str, behind: Mapping[str, Sequence[str]]) -> str:
    """Whom a transaction waits for in the end: the first of a chain that waits for no other open one, else itself."""
    seen = {this}
    while (other := next((each for each in behind[this] if each in behind), None)) is not None:
        if other in seen:
            return other
        seen.add(other)
        this = other
    return this


def _head(facts: Facts, this: Open) -> Open:
    by_id = {each.transaction: each for each in facts.open}
    return by_id[head_of(this.transaction, {name: each.behind for name, each in by_id.items()})]


def _longest(found: Iterable[Open]) -> float | None:
    return max((each.seconds for each in found if each.seconds is not None), default=None)


def _abort(facts: Facts, which: Open, reason: str) -> tuple[str, ...]:
    return ("abort", which.transaction, "--table", facts.table, "--reason", reason)


def _where(which: Open) -> str:
    return "" if which.runs_at is None else f" ({which.runs_at})"


def _count(waiting: int) -> str:
    return "1 waits" if waiting == 1 else f"{waiting} wait"


def age(seconds: float) -> str:
    """A duration in its largest unit, as the page's script writes it."""
    seconds = max(0.0, seconds)
    for size, unit in ((172_800, "days"), (7_200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds // {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
