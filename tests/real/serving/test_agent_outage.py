"""Kafka is not up yet, or goes down and comes back, while the agent runs."""

from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.events import Abort, Admitted, CommitGranted, LockAcquired
from tests.kafka_fixture import TAKES_KAFKA_AWAY
from tests.real.promises import check
from tests.real.writers import World, world

pytestmark = [pytest.mark.real, *TAKES_KAFKA_AWAY]


@pytest.mark.wide
async def test_an_agent_that_starts_before_kafka_serves_when_kafka_is_up(tmp_path: Path) -> None:
    port = free_port()
    scene = World(f"127.0.0.1:{port}", "early", tmp_path, producer=None, consumer=None)
    with scene.process() as process:
        waiting = await process.logged("kafka.waiting")
        assert waiting["bootstrap_servers"] == scene.bootstrap_servers
        with EmbeddedKafka(tmp_path / "kafka", port=port):
            await process.ready()


async def test_an_agent_logs_an_outage_of_kafka_and_continues_after_it(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", port=free_port()) as kafka:
        async with world(kafka.bootstrap_servers, "outage", tmp_path) as scene:
            async with scene.running() as process:
                before = scene.writer("before")
                await before.begin(heartbeat_seconds=100)
                await before.touch("x")
                await scene.settle()

                kafka.stop()
                silent = await process.logged("kafka.silent")
                assert silent["bootstrap_servers"]
                kafka.start()

                await before.obtain_grant()
                await before.complete()
                after = scene.writer("after")
                await after.begin()
                await after.touch("x")
                await after.obtain_grant()

            check(await scene.transactions())
            assert len(scene.events(Admitted)) == len(scene.events(CommitGranted)) == 2
            assert scene.events(Abort, before.mine) == []


@pytest.mark.world(validity_seconds=1_000)
async def test_an_event_whose_decision_kafka_rejected_is_decided_again_from_the_log(
    scene: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends in order and releases its locks, so that the next one does not wait for their leases to end."""
    failures = [KafkaError("rejected by the test")]

    class FailingProducer(AIOKafkaProducer):  # type: ignore[misc]
        async def send(self, topic: str, value: bytes, **more: Any) -> Any:
            if failures and b'"admitted"' in value and b"unlucky" in value:
                raise failures.pop()
            return await super().send(topic, value=value, **more)

    monkeypatch.setattr("lakewarden.agent.kafka.AIOKafkaProducer", FailingProducer)
    async with scene.agent():
        other, unlucky = scene.writer("other"), scene.writer("unlucky")
        await other.begin(heartbeat_seconds=100)
        await scene.wait_for(LockAcquired)
        await unlucky.begin(heartbeat_seconds=100)
        await unlucky.obtain_grant()
        found = await scene.transactions()

    assert failures == []
    check(found)
