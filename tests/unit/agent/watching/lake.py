"""Tables on a local disk, and the events that a watcher publishes of them."""

from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import CommitCompleted, WriterEventUnion
from tests.recorded_delta import commit
from tests.tuned import tuned
from tests.waiting import until

QUICK = {"watch_seconds": 0.01, "watch_idle_seconds": 0.01, "watch_grace_seconds": 0.0}
LOG = "_delta_log/{:020d}.json"


class Published(list[WriterEventUnion]):
    """The events that a watcher has published."""

    accepts: anyio.Event | None = None
    """If it is given, publishing waits for it."""

    async def publish(self, events: list[WriterEventUnion]) -> None:
        if self.accepts is not None:
            await self.accepts.wait()
        self.extend(events)

    async def until(self, kind: type[WriterEventUnion], count: int = 1) -> list[WriterEventUnion]:
        """Wait until so many events of a type are published."""
        return await until(
            lambda: found if len(found := [each for each in self if isinstance(each, kind)]) >= count else []
        )

    def versions(self) -> list[str | None]:
        return [each.version for each in self if isinstance(each, CommitCompleted)]


@asynccontextmanager
async def watching(
    settings: Settings, published: Published, is_own: Callable[[str], bool] = lambda _: True
) -> AsyncIterator[Watcher]:
    """A watcher of what the settings name."""
    watcher = Watcher(settings, settings.watch, published.publish, is_own)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        yield watcher
        tasks.cancel_scope.cancel()


async def looked_at(watcher: Watcher, *tables: str) -> None:
    """Wait until the watcher has looked at these tables."""
    await until(lambda: all((found := watcher.tables.get(uri)) and found.looked_at for uri in tables))


async def logged(logs: Iterable[MutableMapping[str, Any]], event: str, count: int = 1) -> None:
    """Wait until the event was logged."""
    await until(lambda: sum(each["event"] == event for each in logs) >= count)


@dataclass
class Lake:
    """A folder with tables, and what one watcher has published of them."""

    root: Path
    published: Published = field(default_factory=Published)

    def at(self, table: str) -> str:
        return f"file://{self.root}/{table}"

    def put(self, table: str, path: str, body: bytes = b"") -> None:
        file = self.root / table / path
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_name(f".{file.name}.written")
        written.write_bytes(body)
        written.rename(file)

    def commit(self, *versions: int, table: str = "days") -> None:
        """Add commits of the recorded Delta table."""
        for version in versions:
            self.put(table, LOG.format(version), commit("days", version))

    @asynccontextmanager
    async def watched(self, *watch: str) -> AsyncIterator[Watcher]:
        """A watcher of these tables, globs too."""
        async with watching(tuned(watch=watch, **QUICK), self.published) as watcher:
            yield watcher

    @asynccontextmanager
    async def followed(self, table: str = "days") -> AsyncIterator[Watcher]:
        """A watcher that has looked at the table."""
        async with self.watched(self.at(table)) as watcher:
            await looked_at(watcher, self.at(table))
            yield watcher
