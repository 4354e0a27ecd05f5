"""`lakewarden agents`: the agents of the consumer group, and which agent has which Kafka partition, under which term."""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from lakewarden.agent.log import Log
from lakewarden.agent.operators.cluster_facts import members_of
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.serving.log_records import decoded_all
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import LEDGER_EVENT, PartitionTaken
from lakewarden.handlers.setup import Member

_TAKEN = b'"type":"partition-taken"'


@dataclass(frozen=True, slots=True)
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
    views = []
    for each in partitions:
        view, last = PartitionView(each.partition), taken.get(each.partition)
        if last is not None:
            running = None if None in named else last.agent in named
            at = last.at.isoformat(timespec="milliseconds")
            view = replace(view, agent=last.agent, running=running, term=last.term, taken=at)
        if each in committed and committed[each].offset >= 0:
            checkpoint = Checkpoint.parse(committed[each].offset, committed[each].metadata)
            view = replace(view, replay=max(0, ends[each] - checkpoint.offset))
            if checkpoint.read is not None:
                view = replace(view, unread=max(0, ends[each] - checkpoint.read.offset - 1))
        views.append(view)
    return AgentsView(settings.group, members, tuple(views))


async def _take_overs(log: Log) -> dict[int, PartitionTaken]:
    """The last take-over of each partition. The ledger has it, because compaction keeps the last record of a key."""
    partitions = await log.partitions(log.topics.ledger)
    found: dict[int, PartitionTaken] = {}
    async with aclosing(log.batches(dict.fromkeys(partitions))) as batches:
        async for partition, records in batches:
            taken = (each for each in records if _TAKEN in (each.value or b""))
            for event in decoded_all(LEDGER_EVENT, taken):
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
