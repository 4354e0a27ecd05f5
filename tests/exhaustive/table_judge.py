"""What may never happen to one table, with the promise of docs/guarantees.md.

| promise | broken if |
| --- | --- |
| one grant | two writers may publish at one moment, by their own clocks, or one for longer than the agent believes |
| one grant | two grants have one id, one is decided in a quiet time, or a commit lands without the lock |
| no overlap | a commit lands without one that it conflicts with in its base, or an `ordered` one out of order |
| one victim | a conflict aborts both of two, or a transaction whose grant runs |
| right victim | the victim of a conflict has the larger priority, or the earlier intent at equal priorities |
| limits | a grant has a priority above the limit, comes before an earlier request, or is shorter than half of a lease |
| limits | more are open than may be; two of one writer compute; a table without transactions keeps the lock |
| lag is no silence | a writer is lost, or a grant lapses, while the agent has not read the whole log |
| once | a batch lands twice |
| restart changes nothing | a replay, from the beginning or from the checkpoint, gives other facts, or decides something |
| restart changes nothing | the log doesn't name the owner of the lock that covers the running grant |
| bounded wait | others commit for ever, and one never does (`starved`); one waits, and nothing can happen any more |
| bounded wait | while another writer is silent, one isn't served in time (`overdue`) |
| bounded wait | a queued one waits although nothing blocks it, or is overtaken although it was often enough |
| linear checks | a check or an answer of the lock that decides nothing looks at a queued transaction |
| no crash | the core raises, or `check_invariants` does |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from lakewarden import events
from lakewarden.handlers.table import machine
from lakewarden.handlers.table.admission import blockers, blocking_overlaps
from lakewarden.handlers.table.conflicts import operations_conflict
from lakewarden.handlers.table.effects import Effect
from lakewarden.handlers.table.grants import earlier_turns
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.transactions import STOPPABLE, Phase
from lakewarden.spark_jobs.gate.progress import GatePhase, GateProgress
from tests.exhaustive.engine import BrokenError
from tests.exhaustive.table_world import Commit, Owner, Watched, World
from tests.unit.handlers.table.world import TABLE, facts, place_of, places_meet

if TYPE_CHECKING:
    from tests.exhaustive.table import Table

Kind = TypeVar("Kind")
BEGINNING = (0, Position(0, None))
KEPT = ("transactions", "index", "ledger", "losses", "lost_on")
"""The facts that a replay from a checkpoint must give. It doesn't know what ended before."""


def _require(promise: str, kept: object, broken: str) -> None:
    if not kept:
        raise BrokenError(f"{promise}: {broken}")


def _of(kind: type[Kind], effects: list[Effect]) -> Iterator[Kind]:
    return (each for each in effects if isinstance(each, kind))


# -- each state


def judge(model: Table, world: World) -> None:
    for owner in world.owners:
        check_invariants(owner.state)
        _judge_limits(model, owner.state)
        _judge_waits(owner.state)
    _judge_grants(model, world)
    if not model.late:
        _judge_replays(model, world)


def _judge_limits(model: Table, state: TableState) -> None:
    running, opened = state.running(), state.count_open()
    _require("limits", opened or not state.lock_requested, "a table without transactions keeps the lock")
    _require("limits", opened <= model.settings.max_open, f"{opened} transactions are open")
    computing = [each.writer for each in state.admitted()]
    alone = len(computing) == len(set(computing))
    _require("limits", alone, f"two transactions of one writer compute, of {computing}")
    if running is None:
        return
    allowed = running.priority <= model.settings.max_priority
    _require("limits", allowed, f"{running.id} is granted with priority {running.priority}")
    lock, grant = state.lock, running.grant
    if lock and grant and not grant.revoked:
        known = grant.lock_owner == lock.owner
        _require("restart changes nothing", known, f"the log doesn't name {lock.owner}")


def _judge_waits(state: TableState) -> None:
    """A step looks only at what has changed. By the plain definitions, whatever waits after it has a reason."""
    running = state.running()
    for each in state.in_phase[Phase.QUEUED].values():
        if running is None or running.writer != each.writer:
            _require("bounded wait", next(blockers(state, each), None), f"{each.id} waits for nothing")
    for each in state.in_phase[Phase.WAITING].values():
        earlier = {overlap.other.transaction.id for overlap in earlier_turns(state, each)}
        waits = each.blocker in {None, *earlier}
        _require("bounded wait", waits, f"{each.id} waits for {each.blocker}, not for its turn")


def _judge_grants(model: Table, world: World) -> None:
    allowed = {
        number: writer.progress.lease
        for number, writer in enumerate(world.writers)
        if writer.progress is not None and may_publish(writer.progress, world.now)
    }
    _require("one grant", len(allowed) <= 1, f"the writers {sorted(allowed)} may publish now")
    for number, lease in allowed.items():
        running = [owner.state.running() for owner in world.owners]
        deadlines = [
            each.grant.deadline
            for each in running
            if each is not None and each.grant is not None and each.id == world.writers[number].transaction
        ]
        assert lease is not None
        assert lease.deadline is not None
        covered = model.late or max(deadlines, default=-1.0) >= lease.deadline
        _require("one grant", covered, f"w{number} relies on its grant for longer than the agent does")


def may_publish(progress: GateProgress, now: float) -> bool:
    """Whether the writer's lease lasts, and no abort has reached it. Not asked of the gate, which is what is judged."""
    lease, phase = progress.lease, progress.phase
    if lease is None or lease.deadline is None or lease.deadline <= now:
        return False
    aborted = progress.abort is not None or progress.late_abort is not None
    return not aborted and phase in (GatePhase.REQUESTED, GatePhase.PUBLISHING)


def _judge_replays(model: Table, world: World) -> None:
    (owner,) = world.owners
    expected = facts(owner.state)
    end = Position(len(world.decisions), owner.term)
    oldest = owner.state.oldest_needed(world.now)
    newest = (len(world.events), end) if oldest is None else (oldest, owner.positions.at(oldest, end))
    for start, position in dict.fromkeys([BEGINNING, newest]):
        state = replayed(model.settings, world, start, position)
        found = facts(state)
        odd = [name for name in (KEPT if start else expected) if found[name] != expected[name]]
        where = f"a replay from {start}"
        _require("restart changes nothing", not odd, f"{where} gives other {', '.join(odd)}")
        state.lock, state.lock_requested = owner.state.lock, owner.state.lock_requested
        state.lock_used = owner.state.lock_used
        effects = machine.step(state, machine.Replayed(world.now, len(world.events) - 1))
        for each in _of(events.DecisionEvent, effects):
            decided = f"{type(each).__name__} of {each.transaction}"
            raise BrokenError(f"restart changes nothing: after {where} the agent decides {decided}")


def replayed(settings: TableSettings, world: World, start: int, position: Position) -> Watched:
    """The state of an agent that has replayed the log from here on. If that isn't the beginning, it has read the ledger."""
    state = Watched(TABLE, settings, "A")
    if start and TABLE in world.ledger.tables:
        machine.restore(state, world.ledger.tables[TABLE])
    replay_log(state, world, start, position)
    return state


def replay_log(state: TableState, world: World, start: int, position: Position) -> None:
    for each in in_order(world.events, world.decisions, start, position):
        if isinstance(each, tuple):
            machine.replay_event(state, *each, world.now)
        else:
            machine.replay_decision(state, each, world.now)


def in_order(
    written: list[events.WriterEventUnion],
    decided: list[events.DecisionRecord],
    start: int = 0,
    position: Position = BEGINNING[1],
) -> Iterator[tuple[events.WriterEventUnion, int] | events.DecisionEventUnion]:
    """Events with their offsets, and the decisions that count, as a replay applies them."""
    published = PublishedDecisions(position, list(enumerate(decided))[position.offset :])
    for offset, event in list(enumerate(written))[start:]:
        yield event, offset
        yield from published.pop_due(offset)
    yield from published.pop_due(None)


# -- each step of an agent


def judge_step(model: Table, world: World, owner: Owner, given: machine.Input) -> list[Effect]:
    """Take the step, and judge what was decided."""
    state, looks = owner.state, owner.state.looks
    limit = state.settings.max_losses
    aged = {each.id for each in state.transactions.values() if each.overtaken >= limit}
    effects = machine.step(state, given)
    decided = next(_of(events.DecisionEvent, effects), None)
    if decided is None and isinstance(given, machine.Tick | machine.LockConfirmed):
        unseen = state.looks == looks
        _require("linear checks", unseen, "nothing has changed, and a queued transaction is looked at")
    _judge_victims(model, world, state, effects)
    _judge_grant(world, state, effects)
    _judge_queue(state, effects, aged)
    if isinstance(given, machine.Tick) and owner.read < len(world.events):
        for each in _of(events.Abort, effects):
            heard = each.reason != "writer-lost"
            _require("lag is no silence", heard, f"{each.transaction} is lost, and the agent lags")
    return effects


def _judge_grant(world: World, state: TableState, effects: list[Effect]) -> None:
    """One is granted in its turn, for half of a lease at least, and not in a quiet time."""
    running, least = state.running(), 0.5 * state.settings.grant_lease
    granted = list(_of(events.CommitGranted, effects))
    if not granted or running is None:
        return
    long_enough = granted[-1].lease_seconds >= least
    _require("limits", long_enough, f"{running.id} is granted for less than {least:.2f} s")
    quiet = state.lock is not None and state.lock.quiet_until > world.now
    _require("one grant", not quiet, f"{running.id} is granted in the quiet time")
    for other in state.in_phase[Phase.WAITING].values():
        later = other.requested > running.requested or other.conflict_rule == "ordered"
        _require("limits", later, f"{running.id} is granted before {other.id}, which requested earlier")


def _judge_queue(state: TableState, effects: list[Effect], aged: set[str]) -> None:
    """A queued transaction that was overtaken often enough is overtaken no more."""
    for each in _of(events.Admitted, effects):
        admitted = state.transactions.get(each.transaction)
        if admitted is None or admitted.admission != "queued":
            continue
        for overlap in blocking_overlaps(state, admitted):
            other = overlap.other.transaction
            overtaken = other.phase is Phase.QUEUED and other.id in aged
            in_turn = not overtaken or other.sequence > admitted.sequence
            _require("bounded wait", in_turn, f"{admitted.id} overtakes {other.id} once more")


def _judge_victims(model: Table, world: World, state: TableState, effects: list[Effect]) -> None:
    """Of two that conflict, one is aborted, and never one whose grant runs."""
    lost: dict[str, set[str]] = {}
    for each in _of(events.Abort, effects):
        known = state.transactions.get(each.transaction)
        if each.reason in ("conflict", "writer-lost"):
            granted = known is not None and known.grant is not None
            _require("one victim", not granted, f"{each.transaction} is aborted while its grant runs")
        if each.reason == "conflict":
            winners = lost[each.transaction] = {entry.other_transaction for entry in each.conflicts}
            weaker = all(_is_weaker(model, world, state, other, each.transaction) for other in winners)
            _require("right victim", not weaker, f"{each.transaction} loses to a weaker one")
    for victim, winners in lost.items():
        both = winners & lost.keys()
        _require("one victim", not both, f"{victim} and {', '.join(both)} are all aborted")


def _is_weaker(model: Table, world: World, state: TableState, winner: str, victim: str) -> bool:
    """Whether neither a right to win, nor its priority, nor its age is a reason why this transaction wins."""
    known = state.transactions.get(winner)
    if known is None or known.phase not in (*STOPPABLE, Phase.QUEUED):
        return False
    mine, theirs = (_rank(model, world, each) for each in (winner, victim))
    if state.is_protected(known):
        # The victim has lost once more meanwhile.
        was_protected = state.losses[state.closed[victim].writer] > state.settings.max_losses
        return was_protected and mine[1] < theirs[1]
    return mine < theirs


def _rank(model: Table, world: World, transaction: str) -> tuple[int, int]:
    intents = (at for at, each in enumerate(world.events) if each.transaction == transaction)
    number = int(transaction.removeprefix("hudi:w").partition(".")[0].removeprefix("w"))
    return model.jobs[number].priority, -next(intents)


def judge_grant_id(world: World, granted: events.CommitGranted) -> None:
    others = (each for each in world.decisions if isinstance(each, events.CommitGranted))
    unique = granted.grant not in (each.grant for each in others)
    _require("one grant", unique, f"two have the id {granted.grant}")


# -- each commit


def judge_landing(model: Table, world: World, number: int, progress: GateProgress) -> None:
    """The gate allows this writer to publish now."""
    writer = world.writers[number]
    _require("one grant", may_publish(progress, world.now), f"w{number} lands after its lease")
    locked = world.lock is not None and world.lock[1] > world.now
    _require("one grant", locked, f"w{number} lands without the lock")
    _require("once", not world.in_table(number), f"batch {writer.batch} of w{number} lands twice")
    for other in world.commits[writer.base :]:
        built_on = not _excludes(model, number, writer.order, other)
        _require("no overlap", built_on, f"w{number} lands without {other.transaction} in its base")


def _excludes(model: Table, number: int, order: int, other: Commit) -> bool:
    """Whether a commit that isn't in this writer's base may not be in the table."""
    mine, theirs = model.jobs[number], model.jobs[other.writer]
    rule = mine.rule if mine.rule == theirs.rule else "file-group"
    too_early = rule == "ordered" and other.order > order
    if theirs.observed and (other.beside == number or model.late):
        return False
    return any(
        places_meet(place_of(one), place_of(another))
        and (too_early or operations_conflict(rule, one.operation, another.operation))
        for one in mine.markers
        for another in theirs.markers
    )
