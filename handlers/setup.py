"""Whether Kafka, the stores and the clocks are set up as the agent needs them. `lakewarden doctor` prints one line per finding.

ok          as the agent needs it
warning     the agent runs, and a promise is weaker, or an operator should look
problem     the agent can't run, or a promise doesn't hold
unchecked   a check that this user, or a failure before it, doesn't allow; it says nothing about the set-up

- **Topics.** A promise rests on each setting that the agent creates topics with (`events/topics.py`). A topic that exists keeps
  its own settings: an operator may have reasons. So a setting that weakens a promise is a warning.
- **Clocks.** Contenders for a lock compare its end with their own clocks, which may differ by `drift_seconds`. They can't compare
  their clocks with one another, but each can with the store that has the lock. So a difference to the store's clock beyond the
  drift is a problem: a contender may consider the lease ended while its holder relies on it. With `strict_takeover`, no lease
  depends on clocks. A server's time is known only within limits: it was read at some moment between request and answer, and a
  `Date` header is up to two seconds old. The difference counts that is certain.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from lakewarden.events.topics import REPLICAS_FOR_INSYNC, Topics, TopicSettings

_OUTSIDE_OF_PARENTHESES = re.compile(r"; (?![^()]*\))")

Result: TypeAlias = Literal["ok", "warning", "problem", "unchecked"]
Check: TypeAlias = Literal[
    "codecs", "kafka", "topic", "partitions", "group", "agents", "store", "store-clock", "table", "lock"
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. The field names are the JSON of `lakewarden doctor`."""

    check: Check
    result: Result
    about: str
    """The topic, the store, the table or the servers that were checked."""
    found: str
    next: str | None = None
    """What to do. None if there is nothing to do."""


def failed(check: Check, about: str, message: str) -> Finding:
    """A problem from an error's message, which has the form `what happened; what to do`."""
    found, *do = _OUTSIDE_OF_PARENTHESES.split(message, maxsplit=1)
    return Finding(check, "problem", about, found, do[0] if do else None)


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether one of the findings is a problem."""
    return any(each.result == "problem" for each in findings)


# -- topics in Kafka: settings, partitions, and the rights of an agent -------------------------------------------------

SECONDS_OF_A_DAY: Final = 86_400
UNLIMITED: Final = -1
AT_LEAST: Final = frozenset({"retention.ms", "retention.bytes", "min.insync.replicas", "max.message.bytes"})
AT_MOST: Final = frozenset({"segment.ms", "max.compaction.lag.ms"})
RISKS: Final = {
    "cleanup.policy": "Kafka removes records that the agent needs, or never removes any",
    "retention.ms": "an outage that lasts longer loses events; the open transactions are then aborted",
    "retention.bytes": "the topic may lose its beginning while it is needed; the open transactions are then aborted",
    "min.insync.replicas": "a failover of a broker may lose a grant or a commit that Kafka has acknowledged",
    "unclean.leader.election.enable": "a failover of a broker may lose a grant or a commit that Kafka has acknowledged",
    "max.message.bytes": "Kafka refuses a large record, and its table is stopped",
    "message.timestamp.type": "records of a client whose clock is wrong are removed early, or refused",
    "segment.ms": "Kafka doesn't compact the newest segment, so that a take-over reads the ledger's whole history",
    "max.compaction.lag.ms": "Kafka compacts late, so that a take-over reads more of the ledger's history",
}
AGENT_RIGHTS: Final[Mapping[str, tuple[str, ...]]] = {
    "writers": ("read",),
    "decisions": ("read", "write"),
    "ledger": ("read", "write"),
    "conflicts": ("write",),
    "audit": ("read", "write"),
    "dead-letters": ("write",),
}
"""Operations in Kafka's access control, by topic without its prefix. docs/security.md has the rights of the other roles."""
WATCHING_RIGHTS: Final[Mapping[str, tuple[str, ...]]] = {**AGENT_RIGHTS, "writers": ("read", "write")}
"""Rights of an agent with the setting `watch`."""
GROUP_RIGHTS: Final = ("read",)
"""An agent's, on its consumer group."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting of a topic that weakens a promise."""

    topic: str
    setting: str
    value: str
    wanted: str
    risk: str


def differences(topic: TopicSettings, values: Mapping[str, str]) -> list[Difference]:
    """The settings of a topic that differ for the worse. A setting that Kafka didn't return isn't judged."""
    return [
        Difference(topic.name, setting, values[setting], wanted, RISKS[setting])
        for setting, wanted in topic.config.items()
        if setting in values and not _is_good(setting, values[setting], wanted)
    ]


def _is_good(setting: str, value: str, wanted: str) -> bool:
    if setting in AT_LEAST:
        return int(value) == UNLIMITED or (int(wanted) != UNLIMITED and int(value) >= int(wanted))
    if setting in AT_MOST:
        return int(value) <= int(wanted)
    return value == wanted


def unequal_counts(counts: Mapping[str, int]) -> str | None:
    """Why an agent refuses topics with these numbers of partitions. None if all are equal."""
    if len(set(counts.values())) <= 1:
        return None
    found = ", ".join(f"{name} has {count}" for name, count in counts.items())
    return f"the topics must have the same number of partitions: {found}; add partitions to the smaller ones"


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What Kafka returned about one topic that exists."""

    name: str
    replicas: tuple[int, ...]
    """The number of replicas of each partition, by its number."""
    leaderless: tuple[int, ...] = ()
    """The partitions that have no leader."""
    operations: frozenset[str] | None = None
    """What this user may do. None: the broker's answer to a try doesn't say."""
    values: Mapping[str, str] | None = None
    """Its settings. None: this user may not describe them."""


def judge_topics(topics: Topics, facts: Mapping[str, TopicFacts], *, watches: bool = False) -> list[Finding]:
    """The findings about the topics that exist, in the agent's order, then about their numbers of partitions.

    `watches`: the agent has the setting `watch`.
    """
    durable = [facts[name] for name in _counted(topics) if name in facts]
    fewest = min((count for each in durable for count in each.replicas), default=1)
    found: list[Finding] = []
    for wanted in topics.settings(replicas=fewest):
        if (known := facts.get(wanted.name)) is not None:
            found += _judge_topic(wanted, known, _rights(topics, wanted.name, watches=watches))
    counts = {each.name: len(each.replicas) for each in durable}
    if (why := unequal_counts(counts)) is not None:
        what, _, do = why.partition("; ")
        found.append(Finding("partitions", "problem", topics.prefix, what, do))
    if durable and fewest < REPLICAS_FOR_INSYNC:
        few = min(durable, key=lambda each: min(each.replicas))
        found.append(
            Finding(
                "partitions",
                "warning",
                few.name,
                f"{_replicas(fewest)}: a broker that is lost takes partitions, or what only it had acknowledged",
                f"give {', '.join(each.name for each in durable)} {REPLICAS_FOR_INSYNC} replicas",
            )
        )
    return found


def hidden_topic(topics: Topics, name: str, *, watches: bool = False) -> Finding:
    """The finding about a topic on which this user has no right. Kafka doesn't say whether it exists."""
    return Finding(
        "topic",
        "problem",
        name,
        "Kafka denies this user the topic, or it doesn't exist",
        f"grant {' and '.join(_rights(topics, name, watches=watches))} on it, or create it",
    )


def _rights(topics: Topics, name: str, *, watches: bool) -> tuple[str, ...]:
    return (WATCHING_RIGHTS if watches else AGENT_RIGHTS)[name.removeprefix(f"{topics.prefix}.")]


def _counted(topics: Topics) -> tuple[str, ...]:
    return (topics.writers, topics.decisions, topics.ledger)


def _judge_topic(wanted: TopicSettings, facts: TopicFacts, rights: Iterable[str]) -> list[Finding]:
    def finding(result: Result, what: str, do: str | None = None) -> Finding:
        return Finding("topic", result, facts.name, what, do)

    found: list[Finding] = []
    if facts.leaderless:
        partitions = ", ".join(str(each) for each in facts.leaderless)
        do = "start the brokers that have its replicas"
        found.append(finding("problem", f"no leader for partition {partitions}", do))
    if (lacking := missing_rights("topic", facts.name, facts.operations, rights)) is not None:
        found.append(lacking)
    for each in differences(wanted, facts.values or {}):
        do = f"set {each.setting}={each.wanted} (kafka-configs.sh --alter)"
        found.append(finding("warning", f"{each.setting}={each.value}: {each.risk}", do))
    if found:
        return found
    size = f"{len(facts.replicas)} partition{'' if len(facts.replicas) == 1 else 's'}"
    may = "rights unknown" if facts.operations is None else f"may {' and '.join(rights)}"
    if facts.values is None:
        do = "grant describe-configs on the topic"
        return [finding("warning", f"{size}, {may}; its settings can't be checked", do)]
    return [finding("ok", f"{size}, {may}, settings as the agent needs them, any compression")]


def missing_rights(
    check: str, name: str, operations: frozenset[str] | None, rights: Iterable[str]
) -> Finding | None:
    """The rights that an agent needs on a topic or a group and this user lacks, as a problem."""
    lacking = [right for right in rights if operations is not None and right not in operations]
    if not lacking:
        return None
    what = " and ".join(lacking)
    return Finding(
        "group" if check == "group" else "topic",
        "problem",
        name,
        f"Kafka denies this user {what}",
        f"grant {what} on the {check} {name}; docs/security.md lists the rights",
    )


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"


# -- the agents of the consumer group, as its members' metadata names them ---------------------------------------------

MAX_NAMED = 5
"""Agents that a line names. All are counted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the group. An agent of an earlier release names neither its id nor its version."""

    agent: str | None
    version: str | None


def judge_agents(group: str, members: Sequence[Member], *, started: bool) -> Finding:
    """The finding about the agents that run now: none, of one version, or of several. `started`: there was one before."""
    if not members:
        nothing = "no agent is in the group: nothing is granted"
        return Finding("agents", "problem" if started else "warning", group, nothing, "start an agent")
    versions = sorted({each.version or "an earlier release" for each in members})
    count = f"{len(members)} agent{'' if len(members) == 1 else 's'}"
    named = sorted(each.agent for each in members if each.agent is not None)
    who = f" ({', '.join(named[:MAX_NAMED])}{', …' if len(named) > MAX_NAMED else ''})" if named else ""
    if len(versions) > 1:
        return Finding(
            "agents",
            "warning",
            group,
            f"{count} of different versions: {', '.join(versions)}{who}",
            "finish the upgrade; docs/run.md says in which order",
        )
    return Finding("agents", "ok", group, f"{count} of version {versions[0]}{who}")


# -- this machine's clock against a server's ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A server's time, and this machine's before the request and after the answer. All in Unix milliseconds."""

    before: int
    after: int
    server: int
    resolution: int = 1
    """The server's time is at least `server`, and less than this much later."""

    @property
    def ahead_ms(self) -> int:
        """By how much this clock is certainly ahead; negative: behind; 0: the clocks may agree."""
        least = self.before - (self.server + self.resolution)
        most = self.after - self.server
        if least > 0:
            return least
        return min(most, 0)


def judge_versions(store: str, *, keeps_versions: bool | None, renew_seconds: float) -> list[Finding]:
    """Whether the store keeps what each renewal of a lock replaces."""
    if keeps_versions is False:
        return []
    renewals = f"{SECONDS_OF_A_DAY / renew_seconds:,.0f} a day for a table whose lock is always held"
    remedy = "end noncurrent versions of the lock objects after a day by a lifecycle rule (docs/stores.md#versions)"
    if keeps_versions:
        kept = f"keeps every version of an object, and each renewal of a lock adds one: {renewals}"
        return [Finding("store", "warning", store, kept, f"{remedy}; ignore this if there is such a rule")]
    unknown = (
        f"doesn't say whether it keeps versions; if it does, each renewal of a lock adds one: {renewals}"
    )
    return [
        Finding("store", "unchecked", store, unknown, f"look at the bucket; if it keeps versions, {remedy}")
    ]


def judge_store_clock(store: str, reading: ClockReading, *, drift_seconds: float, strict: bool) -> Finding:
    """The finding about the clock of a store that has locks."""
    ahead = reading.ahead_ms
    if abs(ahead) <= drift_seconds * 1000:
        no_more = f"no difference of more than {drift_seconds:g} s to this machine's clock"
        return Finding("store-clock", "ok", store, no_more)
    return Finding(
        "store-clock",
        "warning" if strict else "problem",
        store,
        f"this machine's clock is {_how_far(ahead)} the store's, and drift_seconds is {drift_seconds:g}",
        "synchronise the clocks (NTP), or set drift_seconds to more than the clocks differ",
    )


def _how_far(ahead_ms: int) -> str:
    return f"at least {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}"
