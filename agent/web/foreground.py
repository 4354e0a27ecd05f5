"""The page as a foreground process."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.agent.web.follower import Changes, Follower
from lakewarden.agent.web.history import History
from lakewarden.agent.web.server import serving
from lakewarden.agent.web.views import Sources


@asynccontextmanager
async def running_page(settings: Settings) -> AsyncGenerator[str]:
    """Follow the log and serve the page. Yields its address, as soon as it answers."""
    changes = Changes()
    sources = Sources(settings, Follower(settings, changes), History(settings, changes))
    async with serving(sources, changes) as address, anyio.create_task_group() as tasks:
        tasks.start_soon(sources.follower.run)
        tasks.start_soon(sources.history.run)
        yield address
        tasks.cancel_scope.cancel()


async def web_until_signal(settings: Settings, on_ready: Callable[[str], object]) -> None:
    """Serve the page until SIGINT or SIGTERM. Calls `on_ready` with its address, as soon as it answers."""
    async with running_page(settings) as address:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            on_ready(address)
            async for _ in signals:
                return
