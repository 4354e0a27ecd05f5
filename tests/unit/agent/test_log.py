"""Reading a topic up to its end, whose end Kafka may lose meanwhile."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition

from lakewarden.agent import log as log_module
from lakewarden.agent.errors import LogCutError
from lakewarden.agent.log import Log
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events.access import stop_client

WHERE = TopicPartition("lakewarden.decisions", 3)


class Cut:
    """A consumer of a partition that ends at offset 9 when it is asked first, and at 4 from then on."""

    def __init__(self) -> None:
        self.ends = [9]
        self.beginning = 0

    def assign(self, _: list[TopicPartition]) -> None:
        return

    def unsubscribe(self) -> None:
        return

    def seek(self, _: TopicPartition, __: int) -> None:
        return

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.beginning)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.ends.pop() if self.ends else 4)

    async def getmany(self, *_: TopicPartition, **__: Any) -> dict[TopicPartition, list[Any]]:
        return {}

    async def position(self, _: TopicPartition) -> int:
        return 4


@pytest.fixture(autouse=True)
def consumer(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """In place of the reading consumer."""
    made = Cut()

    async def nothing(*_: object) -> None:
        return

    monkeypatch.setattr(log_module, "reader", lambda _, **__: made)
    monkeypatch.setattr(log_module, "start_client", nothing)
    monkeypatch.setattr(log_module, "stop_client", nothing)
    return made


async def test_an_end_that_kafka_has_lost_is_not_waited_for() -> None:
    """Seed 1389 of the simulation: a take-over waited for ever, as a member of the group that held the partition."""
    with pytest.raises(LogCutError, match=r"decisions ends at offset 4 of partition 3, and had reached 9"):
        await Log(KafkaSettings()).read({WHERE: 0})


async def test_a_take_over_does_not_skip_records_that_were_removed_before_it_reads_them(
    consumer: Cut,
) -> None:
    """It has compared the log with its checkpoint before."""
    consumer.beginning = 6

    with pytest.raises(LogCutError, match=r"begins at offset 6 of partition 3, and is needed from 5 on"):
        await anext(Log(KafkaSettings()).batches({WHERE: 5}, complete=True))


class Slow:
    """A client whose `stop` hangs, and cancels what a second close waits for, as aiokafka's does."""

    def __init__(self) -> None:
        self.closing = asyncio.get_running_loop().create_future()
        self._client = self

    async def stop(self) -> None:
        await self.closing

    async def close(self) -> None:
        await asyncio.gather(self.closing)


async def test_a_client_that_does_not_stop_in_time_cancels_nobody() -> None:
    """On a busy machine, a command ended with `CancelledError`."""
    await stop_client(Slow(), 0.01)
