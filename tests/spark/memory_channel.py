"""A channel in this process, in place of Kafka and an agent, which admits and grants everything at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from lakewarden.events import DecisionEventUnion, Topics, WriterEventUnion
from lakewarden.spark_jobs.gate.channel import OnDecision
from tests.spark.fake_agent import grant_everything


class MemoryChannel:
    """What a transaction needs of `Channel`."""

    topics = Topics("memory")
    bootstrap_servers = "memory:9092"
    timeout = 60.0
    kafka = None
    share = "memory"
    reading_error: str | None = None

    def __init__(self) -> None:
        self.events: list[WriterEventUnion] = []
        self._receivers: dict[str, OnDecision] = {}

    def subscribe(self, _table: str, transaction: str, on_decision: OnDecision, **_facts: str) -> None:
        self._receivers[transaction] = on_decision

    def stood_still(self, _seconds: float) -> str:
        return ""

    def unsubscribe(self, transaction: str) -> None:
        self._receivers.pop(transaction, None)

    def send(self, event: WriterEventUnion) -> int:
        self.events.append(event)
        offset = len(self.events) - 1
        for decision in self.answer(event, offset):
            self._receivers[event.transaction](decision, offset)
        return offset

    def answer(self, event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        """What the agent decides on an event."""
        return grant_everything(event, offset)

    def run(self, function: Callable[[], Coroutine[Any, Any, Any]], **_facts: object) -> Any:
        return asyncio.run(function())

    async def publish(self, event: WriterEventUnion) -> Awaitable[int]:
        offset = asyncio.get_running_loop().create_future()
        offset.set_result(self.send(event))
        return offset

    def spawn(self, *_: object, **__: object) -> None:
        """Start no heartbeats: leases last for minutes."""

    def read_back(self, _table: str, start: int, _timeout: float) -> list[WriterEventUnion]:
        return self.events[start:]

    def agent_read_up_to(self, _table: str) -> int | None:
        return len(self.events)

    def close(self) -> None:
        """Nothing is open."""
