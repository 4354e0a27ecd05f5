"""What must never happen, judged from outside, in true time, with everybody's clocks known.

A *belief* is what a lock is used by. An agent believes from the instant at which it told `Confirmed` (for new grants not before
its `quiet_until`), until its own monotonic clock shows `expires_at`, or it tells `Released` or `LeaseEnded`, or asks to drop,
whichever comes first; paused or dead makes no difference, because writers rely on what it told. A Hudi writer believes from
the instant at which its PUT was confirmed to it until its own wall clock shows the confirmed `validUntil`, or it sends its
release. What Hudi believes beyond that is its own defect and no promise of the object's: the 500 ms for which it trusts an
ended lease, and the lock it "re-enters" from memory after a lost release answer (`reference/hudi-measured.md` §4, W3).

The assumptions, which `scenario.py` draws within or, where it says so, beyond: two wall clocks never differ by more than
the drift; a monotonic clock gains or loses at most half the drift a lease; the store honours conditions.

| oracle | a run violates it when |
| --- | --- |
| one holder | two believe in one lock at one instant (pairs of Hudi writers are their own affair) |
| no lock stealing | a write that acts replaces what somebody still believes in, other than by adopting it |
| no belief beyond expiry | a clock of the run may take the lock over, by the object, while its holder still believes |
| confirmed version exists | `Confirmed` names a version that never was in the store |
| expiry reported in time | a holder that ran all through its `margin` still believes when the lease ends |
| no self-block | an agent is denied the lock in the name of an owner that it wrote itself |
| no false loss | a lease is ended in favour of a holder who never wrote |
| bounded polling | a waiting agent asks more than once in `poll_seconds`, and more than hand-overs, races, faults and ends explain |
| unknown outcomes settled | an answer was lost, nobody else wrote, and a 4th request that was answered has not settled it |
| foreign objects untouched | an object that is no lock record is overwritten by anything but a person |
| unique versions | a version of the object comes twice |
| no loss without faults | without faults, pauses and strangers, a lease is ended or refused |
| no crash | the program of a node breaks |
| every contender acquires | after the faults, somebody who wants the lock has not had it when the run's bound has passed |

Where clocks are drawn beyond the drift, one holder and no theft are asserted between strict agents only, and the rest of what
speaks of clocks is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakewarden.agent.locks.keeper import KeeperEvent
from lakewarden.agent.stores.memory import version_of
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    Lost,
    ReadOutcome,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import LockRecord, parse
from tests.simulation.clocks import EPOCH_MS, Clock
from tests.simulation.node import Node
from tests.simulation.store import short_name
from tests.simulation.timeline import Timeline
from tests.simulation.violations import ViolationRecorder

MAX_REQUESTS_TO_SETTLE = 3
"""Requests that are answered, after one whose answer was lost, until it is known who has the lock."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a run assumes, and which locks it has."""

    settings: lease.LeaseSettings
    clocks_agree: bool
    """Whether all wall clocks are within the drift."""
    hudi_buffer: float | None
    """The drift by which Hudi's challengers judge; None: there are none."""
    fault_free: bool
    """Nothing goes wrong in this run."""


@dataclass(slots=True)
class Belief:
    """Somebody relies on the lock; true times."""

    node: Node
    owner: str
    since: float
    until: float
    is_agent: bool

    def at(self, now: float) -> bool:
        """Whether it is held at this instant."""
        return self.since <= now < self.until


@dataclass(slots=True)
class Wait:
    """One agent's wait for one lock."""

    since: float
    requests: int = 0
    allowance: int = 0
    """Hand-overs, lost races, faults, and ends of leases at which it is right to look."""


@dataclass(slots=True)
class LockHistory:
    """What is known of one lock."""

    beliefs: dict[str, Belief] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """Each version that the object ever had, and who wrote it."""
    writers: dict[str, list[str]] = field(default_factory=dict)
    """Each owner that ever was in the object, and who put it there."""
    wrote: dict[str, list[str]] = field(default_factory=dict)
    """Each agent, and the owners that it ever sent."""
    adopts: dict[str, str] = field(default_factory=dict)
    """Each agent, and the owner that the log lets it take over from."""
    adopted: list[str] = field(default_factory=list)
    """Owners that were taken over for the grant that ran under them: what they still believe is protected by the quiet time of
    the one who took over, and judged when that is told."""
    waits: dict[str, Wait] = field(default_factory=dict)
    unknown_outcomes: dict[str, int] = field(default_factory=dict)
    """Agents with a lost answer, and how many requests were answered since."""


class Oracles(ViolationRecorder):
    """The lock's."""

    def __init__(self, timeline: Timeline, assumed: Assumed) -> None:
        super().__init__(timeline)
        self._assumed = assumed
        self._clocks: dict[str, Clock] = {}
        self._locks: dict[str, LockHistory] = {}

    def add_node(self, node: Node) -> None:
        """A node whose clock may judge the locks."""
        self._clocks[node.name] = node.clock

    def _history(self, uri: str) -> LockHistory:
        return self._locks.setdefault(uri, LockHistory())

    # -- what the store tells ----------------------------------------------------------------------------------------

    def on_request(self, node: Node, uri: str, body: bytes | None) -> None:
        """A read, or a write of this body."""
        history = self._history(uri)
        if node.name in history.waits:
            history.waits[node.name].requests += 1
        if body is not None and isinstance(record := parse(body), LockRecord):
            owners = history.wrote.setdefault(node.name, [])
            if record.owner not in owners:
                owners.append(record.owner)

    def on_answer(self, node: Node, uri: str, outcome: ReadOutcome | WriteOutcome, *, write: bool) -> None:
        """An answer, as the client takes it."""
        history = self._history(uri)
        answered = isinstance(outcome, Absent | Found | Won | Lost)
        if (not answered or isinstance(outcome, Lost)) and node.name in history.waits:
            history.waits[node.name].allowance += 2
        if node.name in history.unknown_outcomes:
            history.unknown_outcomes[node.name] = history.unknown_outcomes[node.name] + 1 if answered else 0
            if history.unknown_outcomes[node.name] > MAX_REQUESTS_TO_SETTLE:
                self.violated(
                    "unknown outcomes settled",
                    f"{node.name} has asked 4 times about its lost answer: {short_name(uri)}",
                )
        if write and isinstance(outcome, Unknown):
            history.unknown_outcomes[node.name] = 0

    def on_write(self, writer: str, uri: str, body: bytes, before: bytes | None, *, late: bool) -> None:
        """A write has changed the object; late: its writer has given it up, and doesn't know."""
        history = self._history(uri)
        record = parse(body)
        former = None if before is None else parse(before)
        version = version_of(body)
        if version in history.versions:
            self.violated(
                "unique versions", f"{writer} wrote what {history.versions[version]} wrote before: {body!r}"
            )
        history.versions[version] = writer
        if former is not None and not isinstance(former, LockRecord):
            self.violated("foreign objects untouched", f"{writer} overwrote {before!r}")
            return
        if isinstance(record, LockRecord):
            writers = history.writers.setdefault(record.owner, [])
            if writer not in writers:
                writers.append(writer)
        self._allow_requests(history, record, former)
        if writer in history.waits and late:
            history.waits[writer].allowance += 2
        self._reset_unknown_outcomes(history, None if late else writer)
        self._check_theft(history, writer, uri, former)

    def on_tampering(self, uri: str, body: bytes) -> None:
        """A person has put something else there, unconditionally."""
        history = self._history(uri)
        history.versions[version_of(body)] = "a person"
        if isinstance(record := parse(body), LockRecord):
            history.writers.setdefault(record.owner, []).append("a person")
        for wait in history.waits.values():
            wait.allowance += 2
        self._reset_unknown_outcomes(history, None)

    def _allow_requests(self, history: LockHistory, record: object, former: LockRecord | None) -> None:
        """A hand-over is a reason to look at the object; a renewal is none."""
        renews = (
            isinstance(record, LockRecord)
            and former is not None
            and record.owner == former.owner
            and not record.expired
            and not former.expired
        )
        if not renews:
            for wait in history.waits.values():
                wait.allowance += 2

    def _reset_unknown_outcomes(self, history: LockHistory, writer: str | None) -> None:
        """Forget the doubts of those who are disturbed: others write, or a write lands that they had given up on."""
        for name in [name for name in history.unknown_outcomes if name != writer]:
            del history.unknown_outcomes[name]

    def _check_theft(self, history: LockHistory, writer: str, uri: str, former: LockRecord | None) -> None:
        now = self._timeline.now
        if former is not None and history.adopts.get(writer) == former.owner:
            history.adopted.append(former.owner)
        for name, belief in history.beliefs.items():
            if name == writer or belief.owner in history.adopted or not belief.at(now):
                continue
            if self._promised(is_agent=writer in history.wrote, to_agent=belief.is_agent):
                left = belief.until - now
                self.violated(
                    "no lock stealing",
                    f"{writer} took {short_name(uri)} from {name}, which believes for another {left:.3f} s",
                )

    def _promised(self, *, is_agent: bool, to_agent: bool) -> bool:
        """Whether these two exclude one another, under the run's assumptions."""
        if self._assumed.clocks_agree:
            return is_agent or to_agent
        return self._assumed.settings.strict and is_agent and to_agent

    # -- what agents tell --------------------------------------------------------------------------------------------

    def on_acquire(self, node: Node, uri: str, adopt: str | None) -> None:
        """It asks for the lock."""
        history = self._history(uri)
        history.unknown_outcomes.pop(node.name, None)
        history.waits.setdefault(node.name, Wait(self._timeline.now))
        if adopt is not None:
            history.adopts[node.name] = adopt

    def on_release_observed(self, node: Node, uri: str) -> None:
        """It is told, perhaps late or again, that the lock was given back: a reason to look, whenever that was."""
        history = self._history(uri)
        if node.name in history.waits:
            history.waits[node.name].allowance += 1

    def on_release(self, node: Node, uri: str) -> None:
        """It asks to be rid of it."""
        history = self._history(uri)
        history.beliefs.pop(node.name, None)
        history.unknown_outcomes.pop(node.name, None)
        self._check_patience(history, node.name, uri)

    def on_keeper_event(self, node: Node, uri: str, what: KeeperEvent, *, relied_on: bool) -> None:
        """What the lock's shell tells of it."""
        history = self._history(uri)
        history.unknown_outcomes.pop(node.name, None)
        match what:
            case lease.Confirmed():
                self._check_patience(history, node.name, uri)
                self._confirmed(history, node, uri, what, relied_on=relied_on)
            case lease.Released():
                history.beliefs.pop(node.name, None)
            case lease.LeaseEnded():
                history.beliefs.pop(node.name, None)
                history.waits.setdefault(node.name, Wait(self._timeline.now))
                self._ended(history, node, uri, what)
            case lease.LockDenied():
                self._denied(history, node, uri, what)

    def _confirmed(
        self, history: LockHistory, node: Node, uri: str, what: lease.Confirmed, *, relied_on: bool
    ) -> None:
        held = what.lease
        if history.versions.get(held.version) != node.name:
            self.violated(
                "confirmed version exists", f"{node.name} never wrote {held.version} to {short_name(uri)}"
            )
        if not relied_on:
            history.beliefs.pop(node.name, None)
            return
        now = self._timeline.now
        belief = Belief(
            node,
            held.record.owner,
            since=max(now, node.clock.when(held.quiet_until)),
            until=node.clock.when(held.expires_at),
            is_agent=True,
        )
        history.beliefs[node.name] = belief
        self._check_end(node, uri, belief.until, held.record.valid_until)
        self._timeline.plan(belief.since, lambda: self._check_alone(uri, belief))
        margin = node.clock.when(held.expires_at - self._assumed.settings.margin)
        self._timeline.plan(belief.until, lambda: self._check_margin(uri, belief, margin))

    def _check_end(self, node: Node, uri: str, until: float, valid_until: int) -> None:
        """The object must bind every challenger for as long as its holder believes."""
        if not self._assumed.clocks_agree:
            return
        for name, clock in self._clocks.items():
            if name == node.name:
                continue
            drift = self._assumed.settings.drift
            if name.startswith("hudi") and self._assumed.hudi_buffer is not None:
                drift = self._assumed.hudi_buffer
            late = clock.wall_ms(until) - valid_until - round(drift * 1000)
            if late > 0:
                self.violated(
                    "no belief beyond expiry",
                    f"{node.name} believes in {short_name(uri)} {late} ms after {name} may take it",
                )
                return

    def _check_alone(self, uri: str, belief: Belief) -> None:
        now, history = self._timeline.now, self._history(uri)
        if history.beliefs.get(belief.node.name) is not belief or not belief.at(now):
            return
        for name, other in history.beliefs.items():
            if other is belief or not other.at(now):
                continue
            if self._promised(is_agent=belief.is_agent, to_agent=other.is_agent):
                self.violated(
                    "one holder",
                    f"{belief.node.name} and {name} both believe in {short_name(uri)}, the latter for another"
                    f" {other.until - now:.3f} s",
                )

    def _check_margin(self, uri: str, belief: Belief, margin: float) -> None:
        node = belief.node
        if self._history(uri).beliefs.get(node.name) is not belief:
            return
        if node.state == "running" and node.running_since <= margin:
            self.violated("expiry reported in time", f"{node.name} was not told that {short_name(uri)} ends")

    def _ended(self, history: LockHistory, node: Node, uri: str, what: lease.LeaseEnded) -> None:
        if self._assumed.fault_free:
            self.violated("no loss without faults", f"{node.name} lost {short_name(uri)}: {what.why}")
        if what.holder is not None and not [
            each for each in history.writers.get(what.holder, []) if each != node.name
        ]:
            self.violated(
                "no false loss", f"{node.name} lost {short_name(uri)} to {what.holder}, who never wrote"
            )

    def _denied(self, history: LockHistory, node: Node, uri: str, what: lease.LockDenied) -> None:
        if what.fatal and self._assumed.fault_free:
            self.violated("no loss without faults", f"{node.name} is refused {short_name(uri)}: {what.why}")
        if what.holder is not None and what.holder in history.wrote.get(node.name, []):
            self.violated(
                "no self-block",
                f"{node.name} is denied {short_name(uri)} by its own {what.holder}: {what.why}",
            )
        wait = history.waits.get(node.name)
        if wait is None:
            return
        settings = self._assumed.settings
        if what.held_until is None:
            wait.allowance += 2
        elif (what.held_until - node.wall_ms()) / 1000 + settings.drift < settings.poll_seconds:
            wait.allowance += 1

    def _check_patience(self, history: LockHistory, name: str, uri: str) -> None:
        wait = history.waits.pop(name, None)
        if wait is None:
            return
        waited = self._timeline.now - wait.since
        allowed = 3 + wait.allowance + 1.1 * waited / self._assumed.settings.poll_seconds
        if wait.requests > allowed:
            self.violated(
                "bounded polling",
                f"{name} asked {wait.requests} times in {waited:.3f} s for {short_name(uri)}, {allowed:.0f} are enough",
            )

    # -- what Hudi's writers do, and the end -------------------------------------------------------------------------

    def on_hudi_acquired(self, node: Node, uri: str, owner: str, valid_until: int) -> None:
        """Its PUT was confirmed to it."""
        history = self._history(uri)
        belief = Belief(
            node,
            owner,
            since=self._timeline.now,
            until=when_wall_shows(node.clock, valid_until, self._timeline.now),
            is_agent=False,
        )
        history.beliefs[node.name] = belief
        self._check_alone(uri, belief)

    def on_hudi_released(self, node: Node, uri: str) -> None:
        """It sends its release, or its writer was interrupted."""
        self._history(uri).beliefs.pop(node.name, None)

    def check_node(self, node: Node) -> None:
        """Its program must not have broken."""
        if (why := node.failure()) is not None:
            self.violated("no crash", f"{node.name} broke: {why}")


def when_wall_shows(clock: Clock, wall_ms: int, now: float) -> float:
    """The first true time from now on at which the wall clock shows that; within a millisecond."""
    true = now
    for _ in range(100):
        short = (wall_ms - EPOCH_MS) / 1000 - clock.wall(true)
        if short <= 0.001:
            return true
        # A wall clock that slides may come there sooner than true time would: go half the way, the rest next.
        true += max(short / 2, 0.001)
    return true
