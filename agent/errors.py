"""What the agent raises on purpose. One root; a class of its own only where the caller would act differently."""

from __future__ import annotations


class AgentError(Exception):
    """Root of what the agent raises on purpose. The message says what happened and what to do."""


class SettingsError(AgentError):
    """The configuration is wrong. Correct the settings that the message names; nothing has been started."""


class KafkaUnreachableError(AgentError):
    """Kafka does not answer. Check the address and the network; the agent goes on trying, one-off commands stop."""


class KafkaRefusedError(AgentError):
    """Kafka answers and refuses us: our name, our password, a right. Correct what the message names; trying again is in vain."""


class SuspendedError(AgentError):
    """The process stood still for longer than the group waits. The session ends and is rebuilt from the log."""


class ReplacedError(AgentError):
    """Another took a partition after we did: what we decide does not count. The session ends and is rebuilt from the log."""


class PartitionsChangedError(AgentError):
    """Tables have moved between partitions while they had a history. Nobody decides on them until a person has acted."""


class PublishFailedError(AgentError):
    """A decision could not be published, so the state and the log differ. The session ends and is rebuilt from the log."""
