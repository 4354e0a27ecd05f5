"""Rolling restart: how long a busy table has no grant while the agents are restarted one after the other.

Three agents of one group, and tables with one writer each. A writer opens a transaction, holds its grant for `HOLD_SECONDS`,
completes it, and begins again after `THINK_SECONDS`, so about half of the tables have a running grant at any moment. Each agent
in turn gets SIGTERM; when its process has ended, it is started again. The next one follows when it is ready.

The figure of a table is the longest time from a grant to the next one, without the time for which the grant was held. Without a
restart it is `THINK_SECONDS` and some milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from statistics import median
from typing import Any

from anyio.from_thread import start_blocking_portal

from tests.bench.run import Figures, Run
from tests.bench.writer_events import TABLES, completed, intent, requested
from tests.bench.writers import Writers

AGENTS = ("one", "two", "three")
HOLD_SECONDS = 0.5
THINK_SECONDS = 0.5
SETTLE_SECONDS = 5.0
"""Before the first restart, after the last one, and between two."""
POLL_SECONDS = 0.05


def measure(run: Run) -> Figures:
    """Seconds without a grant: of each table the longest, and of these the median, the 95th percentile and the maximum."""
    return {name: _restart(run.within(name), instances=name == "static") for name in ("dynamic", "static")}


def _restart(run: Run, *, instances: bool) -> Figures:
    """The writers run in a thread, because a process that is bound to this one has to be started from the main thread."""
    with ExitStack() as stack:
        settings = {"lock_root": (run.folder / "locks").as_uri()}
        agents = [
            run.agent(name, **settings, **({"group_instance_id": name} if instances else {}))
            for name in AGENTS
        ]
        for agent in agents:
            stack.enter_context(agent)
        portal = stack.enter_context(start_blocking_portal())
        writers = stack.enter_context(portal.wrap_async_context_manager(run.writers()))
        busy = [Busy(f"{TABLES}/table-{number}", writers) for number in range(run.size.rolling_tables)]
        running = [portal.start_task_soon(each.run) for each in busy]
        try:
            _wait_for_a_grant(busy, running)
            time.sleep(SETTLE_SECONDS)
            undisturbed = _figures(busy)
            for each in busy:
                each.gaps.clear()
            for agent in agents:
                agent.__exit__(None, None, None)
                agent.__enter__()
                time.sleep(SETTLE_SECONDS)
            _wait_for_a_grant(busy, running)
        finally:
            for task in running:
                task.cancel()
    aborted = sum(each.aborted for each in busy)
    return {"tables": len(busy), "undisturbed": undisturbed, "aborted": aborted, **_figures(busy)}


def _wait_for_a_grant(busy: Sequence[Busy], running: Sequence[Future[None]]) -> None:
    """Wait until each table has got one more grant. A writer that fails meanwhile ends the wait with its error."""
    before = [each.grants for each in busy]
    while any(each.grants == count for each, count in zip(busy, before, strict=True)):
        for task in running:
            if task.done():
                task.result()
        time.sleep(POLL_SECONDS)


def _figures(busy: list[Busy]) -> dict[str, float]:
    longest = sorted(max(each.gaps) for each in busy if each.gaps)
    return {"median": median(longest), "p95": longest[int(0.95 * (len(longest) - 1))], "longest": longest[-1]}


class Busy:
    """A table with its writer."""

    def __init__(self, table: str, writers: Writers) -> None:
        self.gaps: list[float] = []
        """Seconds without a grant, from the end of one to the next."""
        self.aborted = 0
        self.grants = 0
        self._table = table
        self._writers = writers

    async def run(self) -> None:
        """Commit again and again until cancelled."""
        number, ended, table = 0, None, self._table
        while True:
            number += 1
            transaction = f"{table}-{number}"
            await self._writers.send(intent(table, transaction))
            if await self._answer(transaction, "admitted") is None:
                continue
            await self._writers.send(requested(table, transaction))
            if (answer := await self._answer(transaction, "commit-granted")) is None:
                continue
            granted_at, decision = answer
            if ended is not None:
                self.gaps.append(granted_at - ended)
            self.grants += 1
            await asyncio.sleep(HOLD_SECONDS)
            ended = time.perf_counter()
            await self._writers.send(completed(table, transaction, decision.grant))
            await asyncio.sleep(THINK_SECONDS)

    async def _answer(self, transaction: str, kind: str) -> tuple[float, Any] | None:
        """The decision of this type, or None after an abort."""
        waiting = {
            each: asyncio.ensure_future(self._writers.answer(transaction, each)) for each in (kind, "abort")
        }
        await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        wanted, other = waiting.values()
        if wanted.done() and wanted.exception() is None:
            other.cancel()
            return wanted.result()
        wanted.cancel()
        other.cancel()
        self.aborted += 1
        return None


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    what = "busy tables, {}: longest time of a table without a grant"
    for name, title in (("dynamic", "without instance"), ("static", "with instance")):
        for figure, restarts in (
            (report[name], "rolling restart"),
            (report[name]["undisturbed"], "  before it"),
        ):
            times = "{median:.1f} s (median), {p95:.1f} s (p95), {longest:.1f} s (max)".format(**figure)
            yield f"{restarts}, {report[name]['tables']} {what.format(title)}", times, ""
