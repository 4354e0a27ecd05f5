"""The background tasks of aiokafka's clients, as the session watches them. A new aiokafka may rename them."""

from __future__ import annotations

import asyncio

import pytest

from lakewarden.agent.kafka import ended_tasks, producer, reader, start_client, stop_client
from lakewarden.agent.settings import KafkaSettings
from tests.kafka_fixture import KafkaServer

pytestmark = [pytest.mark.real]


async def test_the_background_tasks_of_a_kafka_client_that_have_ended_are_named(kafka: KafkaServer) -> None:
    """aiokafka ends the task of a consumer that fetches, and that of a producer that sends, without an error."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    consuming, sending = reader(settings), producer(settings)
    try:
        for client in (consuming, sending):
            await start_client(client, settings)
        running = [ended_tasks(client) for client in (consuming, sending)]
        tasks = [
            consuming._fetcher._fetch_task,
            consuming._client._sync_task,
            sending._sender._sender_task,
        ]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

        assert running == [{}, {}]
        assert ended_tasks(consuming) == {"metadata": "cancelled", "fetching": "returned"}
        assert set(ended_tasks(sending)) == {"sending"}
    finally:
        for client in (consuming, sending):
            await stop_client(client)
