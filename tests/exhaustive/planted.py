"""Bugs that prove the exploration: each breaks one rule of the core, and its scope must show it.

`PLANTED` is the table. A name begins with the module whose rule is broken. What has no bug here, and why:

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

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lakewarden.events import Abort, PartitionTaken, TransactionAbandoned
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.lock_object import LockRecord
from lakewarden.handlers.lease.types import Idle
from lakewarden.handlers.table import admission, conflicts, grants, machine
from lakewarden.handlers.table.ledger import CommittedBatch
from lakewarden.handlers.table.replay import PublishedDecisions
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.transactions import Phase
from lakewarden.spark_jobs.gate.grant import SendTimes
from lakewarden.spark_jobs.gate.progress import GateProgress
from tests.simulation.batch import Patch, around
from tests.simulation.planted import BUGS as OF_THE_LOCK, with_settings
from tests.simulation.whole.planted import BUGS as OF_THE_WHOLE

Instead = Callable[..., Any]
"""A function of the core. What a bug passes on to it unseen is its `rest`."""


def _known(name: str) -> list[Patch]:
    """The bug of a simulation that is planted here, too."""
    return list((OF_THE_LOCK if name in OF_THE_LOCK else OF_THE_WHOLE)[name].patches)


def _skip(where: Any, what: str, result: Any = None) -> Patch:
    """A function that only returns this."""
    return where, what, lambda *_, **__: result


def _shows_a_term(write: Instead, work: Any, at: Any, *rest: Any) -> Any:
    prefix = rest[0].owner_prefix
    shown = replace(at, new_owner_id=prefix + at.new_owner_id[len(prefix) :])
    return write(work, shown, *rest)


def _relies_on(mark: Instead, work: Any, at: Any) -> Any:
    return replace(mark(work, at), lease=work.lease)


def _confirms(wrote: Instead, state: Any, *rest: Any) -> Any:
    return wrote(replace(state, work=replace(state.work, needed=True)), *rest)


def _without_priority(rank: Instead, one: Any, *, protected: bool) -> Any:
    return (*rank(one, protected=protected)[:3], 0, -one.sequence)


def _later_wins(rank: Instead, one: Any, *, protected: bool) -> Any:
    return (*rank(one, protected=protected)[:4], one.sequence)


def _rank_by_priority(rank: Instead, one: Any, *, protected: bool) -> Any:
    return (*rank(one, protected=protected)[:3], one.priority, -one.sequence)


def _place_by_priority(position: Instead, state: Any, one: Any) -> Any:
    protected, _, sequence = position(state, one)
    return protected, -one.priority, sequence


def _not_in_queue(protected: Instead, one: Any, *rest: Any) -> bool:
    return one.phase is not Phase.QUEUED and protected(one, *rest)


def _weaker_rule(_: Instead, rule: str, mine: str, other: str) -> bool:
    return rule == "file-group" or (mine == "delete" and other == "delete")


def _queue_never_moves(_: Instead, __: Any, one: Any, **_more: bool) -> Iterator[Any]:
    return iter([one] if one.admission == "queued" else [])


def _all_looked_at(admit: Instead, context: Any) -> Any:
    context.state.recheck_all()
    return admit(context)


def _beside_its_own_grant(admit: Instead, context: Any) -> Any:
    running = context.state.running()
    if running is None:
        return admit(context)
    writer, running.writer = running.writer, ""
    admitted = admit(context)
    running.writer = writer
    return admitted


def _without_lock(grant: Instead, context: Any) -> None:
    context.state.lock = context.state.lock or LockView("no-owner", context.now + 60.0, 0.0)
    grant(context)


def _beyond_the_lock(_: Instead, context: Any) -> Any:
    return context.state.settings.grant_lease + 2.0


def _from_the_receipt(deadline: Instead, *about: Any) -> Any:
    return deadline(*about) + 1.0


def _last_first(queue: Instead, state: Any) -> Any:
    return reversed(list(queue(state)))


def _in_the_quiet_time(grant: Instead, context: Any) -> None:
    lock = context.state.lock
    context.state.lock = lock and replace(lock, quiet_until=0.0)
    grant(context)
    context.state.lock = lock


def _ends_at_once(running: Instead, state: Any) -> Any:
    found = running(state)
    return None if found and found.grant and found.grant.revoked else found


def _granted_is_silent(abort: Instead, context: Any, caught_up: Any) -> None:
    running = context.state.running()
    if running is not None and caught_up is not None and caught_up.until - running.last_event_at > 2.4:
        context.abort(running, "writer-lost", detail="")
    abort(context, caught_up)


def _any_term_counts(add: Instead, self: PublishedDecisions, offset: int, record: Any) -> None:
    term = self.term
    self.term = record.term
    add(self, offset, record)
    if not isinstance(record, PartitionTaken):
        self.term = term


def _skips_abandonments(replay: Instead, state: Any, event: Any, *rest: Any) -> Any:
    return None if isinstance(event, TransactionAbandoned) else replay(state, event, *rest)


def _counts_no_losses(replay: Instead, state: Any, decision: Any, now: float) -> None:
    replay(state, decision, now)
    if isinstance(decision, Abort):
        state.losses.pop(decision.writer, None)


def _ends_early(replay: Instead, state: Any, decision: Any, now: float) -> None:
    replay(state, decision, now - 2.0)


RESTART = "restart changes nothing"
HELD_EARLY = around(
    LockRecord, "held_at", lambda held_at, self, wall_ms, drift_ms: held_at(self, wall_ms, -drift_ms)
)
RESPECTED_EARLY = with_settings("_seconds_to_respect", drift=-1.2)
NO_TERM = property(lambda _: "", lambda *_: None)

# Of each scope, its bugs. A row: the promise that is broken, and the patches that plant the bug.
PLANTED: dict[str, dict[str, tuple[str, *tuple[Patch, ...]]]] = {
    "lock: 2 agents": {
        "lease: counted from the response": ("no stealing", *_known("lease counted from the response")),
        "lease: challenger's drift flipped": ("no stealing", HELD_EARLY, RESPECTED_EARLY),
        "lease: any owner fenced": ("no stealing", with_settings("_found_while_needed", fenced=("",))),
        "lease: a release relies on": ("no stealing", around(lease, "_mark_released", _relies_on)),
    },
    "lock: 2 agents, clocks and rates apart": {
        # With clocks of different rates, and beside Hudi's provider, the holder's half of the drift is needed, too.
        "lease: no drift of a holder": ("no stealing", with_settings("_confirm_lease", drift=0.0))
    },
    "lock: 2 agents, clocks 50 s apart, strict": {
        "lease: strict rule ignored": ("no stealing", with_settings("_seconds_to_respect", strict=False))
    },
    "lock: 1 agent, 1 fault": {
        "lease: unknown treated as won": ("confirmed is real", *_known("unknown treated as won")),
        "lease: a write in doubt is forgotten": ("no self-block", _skip(lease, "_idle", Idle())),
        "lease: a release forgets a write": ("no idle holder", around(lease, "_on_write_done", _confirms)),
    },
    "lock: 1 agent, 2 refusals": {
        "lease: malformed object overwritten": ("odd objects stay", *_known("malformed object overwritten"))
    },
    "lock: an agent after a dead holder, a hint": {
        "lease: never polls again": ("bounded wait", *_known("never polls again"))
    },
    "lock: the second agent adopts": {
        "lease: quiet time ignored": ("one holder", *_known("quiet time ignored"))
    },
    "lock: adopted, and its owner fenced": {
        "lease: adopted lock shows a term": ("one holder", around(lease, "_write_hold", _shows_a_term))
    },
    "table: 2 writers, 1 file group": {
        "conflicts: landed ones ignored": ("no overlap", (conflicts, "LANDED", frozenset())),
        "conflicts: both aborted": ("one victim", *_known("both aborted")),
        "conflicts: granted may be a victim": ("one victim", *_known("granted may be a victim")),
        "conflicts: the later intent wins": ("right victim", around(conflicts, "rank", _later_wins)),
        "grants: without lock": ("one grant", around(machine, "grant_next", _without_lock)),
        "grants: the lock is kept": ("limits", _skip(grants, "_release_lock")),
        "replay: decisions at the end": (RESTART, _skip(PublishedDecisions, "_due", 1000)),
        "facts: index leaks": ("InvariantBrokenError", *_known("index leaks")),
        "facts: a checkpoint holds no open intent": (RESTART, _skip(TableState, "oldest_needed")),
        "facts: a replay counts no losses": (RESTART, around(machine, "replay_decision", _counts_no_losses)),
    },
    "table: an observed writer": {
        "conflicts: observed ones ignored": ("no overlap", *_known("observed ones ignored"))
    },
    "table: 3 ordered": {"conflicts: turns ignored": (RESTART, *_known("turns ignored"))},
    "table: ordered, two priorities": {
        "conflicts: any order": ("no overlap", _skip(conflicts, "out_of_order", result=False))
    },
    "table: 3 priorities": {
        "conflicts: priorities ignored": ("right victim", around(conflicts, "rank", _without_priority))
    },
    "table: appends beside a compaction": {
        "conflicts: the weaker rule of two": (
            "no overlap",
            around(conflicts, "operations_conflict", _weaker_rule),
        )
    },
    "table: a low priority behind a crowd": {
        "conflicts: a low priority starves": (
            "bounded wait",
            around(conflicts, "is_protected", _not_in_queue),
        )
    },
    "table: 2 writers for ever": {
        "conflicts: losers never protected": ("bounded wait", _skip(conflicts, "is_protected", result=False)),
        "grants: two at once": ("Error", _skip(TableState, "running")),
    },
    "table: 2 writers for ever, retried at once": {
        "admission: nothing reserved": ("bounded wait", _skip(admission, "_markers_to_reserve", ())),
        # The place in the queue alone, or the rank alone, keeps the promise.
        "conflicts: priorities among protected ones": (
            "right victim",
            around(admission, "_queue_position", _place_by_priority),
            around(conflicts, "rank", _rank_by_priority),
        ),
    },
    "table: 3 writers, two queued": {
        "admission: queue never moves": ("bounded wait", around(admission, "blockers", _queue_never_moves)),
        "admission: waiters not looked at": ("bounded wait", _skip(TableState, "note_change")),
        "admission: all looked at in each check": (
            "linear checks",
            around(machine, "admit_ready", _all_looked_at),
        ),
    },
    "table: a priority above the limit": {
        "admission: any priority accepted": ("limits", *_known("any priority accepted"))
    },
    "table: one open at most": {
        "admission: any number is open": ("limits", _skip(admission, "_refuse_over_limit"))
    },
    "table: a batch is run again": {
        "admission: ledger ignored": ("once", _skip(CommittedBatch, "covers", result=False))
    },
    "table: a writer dies, killed anywhere": {
        "admission: a restart ends nothing": ("limits", _skip(admission, "_supersede"))
    },
    "table: a writer dies, retried at once": {
        "admission: beside its writer's grant": (
            "limits",
            around(machine, "admit_ready", _beside_its_own_grant),
        )
    },
    "table: late detection": {
        "grants: the check before it left out": (
            "no overlap",
            _skip(grants, "validate_for_grant", result=True),
        )
    },
    "table: the lock per commit": {
        "grants: the last request first": ("limits", around(grants, "grant_queue", _last_first))
    },
    "table: operators, duplicates, failures, a lost lock": {
        "facts: a replay skips abandonments": (RESTART, around(machine, "replay_event", _skips_abandonments))
    },
    "table: with time": {
        "grants: counted from the receipt": ("one grant", around(SendTimes, "deadline", _from_the_receipt))
    },
    "table: with time, one granted": {
        "liveness: a granted one is silent": (
            "one victim",
            around(machine, "abort_silent_writers", _granted_is_silent),
        )
    },
    "table: with time, 2 writers apart, both requested": {
        "grants: deadline not checked": ("one grant", _skip(GateProgress, "_expired")),
        "grants: a short one": ("limits", (grants, "MIN_LEASE_SHARE", 0.0)),
    },
    "table: with time and heartbeats, one granted": {
        "grants: beyond the lock": ("one grant", around(grants, "_available_lease", _beyond_the_lock))
    },
    "table: with time and a kill, one granted": {
        "facts: a replayed grant ends early": ("one grant", around(machine, "replay_decision", _ends_early))
    },
    "table: late delivery and a lost lock, both requested": {
        "grants: a revoked one ends at once": (
            "InvariantBrokenError",
            around(TableState, "running", _ends_at_once),
        )
    },
    "table: late delivery, with time": {
        "liveness: expiry while lagging": ("lag is no silence", *_known("expiry while lagging"))
    },
    "table: a silent writer": {
        "liveness: silence ends nothing": ("bounded wait", _skip(machine, "abort_silent_writers"))
    },
    "take-over: 1 writer": {
        "grants: an id without term": ("one grant", (TableState, "term", NO_TERM)),
        "grants: the lock's owner is not named": (RESTART, _skip(grants, "_publish_lock_owner")),
        "replay: terms ignored": ("bounded wait", around(PublishedDecisions, "add", _any_term_counts)),
    },
    "take-over: 1 writer, unfenced, with time": {
        "grants: in the quiet time": ("one grant", around(machine, "grant_next", _in_the_quiet_time))
    },
}
