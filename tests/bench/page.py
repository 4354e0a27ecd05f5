"""`lakewarden web` with many tables: its first page, and what the server and an open page cost over an hour's events.

The log is written directly, without an agent: each table has an open transaction. Then an hour of transactions of other tables is
published as fast as Kafka takes it. After it, one table changes each second, because the page is computed at most that often,
however many events arrive: what an update costs is measured there.

With Chromium, `open_page.py` measures the first paint, and what an open page needs over an hour's updates. Without, a client
reads the stream and fetches the page after each message, as the page's script does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from operator import ne
from typing import Any
from urllib.parse import quote

import aiohttp
from aiokafka import AIOKafkaProducer

from lakewarden.agent.kafka import ensure_topics, producer, start_client
from lakewarden.agent.operators.status import status
from lakewarden.agent.settings import Settings
from lakewarden.events import Abort, Admitted, CommitGranted, ConflictDetected, WriterEventUnion, encode
from lakewarden.events.access import stop_client
from tests.bench import writer_events
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import cpu_seconds, shown, summary
from tests.bench.open_page import OpenPages, opened
from tests.bench.run import Figures, Run, Size
from tests.bench.writer_events import TABLES, completed, intent, marker, requested, touched
from tests.browser.browsing import find_chromium
from tests.kafka_fixture import counted_reads
from tests.unit.events.building import a_conflict, an_overlap
from tests.waiting import wait_until

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
LAST = f"{TABLES}/last"
AGENT = "bench-agent"


class Log:
    """Publishes writers' events and an agent's decisions to topics of one partition, so that offsets are known."""

    def __init__(self, settings: Settings, sender: AIOKafkaProducer) -> None:
        self._topics = settings.topics
        self._sender = sender
        self._next = 0
        self.records = 0

    async def event(self, event: WriterEventUnion) -> None:
        self._next += 1
        await self._put(self._topics.writers, event)

    async def decide(
        self, kind: type[Admitted | Abort | CommitGranted], table: str, transaction: str, **fields: Any
    ) -> None:
        """A decision about the event that was sent last."""
        common = writer_events.common(table, transaction) | {"at": datetime.now(UTC)}
        decision = kind(**common, agent=AGENT, cause_offset=self._next - 1, **fields)
        await self._put(self._topics.decisions, decision)

    async def conflict(self, conflict: ConflictDetected) -> None:
        await self._put(self._topics.conflicts, conflict)

    async def open(self, table: str, transaction: str) -> None:
        """A transaction that computes."""
        await self.event(intent(table, transaction))
        await self.decide(Admitted, table, transaction)

    async def flush(self) -> None:
        await self._sender.flush()

    async def _put(self, topic: str, event: Any) -> None:
        self.records += 1
        await self._sender.send(topic, encode(event), key=event.table.encode())


def measure(run: Run) -> Figures:
    """Publish to topics of one partition, and return the figures."""
    return asyncio.run(_measure(run, run.settings(partitions=1)))


async def _measure(run: Run, settings: Settings) -> Figures:
    size = run.size
    report: Figures = {"tables": size.web_tables}
    await ensure_topics(settings, settings.topics, 1, settings.replication)
    sender = producer(settings)
    await start_client(sender, settings)
    try:
        log = Log(settings, sender)
        for number in range(size.web_tables):
            await log.open(f"{TABLES}/t{number:04}", f"open-{number}")
        await log.flush()
        with Server(run.servers, run.prefix, run.folder, web_listen="127.0.0.1:0") as server:
            address = server.address()
            async with aiohttp.ClientSession(address) as session:
                listed = min(200, size.web_tables)
                await _until(
                    session, "/tables.json", lambda found: len(json.loads(found)["tables"]) == listed
                )
                report["first"] = await _first_pages(session, server)
                async with _open_page(session, address, report) as browser:
                    report["before_mb"] = server.memory_mb()
                    report["hour"] = await _an_hour(settings, log, session, server, size.web_transactions)
                    report["updates"] = await _updates(log, server, browser, size)
                    if browser is not None:
                        report["fed"] = await browser.fed(await _states(log, session), size.web_fed_updates)
        return report
    finally:
        await stop_client(sender, seconds=60)


class Server(AgentProcess):
    """`lakewarden web`."""

    command = "web"

    def wait_ready(self, patience: float = PATIENCE_SECONDS) -> None:
        wait_until(self.address, patience)

    def address(self) -> str:
        """It prints the address when it is ready."""
        assert self.popen.poll() is None, self.text()
        return next((line for line in self.text().splitlines() if line.startswith("http")), "")


async def _first_pages(session: aiohttp.ClientSession, server: AgentProcess) -> Figures:
    """Milliseconds until the page and its two assets were received whole, one after the other, and the server's CPU time."""
    before = server.cpu_seconds()
    took: list[float] = []
    size = 0
    for _ in range(FIRST_PAGES):
        began, size = time.perf_counter(), 0
        for path in ("/", "/static/page.css", "/static/page.js"):
            async with session.get(path) as answer:
                size += len(await answer.read())
        took.append((time.perf_counter() - began) * 1e3)
    busy = server.cpu_seconds() - before
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
        report["browser"] = browser.name
        report["painted_ms"] = await browser.first_paints(page, FIRST_PAGES)
        yield browser


async def _states(log: Log, session: aiohttp.ClientSession) -> list[str]:
    """What the server sends for the first view in some states, each after another transaction has begun."""
    found: list[str] = []
    for number in range(STATES):
        await log.open(f"{TABLES}/t{number:04}", f"state-{number}")
        await log.flush()
        last = found[-1] if found else ""
        found.append(await _until(session, "/", partial(ne, last)))
    return found


async def _read_stream(session: aiohttp.ClientSession) -> None:
    async with session.get("/events?view=/", timeout=aiohttp.ClientTimeout(total=None)) as stream:
        async for line in stream.content:
            if line.startswith(b"data:"):
                async with session.get("/") as answer:
                    await answer.read()


async def _an_hour(
    settings: Settings, log: Log, session: aiohttp.ClientSession, server: AgentProcess, transactions: int
) -> Figures:
    before, records = server.cpu_seconds(), log.records
    for number in range(transactions):
        await _transaction(log, f"{TABLES}/busy-{number % HOUR_TABLES:03}", f"done-{number}", number)
    await log.open(LAST, "last")
    await log.flush()
    await _until(session, f"/table.json?uri={quote(LAST)}", _shows_all)
    began = time.perf_counter()
    with counted_reads() as read:
        await status(settings)
    return {
        "status_seconds": round(time.perf_counter() - began, 1),
        "status_records": len(read),
        "status_reads": max(read.values()),
        "transactions": transactions,
        "records": log.records - records,
        "cpu_seconds": server.cpu_seconds() - before,
        "resident_mb": server.memory_mb(),
        "peak_mb": server.memory_mb(peak=True),
    }


def _shows_all(answer: str) -> bool:
    """Whether the page of the last table has its transaction and its events."""
    found = json.loads(answer)
    return bool(found["table"]["transactions"] and found["timeline"]["writers"])


async def _transaction(log: Log, table: str, transaction: str, number: int) -> None:
    """Intent, markers, request, grant and report; or an abort by a conflict."""
    await log.open(table, transaction)
    markers = [marker(number * MARKERS + each, each) for each in range(MARKERS)]
    for start in range(0, MARKERS, MARKERS // 3):
        await log.event(touched(table, transaction, markers[start : start + MARKERS // 3]))
    if number % CONFLICT_EVERY == 0:
        lost = an_overlap(markers[0].partition, "writer of winner", file_group=markers[0].file_group)
        await log.decide(Abort, table, transaction, reason="conflict", retriable=True, conflicts=(lost,))
        names = {"table": table, "transaction": transaction, "writer": f"writer of {transaction}"}
        await log.conflict(a_conflict(lost, **names, at=datetime.now(UTC)))
        return
    await log.event(requested(table, transaction))
    grant = f"grant-{transaction}"
    await log.decide(CommitGranted, table, transaction, grant=grant, lease_seconds=30.0, seq=1)
    await log.event(completed(table, transaction, grant))


async def _updates(log: Log, server: AgentProcess, browser: OpenPages | None, size: Size) -> Figures:
    """The CPU time of one second in which a table changes."""

    def busy() -> tuple[float, float]:
        return server.cpu_seconds(), 0.0 if browser is None else cpu_seconds(browser.pid)

    before, seconds = busy(), size.web_updates
    for number in range(seconds):
        await log.open(f"{TABLES}/t{number % size.web_tables:04}", f"more-{number}")
        await log.flush()
        await asyncio.sleep(1)
    names = ("server_cpu_ms", "browser_cpu_ms")
    spent = zip(names, before, busy(), strict=True)
    return {name: round((after - since) * 1e3 / seconds, 1) for name, since, after in spent}


async def _until(session: aiohttp.ClientSession, path: str, holds: Callable[[str], bool]) -> str:
    """What the server answers, as soon as it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        async with session.get(path) as answer:
            text = await answer.text()
            if answer.status == 200 and holds(text):
                return text
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} never showed what was published")
        await asyncio.sleep(POLL_SECONDS)


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    first, hour, updates = report["first"], report["hour"], report["updates"]
    yield (
        f"first page of {report['tables']:,} tables, with its assets, {first['kb']:.0f} kB",
        f"{shown(first['ms'], digits='0')}; {first['cpu_ms']:.0f} ms CPU",
        "< 1,000 ms",
    )
    if "painted_ms" in report:
        yield (
            f"  first paint in {report['browser']}",
            shown(report["painted_ms"], digits="0"),
            "< 1,000 ms",
        )
    memory = (
        f"{report['before_mb']:.0f} MB before, {hour['resident_mb']:.0f} MB, peak {hour['peak_mb']:.0f} MB"
    )
    yield (
        f"an hour's {hour['records']:,} records, {hour['transactions']:,} transactions: the page's server",
        f"{hour['cpu_seconds']:.1f} s CPU, {memory}",
        "",
    )
    yield (
        f"  `status` after it: {hour['status_records']:,} records",
        f"{hour['status_seconds']:.1f} s; each record is read {hour['status_reads']}×",
        "1×",
    )
    yield (
        "  a second in which a table changes, one page open",
        f"{updates['server_cpu_ms']:.0f} ms CPU, its browser {updates['browser_cpu_ms']:.0f} ms",
        "",
    )
    for needs in report.get("fed", ()):
        kept = f"{needs['heap_mb']:.1f} MB of heap, {needs['nodes']:,} nodes, {needs['listeners']} listeners"
        yield (
            f"  an open page after {needs['updates']:,} updates",
            f"{kept}; {needs['cpu_seconds']:.1f} s CPU of its thread",
            "no growth",
        )
