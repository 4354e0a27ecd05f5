"""Two agents with tables that share a lock object: an agent that waits acquires the lock because of the other's audit event.

The agents are members of one group, each with its own partition, store client and peer listener. A proxy in front of the store
counts the requests of each agent. Without the audit event, an agent would read the object again only after ten minutes.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio

from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.settings import Settings
from lakewarden.events import LockAcquired, LockEvent, LockRefused, LockReleased
from lakewarden.events.access import partition_of
from lakewarden.handlers.lease.machine import LeaseSettings
from tests.own_task import in_own_task
from tests.real.writers import QUICK, World, Writer
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.waiting import until

pytestmark = [pytest.mark.real]

NEVER_SECONDS = 600.0
VALIDITY_SECONDS = 3_000.0
"""A lease without renewals during a test, so that every counted request belongs to waiting or to an acquisition."""
PATIENT = {"validity_seconds": VALIDITY_SECONDS, "session_timeout_seconds": 20.0}
"""No timeout that a busy machine exceeds: a repeated request would change the count, a new session the owners."""
READ_AND_WRITE = 2
TURNS = 4


@dataclass
class Pair:
    """Two ready agents, each owning the partition of one table."""

    scene: World
    bucket: str
    proxies: dict[str, Proxy]
    writers: int = 0
    received: Counter[tuple[type[LockEvent], str]] = field(default_factory=Counter)

    @property
    def lock(self) -> str:
        return f"s3://{self.bucket}/locks/both.json"

    @property
    def tables(self) -> tuple[str, str]:
        """Two tables in different partitions, so that each agent owns one."""
        names = (f"{self.scene.table}-{number}" for number in range(100))
        first = next(names)
        return first, next(name for name in names if _partition(name) != _partition(first))

    async def begin(self, table: str) -> Writer:
        """Begin a transaction of this table, for which its agent requests the lock."""
        self.writers += 1
        writer = self.scene.writer(f"writer-{self.writers}", table)
        await writer.begin(lock=self.lock, heartbeat_seconds=100)
        return writer

    async def next_event(self, kind: type[LockEvent], table: str) -> LockEvent:
        """Wait for the next audit event of this type and table."""
        self.received[kind, table] += 1
        count = self.received[kind, table]
        return (await self.scene.wait_for(kind, lambda each: each.table == table, count=count))[count - 1]

    def requests(self, event: LockEvent) -> int:
        """The number of requests that the agent of this event has sent so far."""
        return self.proxies[event.agent].requests.total()


@pytest_asyncio.fixture
async def pair(
    scene: World, s3_credentials: S3Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pair]:
    """The interval in which a waiting agent reads a held object is no setting, so it is patched."""
    lease = Settings.lease

    def patched(settings: Settings, *, shared: bool) -> LeaseSettings:
        return replace(lease(settings, shared=shared), poll_seconds=NEVER_SECONDS)

    monkeypatch.setattr(Settings, "lease", patched)
    bucket = s3_credentials.bucket()
    places = (f"file://*=>s3://{bucket}/locks/both.json",)
    scene.overrides |= {"lock_root": f"s3://{bucket}/locks", "lock_places": places, **PATIENT}
    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(Proxy(s3_credentials.endpoint, keep_alive=False))
            for name in ("one", "other")
        }
        async with in_own_task(_both(scene, proxies)):
            yield Pair(scene, bucket, proxies)


@asynccontextmanager
async def _both(scene: World, proxies: dict[str, Proxy]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        agents: list[Agent] = []
        for name, proxy in proxies.items():
            agent = scene.agent(agent_id=name, s3_endpoint=proxy.endpoint)
            agents.append(await stack.enter_async_context(agent))
        # The first agent has lost a partition to the second, and becomes ready again after the rebalance.
        await until(lambda: all(agent.ready.is_set() for agent in agents))
        yield


async def test_a_waiting_agent_acquires_a_released_lock_because_of_the_audit_event(pair: Pair) -> None:
    one, other = pair.tables
    holding = await pair.begin(one)
    await pair.next_event(LockAcquired, one)
    waiting = await pair.begin(other)
    for _ in range(TURNS):
        refused = await pair.next_event(LockRefused, waiting.table)
        before = pair.requests(refused)

        await holding.complete((await holding.obtain_grant()).grant)
        released = await pair.next_event(LockReleased, holding.table)
        acquired = await pair.next_event(LockAcquired, waiting.table)

        assert acquired.agent == refused.agent != released.agent
        assert (acquired.requests, pair.requests(acquired) - before) == (READ_AND_WRITE, READ_AND_WRITE)
        assert released.at <= acquired.at
        holding, waiting = waiting, await pair.begin(holding.table)


def _partition(table: str) -> int:
    return partition_of(table, QUICK["partitions"])
