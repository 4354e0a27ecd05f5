"""What the replay doesn't keep: the first event that touched a place, and the steps of the lock."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from lakewarden import events
from lakewarden.handlers.explain.timeline import EventRef, RecordRef, Step, append
from lakewarden.handlers.table.transactions import OPEN


@dataclass(slots=True)
class FirstTouches:
    """The event (for reserved partitions: the admission) that first touched a place. Only places that an abort names are kept."""

    watched: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """File groups by transaction and partition."""
    first: dict[tuple[str, str, str | None, str], EventRef] = field(default_factory=dict)
    """By transaction, partition, file group (None: any of the partition) and operation."""

    def watch(self, victim: str, entries: Iterable[events.ConflictEntry]) -> None:
        """Keep the places that an abort of `victim` names."""
        for entry in entries:
            for transaction in (victim, entry.other_transaction):
                self.watched.setdefault((transaction, entry.partition), set()).add(entry.file_group)

    def add(self, event: EventRef, markers: Iterable[events.Marker]) -> None:
        for marker in markers:
            partitions = [marker.partition]
            if marker.partition == events.WHOLE_TABLE:
                partitions = [each for named, each in self.watched if named == event.transaction]
            for partition in partitions:
                self._add(event, partition, marker)

    def _add(self, event: EventRef, partition: str, marker: events.Marker) -> None:
        watched = self.watched.get((event.transaction, partition), set())
        whole = events.ALL_FILE_GROUPS in (marker.file_group, marker.partition)
        file_groups: list[str | None] = []
        if whole or marker.file_group in watched:
            file_groups.append(events.ALL_FILE_GROUPS if whole else marker.file_group)
        if events.ALL_FILE_GROUPS in watched:
            file_groups.append(None)
        for file_group in file_groups if watched else ():
            self.first.setdefault((event.transaction, partition, file_group, marker.operation), event)

    def by_victim(self, victim: str, entry: events.ConflictEntry) -> EventRef | None:
        return self.first.get((victim, entry.partition, entry.file_group, entry.operation))

    def by_winner(self, entry: events.ConflictEntry) -> EventRef | None:
        """The event with which the winner first touched that place, or the `*` that covers it."""
        file_group = None if entry.file_group == events.ALL_FILE_GROUPS else entry.file_group
        keys = [
            (entry.other_transaction, entry.partition, each, entry.other_operation)
            for each in (file_group, events.ALL_FILE_GROUPS)
        ]
        found = [self.first[key] for key in keys if key in self.first]
        return min(found, key=lambda each: (each.record.recorded_ms, each.record.offset), default=None)


def with_reports(steps: list[Step], reports: list[events.ConflictDetected]) -> list[Step]:
    """The steps, with the detection times. Only the agent that detected the conflict could measure them."""
    after = max((each.detected_after_ms for each in reports), default=None)
    age = max((each.victim_age_seconds for each in reports), default=None)
    return [
        replace(step, because=replace(step.because, detected_after_ms=after, victim_age_seconds=age))
        if step.because.lost_conflicts and step.because.phase_before in OPEN
        else step
        for step in steps
    ]


def with_locks(
    steps: list[Step],
    locks: Iterable[tuple[RecordRef, events.AuditEventUnion]],
    opened: RecordRef | None,
    ended: RecordRef | None,
) -> Iterator[Step]:
    """The steps, with the lock steps of the time in which the transaction was open, placed by time."""
    found: list[Step] = []
    for record, event in sorted(locks, key=lambda each: each[0].recorded_ms):
        if opened is None or record.recorded_ms < opened.recorded_ms:
            continue
        if ended is not None and record.recorded_ms > ended.recorded_ms:
            break
        if isinstance(event, events.LockAcquired | events.LockLost | events.LockRefused):
            append(found, Step.of(record, event), 0)
    remaining = deque(found)
    for step in steps:
        # An agent acquires the lock before it grants, perhaps in the same millisecond.
        granted = isinstance(step.event, events.CommitGranted)
        while remaining and remaining[0].first.recorded_ms < step.record.recorded_ms + granted:
            yield remaining.popleft()
        yield step
    yield from remaining
