"""What must never happen to a lock. The oracles judge from outside, in true time, and know all clocks.

A *belief* is the span for which a contender relies on the lock:

- An agent's belief begins when it reports `Confirmed`, for new grants not before `quiet_until`. It ends when its monotonic clock
  shows `expires_at`, when it reports `Released` or `LeaseEnded`, or when it starts to release, whichever comes first.
- A Hudi writer's belief begins when its PUT is confirmed to it. It ends when its wall clock shows the confirmed `validUntil`,
  or when it sends its release.

- The belief of a fenced agent ends when the agent that took its table over replaces its record.

A belief continues while its node is paused or dead, because writers rely on what it reported. What Hudi relies on beyond that
is Hudi's own defect: the 500 ms after the end of a lease, and the lock that it "re-enters" from memory after a lost response to
a release (`reference/hudi-measured.md` §4, W3).

Assumptions, within which `scenario.py` draws unless it says otherwise: two wall clocks differ by less than the drift; a
monotonic clock gains or loses at most half the drift per lease; the store honours conditions.

| oracle | a run violates it when |
| --- | --- |
| one holder | two contenders believe in one lock at the same time (two Hudi writers are not judged) |
| no lock stealing | a write replaces the record of a contender that still believes, except by adoption or after fencing it |
| no belief beyond expiry | by the object, a clock of the run may take the lock over while its holder still believes |
| confirmed version exists | `Confirmed` names a version that was never in the store |
| expiry reported in time | a holder that ran all through its `margin` still believes when the lease ends |
| no self-block | an agent is denied the lock because of an owner id that it wrote itself |
| no false loss | a lease is ended in favour of a holder that never wrote |
| bounded polling | a waiting agent sends more than one request per `poll_seconds`, and those after hand-overs, races, faults |
| bounded silence | a waiting agent that runs sends no request for two and a half poll intervals |
| unknown outcomes settled | after a lost answer and without other writers, a 4th answered request has not settled the outcome |
| foreign objects untouched | an object that is not a lock record is overwritten by a node |
| unique versions | a version of the object occurs twice |
| refusals waited out | for a refusal, a lease ends before its `margin`, or the lock is denied before `refusal_seconds` |
| no loss without faults | without faults, pauses and tampering, a lease is ended or refused |
| no crash | the program of a node fails |
| every contender acquires | after the faults, a contender has not had the lock within the run's bound |

Where clocks are drawn beyond the drift, only strict agents are held to *one holder* and *no lock stealing*, and the other
oracles about clocks don't apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakewarden.agent.locks.keeper import KeeperEvent
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    Lost,
    ReadOutcome,
    Refused,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import LockRecord, parse
from tests.servers.memory_store import version_of
from tests.simulation.clocks import EPOCH_MS, Clock
from tests.simulation.node import Node
from tests.simulation.store import short_name
from tests.simulation.timeline import Timeline

CLOCK_RATE = 0.98
"""The slowest monotonic clock of a run, compared with true time, is faster than this."""
MAX_SILENT_POLLS = 2.5
"""Poll intervals between two requests: one, another one by hints, and jitter."""
MAX_REQUESTS_TO_SETTLE = 3
"""Answered requests after a lost answer, by which an agent must know whether it holds the lock."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a run assumes, and its lock settings."""

    settings: lease.LeaseSettings
    clocks_agree: bool
    """Whether the wall clocks differ by less than the drift."""
    hudi_buffer: float | None
    """The drift by which Hudi's writers judge; None if there are none."""
    fault_free: bool
    """Whether the run has no faults."""


@dataclass(slots=True)
class Belief:
    """A contender relies on the lock. Times are true times."""

    node: Node
    owner: str
    since: float
    until: float
    is_agent: bool

    def at(self, now: float) -> bool:
        """Whether the contender relies on the lock at this time."""
        return self.since <= now < self.until


@dataclass(slots=True)
class Wait:
    """One agent's wait for one lock."""

    since: float
    last_request: float
    """When it sent its last request, or began to wait."""
    requests: int = 0
    allowance: int = 0
    """Requests explained by hand-overs, lost races, faults and ends of leases."""


@dataclass(slots=True)
class LockHistory:
    """What is known of one lock."""

    beliefs: dict[str, Belief] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """The writer of each version that the object ever had."""
    writers: dict[str, list[str]] = field(default_factory=dict)
    """By owner that was ever in the object: the nodes that wrote it."""
    wrote: dict[str, list[str]] = field(default_factory=dict)
    """By agent: the owners that it ever sent."""
    adopts: dict[str, str] = field(default_factory=dict)
    """By agent: the owner that the log allows it to adopt."""
    fences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By agent: how the owner ids of those begin from which it took the table over."""
    fenced: set[str] = field(default_factory=set)
    """Owners whose lock such an agent has taken over. Nothing that they believe counts."""
    adopted: list[str] = field(default_factory=list)
    """Owners that were adopted for a running grant. The adopter's quiet time protects what they still believe."""
    waits: dict[str, Wait] = field(default_factory=dict)
    refused_since: dict[str, float] = field(default_factory=dict)
    """By agent: the first refusal of the present series."""
    last_refused: set[str] = field(default_factory=set)
    """Agents whose last request was refused."""
    released: set[str] = field(default_factory=set)
    """Agents that have released it since they acquired it. A denial may have been on its way."""
    found_malformed: set[str] = field(default_factory=set)
    """Agents whose last read found an object that is not a lock record."""
    unusable: set[str] = field(default_factory=set)
    """Agents that found it unusable and have sent no request since: they read it again only after `unusable_seconds`."""
    unknown_outcomes: dict[str, int] = field(default_factory=dict)
    """By agent with an unknown outcome: the requests answered since."""


class ViolationRecorder:
    """Records violations. The first one ends the run."""

    def __init__(self, timeline: Timeline) -> None:
        self.violations: list[str] = []
        self._timeline = timeline

    def violated(self, oracle: str, what: str) -> None:
        self.violations.append(f"{oracle}: {what}")
        self._timeline.log("ORACLE", self.violations[-1])


class Oracles(ViolationRecorder):
    """The oracles of the lock."""

    def __init__(self, timeline: Timeline, assumed: Assumed) -> None:
        super().__init__(timeline)
        self._assumed = assumed
        self._clocks: dict[str, Clock] = {}
        self._locks: dict[str, LockHistory] = {}

    def add_node(self, node: Node) -> None:
        """Add a node whose clock may judge the locks."""
        self._clocks[node.name] = node.clock

    def _history(self, uri: str) -> LockHistory:
        return self._locks.setdefault(uri, LockHistory())

    # -- the store ---------------------------------------------------------------------------------------------------

    def on_request(self, node: Node, uri: str, body: bytes | None) -> None:
        """A node sends a read, or a write of this body."""
        history = self._history(uri)
        if node.name in history.waits:
            history.waits[node.name].requests += 1
            self._check_silence(history, node, uri)
        history.unusable.discard(node.name)
        if body is not None and isinstance(record := parse(body), LockRecord):
            owners = history.wrote.setdefault(node.name, [])
            if record.owner not in owners:
                owners.append(record.owner)

    def on_unreachable(self, node: Node) -> None:
        """A node tried to open the store, which did not answer: its request was not sent."""
        for history in self._locks.values():
            if node.name in history.waits:
                history.waits[node.name].last_request = self._timeline.now

    def on_answer(self, node: Node, uri: str, outcome: ReadOutcome | WriteOutcome, *, write: bool) -> None:
        """A node receives an outcome."""
        history = self._history(uri)
        answered = isinstance(outcome, Absent | Found | Won | Lost)
        if (not answered or isinstance(outcome, Lost)) and node.name in history.waits:
            history.waits[node.name].allowance += 2
        if node.name in history.unknown_outcomes:
            history.unknown_outcomes[node.name] = history.unknown_outcomes[node.name] + 1 if answered else 0
            if history.unknown_outcomes[node.name] > MAX_REQUESTS_TO_SETTLE:
                self.violated(
                    "unknown outcomes settled",
                    f"{node.name} has sent 4 requests since its lost answer: {short_name(uri)}",
                )
        if write and isinstance(outcome, Unknown):
            history.unknown_outcomes[node.name] = 0
        if isinstance(outcome, Refused):
            history.refused_since.setdefault(node.name, self._timeline.now)
            history.last_refused.add(node.name)
        else:
            history.last_refused.discard(node.name)
        if isinstance(outcome, Found):
            malformed = not isinstance(parse(outcome.body), LockRecord)
            (history.found_malformed.add if malformed else history.found_malformed.discard)(node.name)

    def on_write(self, writer: str, uri: str, body: bytes, before: bytes | None, *, late: bool) -> None:
        """A write changed the object. `late`: its writer has timed out and doesn't know."""
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
        """A person overwrote the object unconditionally."""
        history = self._history(uri)
        history.versions[version_of(body)] = "a person"
        if isinstance(record := parse(body), LockRecord):
            history.writers.setdefault(record.owner, []).append("a person")
        for wait in history.waits.values():
            wait.allowance += 2
        self._reset_unknown_outcomes(history, None)

    def _allow_requests(self, history: LockHistory, record: object, former: LockRecord | None) -> None:
        """Allow each waiting agent further requests after a hand-over. A renewal is no reason for requests."""
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
        """Reset the counts of agents that were disturbed: another node wrote, or a write took effect after its timeout."""
        for name in [name for name in history.unknown_outcomes if name != writer]:
            del history.unknown_outcomes[name]

    def _check_theft(self, history: LockHistory, writer: str, uri: str, former: LockRecord | None) -> None:
        now = self._timeline.now
        if former is not None and former.owner.startswith(history.fences.get(writer, ())):
            history.fenced.add(former.owner)
            for name in [each for each, belief in history.beliefs.items() if belief.owner == former.owner]:
                del history.beliefs[name]
        if former is not None and history.adopts.get(writer) == former.owner:
            history.adopted.append(former.owner)
        for name, belief in history.beliefs.items():
            if name == writer or belief.owner in history.adopted or not belief.at(now):
                continue
            if self._promised(is_agent=writer in history.wrote, to_agent=belief.is_agent):
                left = belief.until - now
                self.violated(
                    "no lock stealing",
                    f"{writer} took {short_name(uri)} from {name}, which relies on it for another {left:.3f} s",
                )

    def _promised(self, *, is_agent: bool, to_agent: bool) -> bool:
        """Whether the lock must exclude these two, under the run's assumptions."""
        if self._assumed.clocks_agree:
            return is_agent or to_agent
        return self._assumed.settings.strict and is_agent and to_agent

    # -- agents ------------------------------------------------------------------------------------------------------

    def on_acquire(self, node: Node, uri: str, adopt: str | None) -> None:
        """An agent starts to acquire the lock."""
        history = self._history(uri)
        history.unknown_outcomes.pop(node.name, None)
        if node.name in history.released:
            history.released.discard(node.name)
            history.refused_since.pop(node.name, None)
        history.waits.setdefault(node.name, Wait(self._timeline.now, self._timeline.now))
        if adopt is not None:
            history.adopts[node.name] = adopt

    def on_taken_over(self, node: Node, uri: str, former: str) -> None:
        """An agent takes the table over from the one whose owner ids begin with `former`."""
        history = self._history(uri)
        history.fences[node.name] = (*history.fences.get(node.name, ()), former)

    def on_release_observed(self, node: Node, uri: str) -> None:
        """An agent receives an audit event that the lock was released, perhaps late or repeated: a reason for a request."""
        history = self._history(uri)
        if node.name in history.waits:
            history.waits[node.name].allowance += 1

    def on_release(self, node: Node, uri: str) -> None:
        """An agent starts to release the lock."""
        history = self._history(uri)
        history.beliefs.pop(node.name, None)
        history.unknown_outcomes.pop(node.name, None)
        history.released.add(node.name)
        self._check_patience(history, node.name, uri)

    def on_keeper_event(self, node: Node, uri: str, event: KeeperEvent, *, relied_on: bool) -> None:
        history = self._history(uri)
        history.unknown_outcomes.pop(node.name, None)
        match event:
            case lease.Confirmed():
                self._check_patience(history, node.name, uri)
                history.refused_since.pop(node.name, None)
                self._confirmed(history, node, uri, event, relied_on=relied_on)
            case lease.Released():
                history.beliefs.pop(node.name, None)
            case lease.LeaseEnded():
                belief = history.beliefs.pop(node.name, None)
                if belief is not None and node.name in history.last_refused:
                    self._check_end_after_refusal(node, uri, belief)
                if node.name not in history.released:  # otherwise the lease ended during its release
                    history.waits.setdefault(node.name, Wait(self._timeline.now, self._timeline.now))
                self._ended(history, node, uri, event)
            case lease.LockDenied():
                self._denied(history, node, uri, event)

    def _confirmed(
        self, history: LockHistory, node: Node, uri: str, event: lease.Confirmed, *, relied_on: bool
    ) -> None:
        held = event.lease
        if history.versions.get(held.version) != node.name:
            self.violated(
                "confirmed version exists", f"{node.name} never wrote {held.version} to {short_name(uri)}"
            )
        if not relied_on or held.record.owner in history.fenced:
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
        """Check that the object binds every challenger for as long as its holder relies on it."""
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
                    f"{node.name} relies on {short_name(uri)} {late} ms after {name} may acquire it",
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
                    f"{belief.node.name} and {name} both rely on {short_name(uri)}, the latter for another"
                    f" {other.until - now:.3f} s",
                )

    def _check_margin(self, uri: str, belief: Belief, margin: float) -> None:
        node = belief.node
        if self._history(uri).beliefs.get(node.name) is not belief:
            return
        if node.state == "running" and node.running_since <= margin:
            self.violated(
                "expiry reported in time", f"{node.name} did not report that {short_name(uri)} ends"
            )

    def _ended(self, history: LockHistory, node: Node, uri: str, event: lease.LeaseEnded) -> None:
        if self._assumed.fault_free:
            self.violated("no loss without faults", f"{node.name} lost {short_name(uri)}: {event.why}")
        if event.holder is not None and not [
            each for each in history.writers.get(event.holder, []) if each != node.name
        ]:
            self.violated(
                "no false loss", f"{node.name} lost {short_name(uri)} to {event.holder}, which never wrote"
            )

    def _denied(self, history: LockHistory, node: Node, uri: str, event: lease.LockDenied) -> None:
        if event.kind != "waiting" and self._assumed.fault_free:
            self.violated("no loss without faults", f"{node.name} is refused {short_name(uri)}: {event.why}")
        self._check_refusal(history, node, uri, event)
        if event.kind == "unusable":
            history.unusable.add(node.name)
        if event.holder is not None and event.holder in history.wrote.get(node.name, []):
            self.violated(
                "no self-block",
                f"{node.name} is denied {short_name(uri)} by its own {event.holder}: {event.why}",
            )
        wait = history.waits.get(node.name)
        if wait is None:
            return
        settings = self._assumed.settings
        if event.held_until is None:
            wait.allowance += 2
        elif (event.held_until - node.wall_ms()) / 1000 + settings.drift < settings.poll_seconds:
            wait.allowance += 1

    def _check_end_after_refusal(self, node: Node, uri: str, belief: Belief) -> None:
        left, margin = belief.until - self._timeline.now, self._assumed.settings.margin
        if left > margin / CLOCK_RATE:
            self.violated(
                "refusals waited out",
                f"{node.name} ended its lease of {short_name(uri)} {left:.3f} s early, its margin is {margin:.3f} s",
            )

    def _check_silence(self, history: LockHistory, node: Node, uri: str) -> None:
        wait = history.waits[node.name]
        now, poll = self._timeline.now, self._assumed.settings.poll_seconds
        silent = now - wait.last_request
        ran = node.running_since <= wait.last_request
        if ran and node.name not in history.unusable and silent > MAX_SILENT_POLLS * poll:
            self.violated(
                "bounded silence",
                f"{node.name} waits for {short_name(uri)} and sent no request for {silent:.3f} s, "
                f"its poll interval is {poll:.3f} s",
            )
        wait.last_request = now

    def _check_refusal(self, history: LockHistory, node: Node, uri: str, event: lease.LockDenied) -> None:
        if event.holder is not None:
            history.refused_since.pop(node.name, None)
        if event.kind == "unusable" and node.name not in history.found_malformed:
            self.violated(
                "refusals waited out", f"{node.name} gave {short_name(uri)} up, a lock record: {event.why}"
            )
        if event.kind == "refused-too-long":
            since = history.refused_since.pop(node.name, self._timeline.now)
            lasted, limit = self._timeline.now - since, self._assumed.settings.refusal_seconds
            if lasted < CLOCK_RATE * limit:
                self.violated(
                    "refusals waited out",
                    f"{node.name} was refused {short_name(uri)} for {lasted:.3f} s, and waits {limit:.3f} s",
                )

    def _check_patience(self, history: LockHistory, name: str, uri: str) -> None:
        wait = history.waits.pop(name, None)
        if wait is None:
            return
        waited = self._timeline.now - wait.since
        allowed = 3 + wait.allowance + 1.1 * waited / self._assumed.settings.poll_seconds
        if wait.requests > allowed:
            self.violated(
                "bounded polling",
                f"{name} sent {wait.requests} requests in {waited:.3f} s for {short_name(uri)}, {allowed:.0f} are enough",
            )

    # -- Hudi's writers, and the end ---------------------------------------------------------------------------------

    def on_hudi_acquired(self, node: Node, uri: str, owner: str, valid_until: int) -> None:
        """A Hudi writer's PUT was confirmed."""
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
        """A Hudi writer sends its release, or was interrupted."""
        self._history(uri).beliefs.pop(node.name, None)

    def check_node(self, node: Node) -> None:
        """Check that the program of a node has not failed."""
        if (why := node.failure()) is not None:
            self.violated("no crash", f"{node.name} broke: {why}")


def when_wall_shows(clock: Clock, wall_ms: int, now: float) -> float:
    """Return the first true time from now on at which the wall clock shows this, within a millisecond."""
    true = now
    for _ in range(100):
        short = (wall_ms - EPOCH_MS) / 1000 - clock.wall(true)
        if short <= 0.001:
            return true
        # A drifting wall clock may get there sooner than true time would, so advance by half of the difference.
        true += max(short / 2, 0.001)
    return true
