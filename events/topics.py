"""The topics and their Kafka settings. A topic is named `<prefix>.<topic>`, and only the prefix is configurable."""

from dataclasses import dataclass

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_BATCH_BYTES = 1_048_588
"""Kafka's default `max.message.bytes`: a record of `MAX_EVENT_BYTES` (`codec.py`) and the overhead of its batch."""
REPLICAS_FOR_INSYNC = 3
"""With so many replicas, a record is acknowledged by two of them, and one broker may still fail."""
DEFAULT_PREFIX = "lakewarden"
DEFAULT_PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """With what the agent creates one topic: number of partitions and Kafka topic settings."""

    name: str
    partitions: int
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topic names of one prefix."""

    prefix: str = DEFAULT_PREFIX

    @property
    def writers(self) -> str:
        """From writers to agents."""
        return f"{self.prefix}.writers"

    @property
    def decisions(self) -> str:
        """From agents to writers, and to the agent that takes over a partition."""
        return f"{self.prefix}.decisions"

    @property
    def conflicts(self) -> str:
        """From agents to operators: the conflicts."""
        return f"{self.prefix}.conflicts"

    @property
    def audit(self) -> str:
        """From agents to operators and other agents: the steps in the life of each lock."""
        return f"{self.prefix}.audit"

    @property
    def ledger(self) -> str:
        """From agents to agents: the last committed batch of each writer, and the conflicts that it lost."""
        return f"{self.prefix}.ledger"

    @property
    def dead_letters(self) -> str:
        """From agents to operators: the records that agents refused."""
        return f"{self.prefix}.dead-letters"

    def settings(self, partitions: int = DEFAULT_PARTITIONS, replicas: int = 1) -> tuple[TopicSettings, ...]:
        """All topics with the settings that the agent creates them with.

        `writers`, `decisions` and `ledger` have the same number of partitions, and a table's records are in the partition of
        the same number. So one agent owns everything that concerns a table.

        Kafka dates the records. By its defaults it would keep each by the clock of its client, and refuse one from a clock that
        is an hour ahead.

        The state is rebuilt from `writers`, `decisions` and `ledger`. Kafka must not lose a record of them that it has
        acknowledged, and must not remove one for the topic's size. The ledger is compacted within the hour, because a take-over
        reads all of it.
        """
        any_record = {"max.message.bytes": str(MAX_BATCH_BYTES), "message.timestamp.type": "LogAppendTime"}
        durable = {"unclean.leader.election.enable": "false"}
        if replicas >= REPLICAS_FOR_INSYNC:
            durable["min.insync.replicas"] = "2"

        def delete_after(days: int) -> dict[str, str]:
            return {"cleanup.policy": "delete", "retention.ms": str(days * DAY_MS), **any_record}

        log = {**delete_after(7), "retention.bytes": "-1", **durable}
        compacted = {
            "cleanup.policy": "compact",
            "segment.ms": str(HOUR_MS),
            "max.compaction.lag.ms": str(HOUR_MS),
            **any_record,
            **durable,
        }
        return (
            TopicSettings(self.writers, partitions, log),
            TopicSettings(self.decisions, partitions, log),
            TopicSettings(self.conflicts, partitions, delete_after(30)),
            TopicSettings(self.audit, partitions, delete_after(30)),
            TopicSettings(self.ledger, partitions, compacted),
            TopicSettings(self.dead_letters, 1, delete_after(30)),
        )


def ledger_key(table: str, writer: str, what: str | None = None) -> bytes:
    """Key of a writer's ledger entry. `what` names the kind of an entry that is not the last batch. No name has a newline."""
    return "\n".join((table, writer) if what is None else (table, writer, what)).encode()
