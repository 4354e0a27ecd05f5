"""The topics, and how each is kept. Names are `<prefix>.<topic>`; the prefix alone is configurable."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000
DEFAULT_PREFIX = "lakewarden"
DEFAULT_PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How one topic is created: partitions, and Kafka's own topic settings."""

    name: str
    partitions: int
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class Topics:
    """Topic names under one prefix."""

    prefix: str = DEFAULT_PREFIX

    @property
    def writers(self) -> str:
        """Writers to agents."""
        return f"{self.prefix}.writers"

    @property
    def decisions(self) -> str:
        """Agents to writers, and to agents that recover."""
        return f"{self.prefix}.decisions"

    @property
    def conflicts(self) -> str:
        """Agents to operators."""
        return f"{self.prefix}.conflicts"

    @property
    def audit(self) -> str:
        """Agents to operators: the life of the locks."""
        return f"{self.prefix}.audit"

    @property
    def ledger(self) -> str:
        """Agents to agents: last committed batch of each writer."""
        return f"{self.prefix}.ledger"

    @property
    def dead_letters(self) -> str:
        """Agents to operators: what could not be read."""
        return f"{self.prefix}.dead-letters"

    def settings(self, partitions: int = DEFAULT_PARTITIONS) -> tuple[TopicSettings, ...]:
        """All topics as they are created.

        `writers`, `decisions` and `ledger` share one number of partitions and put a table's records into the
        partition of the same number, so that one agent owns all that concerns a table.
        """

        def kept(days: int) -> dict[str, str]:
            return {"cleanup.policy": "delete", "retention.ms": str(days * DAY_MS)}

        return (
            TopicSettings(self.writers, partitions, kept(7)),
            TopicSettings(self.decisions, partitions, kept(7)),
            TopicSettings(self.conflicts, partitions, kept(30)),
            TopicSettings(self.audit, partitions, kept(30)),
            TopicSettings(self.ledger, partitions, {"cleanup.policy": "compact"}),
            TopicSettings(self.dead_letters, 1, kept(30)),
        )


def ledger_key(table: str, writer: str, what: str | None = None) -> bytes:
    """Key of a writer's entry in the ledger; `what` where it is not its last batch. Neither name holds a newline."""
    return "\n".join((table, writer) if what is None else (table, writer, what)).encode()
