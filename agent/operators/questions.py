"""Questions about what is past. A question is a dataclass of a row, and a function from what is past to rows.

Its command, its page and its JSON follow from its entry in `QUESTIONS`: a column for each field, those named `…_seconds` as ages.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from lakewarden.agent.clock import moment
from lakewarden.agent.log import Log
from lakewarden.agent.operators.late import LateWriter, late_writers
from lakewarden.agent.operators.timelines import Timelines, read_timelines
from lakewarden.agent.settings import KafkaSettings

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
        now = moment().wall_ms / 1000
        return [each for each in self.rows(timelines, now) if table in (None, each.table)]


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
