"""Bugs that prove the exploration: each breaks one rule of the core, and its scope must show it.

Those of the simulations (`tests/simulation/planted.py`, `whole/planted.py`) are planted here too, if they break the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from lakewarden.events import TransactionAbandoned
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.table import conflicts, grants, machine
from lakewarden.handlers.table.state import TableState
from tests.simulation.batch import Patch, around
from tests.simulation.planted import BUGS as OF_THE_LOCK
from tests.simulation.whole.planted import BUGS as OF_THE_WHOLE


class Planted(NamedTuple):
    """A bug, the scope that must show it, and the promise that is broken there."""

    scope: str
    promise: str
    patches: tuple[Patch, ...]


PLANTED: dict[str, Planted] = {}


def _known(bugs: Any, scope: str, **promises: str) -> None:
    for name, promise in promises.items():
        spaced = name.replace("_", " ").replace(" s ", "'s ")
        PLANTED[spaced] = Planted(scope, promise, tuple(bugs[spaced].patches))


def _skip(name: str, scope: str, promise: str, where: Any, what: str, *, result: Any = None) -> None:
    """The function only returns this."""
    PLANTED[name] = Planted(scope, promise, ((where, what, lambda *_, **__: result),))


def _plant(
    name: str, scope: str, promise: str, where: Any, what: str
) -> Callable[[Callable[..., Any]], None]:
    """Replace this function by the decorated one, which gets it as its first argument."""

    def add(instead: Callable[..., Any]) -> None:
        PLANTED[name] = Planted(scope, promise, (around(where, what, instead),))

    return add


# -- the lease

_known(
    OF_THE_LOCK,
    "lock: 2 agents",
    lease_counted_from_the_response="no stealing",
    challenger_s_drift_flipped="no stealing",
    any_owner_fenced="no stealing",
)
_known(OF_THE_LOCK, "lock: an agent beside Hudi's provider", holder_s_drift_flipped="no stealing")
_known(OF_THE_LOCK, "lock: the second agent adopts", quiet_time_ignored="one holder")
_known(OF_THE_LOCK, "lock: adopted, and its owner fenced", adopted_lock_shows_a_term="one holder")
_known(OF_THE_LOCK, "lock: 2 agents, clocks 50 s apart, strict", strict_rule_ignored="no stealing")
_known(OF_THE_LOCK, "lock: 1 agent, 1 fault", unknown_treated_as_won="confirmed is real")
_known(OF_THE_LOCK, "lock: 1 agent, 1 fault", own_record_not_recognised="no self-block")
_known(
    OF_THE_LOCK,
    "lock: 1 agent, 2 refusals",
    malformed_object_overwritten="odd objects stay",
    malformed_object_crashes="KeyError",
)


@_plant("a release relies on", "lock: 2 agents", "no stealing", lease, "_mark_released")
def _release_relies_on(mark: Callable[..., Any], work: Any, at: Any) -> Any:
    """From the moment of the release, the lease is not relied upon."""
    return replace(mark(work, at), lease=work.lease)


# -- the table: which one loses, who may start, who may commit

_known(
    OF_THE_WHOLE,
    "table: 2 writers, 1 file group",
    landed_commits_ignored="no overlap",
    both_aborted="one victim",
    granted_may_be_a_victim="one victim",
    index_leaks="InvariantBrokenError",
)
_known(OF_THE_WHOLE, "table: with time, 2 writers apart", deadline_not_checked="one grant")
_known(OF_THE_WHOLE, "table: 3 ordered", turns_ignored="restart changes nothing")


_skip(
    "the check before a grant left out",
    "table: late detection",
    "no overlap",
    grants,
    "validate_for_grant",
    result=True,
)
_skip(
    "waiters not looked at",
    "table: 3 writers, two queued",
    "restart changes nothing",
    TableState,
    "note_change",
)


@_plant(
    "a replay skips abandonments",
    "table: operators, duplicates, failures, a lost lock",
    "restart changes nothing",
    machine,
    "replay_event",
)
def _replay_skips_abandonments(replay: Callable[..., Any], state: TableState, event: Any, *rest: Any) -> Any:
    """The same facts change the state live and in a replay."""
    return None if isinstance(event, TransactionAbandoned) else replay(state, event, *rest)


@_plant(
    "rule of the weaker", "table: appends beside a compaction", "no overlap", conflicts, "operations_conflict"
)
def _rule_of_the_weaker(_: Callable[..., bool], rule: str, mine: str, other: str) -> bool:
    """A delete and a merge of one file group conflict."""
    return rule == "file-group" or (mine == "delete" and other == "delete")
