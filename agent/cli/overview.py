"""The commands that print what they read. A loop makes those that read Kafka; beside them are `assess`, `doctor` and `web`."""

import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from lakewarden.agent.cli import options
from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.agents import agents
from lakewarden.agent.operators.assess import picture
from lakewarden.agent.operators.doctor import diagnose
from lakewarden.agent.operators.explain import AmbiguousError, explain
from lakewarden.agent.operators.past import losses, refused
from lakewarden.agent.operators.questions import QUESTIONS, ask
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.status import status
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.watching.foreground import limit_memory
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import TableHistory, assess
from lakewarden.handlers.setup import has_problem

EXIT_UNREAD = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """A command that reads Kafka, and prints a view as text or as JSON."""

    name: str
    short: str
    """Its help in one line."""
    text: str
    read: Callable[..., Coroutine[Any, Any, Any]]
    """Reads the view, with the settings and its own options."""
    own: tuple[Parameter, ...] = ()
    """Its own options, beside those that all have."""
    settings: type[KafkaSettings] = KafkaSettings
    template: str = ""
    """The name of its template. Empty: that of the command."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the template gets beside the view and the options."""


def reading_command(reading: Reading) -> Callable[..., None]:
    """The function of the command, with the signature that typer reads."""

    def run(
        *,
        output: options.OutputFormat = "text",
        bootstrap_servers: options.BootstrapServers = None,
        config: options.Config = None,
        **own: Any,
    ) -> None:
        settings = options.settings_of(reading.settings, config, bootstrap_servers=bootstrap_servers)
        asked = {name: value for name, value in own.items() if name != VERBOSE.name}
        try:
            found = options.run(lambda: reading.read(settings, **asked))
        except AmbiguousError as several:
            if output == "text":
                options.print_view("candidates", several.candidates)
            raise
        facts = {"command": partial(command, settings), **own, **reading.facts}
        options.show(output, reading.template or reading.name, found, **facts)

    run.__doc__ = reading.text
    *common, _ = signature(run).parameters.values()
    run.__signature__ = Signature([*reading.own, *common])  # type: ignore[attr-defined]
    return run


def _own(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


VERBOSE = _own("verbose", options.Verbose, default=False)
TABLE = _own("table", options.OnlyTable, default=None)
HOURS = Annotated[int, typer.Option("--hours", metavar="N", min=1, max=720, help="How far to look back.")]

READINGS = (
    Reading(
        "status",
        "Print what is wrong, and each table's lock and open transactions.",
        """Print the condition of each table, the worst first: what is wrong, for how long, who causes it, and what to do.

        Below it the table's lock, and its open transactions. The command reads the Kafka topics, so it also works while no agent
        runs.
        """,
        status,
        (TABLE, VERBOSE),
        Settings,
    ),
    Reading(
        "losses",
        "Print what conflicts have cost, by table, partition and writers.",
        """Print what conflicts have cost in the last hours: by table, partition and pair of writers, the largest first.

        A batch that is lost to a writer without the gate counts, too. The hours are full ones, and the current one.
        """,
        losses,
        (_own("hours", HOURS, 6), TABLE),
    ),
    Reading(
        "refused",
        "Print the events that agents refused, with the reason.",
        """Print the events that agents refused, each with the reason: the last 500, the latest first.

        The command reads the topic dead-letters.
        """,
        refused,
    ),
    Reading(
        "agents",
        "Print the agents and their Kafka partitions.",
        """Print the agents of the consumer group with the number of their Kafka partitions, and the partitions without one.

        With --verbose, also each partition: its agent, since when, and what is unread.

        The command reads Kafka, so it also works while no agent runs.
        """,
        agents,
        (VERBOSE,),
    ),
    Reading(
        "explain",
        "Print the history of one transaction, with reasons.",
        """Print the history of one transaction, event by event, with the reason of each decision.

        The command reads the Kafka topics, so it also works while no agent runs. If several ids begin with TRANSACTION, it
        prints them.

        Exit codes: 0 success; 1 no transaction or several transactions found, or another failure; 2 usage error.
        """,
        explain,
        (_own("transaction", options.TransactionId), TABLE, VERBOSE),
        Settings,
    ),
    *(
        Reading(
            each.name,
            each.short,
            each.text,
            partial(ask, each),
            (TABLE,),
            template="rows",
            facts={"question": each},
        )
        for each in QUESTIONS
    ),
)


def assess_command(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="URI of a table, or catalog:namespace.table.",
            parser=options.watched_table,
        ),
    ],
    *,
    days: Annotated[
        float,
        typer.Option("--days", metavar="N", min=0.01, max=3650, help="History before the newest commit."),
    ] = 7.0,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", dir_okay=False, help="Also write a picture, as SVG."),
    ] = None,
    output: options.OutputFormat = "text",
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Print what a table's writers cost each other today, from the table's own history: overlaps, losses, and what would change.

    The command needs no Kafka and no agent. It reads commits and lists data files, and writes nothing. See docs/assess.md.

    Exit codes: 0 all figures rest on everything that the tables say; 3 some piece of a table was not read, or is out of
    reach, and the output says which; 1 a table can't be assessed; 2 usage error.
    """
    settings = options.settings_of(Settings, config, s3_endpoint=s3_endpoint)
    limit_memory()
    histories: list[TableHistory] = []
    for table in tables:
        try:
            with options.progress_on_terminal() as progress:
                histories.append(options.run(partial(past, table, settings, days=days, progress=progress)))
        except AgentError as error:
            options.print_message(str(error))
        except Exception as error:
            if len(tables) == 1:
                raise
            options.print_message(
                f"{table} can't be assessed: internal error: {error!r}; assess it alone, and report it"
            )
    found = [assess(each) for each in histories]
    if found or output == "json":
        options.show(output, "assess", found)
    if svg is not None and found:
        svg.write_text(picture(histories), encoding="utf-8")
    if len(found) < len(tables):
        raise typer.Exit(options.EXIT_FAILED)
    raise typer.Exit(EXIT_UNREAD if any(each.unread for each in found) else 0)


def web_command(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT[/PATH]",
            help="Where to listen, and below which path of a proxy; :PORT: on all addresses.  [env: LAKEWARDEN_WEB_LISTEN; "
            "default: 127.0.0.1:8438]",
        ),
    ] = None,
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Serve a page that shows tables, locks, waits and single transactions, until SIGTERM or Ctrl-C.

    The page reads the Kafka topics, so it also works while no agent runs. Nothing can be changed through it. It prints its
    address when it answers. See docs/web.md.
    """
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers, web_listen=listen)
    configure_logging(settings.log_level, stream=sys.stderr)
    # Imported here: aiohttp and Jinja2 take a third of a second, which the other commands don't need.
    from lakewarden.agent.web.server import web_until_signal

    options.run(lambda: web_until_signal(settings, options.print_line))


def doctor_command(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Tables to check: whether they are allowed, and where their locks are.",
            parser=options.table_uri,
        ),
    ] = None,
    *,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    lock_root: options.LockRoot = None,
    s3_endpoint: options.S3Endpoint = None,
    config: options.Config = None,
) -> None:
    """Check from here what an agent needs: Kafka, rights, topics, clocks, stores and tables.

    Run it where an agent will run, with the agent's settings and credentials. It writes and deletes one small object in each
    store of locks, as the agent does when it starts, and changes nothing else. One line is printed per finding: ok, warning,
    problem, or unchecked.

    Exit codes: 0 no problem; 1 at least one problem; 2 usage error.
    """
    settings = options.settings_of(
        Settings,
        config,
        logs="error",
        bootstrap_servers=bootstrap_servers,
        lock_root=lock_root,
        s3_endpoint=s3_endpoint,
    )
    findings = options.run(lambda: diagnose(settings, tables or []))
    options.show(output, "findings", findings)
    raise typer.Exit(options.EXIT_FAILED if has_problem(findings) else 0)
