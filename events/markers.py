"""What a transaction touches: a marker, and the evidence that two transactions touched the same."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from lakewarden.events.base import MAX_PATH, Name, Wire

Operation: TypeAlias = Literal["create", "append", "merge", "delete"]
ConflictKind: TypeAlias = Literal["marker", "commit"]

ALL_FILE_GROUPS = "*"
"""As file group: every file group of the partition, present and future."""

MAX_MARKERS_PER_EVENT = 10_000
"""About 1 MB of JSON, Kafka's default record limit: a longer list travels as several events."""


class Marker(Wire):
    """A file group that a transaction writes. Partition and file group are compared as a pair, never joined."""

    partition: Annotated[str, StringConstraints(max_length=MAX_PATH)]
    """The partition path as the table format writes it; empty for an unpartitioned table."""
    file_group: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH)]
    """The format's unit of conflict: Hudi's fileId, Paimon's bucket or file, Iceberg's or Delta's data file."""
    operation: Operation


Markers: TypeAlias = Annotated[tuple[Marker, ...], Field(max_length=MAX_MARKERS_PER_EVENT)]


class ConflictEntry(Wire):
    """One overlap: what the aborted transaction touched, and who else touched it."""

    partition: str
    file_group: str
    operation: Operation
    other_operation: Operation
    other_transaction: Name
    other_writer: Name
    kind: ConflictKind
    """`marker`: the other was alive; `commit`: it had committed since this one began."""
