"""`lakewarden dev`: Kafka, the agent and the page for development, with all data in one folder.

Kafka's data, the locks and the ports are in `<data>/.lakewarden`, so that the next start has the same topics, offsets, locks and
addresses. When Kafka and the agent are ready, what a person needs is printed on stdout, or one line of JSON; logs and progress
go to stderr.
"""

import errno
import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from lakewarden.agent.cli import options
from lakewarden.agent.embedded.kafka import (
    EmbeddedKafka,
    JarsUnavailable,
    JdkMissing,
    KafkaStartError,
    free_port,
)
from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.serving.foreground import serve_until_signal
from lakewarden.agent.settings import Settings

HIDDEN = ".lakewarden"
PORTS = "ports.json"


def dev_command(
    *,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="DIR",
            file_okay=False,
            help="Folder for tables, Kafka's data and locks; created if missing.",
        ),
    ],
    kafka_port: Annotated[
        int,
        typer.Option(
            "--kafka-port",
            min=0,
            max=65535,
            metavar="P",
            help="Port of the embedded Kafka; default: that of the last start, or any free port.",
        ),
    ] = 0,
    web_port: Annotated[
        int,
        typer.Option(
            "--web-port", min=0, max=65535, metavar="P", help="Port of the page; default: as for Kafka."
        ),
    ] = 0,
    tables: options.Tables = None,
    lock_root: Annotated[
        str | None,
        typer.Option(
            "--lock-root",
            metavar="URI",
            help="Folder for lock objects; default: DIR/.lakewarden.  [env: LAKEWARDEN_LOCK_ROOT]",
        ),
    ] = None,
    s3_endpoint: options.S3Endpoint = None,
    output: options.OutputFormat = "text",
) -> None:
    """Run Kafka, the agent and the page on this machine, for development, until SIGTERM or Ctrl-C.

    The command needs a JDK 17 or newer, but no Docker. It downloads Kafka the first time. The agent serves the tables below
    DIR. When Kafka and the agent are ready, the command prints the addresses on stdout, with --output json as one line.
    Warnings go to stderr; with `lakewarden --verbose dev`, --output json or LAKEWARDEN_LOG_LEVEL, what the agent does, too.
    """
    # The real settings need Kafka's address; these report what is wrong before anything is started, and configure the logs.
    checked = Settings.load(tables=tuple(tables or ()), lock_root=lock_root, s3_endpoint=s3_endpoint)
    verbose = "LAKEWARDEN_VERBOSE" in os.environ or "log_level" in checked.model_fields_set
    configure_logging(checked.log_level if verbose or output == "json" else "warning", stream=sys.stderr)
    data = data.resolve()
    hidden = data / HIDDEN
    _create_folder(hidden)
    ports = _last_ports(hidden / PORTS)
    kafka = EmbeddedKafka(
        hidden / "kafka",
        port=kafka_port or _if_free(ports.get("kafka")),
        on_progress=lambda text: options.print_line(text, err=True),
    )
    try:
        with kafka:
            settings = Settings.load(
                bootstrap_servers=kafka.bootstrap_servers,
                tables=(f"file://{data}/*", *checked.tables),
                lock_root=checked.lock_root or hidden.as_uri(),
                s3_endpoint=s3_endpoint,
                replication=1,
            )
            if "http_listen" not in settings.model_fields_set:
                # Another agent of this machine may have the default port. The number is printed before the agent listens there.
                host, port = settings.http_address or (None, 0)
                port = _if_free(port) or free_port()
                settings = settings.model_copy(update={"http_listen": f"{host}:{port}"})
            web_port = web_port or _if_free(ports.get("page"))
            options.run(lambda: _serve(settings, web_port, data, checked.tables, output))
    except (JdkMissing, KafkaStartError, JarsUnavailable) as error:
        raise AgentError(str(error)) from error


async def _serve(
    settings: Settings, web_port: int, data: Path, others: tuple[str, ...], output: options.Output
) -> None:
    # Imported here: aiohttp and Jinja2 take a third of a second, which the other commands don't need.
    from lakewarden.agent.web.server import running_page

    kafka = settings.bootstrap_servers
    page = settings.model_copy(update={"web_listen": f"127.0.0.1:{web_port}"})
    async with running_page(page) as address:
        _keep_ports(data / HIDDEN / PORTS, kafka=kafka, page=address)

        def on_ready() -> None:
            if output == "json":
                known = {"bootstrap_servers": kafka, "lock_root": settings.lock_root, "web": address}
                options.print_json({"ready": True, **known})
            else:
                options.print_lines(_introduction(data, settings, address, others))

        await serve_until_signal(settings, on_ready, log_to=sys.stderr)


def _introduction(data: Path, settings: Settings, page: str, others: tuple[str, ...]) -> list[str]:
    bootstrap_servers, lock_root = settings.bootstrap_servers, str(settings.lock_root)
    host, port = settings.http_address or (None, 0)
    return [
        "ready; Ctrl-C stops it, and the next start has the same data and addresses",
        f"  Kafka   {bootstrap_servers}, as in CommitGate({bootstrap_servers!r})",
        f"  page    {page}",
        f"  health  http://{host or '127.0.0.1'}:{port}/readyz" if port else "  health  off",
        f"  tables  {', '.join((f'below {data}', *others))}; others by --tables 'file:///other/folder/*'",
        "  for the commands, in another shell:",
        f"    export LAKEWARDEN_BOOTSTRAP_SERVERS={bootstrap_servers} LAKEWARDEN_LOCK_ROOT={shlex.quote(lock_root)}",
        f"    {shlex.quote(sys.argv[0])} status",
    ]


def _last_ports(file: Path) -> dict[str, int]:
    """The ports of the last start. Empty if it isn't known."""
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {name: port for name, port in known.items() if isinstance(port, int) and 0 < port < 65536}


def _keep_ports(file: Path, **addresses: str) -> None:
    file.write_text(
        json.dumps({name: int(each.rstrip("/").rpartition(":")[2]) for name, each in addresses.items()})
    )


def _if_free(port: int | None) -> int:
    """The port, or 0 (any free one) if it is unknown or in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError:
            return 0
    return port or 0


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise AgentError(
            f"the folder {folder} can't be created or written: {error.strerror}; choose another --data"
        ) from error
