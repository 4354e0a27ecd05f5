"""What a Spark driver needs to write one lake table together with other writers.

Three lines in a job (`docs/writers.md` is the manual)::

    gate = CommitGate("kafka:9092")
    sink = PaimonSink("s3://lake/flights", mode="upsert", keys=["flight"])
    query = stream.writeStream.foreachBatch(gate.foreach_batch(sink, writer="arrivals")).start()

The rooms, each of which imports only those below it:

- `jobs/`: programs: conflicts to Parquet.
- `commit_gate.py`: `CommitGate`, the public gate.
- `streaming/`: a transaction for each micro-batch.
- `sinks/`: the contract for table formats, `DeltaSink`, `HudiSink`, `IcebergSink` and `PaimonSink`.
- `engine/`: the Spark that runs a batch.
- `gate/`: the writer's side of the protocol. `gate/gate.py` is the place to start reading.

This module imports nothing heavy: pyspark, pypaimon and the Kafka client are imported where they are used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lakewarden.events import TABLE_SERVICE_PRIORITY, Marker
from lakewarden.spark_jobs.gate.errors import (
    AgentUnreachable,
    AlreadyCommitted,
    BaseChanged,
    CommitAborted,
    CommitReplaced,
    GateError,
    GrantTimeout,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
    RowsLost,
    UnsupportedSpark,
)
from lakewarden.spark_jobs.gate.jvm_errors import CallbackErrors
from lakewarden.spark_jobs.gate.scope import BatchScope

if TYPE_CHECKING:
    from lakewarden.spark_jobs.commit_gate import CommitGate
    from lakewarden.spark_jobs.gate.async_gate import AsyncGate, AsyncGrant, AsyncTransaction
    from lakewarden.spark_jobs.gate.grant import Grant
    from lakewarden.spark_jobs.gate.observer import GateEvent
    from lakewarden.spark_jobs.gate.transaction import Transaction
    from lakewarden.spark_jobs.sinks.contract import Plan, Sink
    from lakewarden.spark_jobs.sinks.delta.sink import DeltaSink
    from lakewarden.spark_jobs.sinks.hudi.sink import HudiSink
    from lakewarden.spark_jobs.sinks.iceberg.sink import IcebergSink
    from lakewarden.spark_jobs.sinks.paimon.sink import PaimonSink
    from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
    from lakewarden.spark_jobs.streaming.batches import table_uri

__all__ = [
    "TABLE_SERVICE_PRIORITY",
    "AgentUnreachable",
    "AlreadyCommitted",
    "AsyncGate",
    "AsyncGrant",
    "AsyncTransaction",
    "BaseChanged",
    "BatchScope",
    "CallbackErrors",
    "CommitAborted",
    "CommitGate",
    "CommitReplaced",
    "DeltaSink",
    "GateError",
    "GateEvent",
    "Grant",
    "GrantTimeout",
    "HudiSink",
    "IcebergSink",
    "InvalidArgument",
    "LeaseLost",
    "Marker",
    "OutcomeUnknown",
    "PaimonSink",
    "PartitionPaths",
    "Plan",
    "RowsLost",
    "Sink",
    "Transaction",
    "UnsupportedSpark",
    "table_uri",
]

_MODULES = {
    "AsyncGate": "gate.async_gate",
    "AsyncGrant": "gate.async_gate",
    "AsyncTransaction": "gate.async_gate",
    "CommitGate": "commit_gate",
    "DeltaSink": "sinks.delta.sink",
    "GateEvent": "gate.observer",
    "Grant": "gate.grant",
    "HudiSink": "sinks.hudi.sink",
    "IcebergSink": "sinks.iceberg.sink",
    "PaimonSink": "sinks.paimon.sink",
    "PartitionPaths": "sinks.partition_paths",
    "Plan": "sinks.contract",
    "Sink": "sinks.contract",
    "Transaction": "gate.transaction",
    "table_uri": "streaming.batches",
}

# A library writes nothing until its program configures logging. Without a handler, Python prints warnings to stderr.
# aiokafka attaches none, and a driver that uses it through this package didn't choose it.
for _name in ("lakewarden", "aiokafka"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
# At INFO it reports each subscription of the gate's own clients, which report failures themselves.
if logging.getLogger("aiokafka").level == logging.NOTSET:
    logging.getLogger("aiokafka").setLevel(logging.WARNING)


def __getattr__(name: str) -> object:
    """Import the heavier names when they are first used."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "fastavro":
            raise
        text = f"{name} needs {missing.name}, which is not installed: install lakewarden[hudi]"
        raise ModuleNotFoundError(text, name=missing.name) from missing
