"""Which decisions the channel dispatches. Its connection to Kafka is tested with a broker, in `tests/spark/gate/`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lakewarden.events import Abort, DecisionEventUnion, Topics, encode
from lakewarden.spark_jobs.gate.channel import Channel
from tests.unit.events.building import AT

TABLE = "s3://lake/t"


@pytest.mark.parametrize("elsewhere", [0, 1])
def test_a_decision_is_dispatched_only_from_the_partition_of_its_table(elsewhere: int) -> None:
    """The agent answers a record with a wrong key in the partition to which a stranger sent it, with the names in it."""
    channel = Channel("nowhere:9092", topics=Topics("p"))
    channel._partitions = 12
    abort = Abort(
        event_id="e",
        table=TABLE,
        transaction="t-1",
        writer="w",
        at=AT,
        agent="a",
        cause_offset=0,
        reason="not-allowed",
        retriable=False,
    )
    received: list[DecisionEventUnion] = []
    channel._subscribers["t-1"] = lambda decision, _: received.append(decision)

    partition = (channel._partition(TABLE) + elsewhere) % 12
    channel._dispatch(SimpleNamespace(value=encode(abort), key=TABLE.encode(), partition=partition, offset=7))

    assert received == [abort][elsewhere:]
