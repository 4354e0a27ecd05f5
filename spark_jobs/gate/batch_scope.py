"""What a batch is going to touch, found before it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakewarden.events import Marker


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The markers of a batch that a sink knows beforehand, and the partitions that it found them by.

    The gate declares the markers with the intent. So the transaction has touched them when it is admitted. The sink gets
    the whole value back as `txn.batch_scope`, and doesn't list the partitions again.
    """

    markers: tuple[Marker, ...]
    partitions: tuple[tuple[Any, ...], ...] = ()
    """Values of the partition columns, in the table's order: one tuple for each partition."""
