"""The table core against random writers. The invariants are the promises G1 to G7 of the design.

- The writers obey the protocol. They may be slow, silent, cut off, or restarted while their older process still runs.
- The agent may lag, crash between two verdicts, and lose its lock.
- A naive model keeps what is true of the table: which writer read its base when, and which one published when. Each check
  compares it with what the core decided.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lakewarden.events import (
    Abort,
    AbortRequested,
    Admission,
    Admitted,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    ConflictRule,
    DecisionEventUnion,
    GrantRenewed,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.table.admission import blockers, blocking_overlaps
from lakewarden.handlers.table.effects import AcquireLock, ReleaseLock
from lakewarden.handlers.table.grants import earlier_turns
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.machine import LockConfirmed, LockFailed
from lakewarden.handlers.table.memory import largest_transaction
from lakewarden.handlers.table.state import LockView, TableSettings
from lakewarden.handlers.table.transactions import OPEN, Phase
from tests.unit.handlers.table.test_footprints import named_pairs
from tests.unit.handlers.table.world import VERDICTS, World, facts, place_of, places_meet

WRITERS = 4
LOCK_SECONDS = 29.5
markers = st.lists(
    st.builds(
        Marker,
        partition=st.sampled_from(["", "p", "", "p", "*"]),
        file_group=st.sampled_from(["1", "10", "*"]),
        operation=st.sampled_from(["append", "merge", "delete"]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
indexes = st.integers(0, 20)


@dataclass
class Process:
    """A writer's process with one transaction, from the writer's point of view."""

    id: str
    writer: str
    batch: int
    rule: ConflictRule
    admission: Admission
    phase: Literal["opening", "computing", "requested", "granted", "published", "ended"] = "opening"
    pending: deque[DecisionEventUnion] = field(default_factory=deque)
    """Published verdicts that the writer has not received yet."""
    touched: set[Marker] = field(default_factory=set)
    seq: int = 0
    sent: dict[int, float] = field(default_factory=dict)
    base_read: float = -1.0
    published: float | None = None
    deadline: float = -1.0
    grant: str = ""
    admission_number: int = -1
    """Its place among the admissions."""


@dataclass
class Leased:
    """A published grant, with the deadline that its writer will compute."""

    process: Process
    grant: str
    deadline: float


def operations_clash(strict: bool, mine: str, other: str) -> bool:
    if strict:
        return True
    return {mine, other} in ({"delete"}, {"delete", "merge"})


def clash(first: Process, second: Process) -> bool:
    """Whether two footprints conflict, by comparing all pairs of markers. `first` was published before `second`."""
    in_turn = first.rule == second.rule == "ordered" and first.admission_number < second.admission_number
    strict = first.rule != second.rule or first.rule == "file-group"
    strict = strict or (first.rule == "ordered" and not in_turn)
    return any(
        places_meet(place_of(x), place_of(y)) and operations_clash(strict, x.operation, y.operation)
        for x in first.touched
        for y in second.touched
    )


class Table(RuleBasedStateMachine):
    @initialize(
        early=st.sampled_from([True, True, True, False]),
        policy=st.sampled_from(["first-intent", "first-intent", "first-committer"]),
        hold=st.sampled_from(["while-active", "per-commit"]),
        max_losses=st.sampled_from([1, 2, 3]),
        format_records_batches=st.booleans(),
        computing=st.integers(0, 3),
        max_grant=st.sampled_from([600.0, 600.0, 25.0]),
        max_transaction=st.sampled_from([0.0, 0.0, 40.0]),
    )
    def start(
        self,
        *,
        early: bool,
        policy: Any,
        hold: Any,
        max_losses: int,
        format_records_batches: bool,
        computing: int = 0,
        max_grant: float = 600.0,
        max_transaction: float = 0.0,
    ) -> None:
        self.w = World(
            TableSettings(
                early_detection=early,
                policy=policy,
                hold=hold,
                max_losses=max_losses,
                max_priority=1,
                max_grant=max_grant,
                max_transaction=max_transaction,
            )
        )
        self.format_records_batches = format_records_batches
        """Whether the table format records which batches it contains."""
        self.processes: list[Process] = []
        self.current: dict[str, Process] = {}
        self.batches = dict.fromkeys((f"w{n}" for n in range(WRITERS)), 0)
        self.inbox: deque[WriterEventUnion] = deque()
        self.sent: list[WriterEventUnion] = []
        self.leased: list[Leased] = []
        self.admissions = itertools.count()
        self.lost_conflicts: set[tuple[str, str]] = set()
        self.known_committed: dict[str, int] = {}
        self.read_markers: dict[str, set[Marker]] = {}
        self.lock_end = 0.0
        self.lock_owner = 0
        self.adopting = False
        for writer in range(computing):
            self.begin(
                writer=writer,
                admission="optimistic",
                conflict_rule="file-group",
                priority=0,
                scope=(),
                killed=False,
            )
            self.read_all()
            self.receive(index=0)
        self.lock_confirmed()

    # -- writers

    def send(self, kind: Any, process: Process, **fields: Any) -> None:
        event = self.w.event(kind, process.id, writer=process.writer, event_id=f"e{len(self.sent)}", **fields)
        self.sent.append(event)
        self.inbox.append(event)

    def next_seq(self, process: Process) -> int:
        process.seq += 1
        process.sent[process.seq] = self.w.now
        return process.seq

    def pick(self, index: int) -> Process | None:
        alive = self.processes_alive()
        return alive[-1 - index % min(len(alive), 8)] if alive else None

    @rule(
        writer=st.integers(0, WRITERS - 1),
        admission=st.sampled_from(["optimistic", "queued"]),
        conflict_rule=st.sampled_from(["file-group", "file-group", "deleted-file", "ordered", "ordered"]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        scope=st.just(()) | markers,
        killed=st.booleans(),
    )
    def begin(
        self, *, writer: int, admission: Any, conflict_rule: Any, priority: int, scope: Any, killed: bool
    ) -> None:
        """A writer starts its next batch, or repeats its last one. Its older process may be dead, or may still run."""
        name = f"w{writer}"
        older = self.current.get(name)
        if older is not None and killed:
            older.phase = "ended"
        process = Process(f"t{len(self.processes)}", name, self.batches[name], conflict_rule, admission)
        self.processes.append(process)
        self.current[name] = process
        self.send(
            CommitIntent,
            process,
            batch_id=process.batch,
            admission=admission,
            conflict_rule=conflict_rule,
            priority=priority,
            scope=scope,
        )

    @rule(index=indexes, found=markers)
    def touch(self, index: int, found: Any) -> None:
        self.publish_markers(index, found, "computing")

    @rule(index=indexes, found=markers)
    def touch_too_early(self, index: int, found: Any) -> None:
        """A writer of another make doesn't wait for its admission."""
        self.publish_markers(index, found, "opening")

    def publish_markers(self, index: int, found: Any, phase: str) -> None:
        process = self.pick(index)
        if process is not None and process.phase == phase:
            process.touched.update(found)
            self.send(MarkerCreated, process, markers=found)

    @rule(index=indexes)
    def beat(self, index: int) -> None:
        process = self.pick(index)
        if process is not None:
            self.send(WriterHeartbeat, process, seq=self.next_seq(process))

    @rule(index=indexes, last=st.just(()) | markers)
    def request(self, index: int, last: Any) -> None:
        process = self.pick(index)
        if process is not None and process.phase == "computing":
            process.touched.update(last)
            process.phase = "requested"
            self.send(CommitRequested, process, seq=self.next_seq(process), markers=last)

    @rule(index=indexes)
    def receive(self, index: int) -> None:
        process = self.pick(index)
        if process is not None:
            self.receive_all(process)

    def receive_all(self, process: Process) -> None:
        while process.pending:
            self.apply_verdict(process, process.pending.popleft())

    def apply_verdict(self, process: Process, verdict: DecisionEventUnion) -> None:
        match verdict:
            case Admitted() if process.phase == "opening":
                process.phase = "computing"
                process.base_read = self.w.now
                if self.format_records_batches and self.is_published(process.writer, process.batch):
                    # The table already contains this batch: its commit was never reported.
                    self.end_without_commit(process)
                    self.batches[process.writer] = max(self.batches[process.writer], process.batch + 1)
            case CommitGranted(grant=grant, lease_seconds=lease, seq=seq) if process.phase == "requested":
                process.phase, process.grant = "granted", grant
                process.deadline = process.sent[seq] + lease
            case GrantRenewed(grant=grant, lease_seconds=lease, seq=seq) if process.grant == grant:
                process.deadline = max(process.deadline, process.sent[seq] + lease)
            case Abort() if process.published is None:
                process.phase = "ended"
            case AlreadyCommitted():
                process.phase = "ended"
                self.batches[process.writer] = max(self.batches[process.writer], process.batch + 1)
            case _:
                pass

    def is_published(self, writer: str, batch: int) -> bool:
        return any(
            each.writer == writer and each.batch == batch and each.published is not None
            for each in self.processes
        )

    @rule(index=indexes)
    def publish(self, index: int) -> None:
        process = self.pick(index)
        if process is not None and process.phase == "granted":
            self.land(process)

    def land(self, process: Process) -> None:
        """The writer's commit becomes durable, if its own clock still allows it."""
        if self.w.now >= process.deadline:
            return
        twice = self.is_published(process.writer, process.batch)
        assert not (self.format_records_batches and twice), "G6: one batch is in the table twice"
        process.published, process.phase = self.w.now, "published"
        for other in self.processes:
            if other is process or other.published is None or not clash(other, process):
                continue
            assert process.base_read > other.published, (
                f"G2: {process.id} overwrote {other.id} without having read its commit, or out of turn"
            )

    @rule(index=indexes)
    def complete(self, index: int) -> None:
        process = self.pick(index)
        if process is not None and process.phase == "published":
            self.finish(process)

    def finish(self, process: Process) -> None:
        """Report the commit. The writer's checkpoint advances, unless a newer process of the writer owns it."""
        process.phase = "ended"
        self.send(CommitCompleted, process, grant=process.grant, version=process.id)
        if self.current[process.writer] is process:
            self.batches[process.writer] = process.batch + 1

    @rule(index=indexes)
    def abandon(self, index: int) -> None:
        process = self.pick(index)
        if process is not None and process.published is None:
            self.end_without_commit(process)

    def end_without_commit(self, process: Process) -> None:
        process.phase = "ended"
        self.send(TransactionAbandoned, process, reason="the writer failed")

    @rule(index=indexes)
    def operator_aborts(self, index: int) -> None:
        """An operator requests the abort of a transaction, which may have ended meanwhile."""
        process = self.pick(index)
        if process is not None:
            self.send(AbortRequested, process, operator="ops", reason="it hangs")

    @precondition(lambda self: self.sent)
    @rule(index=st.integers(0, 1000))
    def deliver_again(self, index: int) -> None:
        self.inbox.append(self.sent[index % len(self.sent)])

    @rule(index=indexes, found=markers)
    def work(self, index: int, found: Any) -> None:
        """One writer takes its next natural step, and the agent reads everything at once."""
        process = self.pick(index)
        if process is None:
            return
        self.receive_all(process)
        if process.phase == "computing":
            process.touched.update(found)
            self.send(MarkerCreated, process, markers=found)
        self.go_on(process)
        self.read_all()

    def go_on(self, process: Process) -> None:
        """The writer receives its verdicts and takes its next natural step, without further markers."""
        self.receive_all(process)
        match process.phase:
            case "computing":
                process.phase = "requested"
                self.send(CommitRequested, process, seq=self.next_seq(process))
            case "granted":
                self.land(process)
            case "published":
                self.finish(process)
            case "opening" | "requested":
                self.send(WriterHeartbeat, process, seq=self.next_seq(process))
            case "ended":
                pass

    def processes_alive(self) -> list[Process]:
        return [each for each in self.processes if each.phase != "ended"]

    # -- the agent

    @rule(count=st.integers(1, 4))
    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.inbox))):
            self.read_event(self.inbox.popleft())

    def read_all(self) -> None:
        while self.inbox:
            self.read_event(self.inbox.popleft())

    def read_event(self, event: WriterEventUnion) -> None:
        self.note_event(event)
        self.w.caught_up_since = None if self.inbox else self.w.caught_up_since
        self.checked(lambda: self.w.read(event))
        if not self.inbox and self.w.caught_up_since is None:
            self.w.caught_up_since = self.w.now

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 11.0]))
    def tick(self, seconds: float) -> None:
        if self.inbox:
            self.w.caught_up_since = None
        elif self.w.caught_up_since is None:
            self.w.caught_up_since = self.w.now
        self.checked(lambda: self.w.tick(seconds))

    @rule(seconds=st.sampled_from([0.1, 2.0, 8.0, 22.0]))
    def pass_time(self, seconds: float) -> None:
        self.w.now += seconds

    @rule()
    def lock_confirmed(self) -> None:
        """The agent acquires or renews the lock. After a crash, only by adoption or after the former lease."""
        now = self.w.now
        if not self.w.state.lock_requested:
            return
        quiet = 0.0
        if self.w.state.lock is None:
            if now < self.lock_end and not self.adopting:
                return
            quiet = self.lock_end if self.adopting else 0.0
            self.adopting = False
            self.lock_owner += 1
        else:
            quiet = self.w.state.lock.quiet_until
        self.lock_end = now + LOCK_SECONDS
        view = LockView(f"agent-{self.lock_owner}", self.lock_end, quiet)
        self.checked(lambda: self.w.apply(LockConfirmed(now, self.w.offset, view)))

    @precondition(lambda self: self.w.state.lock is not None)
    @rule()
    def lock_gone(self) -> None:
        self.lock_end = 0.0
        self.checked(lambda: self.w.apply(LockFailed(self.w.now, self.w.offset, "lost", "lost")))

    @rule(index_too=st.booleans())
    def over_budget(self, index_too: bool) -> None:
        """The agent's memory budget is reached. With `index_too`, even if all that it could abort were gone."""
        largest = largest_transaction(self.w.state)
        if largest is not None:
            self.checked(lambda: self.w.over_budget(largest.transaction, 1_000_000))
        if index_too:
            self.checked(lambda: self.w.over_budget(None, 1_000_000))

    @rule(writer=st.integers(0, WRITERS - 1))
    def operator_corrects(self, writer: int) -> None:
        """An operator states that the table has the writer's batch, or all before it."""
        name = f"w{writer}"
        if not self.inbox:
            self.known_committed[name] = max(
                self.batches[name] - 1, self.known_committed.get(name, self.batches[name])
            )
            self.checked(lambda: self.w.correct(name, self.known_committed[name]))

    @precondition(lambda self: self.inbox)
    @rule(published=st.integers(0, 3))
    def crash(self, published: int) -> None:
        """The agent dies during a step, after it has published only some of its verdicts."""
        log = list(self.w.log)
        event = self.inbox.popleft()
        offset = self.w.offset + 1
        probe = self.w.rebuilt()
        probe.offset, probe.now = self.w.offset, self.w.now
        probe.state.lock, probe.state.lock_requested = self.w.state.lock, self.w.state.lock_requested
        probe.state.lock_used = self.w.state.lock_used
        probe.read(event)
        verdicts = [each for each in probe.effects if isinstance(each, VERDICTS)][:published]
        self.note_event(event)
        self.publishing(verdicts, self.w.now)
        self.restart([*log, (event, offset), *verdicts], offset)

    @rule()
    def restart_cleanly(self) -> None:
        """The agent is killed between two steps."""
        self.restart(list(self.w.log), self.w.offset)

    def restart(self, log: list[Any], offset: int) -> None:
        old = self.w
        self.w = old.rebuilt(log)
        self.w.offset, self.w.now = offset, old.now + 1.0
        self.w.caught_up_since = None
        self.adopting = False
        self.checked(self.w.replayed)
        needs = self.w.of(AcquireLock)
        self.adopting = (
            bool(needs) and needs[0].adopt is not None and needs[0].adopt == f"agent-{self.lock_owner}"
        )

    def note_event(self, event: WriterEventUnion) -> None:
        before = self.w.state.transactions.get(event.transaction)
        fresh = before is None and event.transaction not in self.w.state.closed
        if isinstance(event, CommitIntent) and fresh:
            self.read_markers.setdefault(event.transaction, set()).update(event.scope)
        if isinstance(event, MarkerCreated | CommitRequested) and before is not None and before.phase in OPEN:
            self.read_markers.setdefault(event.transaction, set()).update(event.markers)
        if isinstance(event, CommitCompleted):
            batch = next(each.batch for each in self.processes if each.id == event.transaction)
            self.known_committed[event.writer] = max(self.known_committed.get(event.writer, -1), batch)

    # -- invariants

    def checked(self, step: Any) -> None:
        """Run one step of the core and check everything."""
        state = self.w.state
        losses = dict(state.losses)
        phases = {each.id: each.phase for each in state.transactions.values()}
        writers = {each.id: each.writer for each in self.processes}
        closed_before = set(state.closed)
        limit = state.settings.max_losses
        aged = {each.id for each in state.transactions.values() if each.overtaken >= limit}
        step()
        verdicts = [each for each in self.w.effects if isinstance(each, VERDICTS)]
        for effect in self.w.effects:
            if isinstance(effect, ReleaseLock):
                self.lock_end = 0.0
        self.check_queue(verdicts, aged)
        self.check_freed(verdicts)
        new_verdicts = [each for each in verdicts if each.transaction not in closed_before]
        self.check_verdicts(new_verdicts, losses, phases, writers)
        self.publishing(verdicts, self.w.now)
        self.check_state()

    def check_queue(self, verdicts: list[Any], aged: set[str]) -> None:
        """A queued transaction that was overtaken often enough is overtaken no more."""
        state = self.w.state
        for verdict in verdicts:
            admitted = state.transactions.get(verdict.transaction) if isinstance(verdict, Admitted) else None
            if admitted is None or admitted.admission != "queued":
                continue
            for overlap in blocking_overlaps(state, admitted):
                other = overlap.other.transaction
                waits = other.phase is Phase.QUEUED and other.id in aged
                assert not (waits and other.sequence < admitted.sequence), (
                    "G5: one that was overtaken often enough is overtaken"
                )

    def check_freed(self, verdicts: list[Any]) -> None:
        """What a decision names as the end of a wait blocks it no more."""
        state = self.w.state
        for verdict in verdicts:
            freed_by = getattr(verdict, "freed_by", None)
            found = state.transactions.get(freed_by or "")
            if found is None or found.phase not in OPEN:
                continue
            assert isinstance(verdict, Admitted), f"{freed_by} is open, and freed the grant of {verdict}"
            admitted = state.transactions[verdict.transaction]
            assert found not in set(blockers(state, admitted)), f"{freed_by} blocks {admitted.id} still"

    def check_verdicts(
        self, verdicts: list[Any], losses: dict[str, int], phases: dict[str, Phase], writers: dict[str, str]
    ) -> None:
        limit = self.w.settings.max_losses
        landed = (Phase.COMMITTED, Phase.UNKNOWN)
        granted = {each.transaction for each in verdicts if isinstance(each, CommitGranted)}
        victims: set[str] = set()
        winners: set[str] = set()
        for verdict in verdicts:
            if isinstance(verdict, CommitGranted):
                process = next(each for each in self.processes if each.id == verdict.transaction)
                known = self.known_committed.get(process.writer, -1)
                assert process.batch > known, f"G6: {process.id} granted, batch {process.batch} is committed"
                lock = self.w.state.lock
                assert lock is not None
                assert self.w.now >= lock.quiet_until
                assert self.w.now + verdict.lease_seconds <= lock.expires_at + 1e-6
            if not isinstance(verdict, Abort) or verdict.reason != "conflict":
                continue
            assert phases.get(verdict.transaction) is not Phase.GRANTED, (
                "G3: a granted transaction was aborted for a conflict"
            )
            if granted.isdisjoint(entry.other_transaction for entry in verdict.conflicts):
                # Under first-committer, a protected writer may win against one and lose to the grant that follows.
                victims.add(verdict.transaction)
            for entry in verdict.conflicts:
                self.lost_conflicts.add((verdict.transaction, entry.other_transaction))
                if entry.kind == "marker":
                    winners.add(entry.other_transaction)
                protected = losses.get(verdict.writer, 0) >= limit
                before = phases.get(entry.other_transaction)
                unbeatable = before is Phase.GRANTED or before in landed
                unbeatable = unbeatable or self.w.phase(entry.other_transaction) in landed
                other = self.w.state.transactions.get(entry.other_transaction)
                other_protected = losses.get(writers[entry.other_transaction], 0) >= limit
                other_protected = other_protected or (other is not None and other.overtaken >= limit)
                assert not protected or unbeatable or other_protected, (
                    "G5: a protected writer lost to an unprotected one"
                )
        assert not victims & winners, f"G3: winner and victim in one step: {victims & winners}"
        both = {(a, b) for a, b in self.lost_conflicts if (b, a) in self.lost_conflicts}
        assert not both, f"G3: both transactions were aborted for each other: {both}"

    def publishing(self, verdicts: list[Any], now: float) -> None:
        """Deliver verdicts to the writers, note their reservations, and compute the leases as the writers will."""
        for verdict in verdicts:
            process = next((each for each in self.processes if each.id == verdict.transaction), None)
            assert process is not None
            process.pending.append(verdict)
            if isinstance(verdict, Admitted):
                process.admission_number = next(self.admissions)
                self.read_markers.setdefault(verdict.transaction, set()).update(verdict.reserved)
            if isinstance(verdict, CommitGranted):
                deadline = process.sent[verdict.seq] + verdict.lease_seconds
                self.leased.append(Leased(process, verdict.grant, deadline))
            if isinstance(verdict, GrantRenewed):
                for each in self.leased:
                    if each.grant == verdict.grant:
                        each.deadline = max(each.deadline, process.sent[verdict.seq] + verdict.lease_seconds)
        live = [
            each.process.id for each in self.leased if now < each.deadline and each.process.phase != "ended"
        ]
        assert len(live) <= 1, f"G1: {live} hold unexpired grants at once"

    def check_state(self) -> None:
        state = self.w.state
        check_invariants(state)
        self.check_that_nothing_is_overlooked()
        running = state.running()
        if running is not None and running.grant is not None:
            writer_deadline = max(each.deadline for each in self.leased if each.grant == running.grant.id)
            assert writer_deadline <= running.grant.deadline + 1e-6, (
                "G1: the writer's deadline is later than the agent's"
            )
        index = {
            (touch.transaction.id, partition, group, touch.operation)
            for partition, groups in state.footprints.index.items()
            for group, touches in groups.items()
            for touch in touches
        }
        naive = {
            (each.id, *place_of(marker), marker.operation)
            for each in state.transactions.values()
            if not each.without_index
            for marker in self.read_markers.get(each.id, ())
        }
        assert index == naive
        assert named_pairs(state.footprints) == {
            (one, x, other, y)
            for one, partition, place, x in naive
            for other, other_partition, other_place, y in naive
            if one != other and places_meet((partition, place), (other_partition, other_place))
        }
        if any(each.without_index for each in state.transactions.values()):
            return  # a replay finds the footprint in the log
        rebuilt = self.w.rebuilt()
        assert facts(rebuilt.state) == facts(state), "G7: a restart changes something"
        decided = [each for each in rebuilt.replayed().effects if isinstance(each, VERDICTS)]
        assert decided == [], "G7: a complete log leaves decisions open"

    def check_that_nothing_is_overlooked(self) -> None:
        """A step looks only at what has changed. Whatever waits after it has a reason, by the plain definitions."""
        state, running = self.w.state, self.w.state.running()
        if state.unseen_grant or (running is not None and running.without_index):
            return
        for each in state.in_phase[Phase.QUEUED].values():
            if running is None or running.writer != each.writer:
                done = state.ledger.get(each.writer)
                assert next(blockers(state, each), None), f"{each.id} waits for nothing"
                assert done is None or not done.covers(each.batch_id), f"{each.id} repeats a batch"
        for each in state.in_phase[Phase.WAITING].values():
            earlier = {overlap.other.transaction.id for overlap in earlier_turns(state, each)}
            assert each.blocker in {None, *earlier}, f"{each.id} doesn't wait for {each.blocker}"

    def teardown(self) -> None:
        """G5: once faults stop, every transaction gets a verdict, also those of dead writers."""
        if not hasattr(self, "w"):
            return
        self.read_all()
        for _ in range(120):
            if not self.w.state.open() and not self.inbox:
                break
            self.lock_confirmed()
            for process in self.processes_alive():
                self.go_on(process)
            self.read_all()
            self.tick(3.0)
        assert not self.w.state.open(), {each.id: each.phase for each in self.w.state.open()}
        assert self.w.state.running() is None
