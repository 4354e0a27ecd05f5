"""The command `lakewarden`, except for its group `lock`.

Exit codes: 0 success, 1 failure, 2 usage error. An error is one line on stderr that says what happened and what to do; with
`--verbose`, an internal error prints its traceback. Every setting has an environment variable (`LAKEWARDEN_…`). Flags
override the environment.
"""

import io
import os
import signal
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import structlog
import typer
from aiokafka.errors import KafkaError

from lakewarden.agent.cli import options, overview
from lakewarden.agent.cli.dev import dev_command
from lakewarden.agent.cli.lock import lock_app
from lakewarden.agent.cli.requests import abort_command, ledger_app
from lakewarden.agent.errors import AgentError, SettingsError
from lakewarden.agent.kafka import denied_to_command
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.status import conflicts
from lakewarden.agent.serving.foreground import serve_until_signal
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.watching.foreground import limit_memory, watch_until_signal
from lakewarden.events import ConflictDetected

EXIT_USAGE = 2

app = typer.Typer(
    name="lakewarden",
    help="Coordinate many streaming writers on one lake table: the agent stops conflicting transactions early, and grants "
    "commits while it holds a lock in the table's storage.",
    epilog="Exit codes: 0 success, 1 failure, 2 usage error.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command, _help in (
    (dev_command, "Run Kafka and the agent on this machine, for development."),
    (abort_command, "End an open transaction, for example one that hangs."),
    (overview.doctor_command, "Check Kafka, rights, topics, clocks, stores and tables from here."),
    (overview.assess_command, "Print what writers cost each other today, from a table's own history."),
    (overview.web_command, "Serve a read-only page: tables, locks, waits, transactions."),
):
    app.command(name=_command.__name__.removesuffix("_command"), short_help=_help)(_command)
for _reading in overview.READINGS:
    app.command(name=_reading.name, short_help=_reading.short)(overview.reading_command(_reading))
app.add_typer(
    ledger_app, name="ledger", short_help="Print or correct the last committed batch of each writer."
)
app.add_typer(lock_app, name="lock", short_help="Inspect, hold, release or audit a table's lock.")


def _print_version(flag: bool) -> None:  # noqa: FBT001 - typer calls it with the flag's value
    if flag:
        options.print_line(f"lakewarden {version('lakewarden')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print the traceback of an internal error, and more messages.")
    ] = False,
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    if verbose:
        os.environ["LAKEWARDEN_VERBOSE"] = "1"
    options.show_help_without_command(context)


@app.command(short_help="Run the agent.")
def agent(
    bootstrap_servers: options.BootstrapServers = None,
    tables: options.Tables = None,
    lock_root: options.LockRoot = None,
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C.

    All other settings are environment variables or keys of the TOML file; see docs/configuration.md. Agents with the same
    topic_prefix share the tables.
    """
    settings = Settings.load(
        config,
        bootstrap_servers=bootstrap_servers,
        tables=tuple(tables or ()),
        lock_root=lock_root,
        s3_endpoint=s3_endpoint,
    )
    configure_logging(settings.log_level)
    options.run(lambda: serve_until_signal(settings, lambda: _log_ready(settings)))


@app.command(short_help="Report writers that don't use the gate.")
def watch(
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="TABLE_GLOB",
            help="URI of a table, or a glob with a wildcard in the last segment, or catalog:namespace.table; repeatable.  "
            "[env: LAKEWARDEN_WATCH]",
        ),
    ] = None,
    bootstrap_servers: options.BootstrapServers = None,
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Watch Hudi, Delta Lake, Paimon and Iceberg tables, and report their writers to the agents, until SIGTERM or Ctrl-C.

    Writers of the gate that touch the same file groups are stopped at once. The watcher reads the tables and writes nothing
    but events. Several watchers of one table do no harm. Agents with the setting watch need no such process. See docs/watch.md.
    """
    settings = Settings.load(
        config, bootstrap_servers=bootstrap_servers, watch=tuple(tables or ()), s3_endpoint=s3_endpoint
    )
    configure_logging(settings.log_level)
    limit_memory()
    ready = structlog.get_logger()
    options.run(
        lambda: watch_until_signal(settings, lambda: ready.info("watch.ready", tables=list(settings.watch)))
    )


@app.command(name="conflicts", short_help="Print the conflicts between transactions.")
def conflicts_command(
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep running, and print new conflicts.")
    ] = False,
    verbose: options.Verbose = False,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Print each conflict: the losing writer, the winning writer, the file groups that both touched, and the times."""
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)

    async def show() -> None:
        found: list[ConflictDetected] = []
        async for event in conflicts(settings, follow=follow):
            if output == "json":
                options.print_json(event)
            elif follow:
                options.print_view("conflicts", [event], verbose=verbose)
            else:
                found.append(event)
        if output == "text" and not follow:
            options.print_view("conflicts", found, verbose=verbose)

    options.run(show)


def main() -> None:
    """Run the command line: print errors as one line, and exit with the code."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a locale without Unicode
                stream.reconfigure(errors="backslashreplace")
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
        _exit_with_error(str(error), options.EXIT_FAILED)
    except KafkaError as error:
        if (denied := denied_to_command(error)) is not None:
            _exit_with_error(denied, options.EXIT_FAILED)
        _exit_with_internal_error(error)
    except BrokenPipeError:
        # The reader of our output has exited, so no message can reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(options.EXIT_FAILED)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _exit_with_error(f"{where}{error.strerror or error}", options.EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 - reported
        _exit_with_internal_error(error)
    else:
        sys.exit(result if isinstance(result, int) else 0)


def _exit_with_internal_error(error: Exception) -> NoReturn:
    if os.environ.get("LAKEWARDEN_VERBOSE"):
        raise error
    _exit_with_error(
        f"internal error: {error!r}; run the command with --verbose for the traceback, and report it",
        options.EXIT_FAILED,
    )


def _exit_with_error(message: str, status_code: int) -> NoReturn:
    options.print_message(message)
    sys.exit(status_code)


def _usage_error_text(error: typer.TyperException) -> str:
    """The usage error, followed by the command that prints help."""
    context: typer.Context | None = getattr(error, "ctx", None)
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    link = " See" if message.endswith("?") else "; see"
    return message if context is None else f"{message}{link} {context.command_path} --help"


def _log_ready(settings: Settings) -> None:
    structlog.get_logger().info(
        "agent.ready", agent=settings.agent_id, tables=settings.tables, lock_root=settings.lock_root
    )


if __name__ == "__main__":
    main()
