"""What watching costs, and how soon the agent reacts to a writer that doesn't use the gate.

Tables on the S3 server, each looked at once a second. The first look at each table is not counted. Requests and CPU time are the
watcher's; nothing is published.

- Hudi: tables with `COMPLETED` completed instants each, first idle, then each with a pending instant and two files of markers.
- Delay: from just before the request that rewrites a file of markers until a writer of the gate that has touched the same file
  group receives its abort. It includes half a period on average, and Kafka and the agent twice.
- Formats that show commits only: tables with the metadata that each format's own writer wrote, first idle, then each with one
  commit of a writer without the gate. The requests of a commit are those beyond the idle looks. The delay is from just before the
  request that makes the commit visible until the watcher publishes it. It includes half a period on average, and no Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.foreground import publishing
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import CommitCompleted, WriterEventUnion
from tests import recorded_delta, recorded_iceberg, recorded_paimon
from tests.bench.figures import shown, summary
from tests.bench.run import Figures, Run
from tests.bench.writer_events import marker, touched
from tests.recorded_hudi import recorded
from tests.servers.s3 import S3Server
from tests.tuned import tuned
from tests.waiting import until

COMPLETED = 20
PENDING = "20261122135643314"
FORMATS = ("delta", "paimon", "iceberg")
_COMMIT = "20261122135446024_20261122135634351.commit"
_PATIENCE_SECONDS = 600.0


def measure(run: Run, server: S3Server) -> Figures:
    """Cost and delay."""
    hudi = Bucket(server, run.size.watched_tables)
    settings = tuned(
        bootstrap_servers=run.servers,
        topic_prefix=run.prefix,
        s3_endpoint=server.endpoint,
        watch_idle_seconds=1.0,
        watch_grace_seconds=0.0,
    )
    report: Figures = {"tables": run.size.watched_tables}
    report |= asyncio.run(_hudi(hudi, settings, run.size.watched_seconds))
    allowed = f"s3://{hudi.name}/*"
    with run.agent(tables=allowed, lock_places=f"{allowed}=>default", s3_endpoint=server.endpoint):
        report["marker_to_abort_ms"] = asyncio.run(_delay(run, hudi, settings))
    report["commits"] = {
        form: asyncio.run(
            _commits(Bucket(server, run.size.watched_tables), settings, form, run.size.watched_seconds)
        )
        for form in FORMATS
    }
    return report


class Bucket:
    """A bucket with tables."""

    def __init__(self, server: S3Server, tables: int) -> None:
        self.name = server.bucket()
        self.tables = tables
        self.uris = tuple(f"s3://{self.name}/t{number}" for number in range(tables))
        self._client = server.new_client()

    async def put(self, objects: Iterable[tuple[str, bytes]], *tables: int) -> None:
        """Put these objects into each of the tables, by default into all."""
        chosen = tables or range(self.tables)
        everywhere = [(f"t{table}/{path}", body) for table in chosen for path, body in objects]

        def put(each: tuple[str, bytes]) -> None:
            self._client.put_object(Bucket=self.name, Key=each[0], Body=each[1])

        def put_all() -> None:
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(put, everywhere))

        await anyio.to_thread.run_sync(put_all)


class Meter:
    """The requests and the CPU time of a watcher, per second."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._watcher.requests, time.process_time()

    def spent(self) -> tuple[float, float, float]:
        """Seconds, requests and seconds of CPU since the meter was made."""
        took, requests, cpu = (now - began for now, began in zip(self._now(), self._began, strict=True))
        return took, requests, cpu

    async def over(self, seconds: float) -> dict[str, float]:
        """The rates over so many seconds."""
        await anyio.sleep(seconds)
        took, requests, cpu = self.spent()
        return {"requests_per_second": round(requests / took, 1), "cpu_percent": round(cpu / took * 100, 1)}


@asynccontextmanager
async def _watching(settings: Settings, uris: tuple[str, ...], publish: Any) -> AsyncIterator[Watcher]:
    """A watcher that has looked at all tables."""
    watcher = Watcher(settings, uris, publish)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        await until(
            lambda: all((found := watcher.tables.get(uri)) and found.looked_at for uri in uris),
            _PATIENCE_SECONDS,
        )
        yield watcher
        tasks.cancel_scope.cancel()


async def _hudi(bucket: Bucket, settings: Settings, seconds: float) -> Figures:
    seen = 0

    async def count(events: list[WriterEventUnion]) -> None:
        nonlocal seen
        seen += sum(each.type == "marker-created" for each in events)

    await bucket.put([(f".hoodie/{path}", body) for path, body in _completed()])
    async with _watching(settings, bucket.uris, count) as watcher:
        await anyio.sleep(1.0)
        idle = await Meter(watcher).over(seconds)
        await bucket.put([(f".hoodie/{path}", body) for path, body in _pending()])
        await until(lambda: seen >= bucket.tables, _PATIENCE_SECONDS)
        return {"idle": idle, "active": await Meter(watcher).over(seconds)}


def _completed() -> Iterator[tuple[str, bytes]]:
    yield "hoodie.properties", recorded("cow-v9", "hoodie.properties")
    for number in range(COMPLETED):
        began = f"20261121{number:09}"
        yield f"timeline/{began}.commit.requested", b""
        yield f"timeline/{began}.inflight", b"x"
        yield f"timeline/{began}_{int(began) + 1}.commit", recorded("cow-v9", _COMMIT)


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
    place = marker(number, number % 28)
    return f"{place.partition}/{place.file_group}_0-28-28_{PENDING}.parquet.marker.MERGE\n".encode()


async def _delay(run: Run, bucket: Bucket, settings: Settings) -> dict[str, float]:
    """One pending instant, whose file of markers grows by a line in each trial."""
    uri, body = bucket.uris[0], b""
    took: list[float] = []
    async with (
        publishing(settings) as publish,
        run.writers() as writers,
        _watching(settings, (uri,), publish),
    ):
        for number in range(1_000, 1_000 + run.size.watched_trials):
            name = f"delay {number}"
            await writers.begin((uri, name))
            await writers.send(touched(uri, name, [marker(number, number % 28)]))
            await writers.flush()
            body += _line(number)
            began = time.perf_counter()
            await bucket.put([(f".hoodie/.temp/{PENDING}/MARKERS0", body)], 0)
            ended, _ = await writers.answer(name, "abort")
            took.append((ended - began) * 1e3)
    return summary(took)


def _files(form: str) -> tuple[dict[str, bytes], str]:
    """The files of a table, and the one of these whose arrival is a commit."""
    match form:
        case "delta":
            names = [f"_delta_log/{number:020d}.json" for number in range(4)]
            return {name: recorded_delta.commit("days", number) for number, name in enumerate(names)}, names[
                3
            ]
        case "paimon":
            later = {"snapshot/snapshot-4", "snapshot/snapshot-5"}
            files = recorded_paimon.metadata()
            return {path: files[path] for path in files.keys() - later}, "snapshot/snapshot-3"
        case _:
            later = {f"metadata/v{number}.metadata.json" for number in range(5, 10)}
            paths = set(recorded_iceberg.names()) - later
            return {path: recorded_iceberg.recorded(path) for path in paths}, "metadata/v4.metadata.json"


async def _commits(bucket: Bucket, settings: Settings, form: str, seconds: float) -> Figures:
    files, last = _files(form)
    commit = files.pop(last)
    put_at: dict[str, float] = {}
    delays: list[float] = []

    async def publish(events: list[WriterEventUnion]) -> None:
        now = time.perf_counter()
        delays.extend(
            (now - put_at[each.table]) * 1e3 for each in events if isinstance(each, CommitCompleted)
        )

    await bucket.put(files.items())
    async with _watching(settings, bucket.uris, publish) as watcher:
        idle = await Meter(watcher).over(seconds)
        meter = Meter(watcher)
        for table, uri in enumerate(bucket.uris):
            put_at[uri] = time.perf_counter()
            await bucket.put([(last, commit)], table)
        await until(lambda: len(delays) >= bucket.tables, _PATIENCE_SECONDS)
        took, requests, cpu = meter.spent()
    cpu -= idle["cpu_percent"] / 100 * took
    commits = {
        "requests": round((requests - idle["requests_per_second"] * took) / bucket.tables, 1),
        "cpu_ms": round(cpu / bucket.tables * 1e3, 1),
        "delay_ms": summary(delays),
    }
    return {"idle": idle, "commit": commits}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target."""
    kinds = [("idle Hudi", report["idle"], ""), ("active Hudi", report["active"], "< 20 % of a core")]
    kinds += [
        (f"idle {form.capitalize()}", figure["idle"], "one request a table and second")
        for form, figure in report["commits"].items()
    ]
    for title, figure, aim in kinds:
        yield (
            f"watching {report['tables']} {title} tables, once a second",
            f"{figure['requests_per_second']:.0f} requests per second, {figure['cpu_percent']:.1f} % of a core",
            aim,
        )
    yield (
        "marker of a foreign writer → abort",
        shown(report["marker_to_abort_ms"], names="p50 max", digits="0"),
        "",
    )
    for form, figure in report["commits"].items():
        commit = figure["commit"]
        delay = shown(commit["delay_ms"], names="p50 max", digits="0")
        yield (
            f"a foreign commit of {form.capitalize()}",
            f"{commit['requests']:.1f} reads, {commit['cpu_ms']:.1f} ms CPU; {delay}",
            "",
        )
