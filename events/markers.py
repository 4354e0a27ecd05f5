"""What a transaction touches: the marker, and the entry that describes one overlap of two transactions."""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, StringConstraints, WithJsonSchema

from lakewarden.events.base import Wire
from lakewarden.events.tables import MAX_PATH

Operation: TypeAlias = Literal["create", "append", "merge", "delete"]
ConflictKind: TypeAlias = Literal["marker", "commit"]
VictimRule: TypeAlias = Literal["landed", "observed", "granted", "protected", "priority", "sequence"]
"""Why the other transaction of a conflict won (`handlers/table/conflicts.py`)."""

ALL_FILE_GROUPS = "*"
"""The file group that stands for every file group of its partition, present and future."""
WHOLE_TABLE = "*"
"""The partition that stands for every partition of the table, present and future, each as a whole."""

MAX_MARKERS_PER_EVENT = 10_000
"""About 1 MB of JSON, Kafka's default record limit. A writer splits a longer list into several events."""


class Marker(Wire):
    """A file group that a transaction writes. Partition and file group are compared as a pair and never joined."""

    partition: Annotated[str, StringConstraints(max_length=MAX_PATH)]
    """Partition path as the table format writes it. Empty for an unpartitioned table. `*`: the whole table."""
    file_group: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH)]
    """The format's unit of conflict: Hudi's fileId, Paimon's bucket or file, Iceberg's or Delta's data file. `*`: all of them."""
    operation: Operation
    """What the transaction does to the file group."""


Markers: TypeAlias = Annotated[tuple[Marker, ...], Field(max_length=MAX_MARKERS_PER_EVENT)]


class ConflictEntry(Wire):
    """One overlap: the marker of the aborted transaction, and the other transaction that touched the same file group."""

    partition: str
    """As in the aborted transaction's own marker. If that is `*`, as in the other transaction's."""
    file_group: str
    """As in the aborted transaction's own marker."""
    operation: Operation
    """Operation of the aborted transaction."""
    other_operation: Operation
    """Operation of the other transaction."""
    other_transaction: str
    """Id of the other transaction."""
    other_writer: str
    """Writer of the other transaction."""
    kind: ConflictKind
    """`marker`: the other transaction was open. `commit`: it had committed since the aborted one was admitted."""
    rule: Annotated[
        str | None,
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": list(get_args(VictimRule)), "type": "string"},
                    {"type": "string"},
                    {"type": "null"},
                ]
            }
        ),
    ] = None
    """Why the other one won: it had `landed`, is `observed`, `granted` or `protected`, or by `priority` or `sequence`."""
    touched_at: int | None = None
    """Offset in `writers` of the event with which the aborted transaction touched the file group first, by whatever operation.
    Null: the agent doesn't know it."""
    other_touched_at: int | None = None
    """The same of the other transaction."""
