"""Large logs: markers through a running agent, the restart of an agent, and a large ledger.

- Throughput: while the agent is suspended (SIGSTOP), its log is filled with a backlog of 10,000 events of 100 different markers,
  of a few open transactions. After every hundredth event comes a transaction that is admitted, conflicts and is aborted. Then the
  agent resumes. The figure is the number of markers between the first and the last of those decisions, by the agent's clock in
  the decisions (`at`). It includes consuming, decoding, indexing, checking, deciding, and publishing 200 decisions and 100
  conflicts.
- Restart: that agent is stopped in order and started again on the same log. All its transactions are still open, so the agent
  replays the whole log. Measured are the time from the launch to ready, the replay's part of it, and the resident memory after
  it.
- Ledger: an agent starts, and reads the last committed batch of each writer, of `LEDGER_TABLES` tables. Names have the length of
  those of a streaming query: a writer's name with a query id, a transaction id of 32 characters. `writers` and `decisions` are
  empty, so the replay is the ledger alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from lakewarden.agent.kafka import ensure_topics, producer, start_client
from lakewarden.events import BatchCommitted, WriterEventUnion, encode, ledger_key
from lakewarden.events.access import partition_of, stop_client
from tests.bench import writer_events
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import medians
from tests.bench.run import Figures, Run, progress
from tests.bench.writer_events import intent, marker, touched

TABLE = f"{writer_events.TABLES}/volume"
BATCH = 100
OPEN = [f"open-{number}" for number in range(4)]
PROBE_EVERY = 100
SETTLE_SECONDS = 0.5
WITHIN_SECONDS = 45
"""No repetition starts later than this. On a busy machine there are fewer; the report has their number."""
PAUSED = {"session_timeout_seconds": "60"}
"""A suspended agent must not lose its partitions. The default is 10 s."""
LEDGER_TABLES = [f"{writer_events.TABLES}/t{number:04}" for number in range(1_000)]


def measure(run: Run) -> Figures:
    """Medians over the repetitions."""
    markers = run.size.markers
    opening, events = _opening(), list(_backlog(markers))
    rates: list[float] = []
    filled = run
    for number in _numbers(run.size.repetitions):
        filled = run.within(f"filled-{number}")
        with filled.agent(**PAUSED) as agent:
            rates.append(markers / asyncio.run(_drain(filled, agent, opening, events)))
    progress("restart of the agent on that log")
    return {
        "markers": markers,
        "batch": BATCH,
        "repetitions": len(rates),
        "per_second": median(rates),
        "restart": _starts(filled, run.size.repetitions),
    }


def _opening() -> list[WriterEventUnion]:
    return [*(intent(TABLE, name) for name in OPEN), touched(TABLE, OPEN[0], [marker(0, 0)])]


def _backlog(markers: int) -> Iterator[bytes]:
    """Events of the open transactions in turn, and conflicts: first, every `PROBE_EVERY` events, and last."""
    probes = 0

    def conflict() -> Iterator[bytes]:
        nonlocal probes
        name = f"probe-{probes}"
        probes += 1
        yield encode(intent(TABLE, name))
        yield encode(touched(TABLE, name, [marker(0, 0)]))

    yield from conflict()
    for number, start in enumerate(range(1, markers + 1, BATCH)):
        places = [marker(each, (each // 7) % 336) for each in range(start, start + BATCH)]
        yield encode(touched(TABLE, OPEN[number % len(OPEN)], places))
        if number % PROBE_EVERY == PROBE_EVERY - 1:
            yield from conflict()
    if markers // BATCH % PROBE_EVERY:
        yield from conflict()


def _last_probe(markers: int) -> str:
    return f"probe-{-(-markers // BATCH // PROBE_EVERY)}"


async def _drain(
    run: Run, agent: AgentProcess, opening: list[WriterEventUnion], events: list[bytes]
) -> float:
    """Seconds between the first and the last decision."""
    async with run.writers() as writers:
        for event in opening:
            await writers.send(event)
        for name in OPEN:
            await writers.answer(name, "admitted")
        agent.pause()
        for value in events:
            await writers.put(TABLE, value)
        await writers.flush()
        agent.resume()
        _, first = await writers.answer("probe-0", "admitted")
        _, last = await writers.answer(_last_probe(run.size.markers), "abort")
        return float(max((last.at - first.at).total_seconds(), 1e-6))


def _numbers(repetitions: int) -> Iterator[int]:
    began = time.monotonic()
    for number in range(repetitions):
        if number and time.monotonic() - began > WITHIN_SECONDS:
            return
        yield number


def _starts(run: Run, repetitions: int) -> dict[str, float]:
    """Medians over starts of an agent on this log."""
    runs: list[dict[str, float]] = []
    for number in _numbers(repetitions):
        with run.agent(f"start-{number}") as agent:
            busy = agent.cpu_seconds()
            time.sleep(SETTLE_SECONDS)
            live = next(line for line in agent.lines() if line["event"] == "partitions.live")
            runs.append(
                {
                    "ready_seconds": agent.seconds_to("agent.ready"),
                    "replay_seconds": live["replay_seconds"],
                    "cpu_seconds": busy,
                    **agent.memory(),
                }
            )
    return medians(runs) | {"repetitions": len(runs)}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    yield (
        f"markers through one agent, in events of {report['batch']}",
        f"{report['per_second']:,.0f} per second",
        "≥ 250,000 per second",
    )
    restart = report["restart"]
    yield (
        f"restart on a log with {report['markers']:,} open markers",
        f"{restart['ready_seconds']:.1f} s, of which {restart['replay_seconds']:.1f} s replay",
        "< 8 s",
    )
    yield "  resident memory after it", _memory(restart), "< 400 MB"


def _memory(figure: dict[str, float]) -> str:
    return f"{figure['resident_mb']:.0f} MB, peak {figure['peak_mb']:.0f} MB"


def measure_ledger(run: Run) -> Figures:
    """Medians over the starts, beside the start of an agent with an empty ledger."""
    empty = _starts(run.within("empty"), 1)
    asyncio.run(_fill(run, run.size.ledger_entries))
    full = _starts(run, run.size.repetitions)
    return {"entries": run.size.ledger_entries, "full": full, "empty": empty}


async def _fill(run: Run, entries: int) -> None:
    """Write the ledger in large batches, an entry for each writer."""
    settings = run.settings()
    count = await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
    sender = producer(settings)
    await start_client(sender, settings)
    try:
        batches = {partition: sender.create_batch() for partition in range(count)}
        forms = [_form(table) for table in LEDGER_TABLES]
        places = [partition_of(table, count) for table in LEDGER_TABLES]
        for number in range(entries):
            table = number % len(LEDGER_TABLES)
            partition = places[table]
            key, value = (each % {b"number": number} for each in forms[table])
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


def _form(table: str) -> tuple[bytes, bytes]:
    """Key and value of an entry, with a place for the writer's number: a model per entry would take most of the time."""
    common = writer_events.common(table, 32 * "#") | {
        "event_id": 32 * "#",
        "writer": f"arrivals:0f8fad5b-d9cb-469f-a165-{12 * '~'}",
    }
    entry = BatchCommitted(**common, batch_id=7, version="1234", term=f"{0:032x}")
    key, value = (
        each.replace(32 * b"#", b"%(number)032x").replace(12 * b"~", b"%(number)012x")
        for each in (ledger_key(table, entry.writer), encode(entry))
    )
    return key, value


def ledger_rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    entries = f"{report['entries']:,} entries, {len(LEDGER_TABLES):,} tables"
    for title, figure in (
        (f"start with a ledger of {entries}", report["full"]),
        ("  start with an empty ledger", report["empty"]),
    ):
        yield (
            title,
            f"{figure['ready_seconds']:.1f} s, {figure['cpu_seconds']:.1f} s of CPU, {_memory(figure)}",
            "",
        )
