"""Hudi's own lock provider on the same S3 server, with the figures of `agent_lock.py`.

A JVM (`tests/servers/hudi/LockTimes.java`) runs Hudi's `LockManager` and `StorageBasedLockProvider`. The provider's client for S3
is the tests' own. All writers of a run share the JVM, and each has its own client. The lease is Hudi's default.

- acquire, renew, release: of one writer, with its provider and client created and warmed up before. Renew is the method that
  Hudi's heartbeat thread calls. Requests are counted by the client, which doesn't repeat any.
- hand-over: from the request for the release until a waiting writer holds the lock. The release comes at a random moment between
  two looks of the waiting writer.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from lakewarden.agent.embedded.jdk import find_java
from tests.bench.child import Child
from tests.bench.figures import over_runs, summary
from tests.bench.locks import ANSWER, CONTENDERS, HOLD_SECONDS, LOST_LEASE, OPERATIONS, contention
from tests.bench.run import Figures, Run
from tests.servers.hudi import hudi_class_path
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

LEASE_SECONDS = 300
"""Hudi's default."""
HAND_OVERS = 30
"""At most: each takes a second and a half."""
END_SECONDS = 900
"""It only ends a hang."""


class HudiLock:
    """Hudi's provider."""

    title = "Hudi's lock"

    def __init__(self, run: Run, server: S3Server) -> None:
        self._folder, self._server = run.folder, server

    def operations(self, rounds: int, repetitions: int) -> Figures:
        runs = self._run("operations", rounds, repetitions)["runs"]
        return {
            name: {
                "ms": over_runs([summary(each[name]) for each in runs]),
                "requests": round(fmean(count for each in runs for count in each[f"{name}_requests"]), 2),
            }
            for name in OPERATIONS
        }

    def hand_over(self, rounds: int) -> dict[str, float]:
        return summary(self._run("hand-over", min(rounds, HAND_OVERS))["ms"])

    def contend(self, seconds: float, endpoint: str | None) -> dict[str, float]:
        numbers = (CONTENDERS, round(seconds), round(HOLD_SECONDS * 1e3))
        found = self._run("contention", *numbers, endpoint=endpoint)
        return contention(found["spans"], round(seconds))

    def lose(self, operation: str) -> Figures:
        """And what became of the writer."""
        with Proxy(self._server.endpoint) as proxy:
            found = self._run(
                f"lost-{operation}",
                lease_seconds=round(LOST_LEASE.validity),
                endpoint=proxy.endpoint,
                on_ready=lambda: proxy.arm(ANSWER),
            )
            assert proxy.cuts, "no answer was lost"
            lost_at = proxy.cut_at[0]
        if "held_at" not in found:
            return found
        stopped = found.get("interrupted_at")
        return {
            "seconds": found["held_at"] - lost_at,
            "stopped_after_seconds": None if stopped is None else round(stopped - lost_at, 3),
        }

    def _run(
        self,
        what: str,
        *numbers: int,
        lease_seconds: int = LEASE_SECONDS,
        endpoint: str | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> Figures:
        """Run the program to its end and return its result. `on_ready` is called when it waits before its last step."""
        table = f"s3://{self._server.bucket()}/{what}"
        command = [str(find_java()), "-Xmx256m", "-Dlog4j2.level=off", "-cp", hudi_class_path(), "LockTimes"]
        command += [what, str(lease_seconds), table, *map(str, numbers)]
        endpoint = endpoint or self._server.endpoint
        variables = {**self._server.environment, "AWS_ENDPOINT_URL_S3": endpoint}
        child = Child(command, self._folder / "lock-times.log", variables)
        if on_ready is not None:
            child.wait_for("ready")
            on_ready()
            child.go_on()
        figures: Figures = child.figures(END_SECONDS)
        return figures
