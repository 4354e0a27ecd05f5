"""When Hudi's instants began and ended: they are named in a time zone of their writers, which the files' times show.

A file is written when its instant begins, or is completed. A zone is at most 14 hours from UTC, in quarters of an hour.

| files differ from the times in their names | so |
| --- | --- |
| most by `SKEW_SECONDS` more than a zone | the table was copied, or a clock is wrong: nothing is known of times |
| some by `MAX_SECONDS` more than the others | there are several zones, or a clock is wrong: all is estimated |
| completions by another zone than instants | the same |

The request of a table service doesn't count: its plan is made first, which takes minutes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from lakewarden.handlers.assessment import Lack, Unread
from lakewarden.handlers.hudi.properties import HudiTable
from lakewarden.handlers.hudi.timeline import Instant, TimelineFile, seconds_of

ZONE_SECONDS = 900
"""Time zones differ by multiples of it."""
MAX_ZONE_SECONDS = 14 * 3600
SKEW_SECONDS = 10.0
MAX_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Times of instants."""

    modified: Mapping[str, float]
    """The times of the timeline's files, by their names, by the store's clock."""
    zone: float
    completion_zone: float
    by_names: bool = False
    """Whether instants and their completions are of one clock, so that their order is the table's own."""
    is_copied: bool = False
    """Whether the files' times are those of a copy, or of another clock."""
    unread: tuple[Unread, ...] = ()
    """What isn't known of the times."""

    @classmethod
    def of(cls, modified: Mapping[str, float], timed: Sequence[Instant], table: HudiTable) -> "Clock":
        """Find the zones from the files' times."""
        begins = [
            modified[each.files[0].name] - (seconds_of(each.time) or 0.0)
            for each in timed
            if each.files[0].state != "completed" and each.writes and not each.is_table_service
        ]
        completions = [(each, seconds_of(each.completion)) for each in timed if each.completion is not None]
        ends = [modified[each.files[-1].name] - at for each, at in completions if at is not None]
        zone, completion_zone = _zone(begins or ends), _zone(ends or begins)
        if zone is None or (table.is_utc and zone):
            why = "the files' times don't fit to them: the table was copied, or a clock is wrong"
            doubt = Unread("the times of instants", why, frozenset({Lack.TIMES, Lack.LOSSES, Lack.BEYOND}))
            shift = 0.0 if table.is_utc else completion_zone or 0.0
            unread = (doubt,) if timed else ()
            return cls(modified, 0.0, shift, is_copied=True, unread=unread)
        shifts = (*_shifts(begins, zone), *_shifts(ends, zone))
        if max(shifts, default=0.0) < MAX_SECONDS:
            return cls(modified, zone, zone, by_names=table.layout == 2)
        why = "they are in several time zones, as Hudi 1.0.1 names completions, or a clock is wrong"
        doubt = Unread("the times of instants", why, frozenset({Lack.TIMES}))
        shift = zone if completion_zone is None else completion_zone
        return cls(modified, zone, shift, unread=(doubt,))

    def began(self, time: str) -> float | None:
        found = seconds_of(time)
        return None if found is None else found + self.zone

    def started(self, instant: Instant, *, is_service: bool) -> float | None:
        """Return when an instant began to compute, by the clock of its end. A table service may have waited since its request."""
        first: TimelineFile | None = instant.files[0]
        if is_service:
            first = instant.file("inflight")
        elif instant.completion is not None or instant.files[0].state == "completed":
            return self.began(instant.time)
        if first is None or self.is_copied:
            return None
        return self.ended(instant) - self.modified[instant.files[-1].name] + self.modified[first.name]

    def ended(self, instant: Instant) -> float:
        by_name = None if instant.completion is None else seconds_of(instant.completion)
        if by_name is not None:
            return by_name + self.completion_zone
        if self.is_copied:
            return self.began(instant.time) or 0.0
        return self.modified[instant.files[-1].name]


def _zone(offsets: Sequence[float]) -> float | None:
    """The time zone, from times of files less those in their names; None: the files were copied."""
    if not offsets:
        return 0.0
    zone = ZONE_SECONDS * round(median(offsets) / ZONE_SECONDS)
    is_one = median(_shifts(offsets, zone)) < SKEW_SECONDS
    return zone if is_one and abs(zone) <= MAX_ZONE_SECONDS else None


def _shifts(offsets: Sequence[float], zone: float) -> list[float]:
    return [abs(each - zone) for each in offsets]
