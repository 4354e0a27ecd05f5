"""The owner of a partition with a running lock: what is sent to it, and what it publishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import monotonic
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.events import AUDIT_EVENT, DECISION_RECORD, WriterEventUnion, decode, encode

E = TypeVar("E")


@dataclass
class LiveOwner:
    """An owner and what it published."""

    owner: PartitionOwner
    records: list[Outgoing]
    offset: int = field(default=0, kw_only=True)

    def send(self, kind: type[WriterEventUnion], transaction: str, table: str, **fields: Any) -> None:
        values: dict[str, Any] = {
            "event_id": f"e{self.offset}",
            "table": table,
            "transaction": transaction,
            "writer": f"w-{transaction}",
            "at": datetime.now(UTC),
        }
        event = kind(**values, **fields)
        value, key = encode(event), table.encode()
        record: Any = ConsumerRecord(
            "writers", 0, self.offset, 0, 0, key, value, None, len(key), len(value), ()
        )
        self.offset += 1
        self.owner.consume([record], monotonic())

    def published(self, kind: type[E]) -> list[E]:
        """The decisions and audit events of this type."""
        found: list[Any] = []
        for record in self.records:
            if record.topic.endswith(".decisions"):
                found.append(decode(DECISION_RECORD, record.value))
            elif record.topic.endswith(".audit"):
                found.append(decode(AUDIT_EVENT, record.value))
        return [each for each in found if isinstance(each, kind)]

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not holds():
                await anyio.sleep(0.005)
