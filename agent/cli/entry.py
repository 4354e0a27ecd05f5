"""The entry point of `lakewarden`. A writer's installation lacks the agent's dependencies, and gets an error that says so."""

import sys


def main() -> None:
    """Run the command line, or exit with an error if its dependencies are not installed. Ctrl-C also ends the imports."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
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

    try:
        cli.main()
    except SystemExit as done:
        leave(done.code if isinstance(done.code, int) else int(done.code is not None))
    except KeyboardInterrupt:
        leave(130)
