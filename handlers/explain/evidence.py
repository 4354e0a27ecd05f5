"""What the replay does not say: which event touched a place first, why the victim was the victim, the steps of the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from lakewarden.events import (
    ALL_FILE_GROUPS,
    AuditEventUnion,
    ConflictDetected,
    ConflictEntry,
    LockAcquired,
    LockLost,
    LockRefused,
    Marker,
)
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.timeline import Event, Where
from lakewarden.handlers.table.transactions import LANDED, OPEN, Phase, Transaction


@dataclass(slots=True)
class Touches:
    """Which event (or admission, of what it reserved) first touched a place, for the places that some abort will name."""

    wanted: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    first: dict[tuple[str, str, str | None, str], Event] = field(default_factory=dict)

    def want(self, victim: str, entries: Iterable[ConflictEntry]) -> None:
        """Look for what an abort of `victim` names."""
        for entry in entries:
            for transaction in (victim, entry.other_transaction):
                self.wanted.setdefault((transaction, entry.partition), set()).add(entry.file_group)

    def note(self, event: Event, markers: Iterable[Marker]) -> None:
        """An event, and the places that it names."""
        for marker in markers:
            wanted = self.wanted.get((event.transaction, marker.partition))
            if wanted is None:
                continue
            places: list[str | None] = []
            if marker.file_group in wanted or marker.file_group == ALL_FILE_GROUPS:
                places.append(marker.file_group)
            if ALL_FILE_GROUPS in wanted:
                places.append(None)
            for place in places:
                self.first.setdefault((event.transaction, marker.partition, place, marker.operation), event)

    def of_victim(self, victim: str, entry: ConflictEntry) -> Event | None:
        """By which event the victim came to an entry's place."""
        return self.first.get((victim, entry.partition, entry.file_group, entry.operation))

    def of_winner(self, entry: ConflictEntry) -> Event | None:
        """By which event the other one came there, or to the `*` that covers it."""
        place = None if entry.file_group == ALL_FILE_GROUPS else entry.file_group
        keys = [
            (entry.other_transaction, entry.partition, each, entry.other_operation)
            for each in (place, ALL_FILE_GROUPS)
        ]
        found = [self.first[key] for key in keys if key in self.first]
        return min(found, key=lambda each: (each.where.recorded_ms, each.where.offset), default=None)


def victim_rule(
    victim: Transaction, winner: Transaction, losses: dict[str, int], max_losses: int
) -> timeline.VictimRule:
    """Why the one lost to the other, in the order of `conflicts.loser_of`."""
    if winner.phase in LANDED:
        return "landed"
    if winner.phase is Phase.GRANTED:
        return "granted"
    protected = [losses.get(each.writer, 0) >= max_losses for each in (winner, victim)]
    if protected == [True, False]:
        return "protected"
    both = protected == [True, True]
    if winner.priority > victim.priority and not both:
        return "priority"
    if (winner.priority == victim.priority or both) and winner.sequence < victim.sequence:
        return "sequence"
    return "protected"  # The agent's max_losses is a smaller one than ours.


def with_reports(steps: list[timeline.Step], reports: list[ConflictDetected]) -> list[timeline.Step]:
    """The steps, with how quickly a conflict was found, which only the agent that found it could measure."""
    after = max((each.detected_after_ms for each in reports), default=None)
    age = max((each.victim_age_seconds for each in reports), default=None)
    return [
        replace(step, detected_after_ms=after, age_seconds=age)
        if isinstance(step, timeline.Aborted) and step.against and step.stood in OPEN
        else step
        for step in steps
    ]


def with_locks(
    steps: list[timeline.Step],
    locks: Iterable[tuple[Where, AuditEventUnion]],
    opened: Where | None,
    ended: Where | None,
) -> Iterator[timeline.Step]:
    """The steps, with those of the lock that happened while the transaction was open where their time puts them."""
    waiting = deque(_lock_steps(locks, opened, ended))
    for step in steps:
        while waiting and waiting[0].where.recorded_ms < step.where.recorded_ms:
            yield waiting.popleft()
        yield step
    yield from waiting


def _lock_steps(
    locks: Iterable[tuple[Where, AuditEventUnion]], opened: Where | None, ended: Where | None
) -> list[timeline.Lock]:
    found: list[timeline.Lock] = []
    for where, event in sorted(locks, key=lambda each: each[0].recorded_ms):
        if opened is None or where.recorded_ms < opened.recorded_ms:
            continue
        if ended is not None and where.recorded_ms > ended.recorded_ms:
            break
        if not isinstance(event, LockAcquired | LockLost | LockRefused):
            continue
        step = timeline.Lock(
            where,
            event.type,
            event.agent,
            event.lock,
            event.owner,
            event.holder,
            event.valid_until,
            event.detail,
            event.adopted if isinstance(event, LockAcquired) else None,
        )
        if (
            found
            and isinstance(event, LockRefused)
            and (found[-1].type, found[-1].agent, found[-1].holder) == (step.type, step.agent, step.holder)
        ):
            found[-1] = replace(found[-1], times=found[-1].times + 1, valid_until=step.valid_until)
        else:
            found.append(step)
    return found
