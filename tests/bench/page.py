"""`lakewarden web` with many tables: its first page, and what the server and an open page cost over an hour's events.

The log is written directly, without an agent: each table has an open transaction. Then an hour of transactions of other tables is
published as fast as Kafka takes it. After it, one table changes each second, because the page is computed at most that often,
however many events arrive: what an update costs is measured there.

With Chromium, `open_page.py` measures the first paint, and what an open page needs over an hour's updates. Without, a client
reads the stream and fetches the page after each message, as the page's script does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import psutil
from aiokafka import AIOKafkaProducer

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.kafka import ensure_topics, producer, start_client
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    Abort,
    Admitted,
    CommitGranted,
    ConflictDetected,
    ConflictEntry,
    Marker,
    encode,
)
from lakewarden.events.access import stop_client
from tests.bench import writer_events
from tests.bench.figures import summary
from tests.bench.open_page import OpenPages, opened
from tests.browser.chromium import find_chromium

PATIENCE_SECONDS = 600.0
POLL_SECONDS = 0.2
FIRST_PAGES = 21
MARKERS = 150
"""Of each transaction, in three events."""
CONFLICT_EVERY = 20
"""Of so many transactions, one is aborted by a conflict."""
HOUR_TABLES = 200
"""Other tables than those of the open transactions: the page keeps the markers of all commits since an open transaction began."""
STATES = 20
"""Different pages that the open page of `open_page.py` fetches in turn."""
LAST = f"{writer_events.TABLES}/last"
AGENT = "bench-agent"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    tables: int
    transactions: int
    """Of the hour."""
    updates: int
    """Seconds in which one table changes each second."""
    fed_updates: int
    """Of an open page in Chromium whose stream is fed."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and resident memory of some processes."""

    cpu_seconds: float
    resident_mb: float


class Log:
    """Publishes writers' events and an agent's decisions to topics of one partition, so that offsets are known."""

    def __init__(self, settings: Settings, sender: AIOKafkaProducer) -> None:
        self._topics = settings.topics
        self._sender = sender
        self._next = 0
        self.records = 0

    async def event(self, value: bytes, table: str) -> None:
        self._next += 1
        await self._put(self._topics.writers, table, value)

    async def decide(
        self, kind: type[Admitted | Abort | CommitGranted], table: str, transaction: str, **fields: Any
    ) -> None:
        """A decision about the event that was sent last."""
        decision = kind(**_common(table, transaction), agent=AGENT, cause_offset=self._next - 1, **fields)
        await self._put(self._topics.decisions, table, encode(decision))

    async def conflict(self, value: bytes, table: str) -> None:
        await self._put(self._topics.conflicts, table, value)

    async def open(self, table: str, transaction: str) -> None:
        """A transaction that computes."""
        await self.event(writer_events.intent(table, transaction), table)
        await self.decide(Admitted, table, transaction)

    async def flush(self) -> None:
        await self._sender.flush()

    async def _put(self, topic: str, table: str, value: bytes) -> None:
        self.records += 1
        await self._sender.send(topic, value, key=table.encode())


def _common(table: str, transaction: str) -> dict[str, Any]:
    return {
        "event_id": f"{transaction}-decision",
        "table": table,
        "transaction": transaction,
        "writer": f"writer of {transaction}",
        "at": datetime.now(UTC),
    }


def measure(bootstrap_servers: str, prefix: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Publish to topics of one partition, and return the figures."""
    settings = Settings.load(bootstrap_servers=bootstrap_servers, topic_prefix=prefix, partitions=1)
    return asyncio.run(_measure(settings, folder, sizes))


async def _measure(settings: Settings, folder: Path, sizes: Sizes) -> dict[str, Any]:
    await ensure_topics(settings, settings.topics, 1, settings.replication)
    sender = producer(settings)
    await start_client(sender, settings)
    try:
        log = Log(settings, sender)
        for number in range(sizes.tables):
            await log.open(f"{writer_events.TABLES}/t{number:04}", f"open-{number}")
        await log.flush()
        with _server(settings, folder) as (process, address):
            async with aiohttp.ClientSession(address) as session:
                await _until(
                    session, "/tables.json", lambda found: len(found["tables"]) == min(200, sizes.tables)
                )
                report: dict[str, Any] = {
                    "tables": sizes.tables,
                    "first": await _first_pages(session, process),
                }
                async with _open_page(session, address, report) as browser:
                    pid = None if browser is None else browser.pid
                    report["before"] = _server_cost(process)
                    report["hour"] = await _an_hour(log, session, process, sizes.transactions, pid)
                    report["updates"] = await _updates(log, process, pid, sizes.tables, sizes.updates)
                    if browser is not None:
                        report["fed"] = await browser.fed(await _states(log, session), sizes.fed_updates)
        return report
    finally:
        await stop_client(sender, seconds=60)


async def _first_pages(session: aiohttp.ClientSession, process: psutil.Process) -> dict[str, Any]:
    """Milliseconds until the page and its two assets were received whole, one after the other, and the server's CPU time."""
    before = _server_cost(process)["cpu_seconds"]
    took: list[float] = []
    size = 0
    for _ in range(FIRST_PAGES):
        began, size = time.perf_counter(), 0
        for path in ("/", "/static/page.css", "/static/page.js"):
            async with session.get(path) as answer:
                size += len(await answer.read())
        took.append((time.perf_counter() - began) * 1e3)
    busy = _server_cost(process)["cpu_seconds"] - before
    return {"ms": summary(took), "kb": round(size / 1e3, 1), "cpu_ms": round(busy * 1e3 / FIRST_PAGES, 1)}


@asynccontextmanager
async def _open_page(
    session: aiohttp.ClientSession, address: str, report: dict[str, Any]
) -> AsyncIterator[OpenPages | None]:
    """An open page in Chromium, or a client that does the same. Adds the first paints to the report."""
    if (chromium := find_chromium()) is None:
        reading = asyncio.create_task(_read_stream(session))
        yield None
        reading.cancel()
        return
    async with opened(chromium, address) as browser:
        page = await browser.page()
        before = _tree_cost(browser.pid).cpu_seconds
        report["browser"] = browser.name
        report["painted_ms"] = await browser.first_paints(page, FIRST_PAGES)
        busy = _tree_cost(browser.pid).cpu_seconds - before
        report["painted_cpu_ms"] = round(busy * 1e3 / FIRST_PAGES, 1)
        yield browser


async def _states(log: Log, session: aiohttp.ClientSession) -> list[str]:
    """What the server sends for the first view in some states, each after another transaction has begun."""
    found: list[str] = []
    for number in range(STATES):
        await log.open(f"{writer_events.TABLES}/t{number:04}", f"state-{number}")
        await log.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            async with session.get("/") as answer:
                text = await answer.text()
            if not found or text != found[-1]:
                break
            if time.monotonic() > deadline:
                raise RuntimeError("the page never showed what was published")
            await asyncio.sleep(POLL_SECONDS)
        found.append(text)
    return found


async def _read_stream(session: aiohttp.ClientSession) -> None:
    async with session.get("/events?view=/", timeout=aiohttp.ClientTimeout(total=None)) as stream:
        async for line in stream.content:
            if line.startswith(b"data:"):
                async with session.get("/") as answer:
                    await answer.read()


async def _an_hour(
    log: Log,
    session: aiohttp.ClientSession,
    process: psutil.Process,
    transactions: int,
    browser: int | None,
) -> dict[str, Any]:
    before, browser_before = _server_cost(process), _tree_cost(browser)
    records, began = log.records, time.monotonic()
    for number in range(transactions):
        await _transaction(
            log, f"{writer_events.TABLES}/busy-{number % HOUR_TABLES:03}", f"done-{number}", number
        )
    await log.open(LAST, "last")
    await log.flush()
    last = f"/table.json?uri={quote(LAST)}"
    await _until(
        session, last, lambda found: bool(found["table"]["transactions"] and found["timeline"]["writers"])
    )
    after, browser_after = _server_cost(process), _tree_cost(browser)
    return {
        "transactions": transactions,
        "records": log.records - records,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(after["cpu_seconds"] - before["cpu_seconds"], 1),
        "resident_mb": after["resident_mb"],
        "peak_mb": after["peak_mb"],
        "browser_cpu_seconds": round(browser_after.cpu_seconds - browser_before.cpu_seconds, 1),
        "browser_mb": [browser_before.resident_mb, browser_after.resident_mb],
    }


async def _transaction(log: Log, table: str, transaction: str, number: int) -> None:
    """Intent, markers, request, grant and report; or an abort by a conflict."""
    await log.open(table, transaction)
    for start in range(0, MARKERS, MARKERS // 3):
        markers = [
            writer_events.marker(number * MARKERS + each, each) for each in range(start, start + MARKERS // 3)
        ]
        await log.event(writer_events.markers_created(table, transaction, markers), table)
    if number % CONFLICT_EVERY == 0:
        marker = writer_events.marker(number * MARKERS, 0)
        await log.decide(
            Abort, table, transaction, reason="conflict", retriable=True, conflicts=(_lost_to(marker),)
        )
        await log.conflict(encode(_conflict(table, transaction, marker)), table)
        return
    await log.event(writer_events.requested(table, transaction), table)
    grant = f"grant-{transaction}"
    await log.decide(CommitGranted, table, transaction, grant=grant, lease_seconds=30.0, seq=1)
    await log.event(writer_events.completed(table, transaction, grant), table)


def _lost_to(marker: Marker) -> ConflictEntry:
    return ConflictEntry(
        partition=marker.partition,
        file_group=marker.file_group,
        operation="merge",
        other_operation="merge",
        other_transaction="winner",
        other_writer="writer of winner",
        kind="marker",
    )


def _conflict(table: str, transaction: str, marker: Marker) -> ConflictDetected:
    return ConflictDetected(
        **_common(table, transaction),
        victim=transaction,
        victim_writer=f"writer of {transaction}",
        winner="winner",
        winner_writer="writer of winner",
        rule="file-group",
        kind="marker",
        conflicts=(_lost_to(marker),),
        detected_after_ms=1.0,
        victim_age_seconds=30.0,
    )


async def _updates(
    log: Log, process: psutil.Process, browser: int | None, tables: int, seconds: int
) -> dict[str, Any]:
    """The CPU time of one second in which a table changes."""
    before = _server_cost(process), _tree_cost(browser)
    for number in range(seconds):
        await log.open(f"{writer_events.TABLES}/t{number % tables:04}", f"more-{number}")
        await log.flush()
        await asyncio.sleep(1)
    after = _server_cost(process), _tree_cost(browser)
    return {
        "seconds": seconds,
        "server_cpu_ms": round((after[0]["cpu_seconds"] - before[0]["cpu_seconds"]) * 1e3 / seconds, 1),
        "browser_cpu_ms": round((after[1].cpu_seconds - before[1].cpu_seconds) * 1e3 / seconds, 1),
        "browser_mb": after[1].resident_mb,
    }


def _server_cost(process: psutil.Process) -> dict[str, float]:
    times = process.cpu_times()
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 976.5625
    return {
        "cpu_seconds": round(times.user + times.system, 2),
        "resident_mb": round(process.memory_info().rss / 1e6, 1),
        "peak_mb": round(peak, 1),
    }


def _tree_cost(pid: int | None) -> Cost:
    """Of a process and all below it. Shared pages count once for each."""
    if pid is None:
        return Cost(0.0, 0.0)
    root = psutil.Process(pid)
    tree = [root, *root.children(recursive=True)]
    cpu = sum(each.cpu_times().user + each.cpu_times().system for each in tree)
    return Cost(cpu, round(sum(each.memory_info().rss for each in tree) / 1e6, 1))


@contextmanager
def _server(settings: Settings, folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """`lakewarden web` as a process, and its address."""
    folder.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAKEWARDEN_")}
    environment = inherited | {
        "LAKEWARDEN_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
        "LAKEWARDEN_TOPIC_PREFIX": settings.topic_prefix,
        "LAKEWARDEN_WEB_LISTEN": "127.0.0.1:0",
    }
    command = bound([str(Path(sys.executable).with_name("lakewarden")), "web"])
    with (folder / "web.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the page did not start: {(folder / 'web.log').read_text()[-5000:]}")
        yield psutil.Process(server.pid), address
    finally:
        server.terminate()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


async def _until(session: aiohttp.ClientSession, path: str, holds: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        async with session.get(path) as answer:
            if answer.status == 200 and holds(await answer.json()):
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} never showed what was published")
        await asyncio.sleep(POLL_SECONDS)


def rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    first, hour, updates = report["first"], report["hour"], report["updates"]
    yield (
        f"first page of {report['tables']:,} tables, with its assets, {first['kb']:.0f} kB",
        f"p50 {first['ms']['p50']:.0f} ms, p99 {first['ms']['p99']:.0f} ms; {first['cpu_ms']:.0f} ms CPU",
        "< 1,000 ms",
    )
    if "painted_ms" in report:
        painted = report["painted_ms"]
        yield (
            f"  first paint in {report['browser']}",
            f"p50 {painted['p50']:.0f} ms, p99 {painted['p99']:.0f} ms; {report['painted_cpu_ms']:.0f} ms CPU",
            "< 1,000 ms",
        )
    yield (
        f"an hour's {hour['records']:,} records, {hour['transactions']:,} transactions: the page's server",
        f"{hour['cpu_seconds']:.0f} s CPU, {hour['resident_mb']:.0f} MB, peak {hour['peak_mb']:.0f} MB",
        "",
    )
    yield (
        "  a second in which a table changes, one page open",
        f"{updates['server_cpu_ms']:.0f} ms CPU, its browser {updates['browser_cpu_ms']:.0f} ms, {updates['browser_mb']:.0f} MB",
        "",
    )
    if "fed" in report:
        before, after = hour["browser_mb"]
        yield (
            "  its browser over these records",
            f"{hour['browser_cpu_seconds']:.1f} s CPU, {before:.0f} MB before, {after:.0f} MB after",
            "",
        )
        for needs in report["fed"]:
            kept = (
                f"{needs['heap_mb']:.1f} MB of heap, {needs['nodes']:,} nodes, {needs['listeners']} listeners"
            )
            yield (
                f"  an open page after {needs['updates']:,} updates",
                f"{kept}; {needs['cpu_seconds']:.1f} s CPU of its thread",
                "no growth",
            )
