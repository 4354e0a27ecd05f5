"""What watching costs, and how soon a writer of the gate is stopped by a writer that doesn't use it.

- Cost: tables on the S3 server with `COMPLETED` completed instants each, looked at once a second, first idle, then each with a
  pending instant that has two files of markers. Requests and CPU time are the watcher's; nothing is published. The first look
  at each table, which reads the last commits, is not counted.
- Delay: from just before the request that rewrites a file of markers until a writer of the gate that has touched the same file
  group receives its abort. It includes half a period on average, and Kafka and the agent twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.foreground import publishing
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import Marker, WriterEventUnion
from tests.bench import watching_commits, writer_events
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import summary
from tests.bench.writers import Writers
from tests.recorded_hudi import recorded
from tests.servers.s3 import S3Server
from tests.tuned import tuned

COMPLETED = 20
PENDING = "20261122135643314"
_COMMIT = "20261122135446024_20261122135634351.commit"
_POLL_SECONDS = 0.02


def measure(
    server: S3Server, servers: str, prefix: str, folder: Path, *, tables: int, seconds: float, trials: int
) -> dict[str, Any]:
    """Cost and delay."""
    bucket = server.bucket()
    uris = tuple(f"s3://{bucket}/hudi/t{number}" for number in range(tables))
    _create(server, bucket, tables)
    settings = tuned(
        bootstrap_servers=servers,
        topic_prefix=prefix,
        s3_endpoint=server.endpoint,
        watch_idle_seconds=1.0,
        watch_grace_seconds=0.0,
    )
    report = {
        "tables": tables,
        "period_ms": 1000.0,
        **asyncio.run(_cost(server, bucket, uris, settings, seconds)),
    }
    options = {
        "tables": f"s3://{bucket}/*",
        "lock_places": f"s3://{bucket}/*=>default",
        "s3_endpoint": server.endpoint,
    }
    with AgentProcess(servers, prefix, folder, **options):
        report["marker_to_abort_ms"] = asyncio.run(_delay(server, bucket, uris[0], settings, trials))
    report["commits"] = watching_commits.measure(server, settings, tables=tables, seconds=seconds)
    return report


def rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target."""
    for name in ("idle", "active"):
        figure = report[name]
        yield (
            f"watching {report['tables']} {name} Hudi tables, once a second",
            f"{figure['requests_per_second']:.0f} requests per second, {figure['cpu_percent']:.1f} % of a core",
            "< 20 % of a core" if name == "active" else "",
        )
    delay = report["marker_to_abort_ms"]
    yield "marker of a foreign writer → abort", f"p50 {delay['p50']:.0f} ms, max {delay['max']:.0f} ms", ""
    yield from watching_commits.rows(report["commits"], report["tables"])


def _create(server: S3Server, bucket: str, tables: int) -> None:
    commit = recorded("cow-v9", _COMMIT)
    objects = {"hoodie.properties": recorded("cow-v9", "hoodie.properties")}
    for number in range(COMPLETED):
        time_ = f"20261121{number:09}"
        objects |= {
            f"timeline/{time_}.commit.requested": b"",
            f"timeline/{time_}.inflight": b"x",
            f"timeline/{time_}_{int(time_) + 1}.commit": commit,
        }
    _put(
        server,
        bucket,
        [
            (f"hudi/t{table}/.hoodie/{path}", body)
            for table in range(tables)
            for path, body in objects.items()
        ],
    )


def _put(server: S3Server, bucket: str, objects: list[tuple[str, bytes]]) -> None:
    client = server.new_client()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(
                threads.map(lambda each: client.put_object(Bucket=bucket, Key=each[0], Body=each[1]), objects)
            )
    finally:
        client.close()


async def _cost(
    server: S3Server, bucket: str, uris: tuple[str, ...], settings: Settings, seconds: float
) -> dict[str, Any]:
    seen = 0

    async def count(events: list[WriterEventUnion]) -> None:
        nonlocal seen
        seen += sum(each.type == "marker-created" for each in events)

    async def spent() -> dict[str, float]:
        requests, cpu, began = watcher.requests, time.process_time(), time.perf_counter()
        await anyio.sleep(seconds)
        took = time.perf_counter() - began
        return {
            "requests_per_second": round((watcher.requests - requests) / took, 1),
            "cpu_percent": round((time.process_time() - cpu) / took * 100, 1),
        }

    watcher = Watcher(settings, uris, count)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        while not all(
            (found := watcher.tables.get(uri)) and found.watched and found.watched.began for uri in uris
        ):
            await anyio.sleep(_POLL_SECONDS)
        await anyio.sleep(1.0)
        idle = await spent()
        objects = [
            (f"hudi/t{table}/.hoodie/{path}", body) for table in range(len(uris)) for path, body in _pending()
        ]
        await anyio.to_thread.run_sync(_put, server, bucket, objects)
        while seen < len(uris):
            await anyio.sleep(_POLL_SECONDS)
        active = await spent()
        tasks.cancel_scope.cancel()
    return {"idle": idle, "active": active}


def _pending() -> list[tuple[str, bytes]]:
    lines = b"".join(_line(number) for number in range(75))
    return [
        (f"timeline/{PENDING}.commit.requested", b""),
        (f"timeline/{PENDING}.inflight", recorded("cow-v9", f"{PENDING}.inflight")),
        (f".heartbeat/{PENDING}", b""),
        (f".temp/{PENDING}/MARKERS.type", b"TIMELINE_SERVER_BASED"),
        (f".temp/{PENDING}/MARKERS0", lines),
        (f".temp/{PENDING}/MARKERS1", lines),
    ]


def _line(number: int) -> bytes:
    place = writer_events.marker(number, number % 28)
    return f"{place.partition}/{place.file_group}_0-28-28_{PENDING}.parquet.marker.MERGE\n".encode()


async def _delay(
    server: S3Server, bucket: str, uri: str, settings: Settings, trials: int
) -> dict[str, float]:
    """One pending instant, whose file of markers grows by a line in each trial."""
    key = f"{uri.removeprefix(f's3://{bucket}/')}/.hoodie/.temp/{PENDING}/MARKERS0"
    took: list[float] = []
    body = b""
    async with (
        publishing(settings) as publish,
        Writers(settings.bootstrap_servers, settings.topic_prefix) as writers,
    ):
        watcher = Watcher(settings, (uri,), publish)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.run)
            while not ((found := watcher.tables.get(uri)) and found.watched and found.watched.began):
                await anyio.sleep(_POLL_SECONDS)
            for number in range(1_000, 1_000 + trials):
                name = f"delay {number}"
                place: Marker = writer_events.marker(number, number % 28)
                await writers.send(uri, writer_events.intent(uri, name))
                await writers.answer(name, "admitted")
                await writers.send_all(uri, [writer_events.markers_created(uri, name, [place])])
                body += _line(number)
                began = time.perf_counter()
                await anyio.to_thread.run_sync(_put, server, bucket, [(key, body)])
                ended, _ = await writers.answer(name, "abort")
                took.append((ended - began) * 1e3)
            tasks.cancel_scope.cancel()
    return summary(took)
