"""Every order of what writers and agents do with one table.

An agent is `machine.step`, and a writer is the gate's `GateProgress`. In most scopes an event is read when it is sent, and a
decision reaches its writer when it is made: a writer that reads late does the same as one that acts late, and each step may be
late by any time. In a scope with `late`, agents read and publish, and writers read, in steps of their own. With `seconds`, time
passes in ticks of one second, to which the settings are scaled; without, no lease ends.

Faults, each at the cost of one of `faults`:

| fault | what happens |
| --- | --- |
| `kill` | the agent is killed after so many of the decisions of a step; another one replays the log |
| `take-over` | another agent takes the partition over: `partition-taken`, later the replay. The former one goes on |
| `lost lock` | the lock's renewal is not confirmed in time |
| `dead writer` | a writer is silent from now on, and then starts again with the same batch |
| `duplicate` | Kafka delivers a writer's last event again |
| `repeated batch` | Spark runs a committed batch again |
| `stays` | an agent's partition is revoked, and assigned to it again: it goes on if no other took it meanwhile |
| `operator` | an operator wants a transaction to end |
| `abandon` | a writer fails before it publishes |

What may never happen, with the promise of docs/guarantees.md:

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
| linear checks | a check or an answer of the lock that decides nothing looks at a queued transaction |
| no crash | the core raises, or `check_invariants` does |
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from io import BytesIO
from typing import Any, TypeAlias, cast

from lakewarden import events
from lakewarden.events import DecisionRecord, WriterEventUnion
from lakewarden.handlers.table import machine
from lakewarden.handlers.table.conflicts import operations_conflict
from lakewarden.handlers.table.effects import Effect, ReleaseLock
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.ledger import Ledger
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.replay import CheckpointPositions, Position, PublishedDecisions
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from lakewarden.handlers.table.transactions import STOPPABLE, Phase, Transaction
from lakewarden.spark_jobs.gate.progress import GatePhase, GateProgress, GrantLease
from tests.exhaustive.engine import Act, BrokenError, Form, Steps, affordable
from tests.exhaustive.table_form import EVER, form_of
from tests.unit.handlers.table.world import AT, TABLE, facts, m, place_of, places_meet

SCALED = TableSettings(grant_lease=3.3, heartbeat_misses=2, max_losses=2, max_priority=9)
LOCK_SECONDS = 4.5
RENEWED_BELOW = 2.0
"""Seconds that a lock lease has left when it may be renewed."""
HEARTBEAT = 1.2
PASSES = "a second passes"
MARGIN = 0.1
"""By which a writer's lease ends early."""
SERVES = "reports its commit"
"""The step with which a writer has got what it wants."""
KEPT = ("transactions", "index", "ledger", "losses", "lost_on")
"""The facts that a replay from a checkpoint must give. It doesn't know what ended before."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one writer commits, batch after batch."""

    touches: tuple[str, ...] = ("p/f",)
    """Places, with `:operation` if it isn't a merge."""
    rule: events.ConflictRule = "file-group"
    admission: events.Admission = "optimistic"
    priority: int = 0
    batches: int = 1
    attempts: int = 2
    """Transactions for each batch."""
    retries: events.Admission = "queued"
    observed: bool = False
    recorded: bool = True
    """The table records which batches it has."""

    @property
    def markers(self) -> tuple[events.Marker, ...]:
        parts = [each.partition(":") for each in self.touches]
        return tuple(
            m(place, cast("events.Operation", operation or "merge")) for place, _, operation in parts
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit in the table."""

    writer: int
    transaction: str
    batch: int
    order: int
    """Its place among the admissions."""
    beside: int = -1
    """An observed one: the writer whose grant ran."""


@dataclass(slots=True)
class Writer:
    """One writer's process."""

    batch: int = 0
    attempt: int = 0
    transaction: str = ""
    progress: GateProgress | None = None
    """Of the open transaction."""
    decisions_read: int = 0
    """Decisions that it has read."""
    term: str | None = None
    """The last take-over among them."""
    touched: bool = False
    base: int = 0
    """Commits that it has read."""
    order: int = -1
    landed: bool = False
    observed: bool = False
    """It has a transaction, which a watcher reports."""
    dead: bool = False
    last: WriterEventUnion | None = None

    def leave(self) -> None:
        """The process has no transaction any more."""
        self.progress, self.touched, self.landed, self.observed, self.dead = None, False, False, False, False


class Watched(TableState):
    """Counts how often a queued transaction is looked at and stays blocked. No part of the form."""

    looks = 0

    def wait_for(self, waiter: Transaction, other: str) -> None:
        self.looks += waiter.phase is Phase.QUEUED
        super().wait_for(waiter, other)


@dataclass(slots=True)
class Owner:
    """One agent's ownership of the table's partition."""

    term: str
    state: Watched
    read: int = 0
    """Events that it has read."""
    since: float = 0.0
    """Since when it has read the whole log."""
    unpublished: list[events.DecisionEventUnion] = field(default_factory=list)
    live: bool = True
    """It has replayed the log."""
    behind: bool = False
    """The log has another term after its own."""
    positions: CheckpointPositions = field(default_factory=CheckpointPositions)


@dataclass(slots=True)
class World:
    """The table, its log and its writers."""

    owners: list[Owner]
    writers: list[Writer]
    faults: int
    now: float = 0.0
    events: list[WriterEventUnion] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    commits: list[Commit] = field(default_factory=list)
    admissions: int = 0
    lock: tuple[str, float] | None = None
    """The term of the lock's holder, and the end of its lease."""

    def in_table(self, number: int) -> bool:
        """Whether the table has the batch of this writer. Its sink can look that up."""
        batch = self.writers[number].batch
        return any(each.writer == number and each.batch == batch for each in self.commits)


Acts: TypeAlias = Iterator[Act]


@dataclass(frozen=True)
class Table:
    """The model."""

    jobs: tuple[Job, ...]
    settings: TableSettings = SCALED
    faults: int = 0
    kinds: frozenset[str] = frozenset()
    seconds: bool = False
    beats: bool = False
    """Writers send heartbeats, at most one in a second."""
    late: bool = False
    fenced: bool = True
    """An agent that takes over replaces its predecessor's lock without a quiet time."""
    alike: tuple[tuple[int, ...], ...] = ()
    """Orders of equal jobs: worlds that differ only by them are one state."""

    @cached_property
    def ever(self) -> bool:
        """A job has batches for ever, so the form forgets what is done."""
        return any(each.batches == EVER for each in self.jobs)

    def begin(self) -> World:
        return World(
            [Owner("A", Watched(TABLE, self.settings, "A"))], [Writer() for _ in self.jobs], self.faults
        )

    def steps(self, world: World) -> Steps[World]:
        packs: dict[int, bytes] = {}
        possible = list(affordable(self._acts(world), world, self.kinds))
        mortal = "dead writer" in self.kinds
        if not possible and not mortal and any(each.progress is not None for each in world.writers):
            raise BrokenError("bounded wait: a writer waits, and nothing can happen any more")
        for name, act, paid in possible:
            packed = packs.get(paid.faults) or packs.setdefault(paid.faults, _packed(paid))
            yield name, partial(self._after, packed, act, None)
            if world.faults and "kill" in self.kinds:
                turn = Turn(self, pickle.loads(packed), None)  # noqa: S301 - packed above
                act(turn)
                for kept in range(turn.decided):
                    step = f"{name}; the agent is killed after {kept} decisions"
                    yield step, partial(self._after, packed, act, kept)

    def _after(self, packed: bytes, act: Callable[[Turn], None], kept: int | None) -> World:
        world: World = pickle.loads(packed)  # noqa: S301 - what `steps` has packed
        act(Turn(self, world, kept))
        return world

    # -- the steps of a world: a writer's, each agent's, time's

    def _acts(self, world: World) -> Acts:
        for number, writer in enumerate(world.writers):
            for kind, name, act in self._of_writer(world, number, writer):
                yield kind, f"{number} {name}", partial(act, number=number)
        for number, owner in enumerate(world.owners):
            for kind, name, act in self._of_owner(world, number, owner):
                yield kind, f"{owner.term} {name}", partial(act, number=number)
        if self.seconds:
            yield "", PASSES, Turn.wait
        if len(world.owners) < 3:
            yield "take-over", "another agent takes the partition over", Turn.take_over

    def _of_owner(self, world: World, number: int, owner: Owner) -> Acts:
        if not owner.live:
            yield "", "replays the log", Turn.replay
            return
        state, holds = owner.state, self._holds(world, owner)
        if self.late and owner.read < len(world.events):
            yield "", "reads an event", Turn.read
        if owner.unpublished:
            yield "", "publishes a decision", Turn.publish
        renewable = state.lock is None or state.lock.expires_at <= world.now + RENEWED_BELOW
        if state.lock_requested and renewable and self._may_hold(world, number):
            yield "", "has its lock confirmed", Turn.confirm_lock
        yield "stays", "is assigned its partition again", Turn.resume
        if owner.behind:
            yield "", "begins again", Turn.begin_again
        if state.lock is not None:
            yield "lost lock" if holds else "", "loses the lock", Turn.lose_lock
        if self.seconds and state.open():
            yield "", "checks", Turn.check

    @staticmethod
    def _holds(world: World, owner: Owner) -> bool:
        return world.lock is not None and world.lock[0] == owner.term

    def _may_hold(self, world: World, number: int) -> bool:
        """The lock is free, has lapsed, is its own, or that of an owner before it."""
        if world.lock is None or world.lock[1] <= world.now:
            return True
        return world.lock[0] <= world.owners[number].term

    def _of_writer(self, world: World, number: int, writer: Writer) -> Acts:
        if self.late and writer.decisions_read < len(world.decisions):
            yield "", "reads decisions", Turn.read_decisions
        progress = writer.progress
        if writer.dead:
            yield "", "starts again", Turn.retry
            return
        if writer.last is not None:
            yield "duplicate", "is delivered again", Turn.deliver_again
        if progress is None and not writer.observed:
            yield from self._of_idle(number, writer)
            return
        yield "dead writer", "dies", Turn.die
        if progress is None:
            if not writer.touched:
                yield "", "touches", Turn.touch
            yield "", "is seen to commit", Turn.commit_observed
        elif writer.landed:
            yield "", SERVES, Turn.complete
        elif progress.abort is not None or progress.late_abort is not None or progress.committed is not None:
            yield "", "ends", Turn.end
        else:
            yield from self._of_open(world, number, writer, progress)

    def _of_idle(self, number: int, writer: Writer) -> Acts:
        job = self.jobs[number]
        may_try = self.ever or writer.attempt < job.attempts
        if job.batches == EVER or (writer.batch < job.batches and may_try):
            yield "", "opens", Turn.open
        if writer.batch and not writer.attempt:
            yield "repeated batch", "runs its last batch again", Turn.run_again

    def _of_open(self, world: World, number: int, writer: Writer, progress: GateProgress) -> Acts:
        if progress.phase is GatePhase.COMPUTING:
            if world.in_table(number) and self.jobs[number].recorded:
                yield "", "finds its batch in the table", Turn.skip
            elif writer.touched:
                yield "", "requests its grant", Turn.request
            else:
                yield "", "touches", Turn.touch
        elif progress.phase is GatePhase.REQUESTED and progress.lease is not None:
            yield "", "begins to publish", Turn.begin_publish
        elif progress.phase is GatePhase.PUBLISHING:
            yield "", "lands", Turn.land
        if self.beats and last_sent(progress) < world.now:
            yield "", "sends a heartbeat", Turn.beat
        yield "abandon", "fails", Turn.give_up
        yield "operator", "is to end, says an operator", Turn.request_abort

    # -- what may never happen

    def judge(self, world: World) -> None:
        for owner in world.owners:
            check_invariants(owner.state)
            running = owner.state.running()
            if running is not None and running.priority > self.settings.max_priority:
                raise BrokenError(f"limits: {running.id} is granted with priority {running.priority}")
            if owner.state.lock_requested and not owner.state.open():
                raise BrokenError("limits: the agent keeps the lock of a table without transactions")
            if owner.state.count_open() > self.settings.max_open:
                raise BrokenError(f"limits: {owner.state.count_open()} transactions are open")
            computing = [each.writer for each in owner.state.admitted()]
            if len(computing) > len(set(computing)):
                raise BrokenError(f"limits: two transactions of one writer compute, of {computing}")
            lock, grant = owner.state.lock, running and running.grant
            if lock and grant and not grant.revoked and grant.lock_owner != lock.owner:
                raise BrokenError(f"restart changes nothing: the log doesn't name {lock.owner}")
        self._judge_grants(world)
        if not self.late:
            self._judge_replays(world)

    def _judge_grants(self, world: World) -> None:
        allowed = {
            number: writer.progress.lease
            for number, writer in enumerate(world.writers)
            if writer.progress is not None and may_publish(writer.progress, world.now)
        }
        if len(allowed) > 1:
            raise BrokenError(f"one grant: {sorted(allowed)} may publish now")
        for number, lease in allowed.items():
            assert lease is not None
            assert lease.deadline is not None
            deadlines = [
                running.grant.deadline
                for owner in world.owners
                if (running := owner.state.running()) is not None
                and running.grant is not None
                and running.id == world.writers[number].transaction
            ]
            if not self.late and max(deadlines, default=-1.0) < lease.deadline:
                raise BrokenError(f"one grant: {number} relies on its grant for longer than the agent does")

    def _judge_replays(self, world: World) -> None:
        (owner,) = world.owners
        expected = facts(owner.state)
        end = Position(len(world.decisions), owner.term)
        oldest = owner.state.oldest_needed(world.now)
        newest = (len(world.events), end) if oldest is None else (oldest, owner.positions.at(oldest, end))
        for start, position in dict.fromkeys([BEGINNING, newest]):
            state = replayed(self.settings, world, start, position)
            found = facts(state)
            odd = [name for name in (KEPT if start else expected) if found[name] != expected[name]]
            if odd:
                raise BrokenError(
                    f"restart changes nothing: a replay from {start} gives other {', '.join(odd)}"
                )
            state.lock, state.lock_requested = owner.state.lock, owner.state.lock_requested
            state.lock_used = owner.state.lock_used
            effects = machine.step(state, machine.Replayed(world.now, len(world.events) - 1))
            decided = [each for each in effects if isinstance(each, events.DecisionEvent)]
            if decided:
                what = f"{decided[0].type} of {decided[0].transaction}"
                raise BrokenError(
                    f"restart changes nothing: after a replay from {start} the agent decides {what}"
                )

    def wants(self, world: World) -> dict[str, bool]:
        found = {}
        for number, writer in enumerate(world.writers):
            progress = writer.progress
            if progress is not None and progress.abort is None and progress.late_abort is None:
                found[str(number)] = writer.landed
        return found

    def form(self, world: World) -> Form:
        """The least one of the forms in the orders of jobs that are alike."""
        plain = tuple(range(len(self.jobs)))
        return min((form_of(self, world, order) for order in (plain, *self.alike)), key=repr)


def last_sent(progress: GateProgress) -> float:
    """When the transaction's last `seq` was sent."""
    return max(progress.send_times._sent_at.values(), default=-1.0)


def may_publish(progress: GateProgress, now: float) -> bool:
    """Whether the writer's lease lasts, and no abort has reached it. Not asked of the gate, which is what is judged."""
    lease, phase = progress.lease, progress.phase
    if lease is None or lease.deadline is None or lease.deadline <= now:
        return False
    aborted = progress.abort is not None or progress.late_abort is not None
    return not aborted and phase in (GatePhase.REQUESTED, GatePhase.PUBLISHING)


BEGINNING = (0, Position(0, None))


def replayed(settings: TableSettings, world: World, start: int, position: Position) -> Watched:
    """The state of an agent that has replayed the log from here on. If that isn't the beginning, it has read the ledger."""
    state = Watched(TABLE, settings, "A")
    if start and TABLE in world.ledger.tables:
        machine.restore(state, world.ledger.tables[TABLE])
    replay_log(state, world, start, position)
    return state


def replay_log(state: TableState, world: World, start: int, position: Position) -> None:
    published = PublishedDecisions(position, list(enumerate(world.decisions))[position.offset :])
    for offset, event in list(enumerate(world.events))[start:]:
        machine.replay_event(state, event, offset, world.now)
        for decision in published.pop_due(offset):
            machine.replay_decision(state, decision, world.now)
    for decision in published.pop_due(None):
        machine.replay_decision(state, decision, world.now)


class Turn:
    """One step of a world, which it changes."""

    def __init__(self, model: Table, world: World, kept: int | None) -> None:
        self._model, self._world, self._kept = model, world, kept
        self.decided = 0
        if kept is not None:
            world.faults -= 1

    def wait(self) -> None:
        self._world.now += 1.0

    # -- a writer

    def open(self, number: int) -> None:
        world, writer, job = self._world, self._world.writers[number], self._model.jobs[number]
        writer.leave()
        writer.transaction = f"{'hudi:' if job.observed else ''}w{number}.{writer.batch}.{writer.attempt}"
        writer.base, writer.order, writer.observed = len(world.commits), -1, job.observed
        if not job.observed:
            writer.progress = GateProgress(TABLE, f"w{number}", MARGIN)
        admission = job.retries if writer.attempt else job.admission
        fields: dict[str, Any] = {
            "conflict_rule": job.rule,
            "heartbeat_seconds": HEARTBEAT,
            "observed": job.observed,
        }
        if not job.observed:
            fields |= {"batch_id": writer.batch, "admission": admission, "priority": job.priority}
        self._send(number, events.CommitIntent, scope=job.markers if admission == "queued" else (), **fields)

    def touch(self, number: int) -> None:
        self._world.writers[number].touched = True
        self._send(number, events.MarkerCreated, markers=self._model.jobs[number].markers)

    def request(self, number: int) -> None:
        progress = self._progress(number)
        progress.request()
        self._send(number, events.CommitRequested, seq=progress.send_times.next_seq(self._world.now))

    def beat(self, number: int) -> None:
        seq = self._progress(number).send_times.next_seq(self._world.now)
        self._send(number, events.WriterHeartbeat, seq=seq)

    def begin_publish(self, number: int) -> None:
        if not isinstance(self._progress(number).begin_publish(self._world.now), GrantLease):
            self.give_up(number)

    def land(self, number: int) -> None:
        """The last step of a publish, right after the gate's last check."""
        world, writer = self._world, self._world.writers[number]
        if not isinstance(self._progress(number).check_lease(world.now), GrantLease):
            self.give_up(number)
            return
        if not may_publish(self._progress(number), world.now):
            raise BrokenError(f"one grant: {number} lands after its lease")
        if world.lock is None or world.lock[1] <= world.now:
            raise BrokenError(f"one grant: {number} lands without the lock")
        if world.in_table(number):
            raise BrokenError(f"once: batch {writer.batch} of {number} lands twice")
        for other in world.commits[writer.base :]:
            if self._excludes(number, writer.order, other):
                raise BrokenError(f"no overlap: {number} lands without {other.transaction} in its base")
        self._commit(number)
        writer.landed = True

    def _excludes(self, number: int, order: int, other: Commit) -> bool:
        """Whether a commit that isn't in this writer's base may not be in the table."""
        mine, theirs = self._model.jobs[number], self._model.jobs[other.writer]
        rule = mine.rule if mine.rule == theirs.rule else "file-group"
        too_early = rule == "ordered" and other.order > order
        if theirs.observed and (other.beside == number or self._model.late):
            return False
        return any(
            places_meet(place_of(one), place_of(another))
            and (too_early or operations_conflict(rule, one.operation, another.operation))
            for one in mine.markers
            for another in theirs.markers
        )

    def _commit(self, number: int, *beside: int) -> None:
        writer = self._world.writers[number]
        commit = Commit(number, writer.transaction, writer.batch, writer.order, *beside)
        self._world.commits.append(commit)

    def complete(self, number: int) -> None:
        progress, batch = self._progress(number), self._world.writers[number].batch
        assert progress.lease is not None
        progress.end()
        self._send(number, events.CommitCompleted, grant=progress.lease.grant, batch_id=batch)
        self._next_batch(number)

    def commit_observed(self, number: int) -> None:
        granted = [place for place, each in enumerate(self._world.writers) if _has_grant(each)]
        self._commit(number, *granted)
        self._send(number, events.CommitCompleted, markers=self._model.jobs[number].markers)
        self._next_batch(number)

    def skip(self, number: int) -> None:
        """The batch is in the table."""
        self._progress(number).end()
        self._send(number, events.TransactionAbandoned, reason="in the table")
        self._next_batch(number)

    def end(self, number: int) -> None:
        """Stop after an abort, or skip a batch that is committed."""
        progress = self._progress(number)
        if progress.committed is not None:
            self._next_batch(number)
        elif progress.lease is not None:
            self.give_up(number)
        else:
            progress.end()
            self.retry(number)

    def give_up(self, number: int) -> None:
        self._progress(number).end()
        self._send(number, events.TransactionAbandoned, reason="failed")
        self.retry(number)

    def _next_batch(self, number: int) -> None:
        writer = self._world.writers[number]
        writer.leave()
        writer.batch, writer.attempt = writer.batch + 1, 0

    def retry(self, number: int) -> None:
        writer = self._world.writers[number]
        writer.leave()
        writer.attempt += 1

    def die(self, number: int) -> None:
        self._world.writers[number].dead = True

    def run_again(self, number: int) -> None:
        writer = self._world.writers[number]
        writer.batch, writer.attempt = writer.batch - 1, self._model.jobs[number].attempts
        self.open(number)

    def deliver_again(self, number: int) -> None:
        last = self._world.writers[number].last
        assert last is not None
        self._append(last)

    def request_abort(self, number: int) -> None:
        self._send(number, events.AbortRequested, operator="ops", reason="it hangs")

    def _progress(self, number: int) -> GateProgress:
        progress = self._world.writers[number].progress
        assert progress is not None
        return progress

    def _send(self, number: int, kind: Any, **more: Any) -> None:
        writer = self._world.writers[number]
        about = {"table": TABLE, "transaction": writer.transaction, "writer": f"w{number}", "at": AT}
        event = kind(event_id=f"{kind.__name__} of {writer.transaction}", **about, **more)
        writer.last = event if "duplicate" in self._model.kinds else None
        self._append(event)

    def _append(self, event: WriterEventUnion) -> None:
        self._world.events.append(event)
        if not self._model.late:
            self.read(0)

    def read_decisions(self, number: int) -> None:
        """A writer reads the decisions that it has not read, and ignores those of others."""
        world, writer = self._world, self._world.writers[number]
        for record in world.decisions[writer.decisions_read :]:
            writer.decisions_read += 1
            if isinstance(record, events.PartitionTaken):
                writer.term = record.term
            elif isinstance(record, events.DecisionEvent) and events.counts(record, writer.term):
                self._obey(writer, record)

    def _obey(self, writer: Writer, decision: events.DecisionEventUnion) -> None:
        if writer.progress is None or writer.dead or decision.transaction != writer.transaction:
            return
        admitted = writer.progress.admitted
        writer.progress.apply(decision, writer.decisions_read)
        if isinstance(decision, events.Admitted) and admitted is None:
            writer.base, writer.order = len(self._world.commits), self._world.admissions
            self._world.admissions += 1

    # -- an agent

    def read(self, number: int) -> None:
        world, owner = self._world, self._world.owners[number]
        event, offset = world.events[owner.read], owner.read
        owner.read += 1
        if isinstance(event, events.CommitIntent):
            owner.positions.on_intent(offset, Position(len(world.decisions), owner.term))
        self._step(number, machine.EventRead(event, offset, world.now, world.now))

    def confirm_lock(self, number: int) -> None:
        world, owner = self._world, self._world.owners[number]
        quiet = 0.0
        if world.lock is not None and world.lock[0] != owner.term and not self._model.fenced:
            quiet = world.lock[1]
        known = owner.state.lock
        quiet = max(quiet, 0.0 if known is None else known.quiet_until)
        world.lock = (owner.term, world.now + LOCK_SECONDS)
        view = LockView(f"agent {owner.term}", world.lock[1], quiet)
        self._step(number, machine.LockConfirmed(world.now, owner.read - 1, view))

    def lose_lock(self, number: int) -> None:
        world, owner = self._world, self._world.owners[number]
        self._step(number, machine.LockFailed(world.now, owner.read - 1, "lost", "not confirmed in time"))

    def check(self, number: int) -> None:
        world, owner = self._world, self._world.owners[number]
        behind = owner.read < len(world.events)
        caught_up = None if behind else CaughtUp(owner.since, world.now)
        self._step(number, machine.Tick(world.now, owner.read - 1, caught_up))

    def take_over(self) -> None:
        """Another agent publishes its term, and reads the decisions later. From then on the former one's don't count."""
        world = self._world
        taken = [each.term for each in world.decisions if isinstance(each, events.PartitionTaken)]
        term = "ABCDE"[len(dict.fromkeys(["A", *taken]))]
        world.owners.append(Owner(term, Watched(TABLE, self._model.settings, term), live=False))
        self._take(term)

    def _take(self, term: str) -> None:
        taken = events.PartitionTaken.model_construct(**events.UNSTAMPED, table=TABLE, agent=term, term=term)
        self._append_decision(taken)

    def resume(self, number: int) -> None:
        """A paused agent publishes its term again, and goes on if it finds no other's since (`handlers/group/ownership.py`)."""
        world, owner = self._world, self._world.owners[number]
        takers = [each.term for each in world.decisions if isinstance(each, events.PartitionTaken)]
        self._take(owner.term)
        if takers and takers[-1] != owner.term:
            world.owners.remove(owner)
            for other in world.owners:
                other.behind = other.term == takers[-1]

    def begin_again(self, number: int) -> None:
        """An agent that finds another's term after its own begins as one that takes the partition over."""
        self._world.owners.pop(number)
        self.take_over()

    def replay(self, number: int) -> None:
        world, owner = self._world, self._world.owners[number]
        replay_log(owner.state, world, *BEGINNING)
        owner.read, owner.since, owner.live = len(world.events), world.now, True
        self._step(number, machine.Replayed(world.now, owner.read - 1))

    def _step(self, number: int, given: machine.Input) -> None:
        owner = self._world.owners[number]
        looks = owner.state.looks
        effects = machine.step(owner.state, given)
        decisions = [each for each in effects if isinstance(each, events.DecisionEvent)]
        if (
            not decisions
            and owner.state.looks > looks
            and isinstance(given, machine.Tick | machine.LockConfirmed)
        ):
            raise BrokenError("linear checks: nothing has changed, and a queued transaction is looked at")
        self._judge_victims(owner.state, effects)
        self._judge_grant(owner.state, effects)
        if isinstance(given, machine.Tick):
            self._judge_silence(owner, effects)
        self.decided = len(decisions)
        if self._kept is None:
            self._publish(owner, effects)
            return
        # The agent is killed after some of its decisions. Another one replays what it has published, and decides the rest.
        world = self._world
        self._publish(owner, [*decisions[: self._kept]])
        owner.state, owner.since = replayed(self._model.settings, world, *BEGINNING), world.now
        self._publish(owner, machine.step(owner.state, machine.Replayed(world.now, owner.read - 1)))

    def _judge_grant(self, state: TableState, effects: list[Effect]) -> None:
        """One is granted in its turn, for half of a lease at least, and not in a quiet time."""
        running, least = state.running(), 0.5 * state.settings.grant_lease
        granted = [each for each in effects if isinstance(each, events.CommitGranted)]
        if not granted or running is None:
            return
        if granted[-1].lease_seconds < least:
            raise BrokenError(f"limits: {running.id} is granted for less than {least:.2f} s")
        if state.lock is not None and state.lock.quiet_until > self._world.now:
            raise BrokenError(f"one grant: {running.id} is granted in the quiet time")
        for other in state.in_phase[Phase.WAITING].values():
            if other.requested < running.requested and other.conflict_rule != "ordered":
                raise BrokenError(
                    f"limits: {running.id} is granted before {other.id}, which requested earlier"
                )

    def _judge_silence(self, owner: Owner, effects: list[Effect]) -> None:
        if owner.read == len(self._world.events):
            return
        for each in effects:
            if isinstance(each, events.Abort) and each.reason == "writer-lost":
                raise BrokenError(f"lag is no silence: {each.transaction} is lost, and the agent lags")

    def _publish(self, owner: Owner, effects: list[Effect]) -> None:
        world = self._world
        for effect in effects:
            if isinstance(effect, events.DecisionEvent):
                owner.unpublished.append(effect.model_copy(update={"term": owner.term}))
            elif isinstance(effect, events.BatchCommitted | events.ConflictsLost):
                world.ledger.add(effect)
            elif isinstance(effect, ReleaseLock) and self._model._holds(world, owner):
                world.lock = None
        while owner.unpublished and not self._model.late:
            self.publish(0)

    def publish(self, number: int) -> None:
        self._append_decision(self._world.owners[number].unpublished.pop(0))

    def _append_decision(self, record: DecisionRecord) -> None:
        world = self._world
        if isinstance(record, events.CommitGranted):
            same = [each for each in world.decisions if isinstance(each, events.CommitGranted)]
            if record.grant in (each.grant for each in same):
                raise BrokenError(f"one grant: two have the id {record.grant}")
        world.decisions.append(record)
        if not self._model.late:
            for number in range(len(world.writers)):
                self.read_decisions(number)

    def _judge_victims(self, state: TableState, effects: list[Effect]) -> None:
        """Of two that conflict, one is aborted, and never one whose grant runs."""
        lost: dict[str, set[str]] = {}
        for each in effects:
            if not isinstance(each, events.Abort):
                continue
            known = state.transactions.get(each.transaction)
            if each.reason in ("conflict", "writer-lost") and known is not None and known.grant is not None:
                raise BrokenError(f"one victim: {each.transaction} is aborted while its grant runs")
            if each.reason == "conflict":
                lost[each.transaction] = {entry.other_transaction for entry in each.conflicts}
                if all(self._is_weaker(state, other, each.transaction) for other in lost[each.transaction]):
                    raise BrokenError(f"right victim: {each.transaction} loses to a weaker one")
        for victim, winners in lost.items():
            both = winners & lost.keys()
            if both:
                raise BrokenError(f"one victim: {victim} and {', '.join(both)} are all aborted")

    def _is_weaker(self, state: TableState, winner: str, victim: str) -> bool:
        """Whether neither a right to win, nor its priority, nor its age is a reason why this transaction wins."""
        known = state.transactions.get(winner)
        if known is None or known.phase not in (*STOPPABLE, Phase.QUEUED):
            return False
        mine, theirs = self._rank(winner), self._rank(victim)
        if state.is_protected(known):
            # The victim has lost once more meanwhile.
            was_protected = state.losses[state.closed[victim].writer] > state.settings.max_losses
            return was_protected and mine[1] < theirs[1]
        return mine < theirs

    def _rank(self, transaction: str) -> tuple[int, int]:
        intents = (at for at, each in enumerate(self._world.events) if each.transaction == transaction)
        number = int(transaction.removeprefix("hudi:w").partition(".")[0].removeprefix("w"))
        return self._model.jobs[number].priority, -next(intents)


class _Packer(pickle.Pickler):
    """Packs a world. Events never change, so worlds share them."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _SHARED


def _share(event: events.EventBase) -> tuple[Callable[[int], events.EventBase], tuple[int]]:
    _EVENTS[id(event)] = event
    return _shared, (id(event),)


def _shared(number: int) -> events.EventBase:
    return _EVENTS[number]


_EVENTS: dict[int, events.EventBase] = {}
_SHARED = {
    kind: _share
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.EventBase)
}


def _packed(world: World) -> bytes:
    file = BytesIO()
    _Packer(file).dump(world)
    return file.getvalue()


def _has_grant(writer: Writer) -> bool:
    return writer.progress is not None and writer.progress.lease is not None
