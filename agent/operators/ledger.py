"""`lakewarden ledger show`: what the ledger topic has for each writer of each table.

With `--at-rest`, whether the ledger of a topic prefix has all that another prefix needs. The rules are in
`handlers/table/at_rest.py`, the reasons in docs/decisions/0029.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain

from aiokafka import TopicPartition

from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import require_equal_counts
from lakewarden.agent.log import Log
from lakewarden.agent.operators.cluster_facts import group_facts
from lakewarden.agent.operators.log_replay import LogReplay, replay_log
from lakewarden.agent.operators.status import last_lock_steps, lock_holder
from lakewarden.agent.serving.log_records import decoded_all
from lakewarden.agent.serving.takeover import RECORDS_READ_AT_ONCE
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import DECISION_RECORD, LEDGER_EVENT, CommitGranted, ConflictsLost, LedgerEventUnion
from lakewarden.handlers.table.at_rest import Source, SourcePartition, refusals
from lakewarden.handlers.table.ledger import InForce
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One writer of one table. The field names are the JSON of `lakewarden ledger show`."""

    table: str
    writer: str
    batch_id: int | None
    """Its last committed batch; batches with smaller ids are skipped too. None: no batch is recorded."""
    transaction: str | None
    """The transaction that committed it, or the correction that states it."""
    version: str | None
    recorded: str | None
    """When an agent recorded it, by its clock."""
    corrected_at: int | None
    """Offset in `writers` of the last correction by an operator."""
    losses: int
    """Conflicts lost in a row."""
    edition: str | None = None
    """In the writer's name in the table, `<writer>~<edition>`, since a correction that lowered its last batch."""


def line_of(entry: LedgerEventUnion, known: LedgerLine | None = None) -> LedgerLine:
    """The line of an entry in force, added to what is known of its table and writer."""
    line = known or LedgerLine(entry.table, entry.writer, None, None, None, None, None, 0)
    if isinstance(entry, ConflictsLost):
        return replace(line, losses=entry.losses)
    return replace(
        line,
        batch_id=entry.batch_id,
        transaction=entry.transaction,
        version=entry.version,
        recorded=entry.at.isoformat(timespec="milliseconds"),
        corrected_at=entry.corrected_at,
        edition=entry.edition,
    )


async def ledger(settings: KafkaSettings, names: Collection[str] = ()) -> list[LedgerLine]:
    """The lines of these tables and writers, or of all. A streaming query's writer may be named without its query id."""
    async with Log(settings) as log:
        return await ledger_lines(log, names)


async def ledger_lines(log: Log, names: Collection[str]) -> list[LedgerLine]:
    """As `ledger`, read through an open connection."""
    lines: dict[tuple[str, str], LedgerLine] = {}
    async with aclosing(entries_in_force(log)) as entries:
        async for entry in entries:
            if not names or _matches(entry, names):
                key = entry.table, entry.writer
                lines[key] = line_of(entry, lines.get(key))
    return [lines[key] for key in sorted(lines) if lines[key].transaction is not None or lines[key].losses]


async def entries_in_force(log: Log) -> AsyncGenerator[LedgerEventUnion]:
    """Each entry of the ledger that is in force when it is read; a later one may replace it. Close the generator (`aclosing`).

    The topic is read as a stream, because it may be longer than what is in force.
    """
    partitions = await log.partitions(log.topics.ledger)
    in_force = {each: InForce() for each in partitions}
    spans: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    async with aclosing(log.batches(spans, max_records=RECORDS_READ_AT_ONCE)) as batches:
        async for partition, records in batches:
            for record in decoded_all(LEDGER_EVENT, records):
                if (entry := in_force[partition].replaces(record)) is not None:
                    yield entry


def _matches(entry: LedgerEventUnion, names: Collection[str]) -> bool:
    """A wire name is `<writer>:<query id>` for a streaming query."""
    return entry.table in names or entry.writer in names or entry.writer.rpartition(":")[0] in names


# -- at rest -------------------------------------------------------------------------------------------------------------


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
    require_equal_counts(Counter(each.topic for each in ends))
    settings, replay = log.settings, await replay_log(log)
    group = await group_facts(await log.admin(), settings.group)
    recorded = {start.recorded_partitions for start in replay.starts.values()} - {None, len(replay.starts)}
    holders = {table: lock_holder(step) for table, step in sorted((await last_lock_steps(log)).items())}
    return Source(
        settings.topic_prefix,
        tuple(_partition(settings, replay, ends, number) for number in sorted(replay.starts)),
        tuple(line for _, state in sorted(replay.tables.items()) for line in _unsettled(state)),
        tuple(
            f"table {table}, agent {each.agent}, until {each.valid_until}"
            for table, each in holders.items()
            if each.held
        ),
        tuple(group.serving(settings.topics.writers)),
        max((each for each in recorded if each is not None), default=None),
        _undecided(replay),
    )


def _undecided(replay: LogReplay) -> tuple[str, ...]:
    """The grants and the corrections of the ledger since the checkpoints."""
    granted = (
        f"transaction {each.transaction} of writer {each.writer}, table {each.table}, granted"
        for each in decoded_all(DECISION_RECORD, chain(*replay.decisions.values()))
        if isinstance(each, CommitGranted)
    )
    corrections = (f"correction of writer {each.writer}, table {each.table}" for each in replay.corrections)
    return *granted, *corrections


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
    found += [
        (transaction, known.writer, Phase.UNKNOWN)
        for transaction in state.lapsed
        if (known := state.transactions.get(transaction) or state.closed.get(transaction)) is not None
    ]
    return [
        f"transaction {transaction} of writer {writer}, table {state.uri}, {phase.value}"
        for transaction, writer, phase in found
    ]
