"""The scopes: which small worlds are explored, and by which command.

`make unit` explores the smallest, `make test-all` every scope that is complete within minutes. `make explore MINUTES=10` explores
all, the larger ones for their share of the time, one on each core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

from tests.exhaustive import lock, table
from tests.exhaustive.engine import After, Exploration, Model, explore, overdue, starved, story_of
from tests.exhaustive.lock import Contender, Lock
from tests.exhaustive.table import Job, Table

Run = Literal["unit", "all", "explore"]


@dataclass(frozen=True)
class Scope:
    """One small world, and what is asked of it."""

    model: Model[Any]
    run: Run
    live: tuple[str, ...] = ()
    """Who must be served for ever (`engine.py`, Liveness)."""
    timely: tuple[tuple[str, str, int], ...] = ()
    """Who must be served, while who does nothing, in how many seconds from each state."""

    def explore(self, *, most: int | None = None, seconds: float | None = None) -> Exploration[Any]:
        """What an exploration finds. The first violation of bounded wait becomes its story, if the graph is complete."""
        found = explore(self.model, most=most, seconds=seconds, graph=bool(self.live or self.timely))
        if not found.complete:
            return found
        for who in self.live:
            if steps := starved(found.graph, who, table.SERVES):
                found.story = [*steps, f"bounded wait: {who} starves in this cycle"]
        for who, idle, limit in self.timely:
            state = overdue(found.graph, who, idle, lock.PASSES, limit)
            if state is not None:
                story = story_of(found.parents, *found.parents[state])
                found.story = [
                    *story,
                    f"bounded wait: {who} needs more than {limit} s while {idle} does nothing",
                ]
        return found


BOTH = (Contender(), Contender(wall=1.1))
"""Two agents whose clocks differ by nearly the drift of 1.2 s."""
SHORT = replace(lock.SCALED, validity=3.0, poll_seconds=1.0)
ONE_LOSS = replace(table.SCALED, max_losses=1)
ELSEWHERE = ("q/f",)


def _faults(*kinds: str, count: int = 1) -> dict[str, Any]:
    return {"faults": count, "kinds": frozenset(kinds)}


def _orders(count: int) -> tuple[tuple[int, ...], ...]:
    """All orders of so many equal jobs."""
    return tuple(permutations(range(count)))


def _table(*jobs: Job, **more: Any) -> Table:
    return Table(jobs, **more)


TIMED = _table(Job(attempts=1), Job(attempts=1), seconds=True)
ONE_REQUESTS = ("0 opens", "0 touches", "1 opens", "0 requests its grant")


def _requests_late(writer: int) -> tuple[str, ...]:
    """The steps to the request of a writer, each event and decision read at once."""
    admitted = (f"{writer} opens", "A reads an event", "A publishes a decision", f"{writer} reads decisions")
    return (
        *admitted,
        f"{writer} touches",
        "A reads an event",
        f"{writer} requests its grant",
        "A reads an event",
    )


BOTH_REQUESTED = (*_requests_late(0), *_requests_late(1))

SCOPES: dict[str, Scope] = {
    # -- the lock
    "lock: 1 agent, 2 faults": Scope(
        Lock((Contender(),), SHORT, **_faults("lost", "false 412", "503", count=2)), "all"
    ),
    "lock: 1 agent, 1 fault": Scope(
        Lock((Contender(),), SHORT, **_faults("lost", "false 412", "503")), "unit"
    ),
    "lock: 1 agent, 2 refusals": Scope(Lock((Contender(),), SHORT, **_faults("403", "odd", count=2)), "unit"),
    "lock: 2 agents": Scope(Lock(BOTH, SHORT), "all"),
    "lock: 2 agents, longer leases": Scope(Lock(BOTH), "explore"),
    "lock: 2 agents, clocks and rates apart": Scope(
        Lock((Contender(rate=0.9375), Contender(wall=1.1)), replace(SHORT, validity=2.85)), "all"
    ),
    "lock: an agent after a dead holder, a hint": Scope(
        Lock((Contender(),), SHORT, held=True, **_faults("hint")), "unit", timely=(("0", "-", 6),)
    ),
    "lock: 2 agents, a hint": Scope(Lock(BOTH, SHORT, **_faults("hint")), "explore"),
    "lock: 2 agents, clocks 50 s apart, strict": Scope(
        Lock((Contender(), Contender(wall=50.0)), replace(SHORT, strict=True)), "explore"
    ),
    "lock: an agent beside Hudi's provider": Scope(
        Lock((Contender(), Contender(wall=0.5, hudi=True)), SHORT), "all"
    ),
    "lock: the second agent adopts": Scope(Lock((Contender(), Contender(adopts=True)), SHORT), "explore"),
    "lock: 3 agents, one fences another": Scope(
        Lock((Contender(term="a-"), Contender(term="b-", fences=("a-",)), Contender()), SHORT), "explore"
    ),
    "lock: adopted, and its owner fenced": Scope(
        Lock((Contender(), Contender(term="b-", adopts=True), Contender(term="c-", fences=("b-",))), SHORT),
        "explore",
    ),
    "lock: 2 agents, 1 fault": Scope(
        Lock(BOTH, SHORT, **_faults("lost", "false 412", "503", "403", "kill", "odd")), "explore"
    ),
    "lock: 2 agents, 2 faults": Scope(
        Lock(BOTH, SHORT, **_faults("lost", "false 412", "503", "403", "kill", "odd", count=2)), "explore"
    ),
    # -- the table
    "table: 2 writers, 1 file group": Scope(_table(Job(), Job(), alike=((1, 0),)), "unit"),
    "table: 2 writers, killed anywhere": Scope(_table(Job(), Job(), **_faults("kill")), "unit"),
    "table: 2 writers, 2 kills": Scope(_table(Job(), Job(), **_faults("kill", count=2)), "all"),
    "table: a writer dies": Scope(_table(Job(attempts=3), Job(), **_faults("dead writer")), "all"),
    "table: a writer dies, killed anywhere": Scope(
        _table(Job(attempts=3), Job(), **_faults("dead writer", "kill", count=2)), "all"
    ),
    "table: operators, duplicates, failures, a lost lock": Scope(
        _table(Job(), Job(), **_faults("operator", "duplicate", "abandon", "lost lock")), "all"
    ),
    "table: 3 writers": Scope(_table(Job(), Job(), Job()), "all"),
    "table: 3 writers, two queued": Scope(
        _table(Job(admission="queued"), Job(admission="queued"), Job(), alike=((1, 0, 2),)), "all"
    ),
    "table: 3 priorities": Scope(_table(Job(priority=1), Job(), Job(priority=-1)), "all"),
    "table: ordered, two priorities": Scope(
        _table(Job(rule="ordered"), Job(rule="ordered", priority=1)), "unit"
    ),
    "table: 3 ordered": Scope(_table(*[Job(rule="ordered")] * 3, alike=_orders(3)), "explore"),
    "table: appends beside a compaction": Scope(
        _table(
            Job(("p/f:append",), "deleted-file"),
            Job(("p/f:delete", "p/g:append"), "deleted-file", priority=-100),
            Job(("p/f:merge",), "deleted-file"),
        ),
        "explore",
    ),
    "table: a whole partition, the whole table": Scope(_table(Job(("p/*",)), Job(), Job(("*/*",))), "all"),
    "table: an observed writer": Scope(_table(Job(), Job(observed=True), **_faults("kill")), "unit"),
    "table: first committer wins": Scope(
        _table(Job(), Job(), Job(), settings=replace(table.SCALED, policy="first-committer")),
        "all",
    ),
    "table: late detection": Scope(
        _table(Job(), Job(), settings=replace(table.SCALED, early_detection=False)), "unit"
    ),
    "table: the lock per commit": Scope(
        _table(
            Job(), Job(ELSEWHERE), settings=replace(table.SCALED, hold="per-commit"), **_faults("lost lock")
        ),
        "all",
    ),
    "table: 2 writers for ever": Scope(
        _table(Job(), Job(), ever=True, settings=ONE_LOSS), "unit", live=("0", "1")
    ),
    "table: 2 writers for ever, one queued behind": Scope(
        _table(Job(), Job(admission="queued", priority=-1), ever=True, settings=ONE_LOSS),
        "unit",
        live=("0", "1"),
    ),
    "table: 2 writers for ever, two priorities": Scope(
        _table(Job(priority=1), Job(), ever=True, settings=ONE_LOSS), "all", live=("0", "1")
    ),
    "table: ordered for ever, one queued behind": Scope(
        _table(
            Job(rule="ordered"),
            Job(rule="ordered", admission="queued", priority=-1),
            ever=True,
            settings=ONE_LOSS,
        ),
        "explore",
        live=("0", "1"),
    ),
    "table: 3 writers for ever, one queued behind": Scope(
        _table(
            Job(),
            Job(),
            Job(admission="queued", priority=-1),
            ever=True,
            settings=ONE_LOSS,
            alike=((1, 0, 2),),
        ),
        "explore",
        live=("2",),
    ),
    "table: with time": Scope(
        _table(Job(attempts=1), Job(attempts=1), seconds=True, alike=((1, 0),)), "explore"
    ),
    "table: with time, 2 writers apart": Scope(
        _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), seconds=True), "explore"
    ),
    "table: with time, one granted": Scope(After(TIMED, (*ONE_REQUESTS, "A has its lock confirmed")), "unit"),
    "table: with time and heartbeats, one granted": Scope(
        After(replace(TIMED, beats=True), (*ONE_REQUESTS, "A has its lock confirmed")), "explore"
    ),
    "table: with time and a kill, one granted": Scope(
        After(
            replace(TIMED, **_faults("kill")),
            (*ONE_REQUESTS, "A has its lock confirmed"),
        ),
        "all",
    ),
    "table: with time, 2 writers apart, both requested": Scope(
        After(
            _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), seconds=True),
            (*ONE_REQUESTS, "1 touches", "1 requests its grant"),
        ),
        "all",
    ),
    "table: with time and heartbeats": Scope(
        _table(Job(attempts=1), Job(attempts=1), seconds=True, beats=True, alike=((1, 0),)), "explore"
    ),
    "table: with time and a kill": Scope(
        _table(Job(attempts=1), Job(attempts=1), seconds=True, **_faults("kill")), "explore"
    ),
    "table: a batch is run again": Scope(
        _table(Job(recorded=False), Job(attempts=1), **_faults("repeated batch")), "unit"
    ),
    "table: a priority above the limit": Scope(_table(Job(priority=10), Job()), "unit"),
    "table: late delivery and a lost lock": Scope(
        _table(Job(attempts=1), Job(attempts=1), late=True, alike=((1, 0),), **_faults("lost lock")),
        "explore",
    ),
    "table: late delivery and a lost lock, both requested": Scope(
        After(
            _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), late=True, **_faults("lost lock")),
            BOTH_REQUESTED,
        ),
        "explore",
    ),
    "table: late delivery, with time": Scope(
        _table(Job(attempts=1), late=True, seconds=True, beats=True), "explore"
    ),
    "table: a silent writer": Scope(
        _table(Job(attempts=1), Job(attempts=1, admission="queued"), seconds=True),
        "explore",
        timely=(("1", "0", 9),),
    ),
    "table: heartbeats and a lost lock, with time": Scope(
        _table(Job(attempts=1), Job(attempts=1), seconds=True, beats=True, **_faults("lost lock")), "explore"
    ),
    # -- take-over
    "take-over: 1 writer, a partition that stays": Scope(
        _table(Job(), late=True, **_faults("take-over", "stays", count=2)), "explore"
    ),
    "take-over: 2 writers, taken over twice": Scope(
        _table(Job(attempts=1), Job(attempts=1), late=True, **_faults("take-over", count=2)), "explore"
    ),
    "take-over: 2 writers apart": Scope(
        _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), late=True, **_faults("take-over")), "explore"
    ),
    "take-over: 2 writers apart, both requested": Scope(
        After(
            _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), late=True, **_faults("take-over")),
            BOTH_REQUESTED,
        ),
        "explore",
    ),
    "take-over: 2 writers, 1 file group": Scope(
        _table(Job(attempts=1), Job(attempts=1), late=True, **_faults("take-over")), "explore"
    ),
    "take-over: 1 writer": Scope(_table(Job(), late=True, **_faults("take-over")), "unit"),
    "take-over: 1 writer, taken over twice": Scope(
        _table(Job(), late=True, **_faults("take-over", count=2)), "explore"
    ),
    "take-over: 1 writer, unfenced, with time": Scope(
        _table(Job(attempts=1), late=True, fenced=False, seconds=True, **_faults("take-over")), "explore"
    ),
    "take-over: 1 writer dies": Scope(
        _table(Job(attempts=2), late=True, **_faults("take-over", "dead writer", count=2)), "explore"
    ),
}
