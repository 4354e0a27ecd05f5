"""What each step of a table does: of a writer, an agent, or time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakewarden import events
from lakewarden.events import DecisionRecord, WriterEventUnion
from lakewarden.handlers.table import machine
from lakewarden.handlers.table.effects import Effect, ReleaseLock
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.state import LockView
from lakewarden.spark_jobs.gate.progress import GateProgress, GrantLease
from tests.exhaustive.table_judge import (
    BEGINNING,
    judge_grant_id,
    judge_landing,
    judge_step,
    replay_log,
    replayed,
)
from tests.exhaustive.table_world import (
    HEARTBEAT,
    LOCK_SECONDS,
    MARGIN,
    Commit,
    Owner,
    Watched,
    World,
    Writer,
)
from tests.unit.handlers.table.world import AT, TABLE

if TYPE_CHECKING:
    from tests.exhaustive.table import Table


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
        judge_landing(self._model, world, number, self._progress(number))
        self._commit(number)
        writer.landed = True

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
        effects = judge_step(self._model, self._world, owner, given)
        decisions = [each for each in effects if isinstance(each, events.DecisionEvent)]
        self.decided = len(decisions)
        if self._kept is None:
            self._publish(owner, effects)
            return
        # The agent is killed after some of its decisions. Another one replays what it has published, and decides the rest.
        world = self._world
        self._publish(owner, [*decisions[: self._kept]])
        owner.state, owner.since = replayed(self._model.settings, world, *BEGINNING), world.now
        self._publish(owner, machine.step(owner.state, machine.Replayed(world.now, owner.read - 1)))

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
            judge_grant_id(world, record)
        world.decisions.append(record)
        if not self._model.late:
            for number in range(len(world.writers)):
                self.read_decisions(number)


def _has_grant(writer: Writer) -> bool:
    return writer.progress is not None and writer.progress.lease is not None
