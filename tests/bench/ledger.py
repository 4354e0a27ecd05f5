"""A large ledger: an agent starts, and reads the last committed batch of each writer; an operator restores it from a backup.

The ledger has one entry per writer, of `TABLES` tables. Names have the length of those of a streaming query: a writer's name
with a query id, a transaction id of 32 characters. `writers` and `decisions` are empty, so the replay is the ledger alone.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from lakewarden.agent.kafka import ensure_topics, producer, start_client
from lakewarden.agent.operators.requests import Requester
from lakewarden.agent.operators.restore import BackupLine, restore
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.events import BatchCommitted, encode, ledger_key
from lakewarden.events.access import partition_of, stop_client
from tests.bench import writer_events
from tests.bench.agent_process import AgentProcess

TABLES = 1_000
SETTLE_SECONDS = 0.5
RESTORE_TIMEOUT_SECONDS = 60.0
"""For each further entry of a restore, on a machine that does other things as well."""
_AT = datetime(2026, 3, 1, tzinfo=UTC)


def measure(
    bootstrap_servers: str, prefix: str, folder: Path, *, entries: int, repetitions: int
) -> dict[str, Any]:
    """Medians over the starts, beside the start of an agent with an empty ledger."""
    with AgentProcess(bootstrap_servers, f"{prefix}-empty", folder / "empty") as agent:
        busy = agent.cpu_seconds()
        time.sleep(SETTLE_SECONDS)
        empty = {"ready_seconds": agent.ready_seconds, "cpu_seconds": busy, **agent.memory()}
    record_bytes = asyncio.run(_fill(bootstrap_servers, prefix, entries))
    runs: list[dict[str, float]] = []
    for number in range(repetitions):
        with AgentProcess(bootstrap_servers, prefix, folder / f"start-{number}") as agent:
            busy = agent.cpu_seconds()
            time.sleep(SETTLE_SECONDS)
            runs.append({"ready_seconds": agent.ready_seconds, "cpu_seconds": busy, **agent.memory()})
    return {
        "entries": entries,
        "tables": min(TABLES, entries),
        "record_bytes": record_bytes,
        "repetitions": len(runs),
        **{name: round(median(run[name] for run in runs), 3) for name in runs[0]},
        "bytes_per_entry": round(
            (median(run["resident_mb"] for run in runs) - empty["resident_mb"]) * 1e6 / entries
        ),
        "empty_ledger": {name: round(value, 3) for name, value in empty.items()},
    }


def measure_restore(bootstrap_servers: str, prefix: str, folder: Path, *, entries: int) -> dict[str, Any]:
    """Seconds of `lakewarden ledger restore` beside an agent with an empty ledger, and of the same command once more.

    The CPU time of the command and of the agent is what an idle machine with two cores would need.
    """
    lines = [
        BackupLine(
            table=f"{writer_events.TABLES}/t{number % TABLES:04}", writer=f"arrivals-{number:06}", batch_id=7
        )
        for number in range(entries)
    ]
    settings = KafkaSettings.load(bootstrap_servers=bootstrap_servers, topic_prefix=prefix)

    async def restored() -> None:
        requester = Requester("bench", "measured", RESTORE_TIMEOUT_SECONDS)
        async with aclosing(restore(settings, lines, requester)) as found:
            assert len([each async for each in found]) == entries

    def timed() -> dict[str, float]:
        began = time.monotonic(), time.process_time(), agent.cpu_seconds()
        asyncio.run(restored())
        ended = time.monotonic(), time.process_time(), agent.cpu_seconds()
        names = ("seconds", "cpu_seconds", "agent_cpu_seconds")
        return {name: round(to - since, 1) for name, since, to in zip(names, began, ended, strict=True)}

    with AgentProcess(bootstrap_servers, prefix, folder) as agent:
        return {"entries": entries, "first": timed(), "again": timed()}


def restore_rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    return [
        (
            f"{title} of a ledger of {report['entries']:,} entries",
            f"{figure['seconds']:.1f} s; CPU {figure['cpu_seconds']:.1f} s, the agent's {figure['agent_cpu_seconds']:.1f} s",
            "< 60 s",
        )
        for title, figure in (("restore", report["first"]), ("  again", report["again"]))
    ]


async def _fill(bootstrap_servers: str, prefix: str, entries: int) -> int:
    """Write the ledger in large batches. Return the size of one record's value."""
    settings = Settings.load(bootstrap_servers=bootstrap_servers, topic_prefix=prefix)
    count = await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
    sender = producer(settings)
    await start_client(sender, settings)
    try:
        batches = {partition: sender.create_batch() for partition in range(count)}
        tables = [f"{writer_events.TABLES}/t{number:04}" for number in range(TABLES)]
        forms = [_form(table) for table in tables]
        places = [partition_of(table, count) for table in tables]
        key = value = b""
        for number in range(entries):
            partition = places[number % TABLES]
            key, value = (each % {b"number": number} for each in forms[number % TABLES])
            if batches[partition].append(key=key, value=value, timestamp=None) is None:
                await sender.send_batch(batches[partition], settings.topics.ledger, partition=partition)
                batches[partition] = sender.create_batch()
                batches[partition].append(key=key, value=value, timestamp=None)
        for partition, batch in batches.items():
            if batch.record_count():
                await sender.send_batch(batch, settings.topics.ledger, partition=partition)
        await sender.flush()
    finally:
        await stop_client(sender, seconds=60)
    return len(value)


def _form(table: str) -> tuple[bytes, bytes]:
    """Key and value of an entry, with a place for the writer's number: a model per entry would take most of the time."""
    entry = BatchCommitted(
        event_id=32 * "#",
        table=table,
        transaction=32 * "#",
        writer=f"arrivals:0f8fad5b-d9cb-469f-a165-{12 * '~'}",
        at=_AT,
        batch_id=7,
        version="1234",
        term=f"{0:032x}",
    )
    key, value = (
        each.replace(32 * b"#", b"%(number)032x").replace(12 * b"~", b"%(number)012x")
        for each in (ledger_key(table, entry.writer), encode(entry))
    )
    return key, value


def rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    empty = report["empty_ledger"]
    return [
        (
            f"start with a ledger of {report['entries']:,} entries, {report['tables']:,} tables",
            f"{report['ready_seconds']:.1f} s, {report['cpu_seconds']:.1f} s of CPU",
            "",
        ),
        (
            "  resident memory after it",
            f"{report['resident_mb']:.0f} MB, peak {report['peak_mb']:.0f} MB, {report['bytes_per_entry']} bytes per entry",
            "< 400 bytes per entry",
        ),
        (
            "  start with an empty ledger",
            f"{empty['ready_seconds']:.1f} s, {empty['cpu_seconds']:.1f} s of CPU, {empty['resident_mb']:.0f} MB",
            "",
        ),
    ]
