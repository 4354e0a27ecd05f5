"""Bugs that prove the exploration: each breaks one rule of the core, and its scope must show it.

Those of the simulations (`tests/simulation/planted.py`, `whole/planted.py`) are planted here too, if they break the core. A name
begins with the module whose rule is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from lakewarden.events import Abort, CommitGranted, TransactionAbandoned
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.types import Idle
from lakewarden.handlers.table import conflicts, facts, grants, machine
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


def _known(module: str, scope: str, promise: str, *names: str) -> None:
    bugs: Any = OF_THE_LOCK if module == "lease" else OF_THE_WHOLE
    for name in names:
        PLANTED[f"{module}: {name}"] = Planted(scope, promise, tuple(bugs[name].patches))


def _plant(name: str, scope: str, promise: str, *patches: Patch) -> None:
    PLANTED[name] = Planted(scope, promise, patches)


def _without_drift(confirm: Callable[..., Any], *arguments: Any) -> Any:
    """Both halves of the drift are needed if clocks run at different rates, too."""
    *others, settings = arguments
    return confirm(*others, replace(settings, drift=0.0))


# -- lease: writes and time

_known(
    "lease",
    "lock: 2 agents",
    "no stealing",
    "lease counted from the response",
    "challenger's drift flipped",
    "any owner fenced",
)
_known("lease", "lock: an agent beside Hudi's provider", "no stealing", "holder's drift flipped")
_plant(
    "lease: the holder stops no drift early",
    "lock: 2 agents, clocks and rates apart",
    "no stealing",
    around(lease, "_confirm_lease", _without_drift),
)
_known("lease", "lock: 2 agents, clocks 50 s apart, strict", "no stealing", "strict rule ignored")
_known("lease", "lock: 1 agent, 1 fault", "confirmed is real", "unknown treated as won")
_known("lease", "lock: 1 agent, 1 fault", "no self-block", "own record not recognised")
_plant(
    "lease: a write in doubt is forgotten",
    "lock: 1 agent, 1 fault",
    "no self-block",
    (lease, "_idle", lambda _: Idle()),
)

# -- lease: waiting, refusals, queue, release, adoption

BEHIND = "lock: an agent after a dead holder, a hint"
_known("lease", BEHIND, "bounded wait", "never polls again", "queue delays without bound")
_known("lease", "lock: 1 agent, 2 refusals", "odd objects stay", "malformed object overwritten")
_known("lease", "lock: 1 agent, 2 refusals", "KeyError", "malformed object crashes")
_plant(
    "lease: a release relies on",
    "lock: 2 agents",
    "no stealing",
    around(lease, "_mark_released", lambda mark, work, at: replace(mark(work, at), lease=work.lease)),
)
_known("lease", "lock: the second agent adopts", "one holder", "quiet time ignored")
_known("lease", "lock: adopted, and its owner fenced", "one holder", "adopted lock shows a term")

# -- conflicts: which one loses

_known("conflicts", "table: 2 writers, 1 file group", "no overlap", "landed commits ignored")
_known("conflicts", "table: 2 writers, 1 file group", "one victim", "both aborted", "granted may be a victim")
_known("conflicts", "table: an observed writer", "no overlap", "observed ones ignored")
_plant(
    "conflicts: losers never protected",
    "table: 2 writers for ever",
    "bounded wait",
    (conflicts, "is_protected", lambda *_: False),
)
_plant(
    "conflicts: priorities ignored",
    "table: 3 priorities",
    "right victim",
    around(
        conflicts,
        "rank",
        lambda rank, one, protected: (*rank(one, protected=protected)[:3], 0, -one.sequence),
    ),
)
_plant(
    "conflicts: the later intent wins",
    "table: 2 writers, 1 file group",
    "right victim",
    around(
        conflicts, "rank", lambda rank, one, protected: (*rank(one, protected=protected)[:4], one.sequence)
    ),
)
_plant(
    "conflicts: the weaker rule of two",
    "table: appends beside a compaction",
    "no overlap",
    around(
        conflicts,
        "operations_conflict",
        lambda _, rule, mine, other: rule == "file-group" or (mine == "delete" and other == "delete"),
    ),
)
_plant(
    "conflicts: any order",
    "table: ordered, two priorities",
    "no overlap",
    (conflicts, "out_of_order", lambda *_: False),
)
_known("conflicts", "table: 3 ordered", "restart changes nothing", "turns ignored")

# -- admission: who may start

_known("admission", "table: a priority above the limit", "limits", "any priority accepted")
_known("admission", "table: a batch is run again", "once", "ledger ignored")
_known("admission", "table: 3 writers, two queued", "bounded wait", "queue never moves")
_plant(
    "admission: waiters not looked at",
    "table: 3 writers, two queued",
    "restart changes nothing",
    (TableState, "note_change", lambda *_: None),
)

# -- grants: who may commit, and for how long

_plant("grants: two at once", "table: 2 writers for ever", "Error", (TableState, "running", lambda _: None))
_known("grants", "table: 2 writers, 1 file group", "one grant", "grant without lock")
_plant(
    "grants: extended beyond the lock",
    "table: with time and heartbeats, one granted",
    "one grant",
    around(grants, "_available_lease", lambda _, context: context.state.settings.grant_lease + 2.0),
)
_plant(
    "grants: counted from the receipt",
    "table: with time",
    "one grant",
    around(SendTimes, "deadline", lambda deadline, *about: deadline(*about) + 1.0),
)
_plant(
    "grants: an id without term",
    "take-over: 1 writer",
    "one grant",
    (TableState, "term", property(lambda _: "", lambda *_: None)),
)
_known("grants", "table: with time, 2 writers apart, both requested", "one grant", "deadline not checked")
_plant(
    "grants: a lapsed one doesn't count as committed",
    "table: with time and heartbeats, one granted",
    "no overlap",
    (conflicts, "LANDED", frozenset({Phase.COMMITTED})),
)
_plant(
    "grants: the check before it left out",
    "table: late detection",
    "no overlap",
    (grants, "validate_for_grant", lambda *_: True),
)
_plant(
    "grants: the lock is kept",
    "table: 2 writers, 1 file group",
    "limits",
    (grants, "_release_lock", lambda _: None),
)
_plant(
    "grants: a revoked one ends at once",
    "table: late delivery and a lost lock, both requested",
    "InvariantBrokenError",
    around(
        TableState,
        "running",
        lambda running, state: (
            None if (found := running(state)) and found.grant and found.grant.revoked else found
        ),
    ),
)

# -- liveness

_known("liveness", "table: late delivery, with time", "lag is no silence", "expiry while lagging")

# -- replay

_plant(
    "replay: decisions at the end",
    "table: 2 writers, 1 file group",
    "restart changes nothing",
    (PublishedDecisions, "_due", lambda *_: 1000),
)


def _first_term_counts(add: Callable[..., None], self: PublishedDecisions, *record: Any) -> None:
    term = self.term
    add(self, *record)
    self.term = term or self.term


_plant(
    "replay: the first take-over counts",
    "take-over: 1 writer, taken over twice",
    "bounded wait",
    around(PublishedDecisions, "add", _first_term_counts),
)


# -- facts: the same live and in a replay


def _replay_skips_abandonments(replay: Callable[..., Any], state: TableState, event: Any, *rest: Any) -> Any:
    return None if isinstance(event, TransactionAbandoned) else replay(state, event, *rest)


_plant(
    "facts: a replay skips abandonments",
    "table: operators, duplicates, failures, a lost lock",
    "restart changes nothing",
    around(machine, "replay_event", _replay_skips_abandonments),
)


def _replay_forgets_grants(replay: Callable[..., Any], state: TableState, decision: Any, now: float) -> None:
    if not isinstance(decision, CommitGranted):
        replay(state, decision, now)


_plant(
    "facts: a replay forgets grants",
    "table: 2 writers, 1 file group",
    "restart changes nothing",
    around(machine, "replay_decision", _replay_forgets_grants),
)


def _replay_counts_no_losses(
    replay: Callable[..., Any], state: TableState, decision: Any, now: float
) -> None:
    replay(state, decision, now)
    if isinstance(decision, Abort):
        state.losses.pop(decision.writer, None)


_plant(
    "facts: a replay counts no losses",
    "table: 2 writers, 1 file group",
    "restart changes nothing",
    around(machine, "replay_decision", _replay_counts_no_losses),
)


def _replayed_grant_ends_early(
    replay: Callable[..., Any], state: TableState, decision: Any, now: float
) -> None:
    replay(state, decision, now - 2.0)


_plant(
    "facts: a replayed grant ends early",
    "table: with time and a kill, one granted",
    "one grant",
    around(machine, "replay_decision", _replayed_grant_ends_early),
)


def _evidence_dropped(drop: Callable[..., None], state: TableState) -> None:
    for each in state.landed():
        state.footprints.remove(each)
        state.remove(each)


_plant(
    "facts: evidence dropped too early",
    "table: 2 writers, 1 file group",
    "no overlap",
    around(facts, "drop_old_evidence", _evidence_dropped),
)


_plant(
    "facts: the commit of an observed one doesn't count",
    "table: an observed writer",
    "no overlap",
    (facts, "_apply_observed_commit", lambda *_: []),
)
_known("facts", "table: 2 writers, 1 file group", "InvariantBrokenError", "index leaks")
