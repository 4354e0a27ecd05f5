"""Count the records that a reader can't decode, and select the ones to log.

A record that can't be decoded is skipped, never silently: the reader counts every one and logs some. Readers log in
different places (the agent, a writer's channel), so this module only counts and selects.
"""

from __future__ import annotations

from collections import Counter

from lakewarden.events.codec import Undecodable

LOG_EVERY = 1_024
"""Up to so many undecodable records of a topic, each that doubles their number is logged; beyond, every 1,024th."""

MAX_LOGGED_REASON = 300
"""Characters of a reason in a log line: a reason may quote what the record contains."""


class UndecodableRecords:
    """The undecodable records of one reader. A record that is read again in another replay is counted again."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of undecodable records in all topics."""
        return self._counts.total()

    def by_topic(self) -> dict[str, int]:
        """Number of undecodable records by topic, without the topics that had none."""
        return dict(self._counts)

    def add(
        self, topic: str, partition: int, offset: int, undecodable: Undecodable
    ) -> dict[str, str | int] | None:
        """Count one record. Returns the fields of the log line to write, or None if this record is only counted."""
        self._counts[topic] += 1
        count = self._counts[topic]
        if count & (count - 1) and count % LOG_EVERY:
            return None
        return {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "reason": undecodable.reason[:MAX_LOGGED_REASON],
            "undecodable": count,
        }
