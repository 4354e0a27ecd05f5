"""The scopes: which small worlds are explored, and by which command.

`make unit` explores the smallest, `make test-all` every scope that is complete within minutes. `make explore MINUTES=10` explores
all, the larger ones for their share of the time, one on each core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

from tests.exhaustive import lock, table_world
from tests.exhaustive.engine import After, Exploration, Model, explore, overdue, starved
from tests.exhaustive.lock import Contender, Lock
from tests.exhaustive.table import Table
from tests.exhaustive.table_world import Job


@dataclass(frozen=True)
class Scope:
    """One small world, and what is asked of it."""

    model: Model[Any]
    run: Literal["unit", "all", "explore"]
    live: tuple[str, ...] = ()
    """Who must be served for ever (`engine.py`, Liveness)."""
    timely: tuple[tuple[str, str, int], ...] = ()
    """Who must be served, beside an idle one if it is named, in how many seconds from each state."""

    def explore(self, *, most: int | None = None, late: Callable[[], bool] = bool) -> Exploration:
        """What an exploration finds. The first violation of bounded wait becomes its story."""
        found = explore(self.model, most=most, late=late, graph=bool(self.live or self.timely))
        if found.story:
            return found
        for who in self.live:
            if steps := starved(found.graph, who, table_world.SERVES):
                found.story = [*steps, f"bounded wait: {who} starves in this cycle"]
        for who, idle, limit in self.timely if found.end == "complete" else ():
            state = overdue(found.graph, who, idle, lock.PASSES, limit)
            if state is not None:
                broken = f"bounded wait: {who} needs more than {limit} s"
                if idle:
                    broken += f" while {idle} does nothing"
                found.break_at(*found.parents[state], broken)
        return found


def _scope(
    run: Literal["unit", "all", "explore"],
    model: Any,
    *kinds: str,
    count: int = 1,
    after: tuple[str, ...] = (),
    live: tuple[str, ...] = (),
    timely: tuple[tuple[str, str, int], ...] = (),
    **changes: Any,
) -> Scope:
    """The model with these changes and so many faults of these kinds, after these steps."""
    if kinds:
        changes |= {"faults": count, "kinds": frozenset(kinds)}
    changed = replace(model, **changes)
    return Scope(After(changed, after) if after else changed, run, live, timely)


def _table(*jobs: Job, **settings: Any) -> Table:
    return Table(jobs, replace(table_world.SCALED, **settings))


# -- the lock

SHORT = replace(lock.SCALED, validity=3.0, poll_seconds=1.0)
FIRST, AHEAD = Contender(), Contender(wall=1.1)
LONE = Lock((FIRST,), SHORT)
BOTH = Lock((FIRST, AHEAD), SHORT)
"""Two agents whose clocks differ by nearly the drift of 1.2 s."""
ADOPTS = Lock((FIRST, Contender(adopts=True)), SHORT)
OWNERS = Lock((Contender(term="a-"), Contender(term="b-", fences=("a-",)), FIRST), SHORT)
ADOPTED = Lock((FIRST, Contender(term="b-", adopts=True), Contender(term="c-", fences=("b-",))), SHORT)
HOLDS = (
    "agent 0 needs the lock",
    *("the get of agent 0 is answered", "the put of agent 0 acts", "the put of agent 0 is answered"),
)
ANSWERS = ("lost", "false 412", "503")
ANY = (*ANSWERS, "403", "kill", "odd")

# -- the table

ONCE, ELSEWHERE = Job(attempts=1), Job(("q/f",), attempts=1)
QUEUED, ORDERED = Job(admission="queued"), Job(rule="ordered")
EVER = Job(batches=table_world.EVER)
AT_ONCE = replace(EVER, retries="optimistic")
BEHIND = replace(EVER, admission="queued", priority=-1)
APPENDS = replace(EVER, touches=("p/f:append",), rule="deleted-file")
COMPACTION = Job(("p/f:delete", "p/g:append"), "deleted-file", priority=-100)
TWO, THREE = _table(Job(), Job()), _table(Job(), Job(), Job())
DIES = _table(Job(attempts=3), Job())
TIMED = replace(_table(ONCE, ONCE), seconds=True)
TIMED_APART = replace(_table(ONCE, ELSEWHERE), seconds=True)
LATE, LATE_APART = replace(_table(ONCE, ONCE), late=True), replace(_table(ONCE, ELSEWHERE), late=True)
TAKEN = replace(_table(Job()), late=True)
ALIKE, FIRST_ALIKE, ANY_ORDER = ((1, 0),), ((1, 0, 2),), tuple(permutations(range(3)))[1:]
BOTH_WRITERS = ("w0", "w1")
ONE_REQUESTS = ("w0 opens", "w0 touches", "w1 opens", "w0 requests its grant")
ONE_GRANTED = (*ONE_REQUESTS, "agent A has its lock confirmed")
IN_CROWD = ("w0 opens", "w0 touches", "w2 opens", "w1 opens", "w1 touches", *ONE_GRANTED[-2:])


def _requests_late(writer: int) -> tuple[str, ...]:
    """The steps to the request of a writer, each event and decision read at once."""
    admitted = (
        f"w{writer} opens",
        "agent A reads an event",
        "agent A publishes a decision",
        f"w{writer} reads decisions",
    )
    touched = (f"w{writer} touches", "agent A reads an event")
    return (*admitted, *touched, f"w{writer} requests its grant", "agent A reads an event")


BOTH_REQUESTED = (*_requests_late(0), *_requests_late(1))

SCOPES: dict[str, Scope] = {
    # -- the lock
    "lock: 1 agent, 2 faults": _scope("all", LONE, *ANSWERS, count=2),
    "lock: 1 agent, 1 fault": _scope("unit", LONE, *ANSWERS),
    "lock: 1 agent, 2 refusals": _scope("unit", LONE, "403", "odd", count=2),
    "lock: 2 agents": _scope("all", BOTH),
    "lock: 2 agents, clocks and rates apart": _scope(
        "all", Lock((Contender(rate=0.9375), AHEAD), replace(SHORT, validity=2.85))
    ),
    "lock: an agent after a dead holder, a hint": _scope(
        "unit", LONE, "hint", held=True, timely=(("agent 0", "", 6),)
    ),
    "lock: 2 agents, a hint": _scope("explore", BOTH, "hint"),
    "lock: 2 agents, clocks 50 s apart, strict": _scope(
        "explore", Lock((FIRST, Contender(wall=50.0)), replace(SHORT, strict=True))
    ),
    "lock: an agent beside Hudi's provider": _scope(
        "all", Lock((FIRST, Contender(wall=0.5, hudi=True)), SHORT)
    ),
    "lock: the second agent adopts": _scope("explore", ADOPTS),
    "lock: 3 agents, one fences another": _scope("explore", OWNERS),
    "lock: adopted, and its owner fenced": _scope("explore", ADOPTED, after=HOLDS),
    "lock: 2 agents, 2 faults": _scope("explore", BOTH, *ANY, count=2),
    # -- the table
    "table: 2 writers, 1 file group": _scope("unit", TWO, alike=ALIKE),
    "table: 2 writers, killed anywhere": _scope("unit", TWO, "kill"),
    "table: a writer dies, killed anywhere": _scope("all", DIES, "dead writer", "kill", count=2),
    "table: a writer dies, retried at once": _scope(
        "all", _table(Job(attempts=3, retries="optimistic"), Job()), "dead writer"
    ),
    "table: operators, duplicates, failures, a lost lock": _scope(
        "all", TWO, "operator", "duplicate", "abandon", "lost lock"
    ),
    "table: 3 writers": _scope("all", THREE, alike=ANY_ORDER),
    "table: 3 writers, two queued": _scope("all", _table(QUEUED, QUEUED, Job()), alike=FIRST_ALIKE),
    "table: 3 priorities": _scope("all", _table(Job(priority=1), Job(), Job(priority=-1))),
    "table: ordered, two priorities": _scope("unit", _table(ORDERED, replace(ORDERED, priority=1))),
    "table: 3 ordered": _scope("explore", _table(*[ORDERED] * 3), alike=ANY_ORDER),
    "table: appends beside a compaction": _scope(
        "explore",
        _table(Job(("p/f:append",), "deleted-file"), COMPACTION, Job(("p/f:merge",), "deleted-file")),
        after=("w1 opens", "w1 touches", "w1 requests its grant"),
    ),
    "table: a whole partition, the whole table": _scope(
        "all", _table(Job(("p/*",)), ONCE, Job(("*/*",), attempts=1))
    ),
    "table: an observed writer": _scope("unit", _table(Job(), Job(observed=True)), "kill"),
    "table: first committer wins": _scope(
        "all", _table(*THREE.jobs, policy="first-committer"), alike=ANY_ORDER
    ),
    "table: late detection": _scope("unit", _table(Job(), Job(), early_detection=False)),
    "table: the lock per commit": _scope("all", _table(Job(), Job(("q/f",)), hold="per-commit"), "lost lock"),
    "table: one open at most": _scope("unit", _table(Job(), Job(("q/f",)), max_open=1), "kill"),
    "table: 2 writers for ever": _scope("unit", _table(EVER, EVER, max_losses=1), live=BOTH_WRITERS),
    "table: 2 writers for ever, one queued behind": _scope(
        "unit", _table(EVER, BEHIND, max_losses=1), live=BOTH_WRITERS
    ),
    "table: 2 writers for ever, two priorities": _scope(
        "all", _table(replace(EVER, priority=1), EVER, max_losses=1), live=BOTH_WRITERS
    ),
    "table: 2 writers for ever, retried at once": _scope(
        "all", _table(replace(AT_ONCE, priority=1), AT_ONCE, max_losses=1), live=BOTH_WRITERS
    ),
    "table: a low priority behind a crowd": _scope(
        "all",
        _table(APPENDS, APPENDS, Job(("p/*:delete",), admission="queued", priority=-1), max_losses=1),
        alike=FIRST_ALIKE,
        after=IN_CROWD,
        live=("w2",),
    ),
    "table: ordered for ever, one queued behind": _scope(
        "explore",
        _table(replace(EVER, rule="ordered"), replace(BEHIND, rule="ordered"), max_losses=1),
        live=BOTH_WRITERS,
    ),
    "table: 3 writers for ever, one queued behind": _scope(
        "explore", _table(EVER, EVER, BEHIND, max_losses=1), alike=FIRST_ALIKE, live=("w2",)
    ),
    "table: with time": _scope("explore", TIMED, alike=ALIKE),
    "table: with time, one granted": _scope("unit", TIMED, after=ONE_GRANTED),
    "table: with time and heartbeats, one granted": _scope("explore", TIMED, beats=True, after=ONE_GRANTED),
    "table: with time and a kill, one granted": _scope("all", TIMED, "kill", after=ONE_GRANTED),
    "table: with time, 2 writers apart, both requested": _scope(
        "all", TIMED_APART, after=(*ONE_REQUESTS, "w1 touches", "w1 requests its grant")
    ),
    "table: with time and a kill": _scope("explore", TIMED, "kill"),
    "table: a batch is run again": _scope("unit", _table(Job(recorded=False), ONCE), "repeated batch"),
    "table: a priority above the limit": _scope("unit", _table(Job(priority=10), Job())),
    "table: late delivery and a lost lock": _scope("explore", LATE, "lost lock", alike=ALIKE),
    "table: late delivery and a lost lock, both requested": _scope(
        "unit", LATE_APART, "lost lock", after=BOTH_REQUESTED
    ),
    "table: late delivery, with time": _scope(
        "explore", replace(_table(ONCE), late=True), seconds=True, beats=True
    ),
    "table: a silent writer": _scope(
        "all",
        _table(ONCE, replace(QUEUED, attempts=1)),
        seconds=True,
        beats=True,
        after=ONE_REQUESTS[:3],
        timely=(("w1", "w0", 9),),
    ),
    "table: heartbeats and a lost lock, with time": _scope("explore", TIMED, "lost lock", beats=True),
    # -- take-over
    "take-over: 1 writer, a partition that stays": _scope("explore", TAKEN, "take-over", "stays", count=2),
    "take-over: 2 writers, taken over twice": _scope("explore", LATE, "take-over", count=2),
    "take-over: 2 writers apart": _scope("explore", LATE_APART, "take-over"),
    "take-over: 2 writers apart, both requested": _scope(
        "explore", LATE_APART, "take-over", after=BOTH_REQUESTED
    ),
    "take-over: 1 writer": _scope("unit", TAKEN, "take-over"),
    "take-over: 1 writer, taken over twice": _scope("explore", TAKEN, "take-over", count=2),
    "take-over: 1 writer, unfenced, with time": _scope(
        "explore", replace(_table(ONCE), late=True), "take-over", fenced=False, seconds=True
    ),
    "take-over: 1 writer dies": _scope("explore", TAKEN, "take-over", "dead writer", count=2),
}
