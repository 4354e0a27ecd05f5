"""Views as text: each has a template (`templates/`), which a typed value fills. The page has templates of its own.

What comes from a value is made visible and escaped as on the page, so a name never begins a line, a cell or a branch. At the end
the escapes of HTML are undone. A template has two forms beside lines:

- `filter table`: lines whose cells are divided by ` & `, which are aligned.
- `filter tree`: a line, and below it branches, which begin with `- `. A command to copy begins with `$ `, and its lines have
  nothing else in them. What is indented belongs to the branch before.
"""

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from html import unescape
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lakewarden.agent.clock import moment
from lakewarden.agent.name_text import visible, visible_blanks
from lakewarden.agent.operators.questions import Row
from lakewarden.agent.operators.shell_command import Command, short_id, short_names
from lakewarden.agent.time_text import counted, epoch, few, last, timestamp, when
from lakewarden.handlers.assessment import duration
from lakewarden.handlers.explain.condition import FINE, age
from lakewarden.handlers.explain.life import made_by, shown_name, writer_name
from lakewarden.handlers.explain.timeline import Explanation
from lakewarden.handlers.explain.waits import WAIT_TEXTS
from lakewarden.handlers.writers_log import short_table, without_gate

UUID_LENGTH = 36
MOST_STEPS, FIRST_STEPS = 60, 20
"""Steps of a transaction, and how many of them are its first ones. A long one meets each batch of the others."""
_PLACE = re.compile(r" at (?:writers|decisions|audit):\d+")


def environment(package: str, **options: Any) -> Environment:
    """The templates of a package. No template marks a value as safe."""
    found = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, finalize=_shown, **options
    )
    found.filters.update(
        age=age,
        ago=ago,
        concise=_concise,
        counted=counted,
        duration=duration,
        folded=_folded,
        last=last,
        listed=_listed,
        made_by=made_by,
        repr=repr,
        seconds=lambda milliseconds: f"{milliseconds / 1000:.2f} s",
        short_id=short_id,
        short_names=short_names,
        short_owner=_short_owner,
        short_table=short_table,
        shown_name=shown_name,
        story=story,
        table=_table,
        timestamp=timestamp,
        tree=_tree,
        utc=utc,
        when=when,
        without_gate=without_gate,
        writer_name=writer_name,
        cells=cells,
    )
    found.globals.update(fine=FINE, wait_texts=WAIT_TEXTS, sentence=sentence)
    return found


@cache
def templates() -> Environment:
    """The templates of the commands."""
    return environment(
        "lakewarden.agent.operators", line_statement_prefix="%%", trim_blocks=False, lstrip_blocks=False
    )


def lines(name: str, found: Any, *, verbose: bool = False, **more: Any) -> list[str]:
    """A view as text, by the template of this name, which has it as `found`."""
    text = templates().get_template(f"{name}.txt").render(found=found, verbose=verbose, width=width(), **more)
    return unescape(text).splitlines()


def width() -> int:
    """The columns of a terminal on stdout. What is piped is never folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


class Visible(str):
    """Text that a template has made from names, visible already."""

    __slots__ = ()

    def partition(self, divider: str) -> tuple[str, str, str]:
        head, found, tail = super().partition(divider)
        return Visible(head), found, Visible(tail)


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A step of a transaction's history: where its record is, when it was, and what happened."""

    place: str
    time: str
    text: str
    after: float | None = None
    """Seconds since the step before."""
    type: str = ""
    """The event's."""


def story(found: Explanation, *, verbose: bool = False) -> list[StoryLine]:
    """The steps. Of many, the first and the last."""
    this = found.transaction.id
    opened = (
        each.first
        for each in found.steps
        if each.event.type == "commit-intent" and each.event.transaction == this
    )
    begin = next(opened, None)
    rows = []
    before_ms: int | None = None
    for step in found.steps:
        first, last_one = step.first, step.record.offset
        place = f"{step.record.topic}:{first.offset}" + f"-{last_one}" * (last_one > first.offset)
        time = utc(first.recorded_ms)
        if begin is not None and first != begin:
            time = f"{(first.recorded_ms - begin.recorded_ms) / 1000:+.3f} s"
        after = None if before_ms is None else (first.recorded_ms - before_ms) / 1000
        before_ms = first.recorded_ms
        said = sentence("step_text", step, this, verbose, whole=verbose)
        rows.append(StoryLine(place, time, said, after, step.event.type))
    left_out = len(rows) - MOST_STEPS
    if left_out > 0 and not verbose:
        more = f"… {counted(left_out, 'more step')}: --verbose prints them"
        rows[FIRST_STEPS : FIRST_STEPS + left_out] = [StoryLine("", "", more)]
    return rows


def sentence(macro: str, *values: Any, whole: bool = False) -> Visible:
    """What a macro of `steps.txt` says."""
    said = getattr(templates().get_template("steps.txt").module, macro)
    return Visible(unescape(_concise(said(*values), whole=whole)))


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The names of the columns, and the rows as text."""
    names = [each.name for row in rows[:1] for each in fields(row)]
    return [
        tuple(name.removesuffix("_seconds").replace("_", " ") for name in names),
        *(tuple(_cell(name, getattr(row, name)) for name in names) for row in rows),
    ]


def _cell(name: str, value: Any) -> str:
    return age(value) if name.endswith("_seconds") else str(value)


def ago(time: str) -> str:
    """How long ago an ISO time was."""
    since = epoch(time)
    return time if since is None else age(moment().wall_ms / 1000 - since)


def utc(epoch_ms: float) -> str:
    """A time as people read it."""
    return timestamp(epoch_ms).replace("T", " ")


def _shown(value: Any) -> Any:
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup | Visible) else value


def _concise(text: str, *, whole: bool) -> Markup:
    """Unless it is to be whole: without places in the log, and with short names and ids."""
    return _escaped(text if whole else short_names(_PLACE.sub("", text)))


def _escaped(text: str) -> Markup:
    """Text of a template, whose values are escaped already."""
    return Markup(text)  # noqa: S704 - likewise


def _short_owner(owner: str) -> str:
    """The first block of a UUID, which is enough to distinguish owners; any other owner in full."""
    return owner.split("-", 1)[0] if len(owner) == UUID_LENGTH else owner


def _listed(
    found: Sequence[Any],
    line: Callable[[Any, str], str],
    this: str,
    noun: str,
    *,
    whole: bool,
    first: int = 2,
) -> list[str]:
    """A line for each, by a macro; of many, the first and the last, unless all are requested."""
    every = [line(each, this) for each in found]
    return every if whole else few(every, noun, first=first)


def _folded(command: Command, width: int) -> Markup:
    return Markup("\n  ").join(visible(each) for each in command.folded(width - 4))


def _table(text: str) -> Markup:
    rows = [
        [visible_blanks(unescape(cell)) for cell in row.split(" & ")] for row in text.strip("\n").split("\n")
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return Markup("\n").join(aligned)


def _tree(text: str) -> Markup:
    root, *branches = re.split(r"\n(?=[-$] )", text.strip("\n"))
    found = [root]
    for branch in branches:
        first, *others = branch.split("\n")
        mark, rail = "├── ", "│   "
        if first.startswith("$ "):
            mark = rail = "    "
        elif branch is branches[-1]:
            mark, rail = "└── ", "    "
        found += [mark + first[2:], *(rail + line[2:] for line in others)]
    return _escaped("\n".join(found))
