"""Renders views as HTML. Everything that comes from events is escaped by Jinja2; no template marks a value as safe."""

from functools import partial
from typing import Any

from lakewarden.agent.operators.questions import QUESTIONS
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.text import environment
from lakewarden.agent.settings import Settings
from lakewarden.agent.time_text import epoch, timestamp, utc_time
from lakewarden.agent.web.follower import HOURS
from lakewarden.agent.web.views import View, address
from lakewarden.handlers.explain.bars import Drawing
from lakewarden.handlers.explain.condition import age
from lakewarden.handlers.explain.life import shown_name

MENU = (
    ("/", "Tables"),
    ("/waits", "Waits"),
    ("/locks", "Locks"),
    ("/losses", "Losses"),
    *((f"/{each.name}", each.title) for each in QUESTIONS),
    ("/writer", "Writers"),
    ("/transaction", "Transaction"),
    ("/refused", "Refused"),
    ("/agents", "Agents"),
)
AROUND = {
    "known": None,
    "members": None,
    "path": "",
    "json_path": "",
    "problem": None,
    "as_of": None,
    "version": "",
}
"""What is around every view: the tables, the agents, addresses, why it may not be current, and of when it is."""


class Pages:
    """The templates, for one installation."""

    def __init__(self, settings: Settings) -> None:
        self.base_path = settings.web_base_path
        self._environment = environment("lakewarden.agent.web", trim_blocks=True, lstrip_blocks=True)
        self._environment.filters.update(
            clock=clock,
            bars=bars,
            counted=_counted,
            iso=iso,
            duration=duration,
            writer_name=shown_name,
        )
        self._environment.globals.update(
            link=self.link,
            command=partial(command, settings),
            menu=MENU,
            at=at,
            hours=HOURS,
            servers=settings.bootstrap_servers,
        )

    def link(self, path: str, **parameters: str | None) -> str:
        """The address of a view, below the base path."""
        return self.base_path + address(path, **parameters)

    def render(self, view: View, **around: Any) -> str:
        """A view as a page. `around`: what `AROUND` has, as far as it is known."""
        around = {**AROUND, **around, "view": view, "data": view.data}
        return self._environment.get_template(f"{view.name}.html").render(around)

    def error(self, status: int, message: str) -> str:
        title = "Not found" if status == 404 else "Error"
        return self.render(View("error", title, "", None, live=False, problem=message))


def at(drawing: Drawing, seconds: float) -> str:
    """The place of a time in a drawing, which is 1,000 units wide."""
    whole = drawing.end - drawing.begin
    return f"{min(1000.0, max(0.0, (seconds - drawing.begin) / whole * 1000)):.2f}"


def bars(counts: list[int | None]) -> str:
    """A path with a bar for each count: 3 units wide, and 14 high for the largest."""
    most = max((each for each in counts if each), default=1)
    return "".join(
        f"M{3 * place + 1.5} 16v-{max(2, round(14 * each / most))}"
        for place, each in enumerate(counts)
        if each
    )


def duration(seconds: float) -> str:
    """The time between two steps: `12 ms`, `3.4 s`, `12 min`."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else age(seconds)


def iso(seconds: float) -> str:
    """Epoch seconds as an ISO time."""
    return timestamp(seconds * 1000)


def clock(text: str | None) -> str:
    """The time of day of an ISO time, in UTC."""
    seconds = epoch(text or "")
    return (text or "") if seconds is None else f"{utc_time(seconds * 1000):%H:%M:%S}"


def _counted(number: int, word: str) -> str:
    """`1 table`, `2 tables`: the word alone, for a number that is set apart."""
    return word if number == 1 else f"{word}s"
