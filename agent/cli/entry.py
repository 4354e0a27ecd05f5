"""The entry point `lakewarden`. A writer's installation has no agent in it, and says so instead of failing to import."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, if what it needs is installed."""
    try:
        from lakewarden.agent.cli import app as cli
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("lakewarden"):
            raise
        sys.stderr.write(
            f"lakewarden: this installation has no command line ({missing.name} is missing): pip install 'lakewarden[agent]'\n"
        )
        sys.exit(1)
    cli.main()
