"""The watcher of an agent, a child process that `supervisor.py` starts: docs/decisions/0054-watching-in-the-agent.md.

It watches the tables of the setting `watch` that are in the agent's assignment, and that `tables` covers. The end of its stdin
ends it.
"""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import structlog

from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging, leave
from lakewarden.agent.settings import Settings, catalog_entry
from lakewarden.agent.watching.foreground import limit_memory, publishing
from lakewarden.agent.watching.supervisor import MAX_LINE_BYTES, Assignment, decode
from lakewarden.agent.watching.watcher import Publish, Watcher
from lakewarden.events import is_glob

log = structlog.get_logger(__name__)


async def watch_assigned(
    settings: Settings, assignments: AsyncIterable[Assignment], publish: Publish
) -> None:
    """Watch the tables of the latest assignment, until there are no more assignments."""
    allows = settings.placement().allows
    current = Assignment(1, frozenset())
    for table in settings.watch:
        if not is_glob(table) and not catalog_entry(table) and not allows(table):
            log.warning(
                "watch.not-allowed", table=table, detail="tables doesn't cover it, so it is not watched"
            )
    watcher = Watcher(
        settings, settings.watch, publish, is_own=lambda table: current.has(table) and allows(table)
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        async for each in assignments:
            current = each
            watcher.reassign()
        tasks.cancel_scope.cancel()


async def _run() -> None:
    mode = 0 if sys.stdin is None else os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise AgentError("stdin is no pipe of an agent; a watcher of its own is `lakewarden watch`")
    lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
    )
    first = await lines.readline()
    if not first:
        return  # the agent has ended
    settings: Settings = decode(first)
    configure_logging(settings.log_level)
    async with publishing(settings) as publish:
        await watch_assigned(settings, _assignments(lines), publish)


async def _assignments(lines: asyncio.StreamReader) -> AsyncIterator[Assignment]:
    async for line in lines:
        yield decode(line)


def _main() -> int:
    try:
        anyio.run(_run)
    except AgentError as error:
        log.error("watch.failed", why=str(error))  # noqa: TRY400 - it says what to do
        return 1
    except Exception:
        log.exception("watch.failed")
        return 1
    return 0


if __name__ == "__main__":
    limit_memory()
    with suppress(OSError):  # the kernel ends it before the agent
        Path("/proc/self/oom_score_adj").write_text("1000")
    leave(_main())
