"""What watching costs for formats that show commits only, and how soon a commit is reported.

Tables on the S3 server with the metadata that each format's own writer wrote, looked at once a second: first idle, then each
with one commit of a writer without the gate. The requests of a commit are those beyond the idle looks. The delay is from just
before the request that makes the commit visible until the watcher publishes it. It includes half a period on average,
and no Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import CommitCompleted, WriterEventUnion
from tests import recorded_delta, recorded_iceberg, recorded_paimon
from tests.bench.figures import summary
from tests.servers.s3 import S3Server

FORMATS = ("delta", "paimon", "iceberg")


def measure(server: S3Server, settings: Settings, *, tables: int, seconds: float) -> dict[str, Any]:
    """Cost and delay by format."""
    return {form: asyncio.run(_cost(server, settings, form, tables, seconds)) for form in FORMATS}


def rows(report: dict[str, Any], tables: int) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target."""
    for form, figure in report.items():
        idle, commit, delay = figure["idle"], figure["commit"], figure["commit"]["delay_ms"]
        yield (
            f"watching {tables} idle {form.capitalize()} tables, once a second",
            f"{idle['requests_per_second']:.0f} requests per second, {idle['cpu_percent']:.1f} % of a core",
            "one request a table and second",
        )
        yield (
            f"a foreign commit of {form.capitalize()}",
            f"{commit['requests']:.1f} reads, {commit['cpu_ms']:.1f} ms CPU; p50 {delay['p50']:.0f}, max {delay['max']:.0f} ms",
            "",
        )


def _files(form: str) -> tuple[dict[str, bytes], tuple[str, bytes]]:
    """The files of a table, and the one whose arrival is a commit."""
    if form == "delta":
        names = [f"_delta_log/{number:020d}.json" for number in range(4)]
        files = {name: recorded_delta.commit("days", number) for number, name in enumerate(names)}
        last = names[3]
    elif form == "paimon":
        files = recorded_paimon.metadata()
        last = "snapshot/snapshot-3"
        files = {
            path: body
            for path, body in files.items()
            if path not in {"snapshot/snapshot-4", "snapshot/snapshot-5"}
        }
    else:
        last = "metadata/v4.metadata.json"
        later = {f"metadata/v{number}.metadata.json" for number in range(5, 10)}
        files = {
            path: recorded_iceberg.recorded(path) for path in recorded_iceberg.names() if path not in later
        }
    return files, (last, files.pop(last))


async def _cost(
    server: S3Server, settings: Settings, form: str, tables: int, seconds: float
) -> dict[str, Any]:
    bucket = server.bucket()
    files, (last, body) = _files(form)
    put = _putter(server, bucket)
    await put([(f"t{table}/{path}", content) for table in range(tables) for path, content in files.items()])
    uris = tuple(f"s3://{bucket}/t{table}" for table in range(tables))
    put_at: dict[str, float] = {}
    delays: list[float] = []

    async def publish(events: list[WriterEventUnion]) -> None:
        now = time.perf_counter()
        delays.extend(
            (now - put_at[each.table]) * 1e3 for each in events if isinstance(each, CommitCompleted)
        )

    watcher = Watcher(settings, uris, publish)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        while any((found := watcher.tables.get(uri)) is None or found.looked_at is None for uri in uris):
            await anyio.sleep(0.02)
        requests, cpu, began = watcher.requests, time.process_time(), time.perf_counter()
        await anyio.sleep(seconds)
        took = time.perf_counter() - began
        rate, busy = (watcher.requests - requests) / took, (time.process_time() - cpu) / took
        requests, cpu, began = watcher.requests, time.process_time(), time.perf_counter()
        for table, uri in enumerate(uris):
            put_at[uri] = time.perf_counter()
            await put([(f"t{table}/{last}", body)])
        while len(delays) < tables:
            await anyio.sleep(0.02)
        took = time.perf_counter() - began
        commit = {
            "requests": round((watcher.requests - requests - rate * took) / tables, 1),
            "cpu_ms": round((time.process_time() - cpu - busy * took) / tables * 1e3, 1),
            "delay_ms": summary(delays),
        }
        tasks.cancel_scope.cancel()
    idle = {"requests_per_second": round(rate, 1), "cpu_percent": round(busy * 100, 1)}
    return {"idle": idle, "commit": commit}


def _putter(server: S3Server, bucket: str) -> Callable[[list[tuple[str, bytes]]], Any]:
    client = server.new_client()

    def put(objects: list[tuple[str, bytes]]) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(
                threads.map(lambda each: client.put_object(Bucket=bucket, Key=each[0], Body=each[1]), objects)
            )

    return lambda objects: anyio.to_thread.run_sync(put, objects)
