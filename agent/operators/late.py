"""`lakewarden late`: the writers that have not committed for three times their usual interval.

A writer that ended in order is not late, unless its next run is, against former runs (`handlers/explain/life.py`). What a watcher
reports is left out: each of its commits is a writer of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.explain.life import End, Ends, Life
from lakewarden.handlers.writers_log import without_gate

PACES = 3
LEAST_SECONDS = 60.0
"""A shorter pause is no question, however fast the writer commits."""
STANDINGS = {"late": "late", "unknown": "late, unless its job has ended"}


@dataclass(frozen=True, slots=True)
class LateWriter:
    """One writer of one table. The field names are JSON, and columns."""

    table: str
    writer: str
    standing: str
    pause_seconds: float
    """Since its last commit."""
    usual_seconds: float
    """Between two of its last commits."""
    last_commit: str
    transaction: str
    """Its open transaction. Empty: it has none."""


def late_writers(tables: Mapping[str, Mapping[str, Life]], now: float) -> Iterator[LateWriter]:
    """The late writers, of the lives of each table. `now`: in their clock."""
    for table, lives in tables.items():
        by_writer: dict[str, list[Life]] = {}
        for life in lives.values():
            if not without_gate(life.writer):
                by_writer.setdefault(life.writer, []).append(life)
        for writer, found in by_writer.items():
            ends = _ends(found)
            standing = STANDINGS.get(ends.standing(now, PACES, LEAST_SECONDS))
            if standing is None or ends.last_commit is None or ends.pace is None:
                continue
            pause, last = now - ends.last_commit, timestamp(ends.last_commit * 1000)
            running = next((each.transaction for each in found if each.end is End.RUNNING), "")
            yield LateWriter(table, writer, standing, round(pause, 1), round(ends.pace, 1), last, running)


def _ends(lives: list[Life]) -> Ends:
    ends = Ends()
    for life in lives:
        completed = life.times.get("completed")
        if completed is not None:
            ends.note_commit(life.writer, completed, life.ends_itself)
    return ends
