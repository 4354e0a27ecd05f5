"""The agent's exceptions: one root, and a class of its own only where the caller would act differently."""


class AgentError(Exception):
    """Root of all exceptions that the agent raises on purpose. The message states what happened and what to do."""


class SettingsError(AgentError):
    """A setting is invalid. The message names it; nothing has been started."""


class KafkaUnreachableError(AgentError):
    """No broker answers. The agent retries until one does; commands that run once exit with this error."""


class KafkaRefusedError(AgentError):
    """A broker answers and refuses access: user, password, certificate or an ACL. A retry would fail in the same way."""


class SuspendedError(AgentError):
    """The process was suspended for longer than the consumer group waits. The session ends; the next one replays the log."""


class ReplacedError(AgentError):
    """Another agent took a partition over after this one did, so this agent's decisions don't count.

    The session ends; the next one takes the partition over again.
    """


class DuplicateInstanceError(AgentError):
    """Another running agent has the same `group_instance_id`, and has replaced this one in the consumer group."""


class LogCutError(AgentError):
    """The log has lost records while this agent was consuming it. The session ends; the next one finds what is missing."""


class TaskEndedError(AgentError):
    """A task of a session, or of a Kafka client, ended without a request. The session ends; the next one replays the log."""


class PartitionsChangedError(AgentError):
    """The number of partitions has changed, so tables have moved between partitions and lost the order of their events.

    No agent decides about these tables until an operator has chosen another topic prefix.
    """


class RecordTooLargeError(AgentError):
    """A record would be larger than Kafka accepts. Its table is stopped; nothing of the step is published."""


class PublishFailedError(AgentError):
    """Kafka rejected a record, so the state in memory is ahead of the log. The session ends; the next one replays the log."""


SESSION_ENDS = (
    KafkaRefusedError,
    KafkaUnreachableError,
    LogCutError,
    PublishFailedError,
    ReplacedError,
    SuspendedError,
    TaskEndedError,
)
"""They end a session, and another one may follow."""
