"""How long `lakewarden assess` takes on large tables, and its memory: from an S3 that answers each request after `DELAY_SECONDS`.

The tables are not stored: the server makes each listing and each file when it is asked. Each run is a process of its own.

| table | files |
| --- | --- |
| a month | Delta: a commit a minute for 30 days, with a checksum file and two data files each, unpartitioned; all of it is read |
| a week of it | the same with `--days 7`, the default |
| flat | Delta: 300 commits of 1,000 data files each in one folder |
| timeline | Hudi 1: an instant a minute, three files each, 300,000 in all; `--days 7` |
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from xml.sax.saxutils import escape

from aiohttp import web

from tests.bench.run import Figures, Run

DELAY_SECONDS = 0.15
PAGE = 1_000
NOW = time.time()
MINUTES = {"month": 43_200, "timeline": 100_000}


def measure(run: Run) -> Figures:
    """Run each case."""
    share = run.size.assessed_share
    cases = {
        "a month": ("month", 31),
        "a week of it": ("month", 7),
        "flat": ("flat", 7),
        "timeline": ("timeline", 7),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.assessing", str(share)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        try:
            return {name: _assessed(port, *case) for name, case in cases.items()}
        finally:
            server.terminate()


def _assessed(port: str, table: str, days: int) -> dict[str, float]:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    words = ["assess", f"s3://{table}/t", "--days", str(days), "--s3-endpoint", f"http://127.0.0.1:{port}"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-c", _MEASURED, *words, "--output", "json"]
    done = subprocess.run(command, env=os.environ | keys, capture_output=True, text=True, check=False)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)
    [found] = json.loads(done.stdout)
    return {
        "seconds": round(took, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "memory_mb": round(int(done.stderr.split()[-1]) / 1024),
        "commits": found["figures"]["commits"]["value"],
    }


_MEASURED = """
import sys
from pathlib import Path
from lakewarden.agent.cli import app
try:
    app.main()
finally:
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(peak.split()[1], file=sys.stderr)
"""


def rows(report: Figures) -> Iterator[tuple[str, ...]]:
    """The table that `make bench` prints."""
    yield ("assess", "seconds", "of them CPU", "peak MB", "commits")
    for name, each in report.items():
        yield (name, *(f"{each[what]:,}" for what in ("seconds", "cpu_seconds", "memory_mb", "commits")))


# -- the server --------------------------------------------------------------------------------------------------------

Body = Callable[[], bytes]


def _delta(commits: int, files: int, seconds: float) -> Iterator[tuple[str, float, Body]]:
    """Keys of a table, with their time and their content."""

    def body(number: int) -> bytes:
        at = int((NOW - (commits - number) * seconds) * 1000)
        info = {"timestamp": at, "readVersion": number - 1, "operation": "WRITE", "engineInfo": "bench"}
        actions: list[object] = [{"commitInfo": info}]
        if number == 0:
            actions.append({"metaData": {"schemaString": '{"fields":[]}', "partitionColumns": []}})
        for part in range(files):
            name = _name(number, part)
            actions.append(
                {"add": {"path": name, "partitionValues": {}, "size": 9, "modificationTime": at - 20_000}}
            )
        return "\n".join(map(json.dumps, actions)).encode()

    metadata = json.dumps({"metadata": {"schemaString": '{"fields":[]}', "partitionColumns": []}}).encode()
    for number in range(commits):
        at = NOW - (commits - number) * seconds
        yield f"t/_delta_log/{number:020d}.json", at, lambda number=number: body(number)  # type: ignore[misc]
        yield f"t/_delta_log/{number:020d}.crc", at, lambda: metadata
        for part in range(files):
            yield f"t/{_name(number, part)}", at - 20, bytes
    last = json.dumps({"version": commits // 10 * 10 - 10}).encode()
    yield "t/_delta_log/_last_checkpoint", NOW, lambda: last


def _name(number: int, part: int) -> str:
    return f"part-{number * 7919 % 100_000:05d}-{number:06d}-{part:04d}.snappy.parquet"


def _hudi(instants: int) -> Iterator[tuple[str, float, Body]]:
    yield "t/.hoodie/hoodie.properties", NOW, lambda: b"hoodie.table.version=8\n"
    stat = {"fileId": "f", "prevCommit": "20200101000000000"}
    body = json.dumps({"partitionToWriteStats": {"": [stat]}, "operationType": "UPSERT"}).encode()
    for number in range(instants):
        began = NOW - (instants - number) * 60
        time_of, ended = (
            datetime.fromtimestamp(at, UTC).strftime("%Y%m%d%H%M%S000") for at in (began, began + 30)
        )
        yield f"t/.hoodie/timeline/{time_of}.commit.requested", began, bytes
        yield f"t/.hoodie/timeline/{time_of}.commit.inflight", began + 1, bytes
        yield f"t/.hoodie/timeline/{time_of}_{ended}.commit", began + 30, lambda: body


class _Bucket:
    def __init__(self, objects: Iterator[tuple[str, float, Body]]) -> None:
        self.objects = {key: (at, body) for key, at, body in objects}
        self.keys = sorted(self.objects)

    def written(self, key: str) -> datetime:
        return datetime.fromtimestamp(self.objects[key][0], UTC)

    def listing(self, prefix: str, after: str, delimiter: str) -> str:
        found: list[str] = []
        folders: dict[str, None] = {}
        at = max(bisect_right(self.keys, after), bisect_right(self.keys, prefix))
        last = ""
        while at < len(self.keys) and self.keys[at].startswith(prefix) and len(found) + len(folders) < PAGE:
            last = self.keys[at]
            folder, slash, _ = last[len(prefix) :].partition("/")
            if delimiter and slash:
                folders[prefix + folder + "/"] = None
                at, last = bisect_right(self.keys, prefix + folder + "0"), prefix + folder + "0"
                continue
            found.append(last)
            at += 1
        more = at < len(self.keys) and self.keys[at].startswith(prefix)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{self.written(key):%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>&quot;{len(key)}&quot;</ETag><Size>300</Size></Contents>"
            for key in found
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" * more
        return (
            f'<?xml version="1.0"?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{common}'
            f"<KeyCount>{len(found)}</KeyCount><MaxKeys>{PAGE}</MaxKeys></ListBucketResult>"
        )


def _serve(share: float) -> None:
    month, instants = (int(MINUTES[each] * share) for each in ("month", "timeline"))
    buckets = {
        "month": _Bucket(_delta(month, 2, 60)),
        "flat": _Bucket(_delta(int(300 * share) or 1, 1_000, 60)),
        "timeline": _Bucket(_hudi(instants)),
    }

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(DELAY_SECONDS)
        name, _, key = request.path.lstrip("/").partition("/")
        bucket, query = buckets[name], request.query
        if not key:
            after = query.get("continuation-token") or query.get("start-after") or ""
            text = bucket.listing(query.get("prefix", ""), after, query.get("delimiter", ""))
            return web.Response(text=text, content_type="application/xml")
        if key not in bucket.objects:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        at, body = bucket.objects[key]
        modified = format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)
        return web.Response(body=body(), headers={"ETag": '"1"', "Last-Modified": modified})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)

    async def run() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
