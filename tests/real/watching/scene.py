"""A table whose files the test writes, watched by a watcher in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from lakewarden.agent.watching.foreground import publishing
from lakewarden.agent.watching.watcher import Watcher
from tests.real.lock_places import Place
from tests.real.writers import PATIENCE_SECONDS, World


@dataclass
class WatchedScene:
    """A table in a store, and the topics."""

    world: World
    place: Place

    def put(self, path: str, body: bytes = b"") -> None:
        """Write a file of the table, whole at once."""
        if self.place.server is None:
            file = Path(self.place.table.removeprefix("file://"), path)
            file.parent.mkdir(parents=True, exist_ok=True)
            written = file.with_name(f".{file.name}.written")
            written.write_bytes(body)
            written.rename(file)
            return
        bucket, _, key = self.place.table.removeprefix("s3://").partition("/")
        client = self.place.server.new_client()
        try:
            client.put_object(Bucket=bucket, Key=f"{key}/{path}", Body=body)
        finally:
            client.close()

    def settings(self) -> dict[str, Any]:
        """The settings of agents, watchers and commands for this table."""
        return {**self.place.settings, "allow": (self.place.table,)}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Watcher]:
        """Run a watcher. It has looked at the table once at the start of the block."""
        settings = self.world.settings(
            **self.settings(), watch_seconds=0.1, watch_idle_seconds=0.1, watch_grace_seconds=0.0
        )
        async with publishing(settings) as publish, anyio.create_task_group() as tasks:
            watcher = Watcher(settings, (self.place.table,), publish)
            tasks.start_soon(watcher.run)
            with anyio.fail_after(PATIENCE_SECONDS):
                while (found := watcher.tables.get(self.place.table)) is None or found.looked_at is None:
                    await anyio.sleep(0.05)
            yield watcher
            tasks.cancel_scope.cancel()
