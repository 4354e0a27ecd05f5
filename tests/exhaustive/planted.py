"""Bugs that prove the exploration: each breaks one rule of the core, and its scope must show it.

Those of the simulations (`tests/simulation/planted.py`, `whole/planted.py`) are planted here too, if they break the core. A name
begins with the module whose rule is broken. What has no bug here, and why:

| module | rule | why it has no bug here |
| --- | --- | --- |
| lease | no version twice; no far `validUntil` of a wrong clock | versions are counted, clocks don't jump |
| lease | renewals spread; `margin`; releases are tried again | no promise depends on it |
| conflicts | an observed one's own rule | without it, more is in conflict |
| admission | another lock, an incomplete log, a dropped footprint, namesakes | not in these worlds |
| grants | 9 between two grants, 11, 12 | they serve writers without the gate, and spare compute |
| grants, liveness | `max_grant`, `max_transaction` | longer than an exploration |
| liveness | the span begins with a series of checks | Kafka has no outage here |
| replay | 5 | the lock's model has the terms (`any owner fenced`) |
| replay, facts | lost ends, unknown requests, lapsed intents, other writers' events, instants | not in these worlds |

The simulation of the whole has a bug for most of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from lakewarden.events import Abort, CommitGranted, PartitionTaken, TransactionAbandoned
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.types import Idle, Waiting
from lakewarden.handlers.table import admission, conflicts, facts, grants, machine
from lakewarden.handlers.table.replay import PublishedDecisions
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase
from lakewarden.spark_jobs.gate.grant import SendTimes
from tests.simulation.batch import Patch, around
from tests.simulation.planted import BUGS as OF_THE_LOCK
from tests.simulation.whole.planted import BUGS as OF_THE_WHOLE


class Planted(NamedTuple):
    """A bug, the scope that must show it, and the promise that is broken there."""

    scope: str
    promise: str
    patches: tuple[Patch, ...]


PLANTED: dict[str, Planted] = {}


def _plant(name: str, scope: str, promise: str, *patch: Any) -> None:
    """The bug that this patch plants; without one, that of a simulation with this name."""
    module, _, known = name.partition(": ")
    bugs: Any = OF_THE_LOCK if module == "lease" else OF_THE_WHOLE
    PLANTED[name] = Planted(scope, promise, (patch,) if patch else tuple(bugs[known].patches))


def _skip(name: str, scope: str, promise: str, where: Any, what: str, *, result: Any = None) -> None:
    """The bug that this function only returns this."""
    _plant(name, scope, promise, where, what, lambda *_, **__: result)


Instead = Callable[..., Any]


def _around(name: str, scope: str, promise: str, where: Any, what: str) -> Callable[[Instead], Instead]:
    """The bug that the decorated function runs around this one."""

    def add(instead: Instead) -> Instead:
        _plant(name, scope, promise, *around(where, what, instead))
        return instead

    return add


# -- scopes and promises

AGENTS = "lock: 2 agents"
LONE = "lock: 1 agent, 1 fault"
REFUSED = "lock: 1 agent, 2 refusals"
QUEUE = "lock: an agent after a dead holder, a hint"
PAIR = "table: 2 writers, 1 file group"
FOR_EVER = "table: 2 writers for ever"
CROWD = "table: a low priority behind a crowd"
OBSERVED = "table: an observed writer"
PRIORITIES = "table: 3 priorities"
GRANTED = "table: with time, one granted"
BEATING = "table: with time and heartbeats, one granted"
TAKEN = "take-over: 1 writer"
RATES = "lock: 2 agents, clocks and rates apart"
HUDI = "lock: an agent beside Hudi's provider"
STRICT = "lock: 2 agents, clocks 50 s apart, strict"
ADOPTS = "lock: the second agent adopts"
FENCED = "lock: adopted, and its owner fenced"
THREE_ORDERED = "table: 3 ordered"
ORDERED = "table: ordered, two priorities"
AT_ONCE = "table: 2 writers for ever, retried at once"
COMPACTION = "table: appends beside a compaction"
LIMIT = "table: a priority above the limit"
AGAIN = "table: a batch is run again"
QUEUED = "table: 3 writers, two queued"
ONE = "table: one open at most"
DIES = "table: a writer dies"
DIES_AT_ONCE = "table: a writer dies, retried at once"
APART = "table: with time, 2 writers apart, both requested"
DETECTION = "table: late detection"
TIMED = "table: with time"
PER_COMMIT = "table: the lock per commit"
UNFENCED = "take-over: 1 writer, unfenced, with time"
LOST_LOCK = "table: late delivery and a lost lock, both requested"
LAG = "table: late delivery, with time"
SILENT = "table: a silent writer"
TWICE = "take-over: 1 writer, taken over twice"
KILL = "table: with time and a kill, one granted"
MANY = "table: operators, duplicates, failures, a lost lock"
STEALING = "no stealing"
WAIT = "bounded wait"
OVERLAP = "no overlap"
GRANT = "one grant"
RESTART = "restart changes nothing"
LIMITS = "limits"
VICTIM = "right victim"

# -- lease

_plant("lease: lease counted from the response", AGENTS, STEALING)
_plant("lease: challenger's drift flipped", AGENTS, STEALING)
_plant("lease: any owner fenced", AGENTS, STEALING)
_plant("lease: holder's drift flipped", HUDI, STEALING)
_plant("lease: strict rule ignored", STRICT, STEALING)
_plant("lease: unknown treated as won", LONE, "confirmed is real")
_plant("lease: own record not recognised", LONE, "no self-block")
_skip("lease: a write in doubt is forgotten", LONE, "no self-block", lease, "_idle", result=Idle())
_plant("lease: never polls again", QUEUE, WAIT)
_plant("lease: queue delays without bound", QUEUE, WAIT)
_plant("lease: malformed object overwritten", REFUSED, "odd objects stay")
_plant("lease: malformed object crashes", REFUSED, "KeyError")
_plant("lease: quiet time ignored", ADOPTS, "one holder")
_plant("lease: adopted lock shows a term", FENCED, "one holder")


@_around("lease: the holder stops no drift early", RATES, STEALING, lease, "_confirm_lease")
def _without_drift(confirm: Instead, *arguments: Any) -> Any:
    """Both halves of the drift are needed if clocks run at different rates, too."""
    *others, settings = arguments
    return confirm(*others, replace(settings, drift=0.0))


@_around("lease: a release relies on", AGENTS, STEALING, lease, "_mark_released")
def _relies_on(mark: Instead, work: Any, at: Any) -> Any:
    return replace(mark(work, at), lease=work.lease)


@_around("lease: a release forgets a write", LONE, "no idle holder", lease, "_on_write_done")
def _confirmed_although_released(wrote: Instead, state: Any, *rest: Any) -> Any:
    return wrote(replace(state, work=replace(state.work, needed=True)), *rest)


@_around("lease: hints delay without bound", QUEUE, WAIT, lease, "_on_acquisition_hint")
def _delayed_for_long(observed: Instead, state: Any, at: Any, *rest: Any) -> Any:
    after, effects = observed(state, at, *rest)
    return (replace(after, until=at.now + 20.0) if isinstance(after, Waiting) else after), effects


# -- conflicts: which ones are conflicts, and which one loses

_plant("conflicts: landed commits ignored", PAIR, OVERLAP)
_plant("conflicts: both aborted", PAIR, "one victim")
_plant("conflicts: granted may be a victim", PAIR, "one victim")
_plant("conflicts: observed ones ignored", OBSERVED, OVERLAP)
_plant("conflicts: turns ignored", THREE_ORDERED, RESTART)
_plant("conflicts: a low priority starves", CROWD, WAIT)
_skip("conflicts: losers never protected", FOR_EVER, WAIT, conflicts, "is_protected", result=False)
_skip("conflicts: any order", ORDERED, OVERLAP, conflicts, "out_of_order", result=False)


@_around("conflicts: a queued one reserves nothing", CROWD, WAIT, conflicts, "conflict_kind")
def _reserves_nothing(kind: Instead, mine: Any, other: Any) -> Any:
    return None if other.phase is Phase.QUEUED else kind(mine, other)


@_around("conflicts: priorities ignored", PRIORITIES, VICTIM, conflicts, "rank")
def _without_priority(rank: Instead, one: Any, *, protected: bool) -> Any:
    return (*rank(one, protected=protected)[:3], 0, -one.sequence)


def _place_by_priority(position: Instead, state: Any, one: Any) -> Any:
    protected, _, sequence = position(state, one)
    return protected, -one.priority, sequence


def _rank_by_priority(rank: Instead, one: Any, *, protected: bool) -> Any:
    return (*rank(one, protected=protected)[:3], one.priority, -one.sequence)


# The place in the queue alone, or the rank alone, keeps the promise.
PLANTED["conflicts: priorities among protected ones"] = Planted(
    AT_ONCE,
    VICTIM,
    (
        around(admission, "_queue_position", _place_by_priority),
        around(conflicts, "rank", _rank_by_priority),
    ),
)


@_around("conflicts: the later intent wins", PAIR, VICTIM, conflicts, "rank")
def _later_wins(rank: Instead, one: Any, *, protected: bool) -> Any:
    return (*rank(one, protected=protected)[:4], one.sequence)


@_around("conflicts: the weaker rule of two", COMPACTION, OVERLAP, conflicts, "operations_conflict")
def _weaker_rule(_: Instead, rule: str, mine: str, other: str) -> bool:
    return rule == "file-group" or (mine == "delete" and other == "delete")


# -- admission: who may start

_plant("admission: any priority accepted", LIMIT, LIMITS)
_plant("admission: ledger ignored", AGAIN, "once")
_plant("admission: queue never moves", QUEUED, WAIT)
_skip("admission: waiters not looked at", QUEUED, RESTART, TableState, "note_change")
_skip("admission: any number is open", ONE, LIMITS, admission, "_refuse_over_limit")
_skip("admission: nothing reserved", AT_ONCE, WAIT, admission, "_markers_to_reserve", result=())
_skip("admission: a restart ends nothing", DIES, LIMITS, admission, "_supersede")


@_around("admission: all looked at in each check", QUEUED, "linear checks", machine, "admit_ready")
def _all_looked_at(admit: Instead, context: Any) -> Any:
    context.state.recheck_all()
    return admit(context)


@_around("admission: beside its writer's grant", DIES_AT_ONCE, LIMITS, machine, "admit_ready")
def _beside_its_own_grant(admit: Instead, context: Any) -> Any:
    running = context.state.running()
    if running is None:
        return admit(context)
    writer, running.writer = running.writer, ""
    admitted = admit(context)
    running.writer = writer
    return admitted


# -- grants: who may commit, and for how long

_skip("grants: two at once", FOR_EVER, "Error", TableState, "running")
_plant("grants: grant without lock", PAIR, GRANT)
_plant("grants: deadline not checked", APART, GRANT)
_plant(
    "grants: an id without term", TAKEN, GRANT, TableState, "term", property(lambda _: "", lambda *_: None)
)
_plant(
    "grants: a lapsed one doesn't count", BEATING, OVERLAP, conflicts, "LANDED", frozenset({Phase.COMMITTED})
)
_plant("grants: a short one", APART, LIMITS, grants, "MIN_LEASE_SHARE", 0.0)
_skip("grants: the check before it left out", DETECTION, OVERLAP, grants, "validate_for_grant", result=True)
_skip("grants: the lock is kept", PAIR, LIMITS, grants, "_release_lock")
_skip("grants: the lock's owner is not named", TAKEN, RESTART, grants, "_publish_lock_owner")


@_around("grants: extended beyond the lock", BEATING, GRANT, grants, "_available_lease")
def _beyond_the_lock(_: Instead, context: Any) -> Any:
    return context.state.settings.grant_lease + 2.0


@_around("grants: counted from the receipt", TIMED, GRANT, SendTimes, "deadline")
def _from_the_receipt(deadline: Instead, *about: Any) -> Any:
    return deadline(*about) + 1.0


@_around("grants: the last request first", PER_COMMIT, LIMITS, grants, "grant_queue")
def _last_first(queue: Instead, state: Any) -> Any:
    return reversed(list(queue(state)))


@_around("grants: in the quiet time", UNFENCED, GRANT, machine, "grant_next")
def _in_the_quiet_time(grant: Instead, context: Any) -> None:
    lock = context.state.lock
    context.state.lock = lock and replace(lock, quiet_until=0.0)
    grant(context)
    context.state.lock = lock


@_around("grants: a revoked one ends at once", LOST_LOCK, "InvariantBrokenError", TableState, "running")
def _ends_at_once(running: Instead, state: Any) -> Any:
    found = running(state)
    return None if found and found.grant and found.grant.revoked else found


# -- liveness

_plant("liveness: expiry while lagging", LAG, "lag is no silence")
_skip("liveness: silence ends nothing", SILENT, WAIT, machine, "abort_silent_writers")


@_around("liveness: a granted one is silent", GRANTED, "one victim", machine, "abort_silent_writers")
def _granted_is_silent(abort: Instead, context: Any, caught_up: Any) -> None:
    running = context.state.running()
    if running is not None and caught_up is not None and caught_up.until - running.last_event_at > 2.4:
        context.abort(running, "writer-lost", detail="")
    abort(context, caught_up)


# -- replay

_skip("replay: decisions at the end", PAIR, RESTART, PublishedDecisions, "_due", result=1000)


@_around("replay: terms ignored", TAKEN, WAIT, PublishedDecisions, "add")
def _any_term_counts(add: Instead, self: PublishedDecisions, offset: int, record: Any) -> None:
    term = self.term
    self.term = record.term
    add(self, offset, record)
    if not isinstance(record, PartitionTaken):
        self.term = term


@_around("replay: decisions in another order", MANY, RESTART, PublishedDecisions, "pop_due")
def _in_another_order(pop: Instead, *arguments: Any) -> Any:
    return pop(*arguments)[::-1]


@_around("replay: the first take-over counts", TWICE, WAIT, PublishedDecisions, "add")
def _first_term_counts(add: Instead, self: PublishedDecisions, *record: Any) -> None:
    term = self.term
    add(self, *record)
    self.term = term or self.term


# -- facts: the same live and in a replay

_plant("facts: index leaks", PAIR, "InvariantBrokenError")
_skip(
    "facts: an observed commit doesn't count", OBSERVED, OVERLAP, facts, "_apply_observed_commit", result=[]
)
_skip("facts: a checkpoint holds no open intent", PAIR, RESTART, TableState, "oldest_needed")


@_around("facts: a replay skips abandonments", MANY, RESTART, machine, "replay_event")
def _skips_abandonments(replay: Instead, state: Any, event: Any, *rest: Any) -> Any:
    return None if isinstance(event, TransactionAbandoned) else replay(state, event, *rest)


@_around("facts: a replay forgets grants", PAIR, RESTART, machine, "replay_decision")
def _forgets_grants(replay: Instead, state: Any, decision: Any, now: float) -> None:
    if not isinstance(decision, CommitGranted):
        replay(state, decision, now)


@_around("facts: a replay counts no losses", PAIR, RESTART, machine, "replay_decision")
def _counts_no_losses(replay: Instead, state: Any, decision: Any, now: float) -> None:
    replay(state, decision, now)
    if isinstance(decision, Abort):
        state.losses.pop(decision.writer, None)


@_around("facts: a replayed grant ends early", KILL, GRANT, machine, "replay_decision")
def _ends_early(replay: Instead, state: Any, decision: Any, now: float) -> None:
    replay(state, decision, now - 2.0)


@_around("facts: evidence dropped too early", PAIR, OVERLAP, facts, "drop_old_evidence")
def _dropped_too_early(_: Instead, state: Any) -> None:
    for each in state.landed():
        state.footprints.remove(each)
        state.remove(each)
