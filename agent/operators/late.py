"""`lakewarden late`: the writers that have not committed for three times their usual interval.

A writer that ended in order is not late, unless its next run is, against former runs (`handlers/explain/life.py`). What a watcher
reports is left out: each of its commits is a writer of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lakewarden.agent.operators.timelines import Timelines
from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.explain.life import End

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


def late_writers(timelines: Timelines, now: float) -> Iterator[LateWriter]:
    """The late writers. `now`: in the clock of the lives."""
    for table, writers in timelines.writers.items():
        lives = timelines.tables[table].values()
        for writer, own in writers.items():
            standing = STANDINGS.get(own.standing(now, PACES, LEAST_SECONDS))
            if standing is None or own.last_commit is None or own.pace is None:
                continue
            pause, last = now - own.last_commit, timestamp(own.last_commit * 1000)
            open_lives = (each for each in lives if each.writer == writer and each.end is End.RUNNING)
            running = next((each.transaction for each in open_lives), "")
            yield LateWriter(table, writer, standing, round(pause, 1), round(own.pace, 1), last, running)
