"""How the commands print: every line that a command prints comes through here, so that no name acts on a terminal."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import typer

from lakewarden.agent.clock import monotonic
from lakewarden.agent.name_text import visible, visible_cell
from lakewarden.agent.operators.status_text import Command

_SHOWN_A_SECOND = 5

Rows: TypeAlias = Sequence[Sequence[str]]
"""A table: the names of its columns, then its lines."""


def print_line(line: str, *, err: bool = False) -> None:
    """Print one line of text. A line break in it is escaped, as everything else that isn't visible."""
    typer.echo(visible(line), err=err)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    for line in lines:
        print_line(line)


def print_message(message: str) -> None:
    """Print an error or a progress message on stderr, on one line."""
    print_line(f"lakewarden: {' '.join(message.split())}", err=True)


@contextmanager
def progress_on_terminal() -> Iterator[Callable[[str], None]]:
    """A function that shows how far the work is, in one line on stderr, if that is a terminal."""
    shown = monotonic()

    def show(text: str) -> None:
        nonlocal shown
        if sys.stderr.isatty() and monotonic() - shown >= 1 / _SHOWN_A_SECOND:
            shown = monotonic()
            typer.echo(f"\r\x1b[K{visible(text)}", nl=False, err=True)

    try:
        yield show
    finally:
        if sys.stderr.isatty():
            typer.echo("\r\x1b[K", nl=False, err=True)


def print_json(value: Any) -> None:
    """Print JSON on one line. It is ASCII."""
    typer.echo(json.dumps(value))


def print_table(rows: Rows) -> None:
    """Print a table. Its lines are never cut."""
    for line in _table_lines(rows):
        typer.echo(line)


def print_tree(root: str, branches: Sequence[str | Rows]) -> None:
    """Print a line, and below it lines, tables, and commands. A command's lines have nothing else in them, for copying."""
    print_line(root)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for number, branch in enumerate(branches, start=1):
        if isinstance(branch, Command):
            typer.echo("\n".join(f"    {visible(line)}" for line in branch.folded(width - 4)))
            continue
        lines = [visible(branch)] if isinstance(branch, str) else _table_lines(branch)
        first, others = ("└── ", "    ") if number == len(branches) else ("├── ", "│   ")
        typer.echo("\n".join(f"{others if at else first}{line}" for at, line in enumerate(lines)))


def _table_lines(rows: Rows) -> list[str]:
    cells = [[visible_cell(each) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
