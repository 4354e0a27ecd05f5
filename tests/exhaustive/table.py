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

What may never happen is in `table_judge.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

from lakewarden.handlers.table.state import TableSettings
from lakewarden.spark_jobs.gate.progress import GatePhase, GateProgress
from tests.exhaustive.engine import Act, BrokenError, Form, Steps, affordable
from tests.exhaustive.table_form import form_of
from tests.exhaustive.table_judge import judge
from tests.exhaustive.table_turn import Turn
from tests.exhaustive.table_world import (
    EVER,
    PASSES,
    RENEWED_BELOW,
    SCALED,
    SERVES,
    Job,
    Owner,
    Watched,
    World,
    Writer,
    pack,
)
from tests.unit.handlers.table.world import TABLE

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
            packed = packs.get(paid.faults) or packs.setdefault(paid.faults, pack(paid))
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
                yield kind, f"w{number} {name}", partial(act, number=number)
        for number, owner in enumerate(world.owners):
            for kind, name, act in self._of_owner(world, number, owner):
                yield kind, f"agent {owner.term} {name}", partial(act, number=number)
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

    def judge(self, world: World) -> None:
        judge(self, world)

    def wants(self, world: World) -> dict[str, bool]:
        found = {}
        for number, writer in enumerate(world.writers):
            progress = writer.progress
            if progress is not None and progress.abort is None and progress.late_abort is None:
                found[f"w{number}"] = writer.landed
        return found

    def form(self, world: World) -> Form:
        """The least one of the forms in the orders of jobs that are alike."""
        plain = tuple(range(len(self.jobs)))
        return min((form_of(self, world, order) for order in (plain, *self.alike)), key=repr)


def last_sent(progress: GateProgress) -> float:
    """When the transaction's last `seq` was sent."""
    return max(progress.send_times._sent_at.values(), default=-1.0)
