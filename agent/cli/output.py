"""How the commands print: every line that a command prints comes through here, so that no name acts on a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from lakewarden.agent.clock import monotonic
from lakewarden.agent.name_text import visible
from lakewarden.agent.operators.as_json import as_json

_SHOWN_A_SECOND = 5


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
    typer.echo(as_json(value))


def print_view(template: str, found: Any, **more: Any) -> None:
    """Print a view as text."""
    # Imported here: of the commands, only those that print text need Jinja2.
    from lakewarden.agent.operators.text import lines

    for line in lines(template, found, **more):
        typer.echo(line)
