"""Stories (`tests/unit/stories.py`) of what writers and the agent do with one table.

    a name
        world max_losses=1
        intent A; touch A p/f; intent B p/f queued → no admission
        abandon A → admitted B, B is active

A step is a method of `World` with its arguments: the transaction, markers (`p/f`, or `p/f:delete` for another operation than
merge), fields (`writer=w`), an admission or a conflict rule, a number. Other steps:

| step | what happens |
| --- | --- |
| `restart`, `crash`, `outage` | an agent has replayed the log; one without the last step's decisions; one without any |
| `restart s3://…` | the same, by an agent that knows that the table's lock is there |
| `wait 5` | a pause |
| `lag`, `catch_up` | from one to the other, the agent has unread records |
| `deliver_again 1`, `deliver_all_again` | the event at this offset is read again; all are, and none has an effect |
| `note` | keeps the facts for `unchanged` |

Behind the arrow may also be:

| text | meaning |
| --- | --- |
| `no abort`, `no grant`, `no admission` | aborted, granted, admitted no transaction |
| `no report`, `no renewal`, `no lock` | reported no conflict, extended no grant, requested and released no lock |
| `aborted A conflict and B superseded` | aborted exactly these transactions, in this order |
| `granted A`, `admitted A and B` | granted, admitted exactly these |
| `met A commit f and A marker g` | the only abort lists these conflicts: the other transaction, the kind, the file group |
| `reserved q/* p/*` | the only admission reserves this |
| `reported B to A` | reported exactly these conflicts, the victim first |
| `warned commit-without-grant of B` | warned exactly so |
| `recorded A w 4 v7`, `no record` | recorded this batch of writer w in the ledger as A's, with version v7 |
| `A is active`, `A is gone` | left the transaction in this phase, keeps nothing of it |
| `A overtaken=0` | left this field of the transaction |
| `index is empty`, `ledger w is 7`, `needs 2` | left this state; `needs`: the offset from which a replay must begin |
| `largest is A` | left this transaction as the one whose abort frees most memory |
| `unchanged` | left the facts as they were at the last `note` |
| `a replay agrees` | a replay of the log gives the same state |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, get_args

from lakewarden import events
from lakewarden.events import (
    Abort,
    Admission,
    Admitted,
    BatchCommitted,
    ConflictRule,
    GrantRenewed,
    Marker,
    MarkerCreated,
    Operation,
)
from lakewarden.handlers.table import effects
from lakewarden.handlers.table.effects import AcquireLock, ReleaseLock, Warn
from lakewarden.handlers.table.memory import largest_transaction
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import VERDICTS, World, batch_entry, facts, m, world
from tests.unit.stories import Language, Story, fits, value

__all__ = ["LANGUAGE", "Story", "stories"]


def _argument(word: str) -> object:
    if word in get_args(Admission):
        return {"admission": word}
    if word in get_args(ConflictRule):
        return {"conflict_rule": word}
    return _marker(word) if "/" in word and "://" not in word else value(word)


def _marker(word: str) -> Marker:
    place, _, operation = word.partition(":")
    return m(place, cast("Operation", operation or "merge"))


_LISTS: dict[str, Callable[[World], Sequence[object]]] = {
    "aborted": lambda w: [f"{each.transaction} {each.reason}" for each in w.of(Abort)],
    "granted": lambda w: w.granted,
    "admitted": lambda w: w.admitted,
    "met": lambda w: sorted(
        f"{each.other_transaction} {each.kind} {each.file_group}" for each in w.one(Abort).conflicts
    ),
    "reported": lambda w: [f"{victim} to {winner}" for victim, winner in w.reports],
    "warned": lambda w: [f"{each.event} of {each.transaction}" for each in w.of(Warn)],
    "renewal": lambda w: w.of(GrantRenewed),
    "record": lambda w: w.of(BatchCommitted),
    "lock": lambda w: w.of(AcquireLock) + w.of(ReleaseLock),
}
_NO = {"abort": "aborted", "grant": "granted", "admission": "admitted", "report": "reported"}
_FACTS: dict[str, Callable[[World, str], bool]] = {
    "no": lambda w, rest: not _LISTS[_NO.get(rest, rest)](w),
    "recorded": lambda w, rest: w.of(BatchCommitted) == [_recorded(*rest.split())],
    "reserved": lambda w, rest: w.one(Admitted).reserved == tuple(map(_marker, rest.split())),
    "needs": lambda w, rest: w.state.oldest_needed(w.now) == value(rest),
    "ledger": lambda w, rest: (
        w.state.ledger[rest.split()[0]].batch_id == int(rest.split()[2])
        if rest != "is empty"
        else not w.state.ledger
    ),
    "losses": lambda w, _: not w.state.losses and not w.state.lost_on,
    "index": lambda w, _: not w.state.footprints.index,
    "unchanged": lambda w, _: facts(w.state) == w.noted,
    "a": lambda w, _: facts(w.rebuilt().state) == facts(w.state),
    "largest": lambda w, rest: rest == f"is {(found := largest_transaction(w.state)) and found.transaction}",
    "idle": lambda w, _: w.state.idle(),
    "busy": lambda w, _: not w.state.idle(),
}


def _recorded(transaction: str, writer: str, batch: str, version: str | None = None) -> BatchCommitted:
    return batch_entry(transaction, writer, int(batch), version)


def _holds(w: World, expected: str) -> bool:
    what, _, rest = expected.partition(" ")
    if what in _LISTS:
        return _LISTS[what](w) == rest.split(" and ")
    if what in _FACTS:
        return _FACTS[what](w, rest)
    if not rest.startswith("is "):
        return fits(w.state.transactions[what], rest)
    if rest == "is gone":
        return what not in w.state.transactions
    return w.phase(what) is Phase(rest.removeprefix("is "))


def _note(w: World) -> World:
    w.noted = facts(w.state)
    return w


def _deliver_again(w: World, offset: int) -> World:
    return w.read(next(each[0] for each in w.log if isinstance(each, tuple) and each[1] == offset))


def _deliver_all_again(w: World) -> World:
    for event, _ in [each for each in w.log if isinstance(each, tuple)]:
        assert not w.read(event).effects, event
    return w


def _wait(w: World, seconds: float) -> World:
    w.now += seconds
    return w


def _restart(w: World, lock_location: str | None = None) -> World:
    again = w.rebuilt()
    again.state.lock_location = lock_location
    return again.replayed()


def _incomplete(w: World, why: str) -> World:
    w.state.unseen_grant = True
    return w.replayed(missing=why)


def _late_touch(w: World, transaction: str, marker: Marker, *, lag: float) -> World:
    return w.read(w.event(MarkerCreated, transaction, markers=(marker,)), lag=lag)


def _caught_up(w: World, since: float | None) -> World:
    w.caught_up_since = since
    return w


def _crash(w: World) -> World:
    return w.rebuilt(w.log[: len(w.log) - sum(isinstance(each, VERDICTS) for each in w.effects)]).replayed()


LANGUAGE = Language(
    begin=world,
    effects=(events, effects),
    argument=_argument,
    holds=_holds,
    verbs={
        "world": lambda _, **settings: world(**settings),
        "restart": _restart,
        "crash": _crash,
        "outage": lambda w: w.read_the_events().replayed(),
        "replay_last": lambda w, count: w.rebuilt(w.log[-count:]).replayed(),
        "swap_last_two": lambda w: w.rebuilt(w.log[:-3:-1]).replayed(),
        "restart_incomplete": lambda w, why="records are missing": _incomplete(w.rebuilt(), why),
        "restart_without_decisions": lambda w, why="records are missing": _incomplete(
            w.read_the_events(), why
        ),
        "note": _note,
        "deliver_again": _deliver_again,
        "deliver_all_again": _deliver_all_again,
        "wait": _wait,
        "late_touch": _late_touch,
        "lag": lambda w: _caught_up(w, None),
        "catch_up": lambda w: _caught_up(w, w.now),
    },
)
stories = LANGUAGE.stories
