"""`lakewarden web`: a read-only page for operators."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lakewarden.agent.cli.options import BootstrapServers, Config, run
from lakewarden.agent.cli.output import print_line
from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.settings import Settings


def web_command(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where to listen; :PORT: on all addresses.  [env: LAKEWARDEN_WEB_LISTEN; default: 127.0.0.1:8438]",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Serve a page that shows tables, locks, waits and single transactions, until SIGTERM or Ctrl-C.

    The page reads the Kafka topics, so it also works while no agent runs. Nothing can be changed through it. It prints its
    address when it answers. See docs/web.md.
    """
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers, web_listen=listen)
    configure_logging(settings.log_level, stream=sys.stderr)
    try:
        # Imported here: aiohttp and Jinja2 take a third of a second, which the other commands don't need.
        from lakewarden.agent.web.foreground import web_until_signal
    except ModuleNotFoundError as missing:
        raise AgentError(f"{missing.name} is not installed; run pip install 'lakewarden[agent]'") from missing
    run(lambda: web_until_signal(settings, print_line))
