"""The commands `lakewarden status`, `losses`, `assess`, `refused`, `agents`, `doctor` and `web`: their options and output."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lakewarden.agent.cli import options
from lakewarden.agent.cli.output import (
    print_json,
    print_line,
    print_message,
    print_table,
    print_tree,
    progress_on_terminal,
)
from lakewarden.agent.errors import AgentError
from lakewarden.agent.logs import configure_logging
from lakewarden.agent.operators.agents import agent_lines, agents
from lakewarden.agent.operators.assess import assessment_fields, assessment_lines, picture
from lakewarden.agent.operators.doctor import diagnose
from lakewarden.agent.operators.losses import loss_lines, losses
from lakewarden.agent.operators.questions import Question, ask, cells
from lakewarden.agent.operators.refused import refused, refused_lines
from lakewarden.agent.operators.status import status
from lakewarden.agent.operators.status_text import status_summary, status_tree
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.time_text import counted
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import TableHistory, assess
from lakewarden.handlers.setup import Finding, has_problem

EXIT_UNREAD = 3
MOST_TABLES = 20
"""Tables that `status` prints, the worst, unless all are requested."""


def status_command(
    table: options.OnlyTable = None,
    *,
    verbose: options.Verbose = False,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Print the condition of each table, the worst first: what is wrong, for how long, who causes it, and what to do.

    Below it the table's lock, and its open transactions. The command reads the Kafka topics, so it also works while no agent
    runs.
    """
    settings = options.settings_of(Settings, config, bootstrap_servers=bootstrap_servers)
    views = options.run(lambda: status(settings, table))
    if output == "json":
        print_json([asdict(view) for view in views])
        return
    print_line(status_summary(views))
    shown = views if verbose else views[:MOST_TABLES]
    for view in shown:
        print_tree(*status_tree(view, settings, verbose=verbose or table is not None))
    if left_out := len(views) - len(shown):
        print_line(f"… {counted(left_out, 'more table')}: --verbose prints them")


def losses_command(
    hours: Annotated[
        int, typer.Option("--hours", metavar="N", min=1, max=720, help="How far to look back.")
    ] = 6,
    table: options.OnlyTable = None,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Print what conflicts have cost in the last hours: by table, partition and pair of writers, the largest first.

    A batch that is lost to a writer without the gate counts, too. The hours are full ones, and the current one.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    report = options.run(lambda: losses(settings, hours, table))
    options.print_as(output, report, loss_lines(report))


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
    histories: list[TableHistory] = []
    for table in tables:
        try:
            with progress_on_terminal() as progress:
                histories.append(options.run(partial(past, table, settings, days=days, progress=progress)))
        except AgentError as error:
            print_message(str(error))
        except Exception as error:
            if len(tables) == 1:
                raise
            print_message(
                f"{table} can't be assessed: internal error: {error!r}; assess it alone, and report it"
            )
    found = [assess(each) for each in histories]
    lines = (
        line
        for number, each in enumerate(found)
        for line in ([""] * bool(number) + [*assessment_lines(each)])
    )
    if found or output == "json":
        options.print_as(output, [assessment_fields(each) for each in found], lines)
    if svg is not None and found:
        svg.write_text(picture(histories), encoding="utf-8")
    if len(found) < len(tables):
        raise typer.Exit(options.EXIT_FAILED)
    raise typer.Exit(EXIT_UNREAD if any(each.unread for each in found) else 0)


def refused_command(
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Print the events that agents refused, each with the reason: the last 500, the latest first.

    The command reads the topic dead-letters.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    found = options.run(lambda: refused(settings))
    options.print_as(output, [asdict(each) for each in found], refused_lines(found))


def question_command(question: Question) -> Callable[..., None]:
    """The command that answers a question."""

    def ask_it(
        table: options.OnlyTable = None,
        output: options.OutputFormat = "text",
        bootstrap_servers: options.BootstrapServers = None,
        config: options.Config = None,
    ) -> None:
        settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
        rows = options.run(lambda: ask(settings, question, table))
        if output == "json":
            print_json([asdict(each) for each in rows])
        elif rows:
            print_table(cells(rows))
        else:
            print_line(question.none)

    ask_it.__doc__ = question.text
    return ask_it


def agents_command(
    *,
    verbose: options.Verbose = False,
    output: options.OutputFormat = "text",
    bootstrap_servers: options.BootstrapServers = None,
    config: options.Config = None,
) -> None:
    """Print the agents of the consumer group with the number of their Kafka partitions, and the partitions without one.

    With --verbose, also each partition: its agent, since when, and what is unread.

    The command reads Kafka, so it also works while no agent runs.
    """
    settings = options.settings_of(KafkaSettings, config, bootstrap_servers=bootstrap_servers)
    found = options.run(lambda: agents(settings))
    options.print_as(output, asdict(found), agent_lines(found, verbose=verbose))


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
    try:
        # Imported here: aiohttp and Jinja2 take a third of a second, which the other commands don't need.
        from lakewarden.agent.web.server import web_until_signal
    except ModuleNotFoundError as missing:
        raise AgentError(f"{missing.name} is not installed; run pip install 'lakewarden[agent]'") from missing
    options.run(lambda: web_until_signal(settings, print_line))


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
    flags = {"bootstrap_servers": bootstrap_servers, "lock_root": lock_root, "s3_endpoint": s3_endpoint}
    settings = options.settings_of(Settings, config, logs="error", **flags)
    findings = options.run(lambda: diagnose(settings, tables or []))
    options.print_as(output, [asdict(each) for each in findings], map(line_of, findings))
    raise typer.Exit(options.EXIT_FAILED if has_problem(findings) else 0)


def line_of(finding: Finding) -> str:
    """The finding as one line."""
    advice = "" if finding.next is None else f"; {finding.next}"
    text = f"{finding.result:<9}  {finding.check:<11}  {finding.about}: {finding.found}{advice}"
    return " ".join(text.splitlines())
