"""Two agents with tables that share a lock object: an agent that waits acquires the lock because of the other's audit event.

The agents are members of one group, each with its own partition, store client and peer listener. A proxy in front of the store
counts the requests of each agent. Without the audit event, an agent would read the object again only after ten minutes.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio

from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.serving.peer_listener import PeerListener
from lakewarden.agent.settings import Settings
from lakewarden.events import LockAcquired, LockEvent, LockRefused, LockReleased
from lakewarden.events.access import partition_of
from lakewarden.handlers.lease.lock_object import LockRecord, render
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
DYING_MS = 15_000
"""The rest of a dead owner's lease. The agent has to read the object in this time, on a busy machine too."""
PATIENT = {"validity_seconds": VALIDITY_SECONDS, "session_timeout_seconds": 20.0}
"""No timeout that a busy machine exceeds: a repeated request would change the count, a new session the owners."""
READ_AND_WRITE = 2
TURNS = 4


@dataclass
class Pair:
    """Two ready agents, each owning the partition of one table."""

    scene: World
    server: S3Server
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

    def put(self, record: LockRecord) -> None:
        """Write the lock object as another program does."""
        self.server.put(self.lock, render(record))


@pytest.fixture
def poll_seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """The interval in which a waiting agent reads a held object. It is no setting, so it is patched."""
    seconds: float = getattr(request, "param", NEVER_SECONDS)
    lease = Settings.lease

    def patched(settings: Settings, *, shared: bool) -> LeaseSettings:
        return replace(lease(settings, shared=shared), poll_seconds=seconds)

    monkeypatch.setattr(Settings, "lease", patched)
    return seconds


@pytest_asyncio.fixture
async def pair(scene: World, s3_credentials: S3Server, poll_seconds: float) -> AsyncIterator[Pair]:
    bucket = s3_credentials.bucket()
    places = (f"file://*=>s3://{bucket}/locks/both.json",)
    scene.overrides |= {"lock_root": f"s3://{bucket}/locks", "lock_places": places, **PATIENT}
    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(Proxy(s3_credentials.endpoint, keep_alive=False))
            for name in ("one", "other")
        }
        async with in_own_task(_both(scene, proxies)):
            yield Pair(scene, s3_credentials, bucket, proxies)


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


@pytest.mark.wide
@pytest.mark.parametrize("poll_seconds", [1.0], indirect=True)
async def test_an_agent_without_audit_events_polls_the_object(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerListener, "_on_lock_event", lambda *_: None)
    one, other = pair.tables
    holding = await pair.begin(one)
    await pair.next_event(LockAcquired, one)
    waiting = await pair.begin(other)
    refused = await pair.next_event(LockRefused, other)
    await pair.next_event(LockRefused, other)  # after it has read the object again

    await holding.complete((await holding.obtain_grant()).grant)
    acquired = await pair.next_event(LockAcquired, other)

    assert acquired.agent == refused.agent
    assert acquired.requests == READ_AND_WRITE
    await waiting.obtain_grant()


@pytest.mark.wide
async def test_an_agent_waits_until_the_lease_of_a_dead_owner_has_ended_without_further_reads(
    pair: Pair,
) -> None:
    dead = LockRecord(
        expired=False, valid_until=time.time_ns() // 1_000_000 + DYING_MS, owner="of a dead writer"
    )
    pair.put(dead)
    table, _ = pair.tables
    waiting = await pair.begin(table)
    refused = await pair.next_event(LockRefused, table)
    before = pair.requests(refused)

    acquired = await pair.next_event(LockAcquired, table)

    assert (refused.holder, refused.valid_until) == (dead.owner, dead.valid_until)
    assert pair.requests(acquired) - before == READ_AND_WRITE
    written = acquired.valid_until - round(VALIDITY_SECONDS * 1e3)
    assert written > dead.valid_until + round(QUICK["drift_seconds"] * 1e3)
    await waiting.obtain_grant()


def _partition(table: str) -> int:
    return partition_of(table, QUICK["partitions"])
