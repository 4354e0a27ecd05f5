"""`lakewarden agents`: the agents of the consumer group, and which agent has which Kafka partition, under which term."""

from dataclasses import dataclass

from aiokafka.structs import ConsumerRecord

from lakewarden.agent.log import Log
from lakewarden.agent.operators.cluster_facts import members_of
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.serving.log_records import decoded
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import LEDGER_EVENT, PartitionTaken
from lakewarden.handlers.setup import Member

_TAKEN = b'"type":"partition-taken"'


@dataclass(slots=True)
class PartitionView:
    """One Kafka partition of `writers`. The field names are the JSON of `lakewarden agents`."""

    partition: int
    agent: str | None = None
    """The agent that took it over last. None: no agent has ever."""
    running: bool | None = None
    """Whether that agent is in the group now. None: not known."""
    term: str | None = None
    taken: str | None = None
    """When it took the partition over, by its clock."""
    unread: int | None = None
    """Records after the last one that the agent's checkpoint says it has read. None: there is no checkpoint."""
    replay: int | None = None
    """Records that the next take-over has to read."""


@dataclass(frozen=True, slots=True)
class AgentsView:
    """What `lakewarden agents` prints. The field names are JSON, too."""

    group: str
    members: tuple[Member, ...]
    partitions: tuple[PartitionView, ...]


async def agents(settings: KafkaSettings) -> AgentsView:
    """The members of the group, and the partitions with their owners."""
    async with Log(settings) as log:
        partitions = await log.partitions(log.topics.writers)
        members = await members_of(await log.admin(), settings.group)
        taken = await _take_overs(log)
        committed = await log.committed()
        ends = await log.ends(partitions)
    named = {each.agent for each in members}
    views = {each: PartitionView(each.partition) for each in partitions}
    for each, view in views.items():
        if (last := taken.get(each.partition)) is not None:
            view.agent, view.term = last.agent, last.term
            view.taken = last.at.isoformat(timespec="milliseconds")
            if None not in named:
                view.running = last.agent in named
        if each in committed and committed[each].offset >= 0:
            checkpoint = Checkpoint.parse(committed[each].offset, committed[each].metadata)
            view.replay = max(0, ends[each] - checkpoint.offset)
            if checkpoint.read is not None:
                view.unread = max(0, ends[each] - checkpoint.read.offset - 1)
    return AgentsView(settings.group, members, tuple(views.values()))


async def _take_overs(log: Log) -> dict[int, PartitionTaken]:
    """The last take-over of each partition. The ledger has it, because compaction keeps the last record of a key."""
    partitions = await log.partitions(log.topics.ledger)
    found: dict[int, PartitionTaken] = {}

    def note(record: ConsumerRecord) -> None:
        event = decoded(LEDGER_EVENT, record) if _TAKEN in (record.value or b"") else None
        if isinstance(event, PartitionTaken):
            found[record.partition] = event

    await log.read_into(dict.fromkeys(partitions), note)
    return found
