"""A table whose files the test writes, watched by a watcher in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
import obstore
from obstore.store import AzureStore, GCSStore

from lakewarden.agent.watching.foreground import publishing
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import WRITER_EVENT, WriterEvent, decode
from tests.real.lock_places import Place
from tests.real.writers import World
from tests.recorded_hudi import recorded
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig

FIRST = "a1079540-5309-48af-8815-49d4dc51cc56-0"
TIME = "20261122135643314"
DONE = "20261122135643314_20261122135847753.commit"
OBSERVED = f"hudi:{TIME}"
QUICK_LOOKS = {"watch_seconds": 0.1, "watch_idle_seconds": 0.1, "watch_grace_seconds": 0.0}

UNENCRYPTED: ClientConfig = {"allow_http": True}

Reported = TypeVar("Reported", bound=WriterEvent)


@dataclass
class WatchedScene:
    """A table in a store, and the topics."""

    world: World
    place: Place

    def put(self, path: str, body: bytes = b"") -> None:
        """Write a file of the table, whole at once."""
        scheme, _, location = self.place.table.partition("://")
        bucket, _, key = location.partition("/")
        if scheme in ("gs", "az"):
            obstore.put(self._cloud(scheme, bucket), f"{key}/{path}", body)
        else:
            self.place.write(body, f"{self.place.table}/{path}")

    def _cloud(self, scheme: str, bucket: str) -> GCSStore | AzureStore:
        if scheme == "gs":
            endpoint = self.place.settings["gcs_endpoint"]
            return GCSStore(bucket, config={"base_url": endpoint}, client_options=UNENCRYPTED)
        endpoint = self.place.settings["azure_endpoint"]
        config: AzureConfig = {"endpoint": endpoint, "container_name": bucket}
        return AzureStore(config=config, client_options=UNENCRYPTED)

    def settings(self) -> dict[str, Any]:
        """The settings of agents, watchers and commands for this table."""
        return {**self.place.settings, "tables": (self.place.table,)}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Watcher]:
        """Run a watcher. It has looked at the table once at the start of the block."""
        settings = self.world.settings(**self.settings(), **QUICK_LOOKS)
        async with publishing(settings) as publish, anyio.create_task_group() as tasks:
            watcher = Watcher(settings, (self.place.table,), publish)
            tasks.start_soon(watcher.run)
            await until(
                lambda: (
                    (found := watcher.tables.get(self.place.table)) is not None
                    and found.looked_at is not None
                )
            )
            yield watcher
            tasks.cancel_scope.cancel()


class HudiScene(WatchedScene):
    """A Hudi table, with the files of one instant."""

    def put_in_hoodie(self, path: str, body: bytes = b"") -> None:
        self.put(f".hoodie/{path}", body)

    def created(self) -> Self:
        self.put_in_hoodie("hoodie.properties", recorded("cow-v9", "hoodie.properties"))
        return self

    def request(self) -> None:
        """Write what Hudi writes when it begins."""
        self.put_in_hoodie(f"timeline/{TIME}.commit.requested")

    def start(self) -> None:
        """Write what Hudi writes when it knows which file groups get updates."""
        self.put_in_hoodie(f"timeline/{TIME}.inflight", recorded("cow-v9", f"{TIME}.inflight"))

    def complete(self) -> None:
        """Write the commit."""
        self.put_in_hoodie(f"timeline/{DONE}", recorded("cow-v9", DONE))

    def watching(self) -> dict[str, Any]:
        """The settings of an agent that watches the table itself."""
        return {**self.settings(), "watch": (self.place.table,)}

    async def reported(self, kind: type[Reported], count: int = 1) -> list[Reported]:
        """Wait until watchers have published so many events of this type. Return them."""
        topic = self.world.settings().topics.writers
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                records = (await self.world.read_log())[topic]
                found: list[Reported] = []
                for each in records:
                    event = decode(WRITER_EVENT, each.value)
                    if isinstance(event, kind) and event.transaction == OBSERVED:
                        found.append(event)
                if len(found) >= count:
                    return found
                await anyio.sleep(0.1)
