"""Questions about what is past. A question is a dataclass of a row, and a function from what is past to rows.

Its command, its page and its JSON follow from its entry in `QUESTIONS`: a column for each field, those named `…_seconds` as ages.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from lakewarden.agent.clock import moment
from lakewarden.agent.log import Log
from lakewarden.agent.operators.past import Timelines, read_timelines
from lakewarden.agent.settings import KafkaSettings
from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.explain.life import End

PACES = 3
LEAST_SECONDS = 60.0
"""A shorter pause is no question, however fast the writer commits."""
STANDINGS = {
    "late": "late",
    "silent": "late, unless it was stopped",
    "unknown": "late, unless its job has ended",
}


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
    """The writers that have not committed for `PACES` times their usual interval. `now`: in the clock of the lives.

    A writer that ended in order is not late, unless its next run is, against former runs (`handlers/explain/life.py`). What a
    watcher reports is left out: each of its commits is a writer of its own.
    """
    for table, writers in timelines.writers.items():
        lives = timelines.tables[table].values()
        for writer, own in writers.items():
            standing = STANDINGS.get(own.standing(now, PACES, LEAST_SECONDS))
            if standing is None or own.last_commit is None or own.pace is None:
                continue
            pause, last = now - own.last_commit, timestamp(own.last_commit * 1000)
            open_lives = (each for each in lives if each.writer == writer and each.end is End.RUNNING)
            running = next((each.transaction for each in open_lives), "")
            if running:
                standing = "late"  # it has not ended
            yield LateWriter(table, writer, standing, round(pause, 1), round(own.pace, 1), last, running)


Row: TypeAlias = LateWriter
"""What a question is answered with: a dataclass that has a `table`."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and how it is answered."""

    name: str
    """Name of the command, and the path of the page."""
    title: str
    short: str
    """The help of the command in one line."""
    text: str
    """What a row is, for the command and the page."""
    none: str
    """The answer without rows."""
    rows: Callable[[Timelines, float], Iterable[Row]]
    """From what is past, and the present time."""

    def answer(self, timelines: Timelines, table: str | None = None) -> list[Row]:
        found = self.rows(timelines, moment().wall_ms / 1000)
        return [each for each in found if table in (None, each.table)]


QUESTIONS = (
    Question(
        "late",
        "Late writers",
        "Print the writers that have not committed for three times their usual interval.",
        "The writers that have not committed for three times their usual interval, and for a minute at least. A job that ended "
        "in order is late only against its former runs.",
        "no writer is late",
        late_writers,
    ),
)


async def ask(question: Question, settings: KafkaSettings, table: str | None) -> list[Row]:
    """The rows, from what `read_timelines` reads."""
    async with Log(settings) as log:
        return question.answer(await read_timelines(log), table)
