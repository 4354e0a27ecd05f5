"""`lakewarden`, the command line.

Exit status: 0 done, 1 it failed, 2 it was asked for wrongly. An error is one line on stderr that says what to do; the traceback
of a bug comes with `--verbose`. Every setting has an environment variable (`LAKEWARDEN_…`); flags win.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from lakewarden.agent.cli.dev import run_dev
from lakewarden.agent.cli.explain_text import candidate_lines, explanation_lines
from lakewarden.agent.cli.lock import lock_app
from lakewarden.agent.cli.options import (
    BootstrapServers,
    Config,
    LockRoot,
    Output,
    OutputFormat,
    S3Endpoint,
    run,
    show_help_without_command,
)
from lakewarden.agent.demo.command import demo_command
from lakewarden.agent.errors import AgentError, SettingsError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.explain import AmbiguousError, explain
from lakewarden.agent.operators.explain_json import explanation_json
from lakewarden.agent.operators.status import TableView, conflicts, status
from lakewarden.agent.serving.foreground import serve_until_signal
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.events import ConflictDetected, canonical_table

EXIT_FAILED = 1
EXIT_USAGE = 2
WIDE = 2_000
"""Columns of a line that no terminal shows."""

app = typer.Typer(
    name="lakewarden",
    help="Many streaming writers on one lake table: conflicts stopped early, commits granted under a storage lock.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(name="demo", short_help="Watch two Spark queries collide on one table.")(demo_command)
app.add_typer(lock_app, name="lock", short_help="Look at a table's lock; hold, release, audit it.")


Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="TABLE_GLOB",
        help="Tables that events may name: URIs or globs; repeatable. Nothing else is touched.  [env: LAKEWARDEN_ALLOW]",
    ),
]


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it with the flag's value
    if asked:
        typer.echo(f"lakewarden {version('lakewarden')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the traceback of an error.")] = False,
    _: Annotated[
        bool,
        typer.Option("--version", help="Say which version this is.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    if verbose:
        os.environ["LAKEWARDEN_VERBOSE"] = "1"
    show_help_without_command(context)


@app.command()
def agent(
    bootstrap_servers: BootstrapServers = None,
    allow: Allow = None,
    lock_root: LockRoot = None,
    s3_endpoint: S3Endpoint = None,
    config: Config = None,
) -> None:
    """Run the agent, until SIGTERM or Ctrl-C.

    Everything else is set by environment variables or the TOML file: see the configuration reference.
    """
    settings = Settings.load(
        config,
        bootstrap_servers=bootstrap_servers,
        allow=tuple(allow or ()),
        lock_root=lock_root,
        s3_endpoint=s3_endpoint,
    )
    configure_logging(settings.log_format, settings.log_level)
    run(lambda: serve_until_signal(settings, lambda: _log_ready(settings)))


@app.command(short_help="Run a real Kafka and the agent, for development.")
def dev(
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DIR", file_okay=False, help="Folder for everything; made if missing."
        ),
    ],
    kafka_port: Annotated[
        int,
        typer.Option(
            "--kafka-port", min=0, max=65535, metavar="P", help="Port of the embedded Kafka; 0: a free one."
        ),
    ] = 0,
    allow: Allow = None,
    lock_root: Annotated[
        str | None,
        typer.Option(
            "--lock-root",
            metavar="URI",
            help="Where lock objects are kept; default: DIR/.lakewarden.  [env: LAKEWARDEN_LOCK_ROOT]",
        ),
    ] = None,
    s3_endpoint: S3Endpoint = None,
) -> None:
    """Run a real Kafka and the agent in one command, for development; needs a JDK 17 or newer, no Docker.

    Tables under DIR are allowed. When everything serves, one JSON line is printed on stdout; logs go to stderr.
    """
    wanted = Settings.load(allow=("file:///dev/*",))
    configure_logging(wanted.log_format, wanted.log_level, stream=sys.stderr)
    run(
        lambda: run_dev(
            data.resolve(),
            kafka_port=kafka_port,
            allow=tuple(allow or ()),
            lock_root=lock_root,
            s3_endpoint=s3_endpoint,
        )
    )


@app.command(name="conflicts", short_help="Print who lost to whom, and on what.")
def conflicts_command(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with the conflicts to come.")] = False,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Print the conflicts: who lost to whom, on what, after how long."""
    settings = KafkaSettings.load(config, bootstrap_servers=bootstrap_servers)
    configure_logging("auto", "warning", stream=sys.stderr)

    async def show() -> None:
        found = 0
        async for event in conflicts(settings, follow=follow):
            found += 1
            typer.echo(event.model_dump_json() if output is Output.JSON else _conflict_line(event))
        if not found and output is Output.TEXT:
            typer.echo("no conflicts")

    run(show)


@app.command(name="status", short_help="Print each table's lock and open transactions.")
def status_command(
    table: Annotated[str | None, typer.Option("--table", metavar="T", help="Only this table.")] = None,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Print who holds each table's lock and until when, and which transactions are open, since when, waiting on what."""
    settings = KafkaSettings.load(config, bootstrap_servers=bootstrap_servers)
    configure_logging("auto", "warning", stream=sys.stderr)
    try:
        wanted = None if table is None else canonical_table(table)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--table") from None

    async def show() -> None:
        views = await status(settings, wanted)
        if output is Output.JSON:
            typer.echo(json.dumps([asdict(view) for view in views]))
        elif views:
            for view in views:
                _print_table(view)
        else:
            typer.echo("no table has an open transaction or a lock")

    run(show)


@app.command(name="explain", short_help="Print what happened to a transaction, and why.")
def explain_command(
    transaction: Annotated[
        str, typer.Argument(metavar="TRANSACTION", help="Its id, or the beginning of it that no other has.")
    ],
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="T", help="Its table, where transactions of several begin so."),
    ] = None,
    output: OutputFormat = Output.TEXT,
    bootstrap_servers: BootstrapServers = None,
    config: Config = None,
) -> None:
    """Print what happened to a transaction and why, event by event, from the log alone.

    Exit status: 0 told; 1 there is no such transaction, or several begin so (then they are listed).
    """
    configure_logging("auto", "warning", stream=sys.stderr)
    if not transaction:
        raise typer.BadParameter("it is empty; see lakewarden status, conflicts", param_hint="TRANSACTION")
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    try:
        wanted = None if table is None else canonical_table(table)
        explanation = run(lambda: explain(settings, transaction, wanted))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except AmbiguousError as ambiguous:
        if output is Output.TEXT:
            for line in candidate_lines(ambiguous.candidates):
                typer.echo(line)
        raise
    if output is Output.JSON:
        typer.echo(explanation_json(explanation))
    else:
        for line in explanation_lines(explanation):
            typer.echo(line)


def main() -> None:
    """The entry point: turns errors into one line and an exit status."""
    try:
        result = app(standalone_mode=False, prog_name="lakewarden")
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except typer.Abort:
        sys.exit(128 + signal.SIGINT)
    except typer.TyperException as error:
        _exit_with_error(_usage_error_text(error), EXIT_USAGE)
    except SettingsError as error:
        _exit_with_error(str(error), EXIT_USAGE)
    except AgentError as error:
        _exit_with_error(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # Whoever read our output has gone: nothing to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if os.environ.get("LAKEWARDEN_VERBOSE"):
            raise
        _exit_with_error(
            f"unexpected: {error!r}; run it again with --verbose for the traceback, and report it",
            EXIT_FAILED,
        )
    else:
        sys.exit(result if isinstance(result, int) else 0)


def _exit_with_error(message: str, status_code: int) -> None:
    line = " ".join(message.split())
    typer.echo(f"lakewarden: {line}", err=True)
    sys.exit(status_code)


def _usage_error_text(error: typer.TyperException) -> str:
    """What was wrong, and which help to read."""
    context: typer.Context | None = getattr(error, "ctx", None)
    told = error.format_message().replace("Value error, ", "").rstrip(".")
    link = " See" if told.endswith("?") else "; see"
    return told if context is None else f"{told}{link} {context.command_path} --help"


def _log_ready(settings: Settings) -> None:
    structlog.get_logger().info(
        "agent.ready", agent=settings.agent_id, allow=settings.allow, lock_root=settings.lock_root
    )


def _conflict_line(event: ConflictDetected) -> str:
    where = ", ".join(
        f"{each.partition or '(unpartitioned)'} {each.file_group}" for each in event.conflicts[:3]
    )
    more = f" and {len(event.conflicts) - 3} more" if len(event.conflicts) > 3 else ""
    how = "had committed" if event.kind == "commit" else "was first"
    return (
        f"{event.at:%Y-%m-%d %H:%M:%S}  {event.table}  {event.victim_writer} lost to {event.winner_writer}, which {how}: "
        f"{where}{more}; stopped {event.victim_age_seconds:.1f} s after it began, "
        f"found {event.detected_after_ms:.1f} ms after the marker"
    )


def _print_table(view: TableView) -> None:
    lock = view.lock
    if lock is None:
        held = "lock: never taken in the last quarter of an hour"
    elif lock.held:
        held = f"lock: held by agent {lock.agent} until {lock.valid_until}"
    elif lock.last_step in ("lock-acquired", "lock-renewed"):
        held = f"lock: lapsed; held by agent {lock.agent} until {lock.valid_until}"
    else:
        held = f"lock: {lock.last_step.removeprefix('lock-')}" + (f" ({lock.detail})" if lock.detail else "")
    tree = Tree(view.table)
    tree.add(held)
    if view.stopped is not None:
        tree.add(f"STOPPED by the agent: {view.stopped}")
    if view.transactions:
        rows = Table(
            "writer",
            "batch",
            "phase",
            "since",
            "waits on",
            "partitions",
            "file groups",
            "transaction",
            box=None,
        )
        for each in view.transactions:
            rows.add_row(
                each.writer,
                "" if each.batch_id is None else str(each.batch_id),
                each.phase,
                each.since,
                each.waiting_on or "",
                str(each.partitions),
                str(each.file_groups),
                each.transaction,
            )
        tree.add(rows)
    else:
        tree.add("no open transaction")
    # Into a file or a pipe nothing is cut off.
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDE).print(tree)


if __name__ == "__main__":
    main()
