"""Use: what a PySpark driver needs to write one lake table together with others.

Three lines are enough::

    gate = CommitGate("kafka:9092")
    sink = PaimonSink("s3://lake/flights", mode="upsert", keys=["flight"])
    query = stream.writeStream.foreachBatch(gate.foreach_batch(sink, table=sink.table, writer="arrivals")).start()

Nothing heavy is imported here: pyspark, pypaimon and Kafka come in where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewarden.events import TABLE_SERVICE_PRIORITY
from lakewarden.spark_jobs.gate.errors import (
    AgentUnreachable,
    AlreadyCommitted,
    BaseChanged,
    CommitAborted,
    GateError,
    GrantTimeout,
    LeaseLost,
    OutcomeUnknown,
)

if TYPE_CHECKING:
    from lakewarden.spark_jobs.commit_gate import CommitGate
    from lakewarden.spark_jobs.gate.grant import Grant
    from lakewarden.spark_jobs.gate.observer import GateEvent
    from lakewarden.spark_jobs.gate.transaction import Transaction
    from lakewarden.spark_jobs.sinks.contract import Sink
    from lakewarden.spark_jobs.sinks.paimon.sink import PaimonSink

__all__ = [
    "TABLE_SERVICE_PRIORITY",
    "AgentUnreachable",
    "AlreadyCommitted",
    "BaseChanged",
    "CommitAborted",
    "CommitGate",
    "GateError",
    "GateEvent",
    "Grant",
    "GrantTimeout",
    "LeaseLost",
    "OutcomeUnknown",
    "PaimonSink",
    "Sink",
    "Transaction",
]

_WHERE = {
    "CommitGate": "commit_gate",
    "GateEvent": "gate.observer",
    "Grant": "gate.grant",
    "PaimonSink": "sinks.paimon.sink",
    "Sink": "sinks.contract",
    "Transaction": "gate.transaction",
}


def __getattr__(name: str) -> object:
    """Import the heavier names when they are first used."""
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
