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

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

CHECK_INTERVALS = 3
"""The longest usual time between the ends of two checks: the pause, the request of the log's ends, the wait for the position."""
MAX_NAMED = 10
"""Partitions that one sentence names."""

ConditionName: TypeAlias = Literal["assigned", "live", "caught-up", "acknowledged", "checked"]
_Found: TypeAlias = tuple[bool, str]
"""Whether a condition holds, and its state as a sentence."""


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
    found: dict[ConditionName, _Found] = {
        "assigned": _assigned(facts),
        "live": _live(facts),
        "caught-up": _caught_up(facts, limits.with_check),
        "acknowledged": _acknowledged(facts, limits.seconds),
        "checked": _checked(facts, limits.with_check),
    }
    return tuple(ReadinessCondition(name, holds, text) for name, (holds, text) in found.items())


def is_ready(found: tuple[ReadinessCondition, ...]) -> bool:
    """Whether each condition holds."""
    return all(each.holds for each in found)


def _assigned(facts: AgentFacts) -> _Found:
    if facts.problem is not None:
        return False, f"the agent has no session with Kafka: {facts.problem}"
    if not facts.assigned:
        return False, "the consumer group has not assigned partitions to this agent yet"
    if facts.unowned:
        names = _named([str(each) for each in facts.unowned])
        unowned = f"no agent of the group owns {_count(len(facts.unowned))}: {names}"
        return False, f"{unowned}; the topic may have been deleted"
    if not facts.partitions:
        return True, "the consumer group has no partition left for this agent, which is a spare one"
    return True, f"the consumer group has assigned {_count(len(facts.partitions))} to this agent"


def _live(facts: AgentFacts) -> _Found:
    if not facts.assigned:
        return False, "no partition is assigned, so the agent decides nothing"
    others = [f"{each.number} ({each.phase})" for each in facts.partitions if each.phase != "live"]
    if others:
        return False, f"the agent doesn't decide in {_count(len(others))}: {_named(others)}"
    return True, "the agent decides in each of its partitions"


def _caught_up(facts: AgentFacts, limit: float) -> _Found:
    if not facts.assigned:
        return False, "no partition is assigned, so the agent reads nothing"
    if not facts.partitions:
        return True, "there is nothing to read"
    unknown = [str(each.number) for each in facts.partitions if each.reached_at is None]
    if unknown:
        return False, f"the agent has not read {_count(len(unknown))} to the log's end yet: {_named(unknown)}"
    behind = {each: facts.now - (each.reached_at or 0.0) for each in facts.partitions}
    late = [each for each in facts.partitions if behind[each] > limit]
    if late:
        names = [f"{each.number} ({behind[each]:.0f} s, {each.unread} records unread)" for each in late]
        return False, f"the agent is more than {limit:g} s behind in {_count(len(late))}: {_named(names)}"
    oldest = max(behind.values())
    return True, f"the agent has read everything that was in the log {oldest:.1f} s ago"


def _acknowledged(facts: AgentFacts, limit: float) -> _Found:
    if facts.queued_at is None:
        return True, "Kafka has acknowledged every record of this agent"
    queued = "the oldest record that Kafka has not acknowledged was queued"
    return _recent(queued, facts.now - facts.queued_at, limit)


def _checked(facts: AgentFacts, limit: float) -> _Found:
    if facts.checked_at is None:
        return False, "there was no periodic check in this session yet"
    return _recent("the last periodic check ended", facts.now - facts.checked_at, limit)


def _recent(what: str, age: float, limit: float) -> _Found:
    late = f", which is more than {limit:g} s" if age > limit else ""
    return not late, f"{what} {age:.1f} s ago{late}"


def _count(number: int) -> str:
    return f"{number} partition" if number == 1 else f"{number} partitions"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
