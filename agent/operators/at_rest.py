"""`lakewarden ledger show --at-rest`: whether the ledger of a topic prefix has all that another prefix needs.

The rules are in `handlers/table/at_rest.py`, the reasons in docs/decisions/0029.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from aiokafka import TopicPartition

from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import require_equal_counts
from lakewarden.agent.log import Log
from lakewarden.agent.operators.cluster_facts import group_facts
from lakewarden.agent.operators.ledger import LedgerLine, ledger_lines
from lakewarden.agent.operators.log_replay import LogReplay, replay_log
from lakewarden.agent.operators.status import last_lock_steps, lock_holder
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import DECISION_RECORD, CommitGranted, decode
from lakewarden.handlers.table.at_rest import Source, SourcePartition, refusals
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase


async def ledger_at_rest(
    settings: KafkaSettings, names: Collection[str] = ()
) -> tuple[list[LedgerLine], int]:
    """The ledger, and how many events no agent may decide about, because partitions were added to the topics.

    Raises `AgentError` with all reasons if the ledger may still change, or may lack a batch.
    """
    async with Log(settings) as log:
        before = await _ends(log)
        source = await _source(log, before)
        lines = await ledger_lines(log, names)
        after = await _ends(log)
    reasons = refusals(source)
    if not reasons and after != before:
        reasons = [
            f"prefix {settings.topic_prefix} has new records since this began; stop its agents and writers"
        ]
    if reasons:
        raise AgentError(f"the ledger of prefix {settings.topic_prefix} is not at rest: {'; '.join(reasons)}")
    return lines, sum(each.end - (each.checkpoint or 0) for each in source.unread)


async def _ends(log: Log) -> dict[TopicPartition, int]:
    topics = log.topics
    return await log.ends(await log.partitions(topics.writers, topics.decisions, topics.ledger))


async def _source(log: Log, ends: Mapping[TopicPartition, int]) -> Source:
    counts = Counter(each.topic for each in ends)
    require_equal_counts(counts)
    settings, replay = log.settings, await replay_log(log)
    group = await group_facts(await log.admin(), settings.group)
    recorded = {start.recorded_partitions for start in replay.starts.values()} - {None, len(replay.starts)}
    holders = [(table, lock_holder(step)) for table, step in sorted((await last_lock_steps(log)).items())]
    return Source(
        settings.topic_prefix,
        tuple(_partition(settings, replay, ends, number) for number in sorted(replay.starts)),
        tuple(line for _, state in sorted(replay.tables.items()) for line in _unsettled(state)),
        tuple(
            f"table {table}, agent {each.agent}, until {each.valid_until}"
            for table, each in holders
            if each.held
        ),
        tuple(group.serving(settings.topics.writers)),
        max((each for each in recorded if each is not None), default=None),
        _undecided(replay),
    )


def _undecided(replay: LogReplay) -> tuple[str, ...]:
    """The grants and the corrections of the ledger since the checkpoints."""
    found: list[str] = []
    for record in (each for records in replay.decisions.values() for each in records):
        decision = decode(DECISION_RECORD, record.value)
        if isinstance(decision, CommitGranted):
            found.append(
                f"transaction {decision.transaction} of writer {decision.writer}, table {decision.table}, granted"
            )
    found += [f"correction of writer {each.writer}, table {each.table}" for each in replay.corrections]
    return tuple(found)


def _partition(
    settings: KafkaSettings, replay: LogReplay, ends: Mapping[TopicPartition, int], number: int
) -> SourcePartition:
    start, topics = replay.starts[number], settings.topics
    problems = [gap.description for gap in start.gaps]
    if number in replay.refused:
        problems.append(replay.refused[number])
    ledger_end = ends[TopicPartition(topics.ledger, number)]
    if start.checkpoint is not None and start.checkpoint.ledger_end > ledger_end:
        problems.append(
            f"partition {number} of {topics.ledger} ends at offset {ledger_end} and had reached {start.checkpoint.ledger_end}"
        )
    return SourcePartition(
        number,
        None if start.checkpoint is None else start.checkpoint.offset,
        ends[TopicPartition(topics.writers, number)],
        tuple(problems),
    )


def _unsettled(state: TableState) -> list[str]:
    """The transactions of a table that are open, and those whose writer may still report."""
    found = [(each.id, each.writer, each.phase) for each in state.open()]
    for transaction in state.lapsed:
        known = state.transactions.get(transaction) or state.closed.get(transaction)
        if known is not None:
            found.append((transaction, known.writer, Phase.UNKNOWN))
    return [
        f"transaction {transaction} of writer {writer}, table {state.uri}, {phase.value}"
        for transaction, writer, phase in found
    ]
