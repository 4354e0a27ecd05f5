"""When Hudi's instants began and ended: they are named in a time zone of their writers, which the files' times show.

A file is written when its instant begins, or is completed. A zone is at most 14 hours from UTC, in quarters of an hour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from lakewarden.handlers.assessment import Lack, Unread
from lakewarden.handlers.hudi.properties import HudiTable
from lakewarden.handlers.hudi.timeline import Instant, seconds_of

ZONE_SECONDS = 900
"""Time zones differ by multiples of it."""
MAX_ZONE_SECONDS = 14 * 3600


@dataclass(frozen=True, slots=True)
class Clock:
    """Times of instants."""

    modified: Mapping[str, float]
    """The times of the timeline's files, by their names, by the store's clock."""
    zone: float
    completion_zone: float
    by_names: bool = False
    """Whether instants and their completions are of one clock, so that their order is the table's own."""
    has_ends: bool = True
    """Whether it is known when instants were completed."""
    unread: tuple[Unread, ...] = ()
    """What isn't known of the times."""

    @classmethod
    def of(cls, modified: Mapping[str, float], timed: Sequence[Instant], table: HudiTable) -> "Clock":
        """Find the zones from the files' times."""
        begins = [
            modified[each.files[0].name] - (seconds_of(each.time) or 0.0)
            for each in timed
            if each.files[0].state != "completed"
        ]
        completions = [(each, seconds_of(each.completion)) for each in timed if each.completion is not None]
        ends = [modified[each.files[-1].name] - at for each, at in completions if at is not None]
        zone, completion_zone = _zone(begins or ends), _zone(ends or begins)
        if zone is None or (table.is_utc and zone):
            why = "the files' times don't fit to them: the table was copied, or a clock is wrong"
            doubt = Unread("the times of instants", why, frozenset({Lack.TIMES, Lack.LOSSES, Lack.BEYOND}))
            shift = 0.0 if table.is_utc else completion_zone or 0.0
            unread = (doubt,) if timed else ()
            return cls(modified, 0.0, shift, has_ends=table.layout == 2, unread=unread)
        if zone == completion_zone:
            return cls(modified, zone, zone, by_names=table.layout == 2)
        why = "instants and their completions are in different time zones, as Hudi 1.0.1 writes them"
        doubt = Unread("the times of instants", why, frozenset({Lack.TIMES}))
        shift = zone if completion_zone is None else completion_zone
        return cls(modified, zone, shift, unread=(doubt,) if ends else ())

    def began(self, time: str) -> float | None:
        found = seconds_of(time)
        return None if found is None else found + self.zone

    def ended(self, instant: Instant) -> float:
        by_name = None if instant.completion is None else seconds_of(instant.completion)
        if by_name is not None:
            return by_name + self.completion_zone
        if self.has_ends:
            return self.modified[instant.files[-1].name]
        return self.began(instant.time) or 0.0


def _zone(offsets: Sequence[float]) -> float | None:
    """The time zone, from times of files less those in their names; None: the files were copied."""
    if not offsets:
        return 0.0
    zone = ZONE_SECONDS * round(median(offsets) / ZONE_SECONDS)
    is_one = median(abs(each - zone) for each in offsets) < ZONE_SECONDS / 3
    return zone if is_one and abs(zone) <= MAX_ZONE_SECONDS else None
