"""How the commands print tables and trees."""

from __future__ import annotations

import sys

from rich.console import Console, RenderableType

_PIPE_COLUMNS = 2_000


def print_rows(rows: RenderableType) -> None:
    """Print to stdout. Lines that go to a file or a pipe are not cut."""
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_COLUMNS).print(rows)
