"""Every connection to Kafka names its client, so that an operator can set a quota for each kind of client."""

import asyncio
import time
from functools import partial
from typing import Any

import aiokafka.client
import anyio
import pytest
from anyio import to_thread

from lakewarden.agent.kafka import ended_tasks, producer, reader, start_client
from lakewarden.agent.operators.status import status
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events.access import stop_client
from tests.kafka_fixture import KafkaServer
from tests.real.writers import TEST_CLIENT_ID, World, commit_through
from tests.servers.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.real]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The client ids of the connections of this process, the test's own clients left out."""
    found: set[str] = set()
    connect = aiokafka.client.create_conn

    async def recorded(*args: Any, **more: Any) -> Any:
        if more["client_id"] != TEST_CLIENT_ID:
            found.add(more["client_id"])
        return await connect(*args, **more)

    monkeypatch.setattr(aiokafka.client, "create_conn", recorded)
    return found


async def test_each_kind_of_client_has_its_own_id(scene: World, connected: set[str]) -> None:
    async with scene.agent():
        assert connected == {"lakewarden-agent"}
        await to_thread.run_sync(_commit, scene)
        assert connected == {"lakewarden-agent", "lakewarden-writer", "lakewarden-executor"}
        await status(scene.settings(), None)

    assert connected == {"lakewarden-agent", "lakewarden-writer", "lakewarden-executor", "lakewarden-cli"}


async def test_a_writer_may_choose_its_id(scene: World, connected: set[str]) -> None:
    async with scene.agent():
        await to_thread.run_sync(partial(_commit, scene, kafka={"client_id": "team-b"}))

    assert connected == {"lakewarden-agent", "team-b"}


def _commit(scene: World, **options: Any) -> None:
    with scene.gate(**options) as gate:
        commit_through(gate, scene.table)


# The background tasks of aiokafka's clients, as the session watches them. A new aiokafka may rename them.


async def test_the_background_tasks_of_a_kafka_client_that_have_ended_are_named(kafka: KafkaServer) -> None:
    """aiokafka ends the task of a consumer that fetches, and that of a producer that sends, without an error."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    consuming, sending = reader(settings), producer(settings)
    try:
        for client in (consuming, sending):
            await start_client(client, settings)
        running = [ended_tasks(client) for client in (consuming, sending)]
        tasks = [consuming._fetcher._fetch_task, consuming._client._sync_task, sending._sender._sender_task]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

        assert running == [{}, {}]
        assert ended_tasks(consuming) == {"metadata": "cancelled", "fetching": "returned"}
        assert set(ended_tasks(sending)) == {"sending"}
    finally:
        for client in (consuming, sending):
            await stop_client(client)


# Pauses: load balancers, NATs and brokers drop idle connections, and neither end learns of it.

SOON, NEVER = 0.5, 3_600.0
"""After which a client closes an idle connection."""


@pytest.mark.parametrize(
    ("idle_seconds", "drop_seconds"), [(SOON, 2.0), pytest.param(NEVER, 5.0, marks=pytest.mark.matrix)]
)
async def test_a_transaction_after_a_pause_costs_a_reconnect(
    kafka: KafkaServer, scene: World, idle_seconds: float, drop_seconds: float
) -> None:
    """Clients close an idle connection before it is dropped. Where it is dropped sooner, a request is repeated on a new one.

    The agent's heartbeats in its group are 2 s apart, so their connection is not idle for 5.
    """

    def idle() -> bool:
        now = time.monotonic()
        return any(now - each.used_at > drop_seconds for each in proxy.connections)

    with Proxy(f"kafka://{kafka.bootstrap_servers}", drop_idle_seconds=drop_seconds) as proxy:
        brokers = f"127.0.0.1:{proxy.port}"
        gate = scene.gate(brokers, kafka={"connections_max_idle_ms": round(idle_seconds * 1000)})
        async with scene.agent(bootstrap_servers=brokers, kafka_idle_seconds=idle_seconds):
            with gate:
                await to_thread.run_sync(commit_through, gate, scene.table, 1)
                await anyio.sleep(drop_seconds + 1)
                await until(lambda: idle() == (idle_seconds == NEVER))
                await to_thread.run_sync(commit_through, gate, scene.table, 2)

    if idle_seconds == NEVER:
        assert proxy.lost, "no connection was dropped"
