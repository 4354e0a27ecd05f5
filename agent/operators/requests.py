"""Requests of an operator: `lakewarden abort`, `lakewarden ledger correct` and `restore` (docs/decisions/0020).

A request is an event in the log. The command publishes it, then consumes the topics until the agent has answered it. If no agent
runs, the request stays in the log, and the agent that takes the table over answers it.

`restore` states a backup of the ledger again, which `lakewarden ledger show --output json` has printed. Each writer of the backup
gets a correction of its own. All are published by one producer, and one reader waits for their entries. If one isn't recorded in
time, the command ends; while the writers are stopped, to repeat it changes nothing. An entry of the ledger is never lowered
unless the operator says so.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import Annotated

import anyio
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError

from lakewarden import events as wire
from lakewarden.agent.clock import fresh_id, utc_now
from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import denied_write, producer, start_client
from lakewarden.agent.log import Log
from lakewarden.agent.operators.explain import not_found, search_log
from lakewarden.agent.operators.ledger import LedgerLine, ledger, line_of
from lakewarden.agent.operators.log_replay import LogReplay, replay_log
from lakewarden.agent.serving.log_records import decoded_all
from lakewarden.agent.settings import KafkaSettings
from lakewarden.agent.time_text import first_of
from lakewarden.events.access import stop_client
from lakewarden.events.base import Integer, Name
from lakewarden.handlers.explain.life import Life
from lakewarden.handlers.explain.transaction import phase_of
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import LANDED, OPEN, Phase, Transaction

EDITION_CHARACTERS = 8
"""Hexadecimal digits of a random number: enough for the few editions of a writer."""

MAX_LISTED = 5
"""Transactions or tables that an error lists, if several match."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Who requests something, why, and how long the command waits for the outcome."""

    operator: str
    reason: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class AbortOutcome:
    """How a transaction ended after the request. The field names are the JSON of `lakewarden abort`."""

    transaction: str
    writer: str
    table: str
    batch_id: int | None
    phase: str
    """Its phase before the request."""
    outcome: str
    """`aborted`, `abandoned`, `committed` or `outcome-unknown`."""
    reason: str | None
    """The reason of the abort."""
    detail: str | None


@dataclass(frozen=True, slots=True)
class Correction:
    """What the ledger had of a writer, and what it has now. The field names are JSON."""

    before: LedgerLine | None
    after: LedgerLine


async def abort(
    settings: KafkaSettings,
    prefix: str,
    table: str | None,
    requester: Requester,
    report: Callable[[str], None],
) -> AbortOutcome:
    """End the open transaction whose id begins with `prefix`, and return the outcome. `report` gets a line per step."""
    async with Log(settings) as log:
        replay = await replay_log(log)
        found = _open_transaction(replay, prefix, table)
        if found is None:
            raise await _nothing_open(log, prefix, table)
        state, transaction = found
        phase, batch_id = transaction.phase, transaction.batch_id
        name = f"transaction {transaction.id} of writer {transaction.writer}, table {state.uri}"
        request = wire.AbortRequested(
            event_id=fresh_id(),
            table=state.uri,
            transaction=transaction.id,
            writer=transaction.writer,
            at=utc_now(),
            operator=requester.operator,
            reason=requester.reason,
        )
        number = replay.partition[state.uri]
        await _publish(settings, [request], number)
        report(f"{name}, {phase.value}: abort requested")
        writers = TopicPartition(settings.topics.writers, number)
        decisions = TopicPartition(settings.topics.decisions, number)
        spans = {each: replay.next_offsets[each] for each in (writers, decisions)}
        life = replay.lives.setdefault(transaction.id, Life(transaction.id, transaction.writer))
        withdrawn = life.revoked
        with anyio.move_on_after(requester.timeout_seconds):
            async with aclosing(log.follow(spans)) as batches:
                async for batch in batches:
                    replay.add(number, batch.get(writers, ()), batch.get(decisions, ()))
                    ended = _outcome(state, transaction.id)
                    if ended is not None:
                        return AbortOutcome(
                            transaction.id, transaction.writer, state.uri, batch_id, phase.value, *ended
                        )
                    if life.revoked != withdrawn:
                        withdrawn = life.revoked
                        report(
                            "its grant is withdrawn; its writer may be publishing, so the outcome follows with its report or the "
                            "end of the grant lease"
                        )
        raise AgentError(
            f"{name}: no outcome within {requester.timeout_seconds:g} s (--timeout); the request is in the log, and the agent "
            f"that serves the table answers it; see lakewarden explain {transaction.id}"
        )


async def correct(
    settings: KafkaSettings, table: str | None, writer: str, batch_id: int | None, requester: Requester
) -> Correction:
    """State the writer's last committed batch. Return what the ledger had, and what it has now.

    If that is a smaller one, the writer gets a new edition: the batches after it are written again, also if the table has them.
    """
    lines = [each for each in await ledger(settings, [writer]) if each.writer == writer]
    uri = _table_of(lines, writer, table)
    before = next((each for each in lines if each.table == uri), None)
    stated = -inf if batch_id is None else batch_id
    lowered = before is not None and before.batch_id is not None and stated < before.batch_id
    edition = fresh_id()[:EDITION_CHARACTERS] if lowered else None
    async with aclosing(correct_all(settings, [(uri, writer, batch_id, edition)], requester)) as recorded:
        return Correction(before, await anext(recorded))


async def correct_all(
    settings: KafkaSettings, stated: Sequence[tuple[str, str, int | None, str | None]], requester: Requester
) -> AsyncGenerator[LedgerLine]:
    """State the last committed batches, and the editions, of these tables and writers. Yield each entry when it is recorded.

    The timeout holds for each further entry. Close the generator (`aclosing`).
    """
    requests = [
        wire.LedgerCorrected(
            event_id=fresh_id(),
            table=uri,
            transaction=f"{wire.CORRECTION}{fresh_id()}",
            writer=writer,
            at=utc_now(),
            batch_id=batch_id,
            edition=edition,
            operator=requester.operator,
            reason=requester.reason,
        )
        for uri, writer, batch_id, edition in stated
    ]
    async with Log(settings) as log:
        spans = await log.ends(await log.partitions(log.topics.ledger))
        published = zip(requests, await _publish(settings, requests, None), strict=True)
        missing = {each.event_id: (each, offset) for each, offset in published}
        async with aclosing(log.follow(spans)) as batches:
            while missing:
                with anyio.move_on_after(requester.timeout_seconds) as waiting:
                    batch = await anext(batches)
                    while not (found := _recorded(batch, missing)):
                        batch = await anext(batches)
                if waiting.cancelled_caught:
                    break
                for line in found:
                    yield line
    for each, offset in missing.values():
        raise AgentError(
            f"writer {each.writer}, table {each.table}: no agent recorded the correction within "
            f"{requester.timeout_seconds:g} s (--timeout); it is in the log at offset {offset}, and the agent that serves the "
            f"table applies it; see lakewarden ledger show {each.writer}"
        )


def _recorded(
    batch: Mapping[TopicPartition, list[ConsumerRecord]], missing: dict[str, tuple[wire.LedgerCorrected, int]]
) -> list[LedgerLine]:
    return [
        line_of(entry)
        for entry in decoded_all(wire.LEDGER_EVENT, chain(*batch.values()))
        if isinstance(entry, wire.BatchCommitted) and missing.pop(entry.correction or "", None) is not None
    ]


def _open_transaction(
    replay: LogReplay, prefix: str, table: str | None
) -> tuple[TableState, Transaction] | None:
    """The open transaction with this id, else the only one whose id begins with it. None if there is none."""
    every = [
        (state, each)
        for uri, state in replay.tables.items()
        if table in (None, uri)
        for each in state.transactions.values()
        if each.id.startswith(prefix) and each.phase in OPEN
    ]
    found = [pair for pair in every if pair[1].id == prefix] or every
    if len(found) > 1:
        names = [f"{each.id} (writer {each.writer}, table {state.uri})" for state, each in found]
        raise AgentError(
            f"{len(found)} open transactions begin with {prefix!r}: {first_of(names, MAX_LISTED)}; "
            "give more of the id, or --table"
        )
    return next(iter(found), None)


async def _nothing_open(log: Log, prefix: str, table: str | None) -> AgentError:
    """Why there is no such open transaction: it has ended, or the log has none."""
    search = await search_log(log, prefix)
    found = search.candidates(table)
    if not found:
        return AgentError(not_found(log.settings, search, table))
    named = [
        f"{each.transaction} of writer {each.writer}, table {each.table}," for each in found[-MAX_LISTED:]
    ]
    return AgentError(
        f"transaction {' and '.join(named)} has ended; there is nothing to abort; lakewarden explain shows how it ended"
    )


def _outcome(state: TableState, transaction: str) -> tuple[str, str | None, str | None] | None:
    """How a transaction ended, with the reason and detail of its abort; None while it is open."""
    phase, closed = phase_of(state, transaction), state.closed.get(transaction)
    if phase is Phase.UNKNOWN:
        return "outcome-unknown", "outcome-unknown", "check whether the table contains the batch"
    if phase in LANDED:
        return "committed", None, None
    if closed is None:
        return None
    if closed.reason is None:
        return "abandoned", None, None
    return "aborted", str(closed.reason), closed.detail


def _table_of(lines: list[LedgerLine], writer: str, table: str | None) -> str:
    tables = [each.table for each in lines] if table is None else [table]
    if not tables:
        raise AgentError(
            f"the ledger has no entry of writer {writer}; check the name (lakewarden ledger show), or add --table"
        )
    if len(tables) > 1:
        named = ", ".join(tables[:MAX_LISTED])
        raise AgentError(
            f"the ledger has entries of writer {writer} for {len(tables)} tables ({named}); choose one with --table"
        )
    return tables[0]


async def _publish(
    settings: KafkaSettings, events: Sequence[wire.AbortRequested | wire.LedgerCorrected], number: int | None
) -> list[int]:
    client = producer(settings)
    topic = settings.topics.writers
    try:
        await start_client(client, settings)
        sent = [
            await client.send(topic, wire.encode(each), key=each.table.encode(), partition=number)
            for each in events
        ]
        return [int((await each).offset) for each in sent]
    except KafkaError as error:
        reason = denied_write(error, topic) or f"Kafka rejects it: {error!r}"
        what = f"{events[0].type} of table {events[0].table}"
        raise AgentError(f"{what} could not be published: {reason}") from error
    finally:
        await stop_client(client)


# -- restore -------------------------------------------------------------------------------------------------------------


class BackupLine(BaseModel):
    """What a backup must have of a writer. A writer without a batch id has only lost conflicts."""

    table: Annotated[str, AfterValidator(wire.canonical_table)]
    writer: Name
    batch_id: Integer | None
    edition: Name | None = None


_BACKUP = TypeAdapter(list[BackupLine])


def read_backup(path: Path, table: str | None) -> list[BackupLine]:
    """Return the writers that have a batch, of one table or of all. A backup without any is an error."""
    try:
        lines = _BACKUP.validate_json(path.read_bytes())
    except OSError as error:
        raise AgentError(f"the backup {path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        why = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise AgentError(
            f"{path} is not a backup of the ledger, as lakewarden ledger show --output json prints it: "
            f"{why}; nothing was restored"
        ) from error
    found = [each for each in lines if each.batch_id is not None and table in (None, each.table)]
    if not found:
        of_table = f" of table {table}" if table else ""
        raise AgentError(f"the backup {path} has no committed batch{of_table}; nothing was restored")
    return found


async def restore(
    settings: KafkaSettings, lines: Sequence[BackupLine], requester: Requester, *, lower: bool = False
) -> AsyncGenerator[Correction]:
    """Yield for each writer what the ledger had, and what it has now. Close the generator (`aclosing`).

    `lower`: also where the ledger has a later batch than the backup. Without it, that is an error before anything is restored.
    """
    known = {(each.table, each.writer): each for each in await ledger(settings)}
    stated = {(each.table, each.writer): (each.batch_id, each.edition) for each in lines}
    lowered = [
        f"writer {writer}, table {table}: batch {had} instead of {batch_id}"
        for (table, writer), (batch_id, _) in stated.items()
        if (before := known.get((table, writer))) is not None
        and (had := before.batch_id) is not None
        and batch_id is not None
        and had > batch_id
    ]
    if lowered and not lower:
        raise AgentError(
            f"the ledger has later batches than the backup of {len(lowered)} writers, for example {lowered[0]}; their batches "
            "would be written again; give --lower if the table was also restored from that time; nothing was restored"
        )
    number = 0
    everything = [(*key, *last) for key, last in stated.items()]
    try:
        async with aclosing(correct_all(settings, everything, requester)) as recorded:
            async for after in recorded:
                yield Correction(known.get((after.table, after.writer)), after)
                number += 1
    except AgentError as error:
        raise AgentError(
            f"{number} of {len(everything)} writers are restored, then: {error}; run the command again"
        ) from error
