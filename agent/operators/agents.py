"""`lakewarden agents`: the agents of the consumer group, and which agent has which Kafka partition, under which term."""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from aiokafka import TopicPartition

from lakewarden.agent.log import Log
from lakewarden.agent.operators.cluster_facts import group_facts
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import LEDGER_EVENT, PartitionTaken, decode

_TAKEN = b'"type":"partition-taken"'


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of the agents' consumer group. The field names are the JSON of `lakewarden agents`."""

    agent: str | None
    """Its id. None: the group is rebalancing, or the agent is of an earlier release."""
    version: str | None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One Kafka partition of `writers`. The field names are JSON, too."""

    partition: int
    agent: str | None
    """The agent that took it over last. None: no agent has ever."""
    running: bool | None
    """Whether that agent is in the group now. None: not known."""
    term: str | None
    taken: str | None
    """When it took the partition over, by its clock."""
    unread: int | None
    """Records after the last one that the agent's checkpoint says it has read. None: there is no checkpoint."""
    replay: int | None
    """Records that the next take-over has to read."""


@dataclass(frozen=True, slots=True)
class AgentsView:
    """What `lakewarden agents` prints."""

    group: str
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]


async def agents(settings: KafkaSettings) -> AgentsView:
    """The members of the group, and the partitions with their owners."""
    async with Log(settings) as log:
        topics = log.topics
        numbers = [each.partition for each in await log.partitions(topics.writers)]
        facts = await group_facts(await log.admin(), settings.group)
        taken = await _take_overs(log)
        committed = await log.committed()
        ends = await log.ends([TopicPartition(topics.writers, number) for number in numbers])
    members = tuple(MemberView(each.agent, each.version) for each in facts.members)
    checkpoints = {
        each.partition: Checkpoint.parse(at.offset, at.metadata)
        for each, at in committed.items()
        if each.topic == topics.writers and at.offset >= 0
    }
    return AgentsView(
        settings.group,
        members,
        tuple(
            _partition(
                number,
                taken.get(number),
                checkpoints.get(number),
                ends[TopicPartition(topics.writers, number)],
                members,
            )
            for number in numbers
        ),
    )


def _partition(
    number: int,
    taken: PartitionTaken | None,
    checkpoint: Checkpoint | None,
    end: int,
    members: tuple[MemberView, ...],
) -> PartitionView:
    named = {each.agent for each in members}
    running = None if taken is None or None in named else taken.agent in named
    read = None if checkpoint is None or checkpoint.read is None else checkpoint.read.offset
    return PartitionView(
        number,
        None if taken is None else taken.agent,
        running,
        None if taken is None else taken.term,
        None if taken is None else _time(taken.at),
        None if read is None else max(0, end - read - 1),
        None if checkpoint is None else max(0, end - checkpoint.offset),
    )


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


async def _take_overs(log: Log) -> dict[int, PartitionTaken]:
    """The last take-over of each partition. The ledger has it, because compaction keeps the last record of a key."""
    partitions = await log.partitions(log.topics.ledger)
    found: dict[int, PartitionTaken] = {}
    async with aclosing(log.batches(dict.fromkeys(partitions))) as batches:
        async for partition, records in batches:
            for record in records:
                if _TAKEN in (record.value or b""):
                    event = decode(LEDGER_EVENT, record.value)
                    if isinstance(event, PartitionTaken):
                        found[partition.partition] = event
    return found


def agent_lines(view: AgentsView, *, verbose: bool = False) -> Iterator[str]:
    """The same as text: each agent with the number of its partitions, and the partitions that no running agent has."""
    if not view.members:
        yield f"no agent is in the group {view.group}: nothing is granted"
    for each in view.members:
        own = sum(each.agent is not None and one.agent == each.agent for one in view.partitions)
        yield (
            f"agent {each.agent or 'of unknown name'}, version {each.version or 'unknown'}, "
            f"{own} of {len(view.partitions)} partitions"
        )
    for one in view.partitions:
        if verbose or one.agent is None or one.running is False:
            yield f"partition {one.partition}: {_partition_text(one)}"


def _partition_text(view: PartitionView) -> str:
    if view.agent is None:
        return "no agent has taken it over yet"
    gone = ", which is not in the group now" if view.running is False else ""
    unread = "unknown" if view.unread is None else view.unread
    replay = "unknown" if view.replay is None else view.replay
    return (
        f"agent {view.agent}{gone}, term {view.term}, since {view.taken}; records unread since its last checkpoint: "
        f"{unread}, to replay: {replay}"
    )
