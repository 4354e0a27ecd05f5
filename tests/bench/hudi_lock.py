"""Hudi's own lock provider on the same S3 server: the parts of `locks.py` and `contention.py` that it has, too.

A JVM (`tests/servers/hudi/LockTimes.java`) runs Hudi's `LockManager` and `StorageBasedLockProvider`. The provider's client for S3
is the tests' own. All writers of a run share the JVM, and each has its own client. The lease is Hudi's default.

- acquire, renew, release: of one writer, with its provider and client created and warmed up before. Renew is the method that
  Hudi's heartbeat thread calls. Requests are counted by the client, which doesn't repeat any.
- hand-over: from the request for the release until a waiting writer holds the lock. The release comes at a random moment between
  two looks of the waiting writer.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from statistics import fmean
from typing import Any

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.embedded.jdk import find_java
from tests.bench.contention import CONTENDERS, HOLD_SECONDS, figures_of
from tests.bench.figures import over_runs, summary
from tests.bench.locks import OPERATIONS
from tests.servers.hudi import HUDI_VERSION, hudi_class_path
from tests.servers.s3 import S3Server

VERSION = HUDI_VERSION
LEASE_SECONDS = 300
"""Hudi's default."""
HAND_OVERS = 30
"""At most: each takes a second and a half."""
READY = "ready"
END_SECONDS = 900
"""It only ends a hang."""


def measure_operations(server: S3Server, *, rounds: int, repetitions: int) -> dict[str, Any]:
    """The same figures as `locks.measure_operations`."""
    runs = run("operations", server, rounds, repetitions)["runs"]
    report: dict[str, Any] = {"rounds": rounds, "repetitions": repetitions}
    for name in OPERATIONS:
        requests = fmean(count for each in runs for count in each[f"{name}_requests"])
        report[name] = {
            "ms": over_runs([summary(each[name]) for each in runs]),
            "requests": round(requests, 2),
        }
    return report


def measure_hand_over(server: S3Server, *, rounds: int) -> dict[str, Any]:
    """Milliseconds of the whole."""
    times = run("hand-over", server, min(rounds, HAND_OVERS))["ms"]
    return {"rounds": len(times), "ms": {"whole": summary(times)}}


def measure_contention(server: S3Server, *, seconds: float, endpoint: str | None = None) -> dict[str, Any]:
    """One run, with the figures of `contention.measure`."""
    numbers = (CONTENDERS, round(seconds), round(HOLD_SECONDS * 1e3))
    found = run("contention", server, *numbers, endpoint=endpoint)
    return figures_of(found["spans"], round(seconds), found["requests"])


def run(
    what: str,
    server: S3Server,
    *numbers: int,
    lease_seconds: int = LEASE_SECONDS,
    endpoint: str | None = None,
    on_ready: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run the program to its end and return its result. `on_ready` is called when it waits before its last step."""
    table = f"s3://{server.bucket()}/{what}"
    command = [str(find_java()), "-Xmx256m", "-Dlog4j2.level=off", "-cp", hudi_class_path(), "LockTimes"]
    command += [what, str(lease_seconds), table, *map(str, numbers)]
    variables = {**server.environment, "AWS_ENDPOINT_URL_S3": endpoint or server.endpoint}
    process = subprocess.Popen(
        bound(command),
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if on_ready is not None:
            assert process.stdout is not None
            while (line := process.stdout.readline()) and line.strip() != READY:
                pass
            on_ready()
        printed, errors = process.communicate("\n" if on_ready is not None else None, END_SECONDS)
    finally:
        process.kill()
    results = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode or not results:
        raise RuntimeError(
            f"LockTimes {what} failed: status={process.returncode} {printed[-2000:]} {errors[-5000:]}"
        )
    result: dict[str, Any] = json.loads(results[-1])
    return result
