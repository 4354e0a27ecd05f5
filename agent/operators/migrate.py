"""`lakewarden migrate`: copies the ledger of a topic prefix to a new one with another number of Kafka partitions.

The rules are in `handlers/table/migration.py`, the reasons in docs/decisions/0029.

1. Read the source and the target, and refuse if they are not at rest.
2. Create the target's topics, as an agent would.
3. Publish `ledger-copied` (not complete) to each of its partitions. From here on, an agent refuses to serve them.
4. Publish the entries, each to the partition of its table.
5. Read the target again and compare it with the entries. Refuse if an agent or a writer has used the target since, or if the
   topics of the source have new records (`_verify`).
6. Publish `ledger-copied` (complete) to each partition.

A run that is interrupted leaves the target incomplete. The next one finds what is there and publishes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    for_code,
)

from lakewarden.agent.clock import fresh_id, utc_now
from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import (
    admin_client,
    batches_to_end,
    denied_write,
    end_offsets,
    ensure_topics,
    partition_of,
    partitions_of,
    producer,
    require_equal_counts,
    start_client,
    stop_client,
)
from lakewarden.agent.operators.ledger import entries_in_force, incomplete_copies
from lakewarden.agent.operators.log_replay import LogReplay, replay_log
from lakewarden.agent.operators.status import last_lock_steps, lock_holder
from lakewarden.agent.serving.checkpoint import digest
from lakewarden.agent.serving.takeover import RECORDS_READ_AT_ONCE
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    LEDGER_EVENT,
    BatchCommitted,
    CommitGranted,
    ConflictsLost,
    LedgerCopied,
    LedgerEventUnion,
    PartitionTaken,
    decode,
    encode,
    ledger_key,
    partition_name,
)
from lakewarden.handlers.table.migration import Source, SourcePartition, Target, refusals
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase

SENT_AT_ONCE = 1_000
"""Records that are sent before the command waits for their acknowledgements."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What was copied, or is going to be. The field names are the JSON of `lakewarden migrate`."""

    from_prefix: str
    from_partitions: int
    to_prefix: str
    to_partitions: int
    tables: int
    batches: int
    """Writers of tables with a last committed batch."""
    losses: int
    """Writers of tables that have lost conflicts in a row."""
    already_there: int
    """Entries that the target had before this run."""
    refusals: tuple[str, ...]
    """Why the ledger is not copied now."""
    complete: bool
    """Whether agents may serve the target."""
    left_behind: int = 0
    """Events that no agent may decide about, because partitions were added to the source's topics."""


@dataclass(slots=True)
class Entries:
    """The entries to copy, in the form in which the target has them."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    """By the key of the record."""
    tables: dict[bytes, str] = field(default_factory=dict)

    def add(self, entry: LedgerEventUnion) -> None:
        """Add an entry in force, in place of the one before.

        Offsets and terms of the source mean nothing in the target. An entry without a term counts under each.
        """
        if isinstance(entry, BatchCommitted):
            key, changed = (
                ledger_key(entry.table, entry.writer),
                {"corrected_at": None, "correction": None, "generation": 0},
            )
        else:
            key, changed = ledger_key(entry.table, entry.writer, "losses"), {}
            if not entry.losses:
                self.values.pop(key, None)
                self.tables.pop(key, None)
                return
        self.values[key] = encode(entry.model_copy(update={**changed, "term": ""}))
        self.tables[key] = entry.table

    def count(self) -> tuple[int, int, int]:
        """How many tables, batches and writers with losses."""
        losses = sum(key.endswith(b"\nlosses") and key.count(b"\n") == 2 for key in self.values)
        return len(set(self.tables.values())), len(self.values) - losses, losses


@dataclass(slots=True)
class Copied:
    """What the target's ledger has."""

    digests: dict[bytes, str] = field(default_factory=dict)
    """Of the last value of each key."""
    complete: dict[int, bool] = field(default_factory=dict)
    """By partition: the last `ledger-copied`."""
    taken: bool = False

    def others(self, entries: Entries) -> int:
        """How many of its entries are not those of the source."""
        return sum(
            key not in entries.values or digest(entries.values[key]) != found
            for key, found in self.digests.items()
        )


async def migrate(
    settings: Settings, target: Settings, partitions: int, *, dry_run: bool, report: Callable[[str], None]
) -> Migration:
    """Copy the ledger. `report` gets a line per step. With `dry_run` nothing is written.

    Raises `AgentError` with all reasons if the ledger may not be copied, except for a dry run, which returns them.
    """
    before = await _ends(settings, _logs(settings))
    source = await _source(settings, before)
    entries = Entries()
    async with aclosing(entries_in_force(settings)) as found:
        async for entry in found:
            entries.add(entry)
    counts = await _counts(target)
    there = await _copied(target, counts)
    facts = Target(
        target.topic_prefix,
        {topic: count for topic, count in counts.items() if topic in _logs(target)},
        await _used(target, counts),
        there.taken,
        there.others(entries),
    )
    reasons = refusals(source, facts, partitions)
    tables, batches, losses = entries.count()
    plan = Migration(
        settings.topic_prefix,
        len(source.partitions),
        target.topic_prefix,
        partitions,
        tables,
        batches,
        losses,
        len(there.digests),
        tuple(reasons),
        complete=not reasons and _is_complete(there, entries, partitions),
        left_behind=0 if reasons else sum(each.end - (each.checkpoint or 0) for each in source.unread),
    )
    if dry_run or plan.complete:
        return plan
    if reasons:
        raise AgentError(f"the ledger of prefix {settings.topic_prefix} is not copied: {'; '.join(reasons)}")
    try:
        await ensure_topics(target, target.topics, partitions, target.replication)
    except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError) as error:
        named = error.args[0] if error.args else f"{target.topic_prefix}.*"
        raise AgentError(
            f"Kafka denies this user describe on the topic {named}, or create if it doesn't exist; docs/security.md lists the "
            "rights of each command"
        ) from error
    report(f"topics {target.topic_prefix}.* exist, with {partitions} partitions")
    async with _sender(target) as sender:
        await _publish(sender, target, _markers(settings.topic_prefix, partitions, complete=False))
        missing = [key for key in entries.values if there.digests.get(key) != digest(entries.values[key])]
        await _publish(
            sender,
            target,
            ((partition_of(entries.tables[key], partitions), key, entries.values[key]) for key in missing),
        )
        report(f"{len(missing)} entries copied")
        await _verify(settings, target, entries, before)
        await _publish(sender, target, _markers(settings.topic_prefix, partitions, complete=True))
    return replace(plan, complete=True)


# -- the source ----------------------------------------------------------------------------------------------------------


def _logs(settings: Settings) -> tuple[str, str, str]:
    """The topics of a prefix that are the state."""
    topics = settings.topics
    return topics.writers, topics.decisions, topics.ledger


async def _source(settings: Settings, ends: Mapping[TopicPartition, int]) -> Source:
    counts = Counter(each.topic for each in ends)
    require_equal_counts(counts)
    replay = await replay_log(settings)
    agents = await _agents(settings)
    incomplete = await incomplete_copies(settings, replay.starts)
    recorded = {start.recorded_partitions for start in replay.starts.values()} - {None, len(replay.starts)}
    holders = [
        (table, lock_holder(step)) for table, step in sorted((await last_lock_steps(settings)).items())
    ]
    return Source(
        settings.topic_prefix,
        tuple(_partition(settings, replay, ends, number) for number in sorted(replay.starts)),
        tuple(line for _, state in sorted(replay.tables.items()) for line in _unsettled(state)),
        tuple(
            f"table {table}, agent {each.agent}, until {each.valid_until}"
            for table, each in holders
            if each.held
        ),
        tuple(agents),
        next(iter(incomplete.values()), None),
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
    settings: Settings, replay: LogReplay, ends: Mapping[TopicPartition, int], number: int
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


async def _agents(settings: Settings) -> list[str]:
    """The members of the group that consume this prefix, by client id and host."""
    admin = admin_client(settings)
    await start_client(admin, settings)
    try:
        [answer] = await admin.describe_consumer_groups([settings.group])
    finally:
        await stop_client(admin)
    found: list[str] = []
    for error, _, _, _, _, members in (each[:6] for each in answer.groups):
        if error:
            raise for_code(error)(settings.group)
        for member in members:
            client, host, metadata = member[1], member[2], member[3]
            topics = ConsumerProtocolMemberMetadata.decode(metadata).subscription if metadata else ()
            if settings.topics.writers in topics or not metadata:
                found.append(f"{client} at {host.lstrip('/')}")
    return found


# -- the target ----------------------------------------------------------------------------------------------------------


async def _counts(settings: Settings) -> dict[str, int]:
    """The number of partitions of each topic of the prefix that exists."""
    names = [each.name for each in settings.topics.settings()]
    admin = admin_client(settings)
    await start_client(admin, settings)
    try:
        present = [name for name in names if name in set(await admin.list_topics())]
        described = await admin.describe_topics(present) if present else []
    finally:
        await stop_client(admin)
    return {each["topic"]: len(each["partitions"]) for each in described}


async def _used(settings: Settings, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The topics of the prefix, besides the ledger, that have or had records."""
    others = [topic for topic in counts if topic != settings.topics.ledger]
    ends = await end_offsets(
        settings, [TopicPartition(topic, number) for topic in others for number in range(counts[topic])]
    )
    return tuple(topic for topic in others if any(end for each, end in ends.items() if each.topic == topic))


async def _ends(settings: Settings, topics: Iterable[str]) -> dict[TopicPartition, int]:
    return await end_offsets(
        settings, [each for topic in topics for each in await partitions_of(settings, topic)]
    )


async def _copied(settings: Settings, counts: Mapping[str, int]) -> Copied:
    """What the target's ledger has, read as a stream."""
    topic, found = settings.topics.ledger, Copied()
    spans: dict[TopicPartition, int | None] = {
        TopicPartition(topic, number): None for number in range(counts.get(topic, 0))
    }
    async with aclosing(batches_to_end(settings, spans, max_records=RECORDS_READ_AT_ONCE)) as batches:
        async for partition, records in batches:
            for record in records:
                match decode(LEDGER_EVENT, record.value):
                    case BatchCommitted() | ConflictsLost():
                        found.digests[record.key] = digest(record.value)
                    case LedgerCopied(complete=complete):
                        found.complete[partition.partition] = complete
                    case PartitionTaken():
                        found.taken = True
                    case _:
                        found.digests[record.key or b""] = ""
    return found


def _is_complete(there: Copied, entries: Entries, partitions: int) -> bool:
    markers = all(there.complete.get(number, False) for number in range(partitions))
    return markers and len(there.digests) == len(entries.values) and not there.others(entries)


async def _verify(
    settings: Settings, target: Settings, entries: Entries, before: Mapping[TopicPartition, int]
) -> None:
    """Raise `AgentError` unless the target has exactly the entries, and the source has not changed."""
    counts = await _counts(target)
    there = await _copied(target, counts)
    if there.taken or await _used(target, counts):
        raise AgentError(
            f"prefix {target.topic_prefix} was used while the ledger was copied to it; stop its agents and writers, delete the "
            f"topics {target.topic_prefix}.*, and run this again"
        )
    if len(there.digests) != len(entries.values) or there.others(entries):
        raise AgentError(
            f"{target.topics.ledger} has other entries than {settings.topics.ledger} after the copy; delete the topics "
            f"{target.topic_prefix}.*, and run this again"
        )
    if await _ends(settings, _logs(settings)) != before:
        raise AgentError(
            f"prefix {settings.topic_prefix} has new records since the copy began; stop its agents and writers, delete the "
            f"topics {target.topic_prefix}.*, and run this again"
        )


def _markers(source: str, partitions: int, *, complete: bool) -> Iterable[tuple[int, bytes, bytes]]:
    for number in range(partitions):
        name = partition_name(number)
        event = LedgerCopied(event_id=fresh_id(), table=name, at=utc_now(), source=source, complete=complete)
        yield number, ledger_key(name, "", "ledger-copied"), encode(event)


@asynccontextmanager
async def _sender(settings: Settings) -> AsyncGenerator[AIOKafkaProducer]:
    client = producer(settings)
    try:
        with _naming_what_failed(settings):
            await start_client(client, settings)
        yield client
    finally:
        await stop_client(client)


async def _publish(
    sender: AIOKafkaProducer, settings: Settings, records: Iterable[tuple[int, bytes, bytes]]
) -> None:
    """Publish records, each to its partition of the ledger, and wait until Kafka has acknowledged all of them."""
    sent = []
    with _naming_what_failed(settings):
        for partition, key, value in records:
            sent.append(await sender.send(settings.topics.ledger, value, key=key, partition=partition))
            if len(sent) == SENT_AT_ONCE:
                for each in sent:
                    await each
                sent.clear()
        for each in sent:
            await each


@contextmanager
def _naming_what_failed(settings: Settings) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        reason = denied_write(error, settings.topics.ledger) or f"Kafka rejects it: {error!r}"
        raise AgentError(
            f"the ledger was not copied to {settings.topics.ledger}: {reason}; the copy is incomplete, run this again"
        ) from error
