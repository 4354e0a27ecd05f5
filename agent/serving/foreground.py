"""The agent as a foreground process: reports when it is ready, and stops in order on a signal."""

import signal
from collections.abc import Callable
from functools import partial
from typing import IO

import anyio
import structlog

from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.serving.lasting import FullCollections
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.supervisor import keep_watching

log = structlog.get_logger()


async def serve_until_signal(
    settings: Settings, on_ready: Callable[[], object], *, log_to: IO[str] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM. Calls `on_ready` once, when every assigned partition is live.

    `log_to`: where this process logs, and so the watcher; None: stdout.
    """
    collections = FullCollections()
    agent = Agent(settings, collections)
    async with anyio.create_task_group() as tasks:
        if (address := settings.http_address) is not None:
            # Imported here because aiohttp takes a third of a second, which an agent without the endpoint doesn't need.
            from lakewarden.agent.serving.http_endpoint import serve_http

            tasks.start_soon(serve_http, agent, address)
        if settings.watch:
            tasks.start_soon(partial(keep_watching, agent.settings, agent.assignment, log_to=log_to))
        tasks.start_soon(_stop_on_signal, agent)
        tasks.start_soon(_report_ready, agent, on_ready)
        collections.collect()
        await agent.run()
        tasks.cancel_scope.cancel()
    log.info("agent.stopped", agent=settings.agent_id)


async def _stop_on_signal(agent: Agent) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("agent.stopping", signal=signal.Signals(number).name)
            agent.stop()


async def _report_ready(agent: Agent, on_ready: Callable[[], object]) -> None:
    while not agent.ready.is_set():
        await agent.ready.wait()
    on_ready()
