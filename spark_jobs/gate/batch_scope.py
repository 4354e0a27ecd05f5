"""What a batch is going to touch, found before it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.events import Marker


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The markers of a batch that are known beforehand.

    The gate declares them with the intent. So the transaction has touched them when it is admitted. A sink that finds more
    than the markers (the partitions' values, for example) returns a subclass, gets it back as `txn.batch_scope`, and
    doesn't look again. It must trust only its own subclass: a user may have given another function for the scope.
    """

    markers: tuple[Marker, ...]
