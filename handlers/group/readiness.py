"""Whether an agent is ready, and how far it is behind the log.

An agent is ready if all of these conditions hold:

| condition | holds while |
| --- | --- |
| `assigned` | the consumer group has assigned each partition of the topic to an agent: to this one, or all of them to others |
| `live` | the agent decides in each of them |
| `caught-up` | in each of them, it has read everything that the log had some seconds ago |
| `acknowledged` | Kafka has acknowledged every record that the agent queued some seconds ago or earlier |
| `checked` | the last periodic check has ended some seconds ago or later |

The log's end is known from the periodic check alone, so the limit of each condition leaves room for one check. A process that
answers a request, and reads or publishes nothing or was replaced, is therefore not ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

CHECK_INTERVALS = 3
"""The longest usual time between the ends of two checks: the pause, the request of the log's ends, the wait for the position."""
MAX_NAMED = 10
"""Partitions that one sentence names."""

ConditionName: TypeAlias = Literal["assigned", "live", "caught-up", "acknowledged", "checked"]


@dataclass(slots=True)
class Lag:
    """How far an owner is behind the end of its partition. Times are monotonic seconds.

    The end moves on while the owner reads. Of the ends that it has not reached, the oldest is kept, and the latest.
    """

    reached_at: float | None = None
    """When the log had just what the owner has read; the owner has everything from before. None: not known yet."""
    end: int = 0
    """The latest known end of the log."""
    _target: tuple[int, float] | None = None
    _latest: tuple[int, float] | None = None

    def note_end(self, end: int, asked_at: float) -> None:
        """Note that the log ended at `end`, by a request that was sent at `asked_at`."""
        self.end = end
        self._latest = end, asked_at
        self._target = self._target or self._latest

    def note_position(self, position: int) -> None:
        """Note that the owner has read everything before `position`."""
        if self._target is not None and position >= self._target[0]:
            self.reached_at = self._target[1]
            self._target = self._latest
        if self._latest is not None and position >= self._latest[0]:
            self.reached_at = self._latest[1]
            self._target = None


@dataclass(frozen=True, slots=True)
class OwnedPartition:
    """One partition that is assigned to the agent."""

    number: int
    phase: str
    """As in `agent/serving/partition/owner.py`; `live`: the agent decides there."""
    unread: int
    """Records between its position and the latest known end of the log."""
    reached_at: float | None
    """As in `Lag`."""


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What readiness depends on. Times are monotonic seconds."""

    now: float
    assigned: bool = False
    """Whether the consumer group has assigned partitions to the agent, and not revoked them since."""
    partitions: tuple[OwnedPartition, ...] = ()
    queued_at: float | None = None
    """When the oldest record was queued that Kafka has not acknowledged. None: it has acknowledged all."""
    checked_at: float | None = None
    """When the last periodic check ended. None: there was none in this session."""
    unowned: tuple[int, ...] = ()
    """Partitions of the topic that the group's last round has assigned to no agent."""
    problem: str | None = None
    """Why the agent has no session with Kafka, if it has none."""


@dataclass(frozen=True, slots=True)
class ReadinessCondition:
    """One condition, and its state as a sentence."""

    name: ConditionName
    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What "some seconds" means."""

    seconds: float
    check_seconds: float
    """The configured time between two checks."""
    with_check: float = field(init=False)
    """The limit of what is known by a check alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "with_check", self.seconds + CHECK_INTERVALS * self.check_seconds)


def conditions(facts: AgentFacts, limits: Limits) -> tuple[ReadinessCondition, ...]:
    """All conditions, in the order of the table at the top of the file. The agent is ready if each holds."""
    return (
        _assigned(facts),
        _live(facts),
        _caught_up(facts, limits.with_check),
        _acknowledged(facts, limits.seconds),
        _checked(facts, limits.with_check),
    )


def is_ready(found: tuple[ReadinessCondition, ...]) -> bool:
    """Whether each condition holds."""
    return all(each.holds for each in found)


def _assigned(facts: AgentFacts) -> ReadinessCondition:
    if facts.problem is not None:
        return ReadinessCondition(
            "assigned", holds=False, text=f"the agent has no session with Kafka: {facts.problem}"
        )
    if not facts.assigned:
        return ReadinessCondition(
            "assigned", holds=False, text="the consumer group has not assigned partitions to this agent yet"
        )
    if facts.unowned:
        names = _named([str(each) for each in facts.unowned])
        text = f"no agent of the group owns {_count(len(facts.unowned))}: {names}; the topic may have been deleted"
        return ReadinessCondition("assigned", holds=False, text=text)
    if not facts.partitions:
        return ReadinessCondition(
            "assigned",
            holds=True,
            text="the consumer group has no partition left for this agent, which is a spare one",
        )
    return ReadinessCondition(
        "assigned",
        holds=True,
        text=f"the consumer group has assigned {_count(len(facts.partitions))} to this agent",
    )


def _live(facts: AgentFacts) -> ReadinessCondition:
    if not facts.assigned:
        return ReadinessCondition(
            "live", holds=False, text="no partition is assigned, so the agent decides nothing"
        )
    others = [f"{each.number} ({each.phase})" for each in facts.partitions if each.phase != "live"]
    if others:
        return ReadinessCondition(
            "live", holds=False, text=f"the agent doesn't decide in {_count(len(others))}: {_named(others)}"
        )
    return ReadinessCondition("live", holds=True, text="the agent decides in each of its partitions")


def _caught_up(facts: AgentFacts, limit: float) -> ReadinessCondition:
    if not facts.assigned:
        return ReadinessCondition(
            "caught-up", holds=False, text="no partition is assigned, so the agent reads nothing"
        )
    if not facts.partitions:
        return ReadinessCondition("caught-up", holds=True, text="there is nothing to read")
    unknown = [str(each.number) for each in facts.partitions if each.reached_at is None]
    if unknown:
        return ReadinessCondition(
            "caught-up",
            holds=False,
            text=f"the agent has not read {_count(len(unknown))} to the log's end yet: {_named(unknown)}",
        )
    behind = {each: facts.now - (each.reached_at or 0.0) for each in facts.partitions}
    late = [each for each in facts.partitions if behind[each] > limit]
    if late:
        names = [f"{each.number} ({behind[each]:.0f} s, {each.unread} records unread)" for each in late]
        return ReadinessCondition(
            "caught-up",
            holds=False,
            text=f"the agent is more than {limit:g} s behind in {_count(len(late))}: {_named(names)}",
        )
    oldest = max(behind.values())
    return ReadinessCondition(
        "caught-up", holds=True, text=f"the agent has read everything that was in the log {oldest:.1f} s ago"
    )


def _acknowledged(facts: AgentFacts, limit: float) -> ReadinessCondition:
    if facts.queued_at is None:
        return ReadinessCondition(
            "acknowledged", holds=True, text="Kafka has acknowledged every record of this agent"
        )
    age = facts.now - facts.queued_at
    text = f"the oldest record that Kafka has not acknowledged was queued {age:.1f} s ago"
    if age > limit:
        return ReadinessCondition("acknowledged", holds=False, text=f"{text}, which is more than {limit:g} s")
    return ReadinessCondition("acknowledged", holds=True, text=text)


def _checked(facts: AgentFacts, limit: float) -> ReadinessCondition:
    if facts.checked_at is None:
        return ReadinessCondition(
            "checked", holds=False, text="there was no periodic check in this session yet"
        )
    age = facts.now - facts.checked_at
    text = f"the last periodic check ended {age:.1f} s ago"
    if age > limit:
        return ReadinessCondition("checked", holds=False, text=f"{text}, which is more than {limit:g} s")
    return ReadinessCondition("checked", holds=True, text=text)


def _count(number: int) -> str:
    return f"{number} partition" if number == 1 else f"{number} partitions"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
