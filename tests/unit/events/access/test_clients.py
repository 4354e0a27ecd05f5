"""Clients whose broker is away: their end leaves no task behind, and cancels none of the caller's."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataResponse_v1

from lakewarden.events.access import stop_client


@pytest.fixture(params=["closed", "silent"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that refuses connections, or one that accepts them and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def known_broker(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Clients start as if the broker had answered, and were gone since."""

    async def bootstrap(client: AIOKafkaClient) -> None:
        partitions = [(0, number, 0, [0], [0]) for number in range(3)]
        answer = MetadataResponse_v1([(0, "127.0.0.1", port, None)], 0, [(0, "t", False, partitions)])
        client.cluster.update_metadata(answer)
        client._sync_task = asyncio.create_task(client._md_synchronizer())

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)


async def producer(records: int, servers: str) -> Any:
    client = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, acks="all")
    client._txn_manager.set_pid_and_epoch(1, 0)
    await client.start()
    for number in range(records):
        await client.send("t", b"record", partition=number % 3)
    return client


async def consumer(group: str | None, servers: str) -> Any:
    client = AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    await client.start()
    if group is None:
        client.assign([TopicPartition("t", 0)])
        client.seek(TopicPartition("t", 0), 3)
    else:
        client.subscribe(["t"])
    return client


CLIENTS = {
    "a producer without a record": lambda servers: producer(0, servers),
    "a producer with a record": lambda servers: producer(1, servers),
    "a producer with records of three partitions": lambda servers: producer(7, servers),
    "a consumer": lambda servers: consumer(None, servers),
    "a member of a group": lambda servers: consumer("g", servers),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_end_of_a_client_without_its_broker_leaves_no_task(
    kind: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each outage of a broker logged three errors "Task was destroyed but it is pending!"."""

    async def outage() -> None:
        client = await CLIENTS[kind](f"127.0.0.1:{port}")
        await asyncio.sleep(0.15)
        before = asyncio.get_running_loop().time()
        await stop_client(client, 0.1)
        assert asyncio.get_running_loop().time() - before < 1
        assert asyncio.all_tasks() == {asyncio.current_task()}
        del client
        gc.collect()

    asyncio.run(outage())

    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_the_end_of_a_client_cancels_no_task_of_its_caller_or_of_another_client(port: int) -> None:
    class Caller:
        """As a channel has a producer."""

        def __init__(self, client: Any) -> None:
            self.client, self._sender = client, client._sender

        async def work(self) -> str:
            await asyncio.sleep(0.3)
            return "done"

    async def outage() -> None:
        servers = f"127.0.0.1:{port}"
        client, other = await producer(1, servers), await producer(1, servers)
        working = asyncio.create_task(Caller(client).work())
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await stop_client(admin, 0.1)
        await stop_client(client, 0.1)

        assert await working == "done"
        assert not other._sender.sender_task.done()
        await stop_client(other, 0.1)

    asyncio.run(outage())
