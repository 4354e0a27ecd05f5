"""Which tasks of a worker process share a producer: those of one gate, and so of the same credentials."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lakewarden.events import Marker
from lakewarden.spark_jobs.gate import executor
from lakewarden.spark_jobs.gate.executor import MAX_PRODUCERS, ExecutorChannel

MARKER = Marker(partition="p", file_group="f", operation="merge")


class Producer:
    """Stands for a producer with its thread."""

    made: list[Producer]

    def __init__(self, _: str, kafka: Any, *__: object) -> None:
        self.kafka = kafka
        self.sent = 0
        self.stopped = False
        self.made.append(self)

    def send(self, *_: object) -> None:
        self.sent += 1

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Producer]:
    """The producers of this process."""
    Producer.made = []
    monkeypatch.setattr(executor, "_ProducerThread", Producer)
    monkeypatch.setattr(executor, "_producers", {})
    return Producer.made


def channel(password: str, **more: Any) -> ExecutorChannel:
    """A channel of a gate of its own, unless `share` names one."""
    kafka = {"sasl_username": "me", "sasl_password": password}
    return ExecutorChannel("localhost:1", "lakewarden", "file:///t", "t", "w", kafka, **more)


def test_gates_with_other_passwords_share_no_producer(made: list[Producer]) -> None:
    """A producer keeps its connection: with the old password, the markers of the new one's tasks would be refused."""
    for each in (channel("old"), channel("new")):
        each.touch_all([MARKER])

    assert [(each.kafka["sasl_password"], each.sent) for each in made] == [("old", 1), ("new", 1)]


def test_tasks_and_transactions_of_one_gate_share_a_producer(made: list[Producer]) -> None:
    """Spark unpickles the channel for each task."""
    first, second = channel("one", share="gate"), channel("one", share="gate")
    for each in (first, second):
        for _ in range(2):
            pickle.loads(pickle.dumps(each)).touch_all([MARKER])  # noqa: S301 - its own bytes

    assert [each.sent for each in made] == [4]


def test_the_producer_that_was_used_longest_ago_is_closed(made: list[Producer]) -> None:
    """A driver may make a gate for each batch."""
    first = channel("first")
    first.touch_all([MARKER])
    for number in range(MAX_PRODUCERS - 1):
        channel(str(number)).touch_all([MARKER])
    first.touch_all([MARKER])
    channel("last").touch_all([MARKER])

    assert [each.kafka["sasl_password"] for each in made if each.stopped] == ["0"]
