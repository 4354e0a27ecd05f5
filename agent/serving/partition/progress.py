"""How far the owner of a partition is. The objects that an owner consists of share it; only the owner changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from aiokafka.structs import ConsumerRecord

Phase: TypeAlias = Literal["loading", "replaying", "live", "paused", "refused", "released"]


@dataclass(slots=True)
class Progress:
    """The owner's phase (`owner.py`) and its place in `writers`."""

    phase: Phase = "loading"
    position: int = 0
    """Offset of the next event."""
    record: ConsumerRecord | None = None
    """The record whose event is being decided."""

    @property
    def last_applied(self) -> int:
        """Offset of the last event that was applied: of the one that is being decided, if there is one."""
        return self.position - 1 if self.record is None else self.record.offset
