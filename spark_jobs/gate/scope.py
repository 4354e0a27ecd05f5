"""What a batch is going to touch, found before it is computed, and reduced until it fits into one event."""

from collections.abc import Iterable
from dataclasses import dataclass

from lakewarden.events import ALL_FILE_GROUPS, WHOLE_TABLE, Marker, Operation, event_chunks
from lakewarden.spark_jobs.gate.errors import InvalidArgument, invalid_arguments

ALONE = Marker(partition=WHOLE_TABLE, file_group=ALL_FILE_GROUPS, operation="delete")
"""In a scope: no other transaction computes beside this one. Touched: each that does has another base."""


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The markers of a batch that are known beforehand.

    The gate declares them with the intent. So the transaction has touched them when it is admitted.
    """

    markers: tuple[Marker, ...]


def marker_of(partition: str, file_group: str, operation: Operation) -> Marker:
    """Return the marker that these arguments of `touch` describe. Raises `InvalidArgument`."""
    with invalid_arguments():
        return Marker.model_validate(
            {"partition": partition, "file_group": file_group, "operation": operation}, strict=True
        )


def as_markers(scope: Iterable[Marker | str]) -> tuple[Marker, ...]:
    """Return a scope as markers. A partition's path stands for all of its file groups. Raises `InvalidArgument`."""
    if isinstance(scope, str | bytes) or not isinstance(scope, Iterable):
        raise InvalidArgument("scope", scope, "give a list of partitions, as ['day=1'], or of markers")
    return tuple(
        each if isinstance(each, Marker) else marker_of(each, ALL_FILE_GROUPS, "merge") for each in scope
    )


def as_scope(scope: Iterable[Marker | str]) -> tuple[Marker, ...]:
    """Return markers as a scope that fits into one intent. Too many file groups become whole partitions.

    Partitions that still don't fit are left out. That is safe, because a scope only decides which transaction waits: with
    a scope that is too narrow the transaction starts early, and its markers are checked like any others.
    """
    distinct = tuple(dict.fromkeys(as_markers(scope)))
    for candidate in (distinct, whole_partitions(distinct)):
        first = next(event_chunks(candidate), ())
        if len(first) == len(candidate):
            return first
    return next(event_chunks(whole_partitions(distinct)), ())


def whole_partitions(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """Return `*` for every partition of the markers, with the operation that conflicts with most others (`merge`)."""
    partitions = dict.fromkeys(marker.partition for marker in markers)
    return tuple(
        Marker(partition=partition, file_group=ALL_FILE_GROUPS, operation="merge") for partition in partitions
    )
