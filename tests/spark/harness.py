"""A gate and a scripted agent on one broker, for one test."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lakewarden.spark_jobs import CommitGate, GateEvent
from tests.kafka_fixture import KafkaServer
from tests.spark.fake_agent import PARTITIONS, PATIENCE_SECONDS, FakeAgent, Script, fake_agent


class Harness(ExitStack):
    """Creates agents and gates, keeps the `GateEvent`s of the gates, and closes all of them."""

    def __init__(self, kafka: KafkaServer, prefix: str) -> None:
        super().__init__()
        self.kafka, self.prefix = kafka, prefix
        self.events: list[GateEvent] = []

    def agent(self, script: Script, partitions: int = PARTITIONS) -> FakeAgent:
        return self.enter_context(fake_agent(self.kafka.bootstrap_servers, self.prefix, script, partitions))

    def gate(self, **options: Any) -> CommitGate:
        settings = {
            "heartbeat_seconds": 0.2,
            "admission_timeout_seconds": PATIENCE_SECONDS,
            "grant_timeout_seconds": PATIENCE_SECONDS,
        }
        gate = CommitGate(
            self.kafka.bootstrap_servers,
            topic_prefix=self.prefix,
            observer=self.events.append,
            **(settings | options),
        )
        return self.enter_context(gate)

    def steps(self) -> list[str]:
        """Return the steps of all transactions in the order in which they happened. Several threads report them."""
        return [event.what for event in sorted(self.events, key=lambda event: event.at)]

    def only(self, what: str) -> list[GateEvent]:
        """Return the events of one step."""
        return [event for event in self.events if event.what == what]
