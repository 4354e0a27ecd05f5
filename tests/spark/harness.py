"""A gate and a scripted agent that talk to each other, for one test."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lakewarden.spark_jobs import CommitGate, GateEvent
from tests.kafka_fixture import KafkaServer
from tests.spark.fake_agent import PARTITIONS, FakeAgent, Script, fake_agent


class Harness(ExitStack):
    """Makes agents and gates, remembers what the gates told their observer, and closes all of them."""

    def __init__(self, kafka: KafkaServer, prefix: str) -> None:
        super().__init__()
        self.kafka, self.prefix = kafka, prefix
        self.events: list[GateEvent] = []

    def agent(self, script: Script, partitions: int = PARTITIONS) -> FakeAgent:
        return self.enter_context(fake_agent(self.kafka.bootstrap_servers, self.prefix, script, partitions))

    def gate(self, **options: Any) -> CommitGate:
        settings = {
            "heartbeat_seconds": 0.2,
            "admission_timeout_seconds": 10.0,
            "grant_timeout_seconds": 10.0,
        }
        gate = CommitGate(
            self.kafka.bootstrap_servers,
            topic_prefix=self.prefix,
            observer=self.events.append,
            **(settings | options),
        )
        return self.enter_context(gate)

    def steps(self) -> list[str]:
        """In the order in which they happened; several threads tell them."""
        return [event.what for event in sorted(self.events, key=lambda event: event.at)]

    def only(self, what: str) -> list[GateEvent]:
        return [event for event in self.events if event.what == what]
