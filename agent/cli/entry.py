"""The entry point of `lakewarden`. A writer's installation lacks the agent's dependencies, and gets an error that says so."""

import os
import signal
import sys


def main() -> None:
    """Run the command line, or exit with an error if its dependencies are not installed."""
    replaces = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if replaces:
        # An exception in an import may become another one: pydantic makes an error in a model of it.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        from lakewarden.agent.cli import app as cli
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("lakewarden"):
            raise
        sys.stderr.write(
            f"lakewarden: the command line is not installed ({missing.name} is missing); run pip install 'lakewarden[agent]'\n"
        )
        sys.exit(1)
    from lakewarden.agent.logs import leave

    if replaces:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    except SystemExit as done:
        leave(done.code if isinstance(done.code, int) else int(done.code is not None))
    except KeyboardInterrupt:
        leave(130)
