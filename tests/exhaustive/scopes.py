"""The scopes: which small worlds are explored, and by which command.

`make unit` explores the smallest, `make test-all` every scope that is complete within minutes. `make explore MINUTES=10` explores
all, the larger ones for their share of the time, one on each core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

from tests.exhaustive import lock, table
from tests.exhaustive.engine import Model
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
    "lock: 2 agents, clock rates 2 % apart": Scope(
        Lock((Contender(rate=1.015625), Contender(rate=0.984375)), SHORT), "explore"
    ),
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
    "table: a writer dies": Scope(_table(Job(attempts=3), Job(), **_faults("dead writer")), "unit"),
    "table: a writer dies, killed anywhere": Scope(
        _table(Job(attempts=3), Job(), **_faults("dead writer", "kill", count=2)), "all"
    ),
    "table: operators, duplicates, failures, a lost lock": Scope(
        _table(Job(), Job(), **_faults("operator", "duplicate", "abandon", "lost lock")), "unit"
    ),
    "table: 3 writers": Scope(_table(Job(), Job(), Job()), "all"),
    "table: 3 writers, two queued": Scope(
        _table(Job(admission="queued"), Job(admission="queued"), Job(), alike=((1, 0, 2),)), "unit"
    ),
    "table: 3 priorities": Scope(_table(Job(priority=1), Job(), Job(priority=-1)), "all"),
    "table: ordered, two priorities": Scope(
        _table(Job(rule="ordered"), Job(rule="ordered", priority=1)), "unit"
    ),
    "table: 3 ordered": Scope(_table(*[Job(rule="ordered")] * 3, alike=_orders(3)), "all"),
    "table: appends beside a compaction": Scope(
        _table(
            Job(("p/f:append",), "deleted-file"),
            Job(("p/f:delete", "p/g:append"), "deleted-file", priority=-100),
            Job(("p/f:merge",), "deleted-file"),
        ),
        "all",
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
        "unit",
    ),
    "table: 2 writers for ever": Scope(
        _table(Job(), Job(), ever=True, settings=ONE_LOSS), "unit", live=("0", "1")
    ),
    "table: 2 writers for ever, one queued behind": Scope(
        _table(Job(), Job(admission="queued", priority=-1), ever=True, settings=ONE_LOSS),
        "unit",
        live=("0", "1"),
    ),
    "table: 3 writers for ever, one queued behind": Scope(
        _table(Job(), Job(), Job(admission="queued", priority=-1), ever=True, settings=ONE_LOSS),
        "explore",
        live=("2",),
    ),
    "table: with time": Scope(_table(Job(attempts=1), Job(attempts=1), seconds=True, alike=((1, 0),)), "all"),
    "table: with time, 2 writers apart": Scope(
        _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), seconds=True), "explore"
    ),
    "table: with time and heartbeats": Scope(
        _table(Job(attempts=1), Job(attempts=1), seconds=True, beats=True, alike=((1, 0),)), "explore"
    ),
    "table: with time and a kill": Scope(
        _table(Job(attempts=1), Job(attempts=1), seconds=True, **_faults("kill")), "explore"
    ),
    # -- take-over
    "take-over: 2 writers apart": Scope(
        _table(Job(attempts=1), Job(ELSEWHERE, attempts=1), late=True, **_faults("take-over")), "explore"
    ),
    "take-over: 2 writers, 1 file group": Scope(
        _table(Job(attempts=1), Job(attempts=1), late=True, **_faults("take-over")), "explore"
    ),
    "take-over: 1 writer": Scope(_table(Job(), late=True, **_faults("take-over")), "all"),
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
